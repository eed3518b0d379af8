"""Write what a fuzzer starts from: ``python compressors/seeds.py FOLDER CODEC ...``.

Real payloads and arrays of each codec, in FOLDER/corpus_CODEC, in the form of common/fuzz.hpp.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedsz import codecs
from fedsz.codecs.base import Array


def arrays() -> Iterator[Array]:
    """Yield small arrays of the kinds that codecs treat differently."""
    rng = np.random.default_rng(0)
    for n in (0, 1, 5, 127, 128, 129, 700):
        x = rng.normal(size=n).astype(np.float32)
        yield x
        yield np.zeros_like(x)
        yield x * np.float32(1e-40)
        yield np.where(rng.random(n) < 0.1, x, 0).astype(np.float32)
        yield np.where(rng.random(n) < 0.02, np.float32(np.nan), x)
        yield np.where(rng.random(n) < 0.02, np.float32(1e30), x)


def seeds(codec: codecs.Codec) -> Iterator[bytes]:
    """Yield inputs for the fuzzer of ``codec``."""
    for x in arrays():
        for bound in (0.0, 1e-41, 1e-5, 1e-2, 1.0):
            yield struct.pack("<BI", 0, x.size) + codec.encode(x, bound)
            yield struct.pack("<Bd", 1, bound) + x.tobytes()


def main(folder: str, *names: str) -> None:
    """Write the seeds of the codecs of these names."""
    for name in names:
        corpus = Path(folder) / f"corpus_{name}"
        corpus.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds(codecs.get(name))):
            (corpus / f"seed-{number:03}").write_bytes(seed)


if __name__ == "__main__":
    main(*sys.argv[1:])
