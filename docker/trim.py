"""Delete what no running server or client reads: trim.py FOLDER_OF_PACKAGES.

Packages keep bytecode in place of source: tracebacks have line numbers of them and no text. fedsz
keeps both, and so does torch, whose compiler reads source.
"""

from __future__ import annotations

import compileall
import shutil
import sys
from pathlib import Path

UNREAD = (
    # Commands, headers and manuals; blosc's library is in its module too.
    *("bin", "include", "lib64", "share"),
    *("**/*.pyi", "**/*.pyx", "**/*.pxd", "**/*.h", "**/*.a"),
    *("**/tests", "Crypto/SelfTest"),
    # Of numpy: what builds or tests extensions.
    *("numpy/distutils", "numpy/_core/_simd.*", "numpy/_core/_*_tests.*"),
    # Flower's SuperLink, SuperNode, simulation and commands.
    *("flwr/cli", "flwr/simulation", "flwr/superlink", "flwr/supernode"),
    *("Crypto/PublicKey", "Crypto/Signature", "Crypto/IO"),
    # Of all programming languages, tracebacks have Python.
    *("pygments/lexers/[a-oq-z]*.py", "pygments/lexers/p[a-xz]*.py"),
    *("pygments/lexers/__pycache__/[a-oq-z]*", "pygments/lexers/__pycache__/p[a-xz]*"),
    *("torch/include", "torch/share", "torch/bin/[!t]*", "torch/bin/test*", "torch/test"),
    # scikit-learn's tables are read from its files; without SciPy it cannot be imported.
    *("sklearn/[!d]*", "sklearn/d[!a]*", "sklearn/datasets/[!d]*", "sklearn/datasets/d[!a]*"),
    *("sklearn/datasets/data/__*", "scikit_learn.libs"),
)
WITH_SOURCE = ("fedsz", "torch", "torchgen", "functorch")


def trim(folder: Path) -> int:
    """Delete what is unread; return how many bytes that was."""
    before = size(folder)
    for pattern in UNREAD:
        for path in list(folder.glob(pattern)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    return before - size(folder)


def keep_bytecode(folder: Path) -> None:
    """Compile packages, and delete the source of all but `WITH_SOURCE`."""
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    for package in folder.iterdir():
        if package.name in WITH_SOURCE or package.suffix == ".dist-info":
            continue
        sources = [package] if package.suffix == ".py" else list(package.rglob("*.py"))
        for source in sources:
            if compileall.compile_file(source, legacy=True, quiet=1):
                source.unlink()
        for cache in list(package.rglob("__pycache__")):
            shutil.rmtree(cache)


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


if __name__ == "__main__":
    packages = Path(sys.argv[1])
    print(f"{trim(packages) / 1e6:.0f} MB trimmed")
    keep_bytecode(packages)
