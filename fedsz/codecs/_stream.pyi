"""What streams are made of beside payloads, in C++: compressors/stream, which libfedsz has too."""

from fedsz.arrays import Buffer

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

def levels() -> list[str]:
    """Return the instruction sets that there are loops for, and this machine has; the best last."""
