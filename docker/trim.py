"""Delete what no running server or client reads from a folder of packages: trim.py FOLDER."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

UNREAD = (
    "bin",  # commands, which name the interpreter of the build
    "**/*.pyi",  # for type checkers
    "**/*.pyx",
    "**/*.pxd",
    "**/tests",
    "numpy/f2py",
    "numpy/_core/include",
    "numpy/_core/lib",
    "Crypto/SelfTest",
    "flwr/supercore/cli",
    "torch/include",  # for extensions in C++, as are the three below
    "torch/share",
    "torch/bin",
    "torch/lib/*.a",
    "torch/test",
    "torch/lib/libtorch_global_deps.a",
    "sklearn/datasets/images",
    "sympy/*/tests",
)


def trim(folder: Path) -> int:
    """Delete what is unread; return how many bytes that was."""
    before = size(folder)
    for pattern in UNREAD:
        for path in list(folder.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    return before - size(folder)


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


if __name__ == "__main__":
    print(f"{trim(Path(sys.argv[1])) / 1e6:.0f} MB trimmed")
