"""Packages that fedsz does without, and the extra of its own that brings each.

What is missing is said in one line here, and the same way everywhere.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fedsz.errors import MissingPackage

# The extras of pyproject.toml, and what fedsz imports of each; "" is fedsz without any.
EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "": (
        *("numpy", "ml_dtypes", "msgspec", "safetensors"),
        *("blosc", "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"),
        "click",
    ),
    "baselines": ("hdf5plugin", "pysz", "zfpy"),
    "flower": ("flwr", "cryptography", "google.protobuf", "grpc", "tomli_w"),
    "train": ("torch", "PIL", "pyarrow", "sklearn"),
    "report": ("jinja2", "matplotlib", "pyarrow", "scipy"),
    "scale": ("ray",),
    "privacy": ("dp_accounting",),
    "nvflare": ("nvflare",),
    "dashboard": ("starlette", "uvicorn"),
    "metrics": ("prometheus_client",),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}

# Packages that are here: to look for one takes longer than to code a tensor.
_found: set[str] = set()

_BRINGS: Final = {package: extra for extra, packages in EXTRAS.items() for package in packages}


def missing(*packages: str) -> str | None:
    """Say in a line which of ``packages`` is missing here and what brings it; None if none is.

    The line goes on from a subject: "needs the package 'flwr': pip install 'fedsz[flower]'".
    """
    for package in packages:
        if not _is_here(package):
            return f"needs the package {package!r}{_advice(package)}"
    return None


def require(*packages: str, what: str = "this") -> None:
    """Raise `MissingPackage` if a package that ``what`` needs is not installed here."""
    if why := missing(*packages):
        raise MissingPackage(f"{what} {why}")


@contextmanager
def explained() -> Iterator[None]:
    """Within the block, an import that fails for want of an extra raises `MissingPackage`.

    Other imports raise what they always do.
    """
    try:
        yield
    except ImportError as err:
        if isinstance(err, MissingPackage) or (why := explain(err)) is None:
            raise
        raise MissingPackage(why) from err


def explain(err: ImportError) -> str | None:
    """Say in a line which package an import failed for; None if it is none of `EXTRAS`."""
    if err.name == "fedsz.codecs":  # only its modules in C++ can be missing
        return "fedsz is not built here: run `make run` in the checkout, or `pip install .`"
    package = _package_of(err.name or "")
    return None if package is None or _is_here(package) else f"this {missing(package)}"


def _package_of(module: str) -> str | None:
    """Return which package of `EXTRAS` a module belongs to."""
    return next((name for name in _BRINGS if f"{module}.".startswith(f"{name}.")), None)


def _is_here(package: str) -> bool:
    if package not in _found:
        try:
            if importlib.util.find_spec(package) is None:
                return False
        except ModuleNotFoundError:  # what it is in is not
            return False
        _found.add(package)
    return True


def _advice(package: str) -> str:
    extra = _BRINGS.get(package)
    if extra is None:
        return ""
    return f": pip install 'fedsz[{extra}]'" if extra else ": pip install fedsz"
