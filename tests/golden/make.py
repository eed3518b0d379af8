"""Write the golden files that are missing: ``python -m tests.golden.make``.

One stream for each codec, named ``v<stream version>-<codec>.fsz``, beside what it decoded to on the
day it was made, as ``.npz`` of bytes. Files that exist are left alone: an old stream must decode to
the same values for ever, so a change of the format adds files and changes none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import fedsz
from fedsz.codecs import CODECS
from fedsz.stream import VERSION

FOLDER = Path(__file__).parent


def state() -> dict[str, np.ndarray]:
    """A little of everything that a stream can hold."""
    rng = np.random.default_rng(20)
    weight = rng.laplace(0, 0.02, (12, 10, 3, 3)).astype(np.float32)
    weight.reshape(-1)[[3, 700]] = np.nan, -np.inf
    return {
        "conv.weight": weight,
        "half.weight": rng.normal(size=(30, 40)).astype(np.float16),
        "brain.weight": rng.normal(size=(30, 40)).astype(ml_dtypes.bfloat16),
        "double.weight": rng.normal(size=(30, 40)),
        "conv.bias": rng.normal(size=12).astype(np.float32),
        "bn.num_batches_tracked": np.array(7),
        "mask": np.array([True, False, True]),
        "empty": np.empty((0, 3), np.float32),
        "complex": rng.normal(size=4).astype(np.complex64),
        "naïve": np.arange(5, dtype=np.int16),
    }


def bytes_of(arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Arrays as bytes, which numpy's files can hold whatever the dtype."""
    return {name: np.frombuffer(x.tobytes(), np.uint8) for name, x in arrays.items()}


def main() -> None:
    for codec in CODECS:
        path = FOLDER / f"v{VERSION}-{codec.name}.fsz"
        if path.exists():
            continue
        lossless = codec if not codec.lossy else "zstd"
        stream = fedsz.compress(state(), 1e-2, codec=codec, lossless=lossless)
        path.write_bytes(stream)
        decoded = fedsz.decompress(stream, as_numpy=True)
        np.savez_compressed(path.with_suffix(".npz"), **bytes_of(decoded))
        print(path)


if __name__ == "__main__":
    main()
