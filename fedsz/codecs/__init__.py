"""The codecs, and how to name one.

`CODECS` is the one list: the CLI's choices, the wire ids and the tests are derived from it.

Examples:
    >>> import numpy as np
    >>> from fedsz import codecs
    >>> codec, x = codecs.get("uniform:effort=9"), np.linspace(0, 1, 5000, dtype=np.float32)
    >>> payload = codec.encode(x, 1e-3)
    >>> bool(np.abs(codec.decode(memoryview(payload), x.shape) - x).max() <= 1e-3)
    True
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from fedsz.errors import ConfigError, UnsupportedStream
from fedsz.extras import explained
from fedsz.spec_strings import chosen

with explained():  # the first import of what a compiler makes
    from fedsz.codecs.base import Codec, Encoded
    from fedsz.codecs.baselines import Fp16, Int8
    from fedsz.codecs.exponents import Exponents
    from fedsz.codecs.lossless import Blosclz, Gzip, LosslessCodec, Raw, Xz, Zlib, Zstd
    from fedsz.codecs.sz2 import Sz2
    from fedsz.codecs.sz3 import Sz3
    from fedsz.codecs.szx import Szx
    from fedsz.codecs.uniform import Uniform
    from fedsz.codecs.zfp import Zfp

CODECS: Final[tuple[Codec, ...]] = (
    Raw(), Blosclz(), Zstd(), Zlib(), Gzip(), Xz(), Exponents(),
    Sz2(), Sz3(), Zfp(), Szx(), Uniform(), Fp16(), Int8(),
)  # fmt: skip

_BY_WIRE_ID: Final = {codec.wire_id: codec for codec in CODECS}

__all__ = [
    "CODECS",
    "Codec",
    "Encoded",
    "LosslessCodec",
    "Raw",
    "get",
    "get_lossless",
    "of_wire_id",
    "parse",
]


def get(spec: str, /, **settings: Any) -> Codec:
    """Return the codec that ``spec`` names, with its settings.

    Args:
        spec: a name, or a name with settings as the CLI and config files write them:
            ``"zfp:precision=14"``, ``"blosclz:level=5,shuffle=byte"``.
        settings: the same as keywords; they win.

    Raises:
        ConfigError: no such codec or setting, or a value it cannot have.
        CodecUnavailable: the codec's library is not installed here.
    """
    codec = parse(spec, **settings)
    codec.require()
    return codec


def parse(spec: str, /, **settings: Any) -> Codec:
    """Do as `get`, but return a codec whose library is not installed here, too."""
    return chosen("codec", spec, CODECS, settings) if settings else _spelled(spec)


# Each round of a run asks for the same ones, by their texts.
@lru_cache
def _spelled(spec: str) -> Codec:
    return chosen("codec", spec, CODECS)


def of_wire_id(wire_id: int, /) -> Codec:
    """Return the codec of a payload, with its default settings, or raise `UnsupportedStream`."""
    codec = _BY_WIRE_ID.get(wire_id)
    if codec is None:
        raise UnsupportedStream(f"unknown codec {wire_id}")
    return codec


def get_lossless(spec: str | Codec, /) -> LosslessCodec:
    """Return the lossless codec that ``spec`` names.

    Raises:
        ConfigError: it is no codec, or a lossy one.
        CodecUnavailable: its library is not installed here.
    """
    codec = parse(spec) if isinstance(spec, str) else spec
    if not isinstance(codec, LosslessCodec):
        have = ", ".join(codec.name for codec in CODECS if not codec.lossy)
        raise ConfigError(f"codec {codec.name!r} is not lossless; have {have}")
    codec.require()
    return codec
