"""Global random generators, seeded for a while."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np


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
