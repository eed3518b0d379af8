"""Headers of a few kilobytes that ask a reader for gigabytes or minutes."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fedsz.stream.format import MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable

_END: Final = b"\xa8payloads\x90\xa9reference\xc0"


def sealed_header(header: Any, rest: bytes = b"", *, version: int = 1) -> bytes:
    """Return a stream of a header, MessagePack or what becomes it, with checksums that fit."""
    inflated = header if isinstance(header, bytes) else msgspec.msgpack.encode(header)
    return sealed(zlib.compress(inflated), rest, version=version)


def sealed(stored: bytes, rest: bytes = b"", *, version: int = 1) -> bytes:
    """Return a stream of a header that is deflated, or should be, with checksums that fit."""
    prefix = MAGIC + version.to_bytes(2, "little") + bytes(2) + len(stored).to_bytes(4, "little")
    return prefix + zlib.crc32(stored, zlib.crc32(prefix)).to_bytes(4, "little") + stored + rest


def array(count: int, item: bytes) -> bytes:
    """Return a MessagePack array of ``count`` times the same."""
    return b"\xdd" + count.to_bytes(4, "big") + item * count


def header_of(tensors: list[Any], payloads: list[Any]) -> dict[str, Any]:
    return {"tensors": tensors, "payloads": payloads, "reference": None}


def empty_tensors(count: int, *, payloads: int = 1) -> dict[str, Any]:
    """Return the header of so many empty tensors, dealt to payloads of nothing."""
    tensors = [[f"t{i}", 0, [0]] for i in range(count)]
    dealt = [[0, 0, 0, 0, None, list(range(i, count, payloads))] for i in range(payloads)]
    return header_of(tensors, dealt)


def one_too_often(header: dict[str, Any]) -> dict[str, Any]:
    """Return a header that only its last payload makes wrong."""
    header["payloads"][-1][5] = [0]
    return header


def few(payloads: list[Any]) -> dict[str, Any]:
    return header_of([[f"{i}", 0, [1]] for i in range(8)], payloads)


HOSTILE: Final[dict[str, Callable[[], bytes]]] = {
    "16 M tensors": lambda: sealed_header(
        b"\x83\xa7tensors" + array(1 << 24, b"\x93\xa0\x00\x90") + _END
    ),
    "2^20 empty tensors": lambda: sealed_header(empty_tensors(1 << 20)),
    "2^20 payloads": lambda: sealed_header(empty_tensors(1 << 20, payloads=1 << 20)),
    "2^17 empty tensors": lambda: sealed_header(empty_tensors(1 << 17)),
    "8192 payloads, the last wrong": lambda: sealed_header(
        one_too_often(empty_tensors(1 << 13, payloads=1 << 13))
    ),
    "8192 shapes of 64": lambda: sealed_header(
        header_of([[f"{i}", 0, [1] * 64] for i in range(1 << 13)], [])
    ),
    "large shapes of 64": lambda: sealed_header(
        header_of([[f"{i}", 0, [1 << 47] * 64] for i in range(2500)], [])
    ),
    "a payload of many tensors": lambda: sealed_header(few([[0, 0, 0, 0, None, [1] * 1_500_000]])),
    "more payloads than tensors": lambda: sealed_header(few([[0, 0, 0, 0, None, [0]]] * 100_000)),
    "a name of 1.5 MB": lambda: sealed_header(header_of([["x" * 1_500_000, 77, [1]]], [])),
    "nested": lambda: sealed_header(b"\x91" * 1_500_000),
    "100 MB of zeros": lambda: sealed_header(bytes(100 << 20)),
    "a map of many keys": lambda: sealed_header(
        b"\xdf" + (1 << 19).to_bytes(4, "big") + b"\xa1a\xc0" * (1 << 19)
    ),
}
