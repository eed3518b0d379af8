"""What is imported, and what is not: modules are listed, nothing is timed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

HEAVY = {"torch", "flwr", "grpc", "pandas", "datasets", "sklearn", "pyarrow", "matplotlib", "ray"}
HEAVY |= {"starlette", "uvicorn", "prometheus_client"}

EXPORTED = {
    "fedsz": (
        *("ErrorBound", "FedszError", "Limits"),
        *("codecs", "compress", "decompress", "flower", "inspect"),
    ),
    "fedsz.flower": (
        *("FedSZGrid", "FedSZMod", "GrpcGrid", "LocalGrid", "StreamingFedAvg", "Traffic"),
        *("make_client_app", "make_server_app", "run_client"),
    ),
}


def run(*arguments: object, path: Path | None = None, status: int = 0) -> str:
    """Return what a new interpreter prints, or says of a mistake; ``path`` has packages of ours."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | ({"PYTHONPATH": str(path)} if path else {}),
    )
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout


def modules_after(code: str, *arguments: str) -> set[str]:
    """Return the top-level modules that a new interpreter has imported after ``code``."""
    script = f"import sys\ntry:\n    {code}\nexcept SystemExit as ended:\n    assert not ended.code"
    script += "\nprint(*{name.partition('.')[0] for name in sys.modules})"
    return set(run("-c", script, *arguments).splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--help"], ["sweep", "--help"]], ids=["all", "a command"])
def test_the_package_and_its_help_need_no_numpy(arguments: list[str]) -> None:
    code = "import fedsz; from fedsz.cli import main; main()"

    assert not modules_after(code, *arguments) & (HEAVY | {"numpy"})


def test_compressing_arrays_and_files_of_them_needs_numpy_alone(tmp_path: Path) -> None:
    source = tmp_path / "model.safetensors"
    save_file({"fc.weight": np.ones((50, 50), np.float32)}, source)
    code = "import fedsz, numpy as np; fedsz.compress({'w': np.ones((50, 50), np.float32)})"

    used = modules_after(f"{code}; from fedsz.cli import main; main()", "compress", str(source))

    assert not used & HEAVY
    assert source.with_suffix(".fsz").exists()


@pytest.mark.parametrize("package", EXPORTED)
def test_public_names_stay(package: str) -> None:
    if package == "fedsz.flower":
        pytest.importorskip("torch")
    module = importlib.import_module(package)

    assert set(EXPORTED[package]) <= set(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_the_version_is_the_installed_ones() -> None:
    import fedsz

    assert fedsz.__version__ == version("fedsz")
    assert "__version__" in dir(fedsz)


def test_an_unknown_name_is_an_error() -> None:
    import fedsz

    with pytest.raises(AttributeError, match="'fedsz' has no attribute 'compres'"):
        _ = fedsz.compres
    assert set(EXPORTED["fedsz"]) <= set(dir(fedsz))
