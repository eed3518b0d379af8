"""A payload of `uniform` as both decoders read it: the codec, and that of docs/format.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedsz.codecs import _uniform
from fedsz.codecs.uniform import DTYPE_IDS, Uniform
from fedsz.errors import CorruptStream
from tests.uniform_oracle import read


def ours(payload: bytes, n: int, dtype: Any) -> bytes | None:
    """The bytes of the elements as the codec reads them; None if it refuses them."""
    try:
        y = Uniform(threads=1).decode(payload, (n,), dtype)
    except CorruptStream:
        return None
    for level in _uniform.levels():
        again = np.empty(n, dtype)
        _uniform.decode(payload, DTYPE_IDS[again.dtype], again.view(np.uint8), 1, level)
        assert again.tobytes() == y.tobytes()
    return y.tobytes()


def documented(payload: bytes, n: int, dtype: Any) -> bytes | None:
    """The same as the second decoder reads them."""
    try:
        return read(payload, n, dtype).elements.tobytes()
    except ValueError:
        return None
