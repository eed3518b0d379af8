"""Random draws that are the same on all devices, in all releases of NumPy and Python."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np


def generator(seed: int) -> np.random.RandomState:
    """Return the generator that divides data; ``seed`` lies in [0, 2**32).

    NumPy promises never to change what it draws (NEP 19), on 32-bit machines too. It does not
    promise that of the methods of `numpy.random.default_rng`.
    """
    return np.random.RandomState(seed)


def seed_of(*numbers: int) -> int:
    """Return a seed in [0, 2**32) of numbers: their CRC-32, since Python's ``hash`` may change."""
    return zlib.crc32(",".join(map(str, numbers)).encode())


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's, numpy's and torch's global generators, and put their states back at the end.

    Torch's are left alone where nobody has imported it, and those of GPUs are not put back.
    ``seed`` lies in [0, 2**32).
    """
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the global one
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]) if torch else nullcontext():
            if torch:
                torch.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
