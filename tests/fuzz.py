"""Mutated bytes for the readers that are Python: headers of streams, frames, messages.

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

from fedsz.errors import CorruptStream
from fedsz.stream import Reader
from fedsz.transport.frames import unpack
from fedsz.transport.messages import decode_message
from tests.hostile_headers import sealed_header

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS: Final = Path(__file__).parent / "corpus"
SPECIAL: Final = (b"\xc0", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc7\xff")


def header(inflated: bytes) -> None:
    """Read a header behind checksums that fit, in both versions."""
    for version in (1, 2):
        try:
            Reader(sealed_header(inflated, version=version)).check()
        except CorruptStream:
            continue


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
    "frame": frame,
    "message": message,
}


def corpus(target: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


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
