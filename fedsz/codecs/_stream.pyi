"""What streams are made of beside payloads, in C++: compressors/stream, which libfedsz has too."""

import numpy as np
import numpy.typing as npt

from fedsz.arrays import Buffer

Octets = npt.NDArray[np.uint8]

class Xxh3:
    """XXH3, 128 bits, seed 0, of pieces as if they were one.

    Args:
        level: one of `levels`; the best by default.

    Raises:
        ValueError: there is no such level here.
    """

    def __init__(self, level: str = "") -> None: ...
    def update(self, data: Buffer) -> None:
        """Add a piece: any object with a contiguous buffer, whose bytes count."""

    def digest(self) -> bytes:
        """Return the digest of all pieces so far: 16 bytes, the most significant first."""

def xxh3(data: Buffer) -> bytes:
    """Return the digest of one piece; see `Xxh3`."""

def xxh3_64(data: Buffer) -> int:
    """Return XXH3 of 64 bits, seed 0: 0 to 2^64 - 1."""

def header_fault(
    inflated: Buffer, version: int, tensors: int, decoded_bytes: int
) -> tuple[str, str] | None:
    """Return what is wrong with a header (docs/format.md, "Header"); None if nothing is.

    Time and memory are a small multiple of its length, whatever it claims.

    Args:
        inflated: its MessagePack.
        version: that of the stream, 1 to 3.
        tensors: how many it may have; below 2^64, as the next.
        decoded_bytes: of them all together.

    Returns:
        "corrupt", "unsupported" or "limit", and what is wrong in words.
    """

def bit_difference(
    x: Octets, base: Octets, width: int, floating: bool, planes: Octets, first: int
) -> None:
    """Write how the bits of elements differ from a base's (docs/format.md, "Payloads").

    Args:
        x: the bytes of elements; flat and contiguous, as all of these.
        base: as many.
        width: bytes of an element: 1, 2, 4 or 8.
        floating: whether they are floats.
        planes: ``width`` rows of bytes, into whose columns from ``first`` on the difference goes.
        first: a column.

    Raises:
        ValueError: sizes do not fit together.
    """

def move_bits(
    planes: Buffer, first: int, width: int, floating: bool, base: Octets, y: Octets
) -> None:
    """Fill ``y`` with the elements that differ so from a base; see `bit_difference`."""

def levels() -> list[str]:
    """Return the instruction sets that there are loops for, and this machine has; the best last."""
