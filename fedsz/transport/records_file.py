"""Flower's records in a file, for a server or client that goes on after a crash.

The layout is in docs/format.md, "Files to go on from".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
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
_PIECE: Final = 1 << 20  # bytes that are read at a time


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
    pieces: tuple[bytes | memoryview, ...] = (prefix, content.head, *content.data)
    for piece in pieces:
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
    with path.open("rb") as file:
        prefix, length = file.read(_PREFIX.size), os.fstat(file.fileno()).st_size
        if len(prefix) < _PREFIX.size:
            raise TruncatedStream(f"{len(prefix)} bytes of a prefix of {_PREFIX.size}")
        magic, version, _, head_size, size = _PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise CorruptStream("this is no file of records")
        if version != VERSION:
            raise UnsupportedStream(f"version {version}; this release reads {VERSION}", offset=8)
        end = _PREFIX.size + head_size + size
        if length < end + _CHECKSUM_BYTES:
            raise TruncatedStream(f"{length} bytes where {end + _CHECKSUM_BYTES} were written")
        hashed = _stream.Xxh3()
        hashed.update(prefix)
        for at in range(_PREFIX.size, end, _PIECE):  # in little memory, before any of it is used
            hashed.update(file.read(min(_PIECE, end - at)))
        if hashed.digest() != file.read():
            raise ChecksumMismatch("the checksum does not fit", offset=end)
        file.seek(_PREFIX.size)
        return decode_content(file.read(head_size), file, size)
