"""Tensors and payloads -> a stream."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from fedsz.errors import ConfigError
from fedsz.stream.format import (
    CHAINS,
    DIFFERENCES,
    MAGIC,
    MOST_CHAINS,
    VALUES,
    VERSION,
    Chain,
    Header,
    Payload,
    Tensor,
)


class Part(NamedTuple):
    """A payload before it is written; of a chain, ``codec_id`` is its number among the chains."""

    codec_id: int
    data: bytes
    bound: float | None
    members: tuple[int, ...]
    transform: int = VALUES


def write(
    tensors: Sequence[Tensor],
    parts: Sequence[Part],
    reference: bytes | None = None,
    chains: Sequence[Chain] = (),
) -> bytes:
    """Return the stream of ``tensors``, whose values ``parts`` hold.

    Args:
        tensors: in the order of the state_dict.
        parts: the payloads, in the order in which they follow.
        reference: the digest of what differences among them refer to; None without differences.
        chains: those that have coded payloads, if any.

    Raises:
        ConfigError: a name cannot be written as UTF-8, or there are too many chains.
    """
    if len(chains) > MOST_CHAINS:
        raise ConfigError(f"a stream of {len(chains)} chains; limit {MOST_CHAINS}")
    payloads = tuple(
        Payload(p.codec_id, p.transform, len(p.data), zlib.crc32(p.data), p.bound, p.members)
        for p in parts
    )
    version = CHAINS if chains else VERSION if reference is None else DIFFERENCES
    try:
        header = msgspec.msgpack.encode(Header(tuple(tensors), payloads, reference, tuple(chains)))
    except UnicodeEncodeError as err:
        raise ConfigError(f"a tensor's name is not text: {err.object!r}") from err
    stored = zlib.compress(header, 9)
    prefix = b"".join((MAGIC, *(n.to_bytes(w, "little") for n, w in ((version, 2), (0, 2)))))
    prefix += len(stored).to_bytes(4, "little")
    checksum = zlib.crc32(stored, zlib.crc32(prefix)).to_bytes(4, "little")
    return b"".join((prefix, checksum, stored, *(part.data for part in parts)))
