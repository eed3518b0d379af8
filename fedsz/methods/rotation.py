"""`rotate`: a randomised Hadamard rotation, which spreads large elements over all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedsz.arrays import NDArray, flat
from fedsz.codecs import _methods
from fedsz.errors import ConfigError
from fedsz.methods.base import VALUES, Kind, Shared, Stage, Symbols, require_count


@dataclass(frozen=True)
class Rotate(Stage):
    """H D v, block by block: D has drawn signs, H is the Hadamard matrix over sqrt(width).

    What follows sees elements that are about normally distributed. Blocks have ``block`` elements
    as long as there are so many, then half as many, and so on down to 1. So as many values as
    elements are sent.

    Attributes:
        block: elements, a power of two up to 2^20.

    Raises:
        ConfigError: the block is no such power.
    """

    name = "rotate"
    summary = "a random rotation, after which no element is much larger than others"
    symbols = {VALUES: Kind.VALUES}
    biased = False
    contracts = True

    block: int = 4096

    def __post_init__(self) -> None:
        if self.block not in [1 << i for i in range(21)]:
            raise ConfigError(f"rotate block must be a power of two up to 2^20, got {self.block}")

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        rotated = flat(x).copy()
        _methods.flip_signs(shared.key(), rotated)
        self._transform(rotated)
        return {VALUES: rotated}

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        require_count("values", symbols[VALUES], shared.spec.size)
        y = flat(symbols[VALUES]).copy()
        self._transform(y)
        _methods.flip_signs(shared.key(), y)
        return y.reshape(shared.spec.shape)

    def _transform(self, x: NDArray) -> None:
        """Multiply a flat array by H, which is its own inverse, in place."""
        for at, end, width in self._blocks(x.size):
            _methods.hadamard(x[at:end], width)

    def _blocks(self, size: int) -> Iterator[tuple[int, int, int]]:
        """Yield runs of blocks: where they begin and end, and how wide each is."""
        at, width = 0, self.block
        while at < size:
            end = at + (size - at) // width * width
            if end > at:
                yield at, end, width
            at, width = end, width // 2
