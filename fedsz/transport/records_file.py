"""Flower's records in a file, for a server or client that goes on after a crash.

The layout is in docs/format.md, "Files to go on from".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

from flwr.app import RecordDict

from fedsz.arrays import Buffer
from fedsz.codecs import _stream
from fedsz.errors import ChecksumMismatch, CorruptStream, TruncatedStream, UnsupportedStream
from fedsz.transport.message_format import decode_content, encode_content
from fedsz.whole_files import write_whole

MAGIC: Final = b"\x89FSR\r\n\x1a\n"
VERSION: Final = 1

_PREFIX: Final = struct.Struct("<8sHHIQ")  # magic, version, reserved, bytes of head and of data
_CHECKSUM_BYTES: Final = 16


def write_records(path: Path, records: RecordDict, *, private: bool = False) -> None:
    """Write records, over those that are there; see `fedsz.whole_files.write_whole`.

    Raises:
        ConfigError: they cannot be written. What was there is there still.
    """
    write_whole(path, _pieces(records), private=private)


def _pieces(records: RecordDict) -> Iterator[Buffer]:
    content = encode_content(records)
    size = sum(map(len, content.data))
    prefix = _PREFIX.pack(MAGIC, VERSION, 0, len(content.head), size)
    hashed = _stream.Xxh3()
    for piece in (prefix, content.head, *content.data):
        assert isinstance(piece, bytes | memoryview)
        hashed.update(piece)
        yield piece
    yield hashed.digest()


def read_records(path: Path) -> RecordDict:
    """Return the records in a file.

    Raises:
        OSError: it cannot be read.
        TruncatedStream: it ends too early.
        ChecksumMismatch: one of its bytes has changed.
        UnsupportedStream: another release has written it.
        CorruptStream: it is no file of records.
    """
    data = memoryview(path.read_bytes())
    if len(data) < _PREFIX.size:
        raise TruncatedStream(f"{len(data)} bytes of a prefix of {_PREFIX.size}")
    magic, version, _, head_size, size = _PREFIX.unpack(data[: _PREFIX.size])
    if magic != MAGIC:
        raise CorruptStream("this is no file of records")
    if version != VERSION:
        raise UnsupportedStream(f"version {version}; this release reads {VERSION}", offset=8)
    end = _PREFIX.size + head_size + size
    if len(data) < end + _CHECKSUM_BYTES:
        raise TruncatedStream(f"{len(data)} bytes where {end + _CHECKSUM_BYTES} were written")
    if _stream.xxh3(data[:end]) != data[end:]:
        raise ChecksumMismatch("the checksum does not fit", offset=end)
    head = bytes(data[_PREFIX.size : _PREFIX.size + head_size])
    return decode_content(head, BytesIO(data[_PREFIX.size + head_size : end]), size)
