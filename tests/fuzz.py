"""Mutated bytes for the readers that are Python: streams, their headers, frames, messages.

    python -m tests.fuzz header --seconds 600 --keep build/fuzz

Bytes that make a reader fail otherwise than by CorruptStream are kept in a file, and end the run.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fedsz.core.decode import decompress
from fedsz.errors import CorruptStream, FedszError
from fedsz.stream import Limits, Reader
from fedsz.stream.format import PREFIX
from fedsz.transport.frames import unpack
from fedsz.transport.message_format import decode_message
from tests.hostile_headers import sealed_header

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS: Final = Path(__file__).parent / "corpus"
GOLDEN: Final = Path(__file__).parent / "golden"
# Of MessagePack: nil, what is not used, and what claims four thousand million elements or bytes.
SPECIAL: Final = (
    *(b"\xc0", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc7\xff"),
    *(b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc9\xff\xff\xff\xff\x01"),
    *(b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xcb\x7f\xf8" + bytes(6)),
    *(b"\xd6\xff" + b"\xff" * 4, b"\x91" * 64, b"\x81\xc0" * 64),
)


def header(inflated: bytes) -> None:
    """Read a header behind checksums that fit, in both versions."""
    for version in (1, 2):
        try:
            Reader(sealed_header(inflated, version=version)).check()
        except CorruptStream:
            continue


def stream(blob: bytes) -> None:
    """Decode a stream whose checksums have been made to fit."""
    try:
        decompress(resealed(blob), as_numpy=True, limits=Limits(decoded_bytes=1 << 24, expansion=0))
    except FedszError:  # some refer to a model
        return


def frame(raw: bytes) -> None:
    try:
        unpack(raw)
    except CorruptStream:
        return


def message(raw: bytes) -> None:
    try:
        decode_message(io.BytesIO(raw), len(raw))
    except CorruptStream:
        return


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "header": header,
    "stream": stream,
    "frame": frame,
    "message": message,
}


def corpus(target: str) -> list[bytes]:
    if target == "stream":
        return [path.read_bytes() for path in sorted(GOLDEN.glob("*.fsz"))]
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def resealed(blob: bytes) -> bytes:
    """Return a stream whose checksums fit, if its header can be read."""
    try:
        header = zlib.decompressobj().decompress(blob[PREFIX:], 1 << 20)
        fields = msgspec.msgpack.decode(header)
        start = PREFIX + int.from_bytes(blob[12:16], "little")
        payloads = blob[start:]
        for payload in fields["payloads"]:
            piece, payloads = payloads[: payload[2]], payloads[payload[2] :]
            payload[3] = zlib.crc32(piece)
        version = int.from_bytes(blob[8:10], "little")
        return sealed_header(fields, blob[start:], version=version)
    except (msgspec.MsgspecError, zlib.error, LookupError, TypeError, ValueError, RecursionError):
        return blob


def mutated(seed: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Return bytes with a few places changed, cut, repeated, or taken from elsewhere."""
    data = bytearray(seed)
    for _ in range(rng.randint(1, 4)):
        at, end = sorted(rng.choices(range(len(data) + 1), k=2))
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = bytes((rng.randrange(256),))
            case 1:
                del data[at : min(end, at + 16)]
            case 2:
                data[at:at] = data[at : min(end, at + 64)]
            case 3:
                data[at : at + 1] = rng.choice(SPECIAL)
            case _:
                data[at:] = rng.choice(others)[at:]
    return bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path())
    asked = parser.parse_args()
    read, seeds, rng = TARGETS[asked.target], corpus(asked.target), random.Random(asked.seed)  # noqa: S311 - a mutation is no secret
    end, count = time.monotonic() + asked.seconds, 0
    while time.monotonic() < end:
        data = mutated(rng.choice(seeds), seeds, rng)
        try:
            read(data)
        except BaseException:
            path = asked.keep / f"{asked.target}-{zlib.crc32(data):08x}"
            path.write_bytes(data)
            print(f"{path} breaks the reader of a {asked.target}", file=sys.stderr)
            raise
        count += 1
    print(f"{asked.target}: {count} inputs")


if __name__ == "__main__":
    main()
