"""A stream -> its header and payloads."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from fedsz.errors import (
    ChecksumMismatch,
    ConfigError,
    CorruptStream,
    LimitExceeded,
    TruncatedStream,
    UnsupportedStream,
)
from fedsz.stream.format import MAGIC, PREFIX, VERSIONS, Header, Limits, Payload, parse_header


class Reader:
    """A whole stream: its header, checked, and its payloads, each checked when it is first read.

    Nothing of it is copied.

    Attributes:
        header: what it says of itself.

    Raises:
        ConfigError: it is not bytes.
        CorruptStream: the header is not one to trust, or the stream is shorter or longer than it
            says.
    """

    def __init__(self, blob: bytes | bytearray | memoryview, limits: Limits | None = None) -> None:
        try:
            view = memoryview(blob).cast("B")
        except TypeError:
            kind = type(blob).__name__
            raise ConfigError(
                f"a stream is bytes, got a {kind}; a file's: path.read_bytes()"
            ) from None
        stored, version = _stored_header(view, limits := limits or Limits())
        self.header: Header = parse_header(stored, limits, version, len(view))
        self._start = PREFIX + len(stored)
        self._payloads = view[self._start :]
        self._checked = 0  # payloads whose checksums fit
        have, need = len(self._payloads), self.header.payload_bytes
        if have < need:
            raise TruncatedStream(f"payloads need {need} bytes, have {have}", offset=len(view))
        if have > need:
            raise CorruptStream(f"{have - need} bytes after the end", offset=self._start + need)

    def payloads(self) -> Iterator[tuple[Payload, memoryview, int]]:
        """Yield record, bytes and offset of each payload, its checksum verified.

        Raises:
            ChecksumMismatch: it does not fit. It is computed once, however often one iterates.
        """
        start = 0
        for i, payload in enumerate(self.header.payloads):
            data = self._payloads[start : start + payload.nbytes]
            offset = self._start + start
            if i >= self._checked:
                if zlib.crc32(data) != payload.checksum:
                    raise ChecksumMismatch(f"checksum of payload {i}", offset=offset)
                self._checked = i + 1
            yield payload, data, offset
            start += payload.nbytes

    def check(self) -> None:
        """Verify all checksums, or raise `ChecksumMismatch`."""
        for _ in self.payloads():
            pass


def _stored_header(view: memoryview, limits: Limits) -> tuple[memoryview, int]:
    """Return the deflated header of a stream and its version, or raise `CorruptStream`."""
    if bytes(view[: len(MAGIC)]) != MAGIC[: len(view)]:
        raise CorruptStream("not a fedsz stream: wrong magic")
    if len(view) < PREFIX:
        raise TruncatedStream("the stream ends within its header", offset=len(view))
    version, flags = (int.from_bytes(view[at : at + 2], "little") for at in (8, 10))
    length, checksum = (int.from_bytes(view[at : at + 4], "little") for at in (12, 16))
    if version not in VERSIONS:
        have = ", ".join(map(str, VERSIONS))
        raise UnsupportedStream(f"stream version {version}; this release reads {have}", offset=8)
    if flags:
        raise UnsupportedStream(f"unknown flags {flags:#06x}", offset=10)
    _, header_bytes = limits.counts(len(view))
    if length > header_bytes:
        raise LimitExceeded(f"header of {length} bytes; the limit is {header_bytes}", offset=12)
    stored = view[PREFIX : PREFIX + length]
    if len(stored) < length:
        raise TruncatedStream("the stream ends within its header", offset=len(view))
    if zlib.crc32(stored, zlib.crc32(view[:16])) != checksum:
        raise ChecksumMismatch("checksum of the header", offset=16)
    return stored, version
