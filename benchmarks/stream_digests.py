"""Compress a file of weights by several schemes, or decode such streams, and print digests.

    python benchmarks/stream_digests.py encode MODEL FOLDER
    python benchmarks/stream_digests.py decode FOLDER

Two machines agree if they print the same lines. MODEL is a .safetensors file; encode writes a
stream of each scheme to FOLDER.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any, Final

import fedsz
from fedsz.safetensors_file import read_safetensors

SCHEMES: Final[dict[str, dict[str, Any]]] = {
    "uniform": {"codec": "uniform", "error_bound": 1e-2},
    "uniform-effort-9": {"codec": "uniform:effort=9", "error_bound": 1e-2},
    "exponents": {"codec": "exponents"},
    "topk": {"chain": "topk:k=1%"},
    "topk-ternary": {"chain": "topk:k=1%>ternary"},
    "topk-uniform": {"chain": "topk:k=10%>uniform@std:1"},
    "rotate-sign": {"chain": "rotate>sign"},
}


def encode(model: Path, folder: Path) -> None:
    """Write a stream of each scheme, and print its size and SHA-256."""
    weights = read_safetensors(model)
    folder.mkdir(parents=True)
    for name, scheme in SCHEMES.items():
        stream = fedsz.compress(weights, **scheme)
        (folder / f"{name}.fsz").write_bytes(stream)
        print(f"{name}: {len(stream)} bytes, {hashlib.sha256(stream).hexdigest()}")


def decode(folder: Path) -> None:
    """Print the SHA-256 of the elements of each stream."""
    for file in sorted(folder.glob("*.fsz")):
        digest = hashlib.sha256()
        for array in fedsz.decompress(file.read_bytes(), as_numpy=True).values():
            digest.update(array.tobytes())
        print(f"{file.stem}: {digest.hexdigest()}")


if __name__ == "__main__":
    {"encode": encode, "decode": decode}[sys.argv[1]](*map(Path, sys.argv[2:]))
