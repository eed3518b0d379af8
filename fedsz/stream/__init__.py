"""The bitstream: bytes <-> header and payloads. docs/format.md describes it field by field.

Knows no torch, no sockets and no codecs beyond their numbers. Everything read here is somebody
else's input: a length is checked before it is believed, and nothing is allocated on a number that
the bytes at hand have not paid for.
"""

from fedsz.stream.format import (
    BITS,
    CHAIN,
    CHAIN_DIFFERENCE,
    CHAINED,
    DIFFERENCE,
    MOST_CHAINS,
    VALUES,
    Chain,
    Limits,
    Tensor,
)
from fedsz.stream.reader import Reader
from fedsz.stream.writer import Part, write

__all__ = [
    "BITS",
    "CHAIN",
    "CHAINED",
    "CHAIN_DIFFERENCE",
    "DIFFERENCE",
    "MOST_CHAINS",
    "VALUES",
    "Chain",
    "Limits",
    "Part",
    "Reader",
    "Tensor",
    "write",
]
