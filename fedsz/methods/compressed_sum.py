"""Sums of what several senders have sent, which are decoded once for all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedsz.arrays import NDArray, add_scaled, chunks
from fedsz.codecs.spread import energy
from fedsz.methods.base import VALUES, Decoded, Shared, Sparse, dense
from fedsz.methods.combinators import Chain
from fedsz.methods.sketch import Sketch


class CompressedSum:
    """A weighted sum of the values that the linear parts of a chain have sent of one tensor.

    Args:
        head: one or more linear parts that send nothing but values, see `Chain.split`.
        shared: of the tensor; its ``sender`` does not matter.

    Attributes:
        total: the sum of what was sent, flat; None if nothing has been added.

    Raises:
        CodecError: the tensor has more elements than they decode.
    """

    def __init__(self, head: Chain, shared: Shared) -> None:
        self._head, self._shared = head, shared
        self._gain = _gain(head, shared)
        self.total: NDArray | None = None

    @property
    def tells_energy(self) -> bool:
        """Whether values tell the norm of what they decode to."""
        return self._gain is not None

    def open(self, values: Decoded) -> Addend:
        """Return the values of one sender, which may be added; only if this `tells_energy`."""
        return Addend(values, self, self._energy(values))

    def add(self, values: Decoded, weight: float) -> None:
        """Add ``weight`` times the values of a sender."""
        if self.total is None:
            spec = self._head.specs({}, self._shared.spec)[-1]
            self.total = np.zeros(spec.shape, spec.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # of values that no element decodes
            if isinstance(values, Sparse):
                values.add(self.total, weight)
            else:
                add_scaled(values, weight, self.total)

    def decoded(self) -> Decoded | None:
        """Return the sum of the tensors; None if none has been added."""
        if self.total is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # likewise
            return self._head.decode({VALUES: self.total}, self._shared)

    def _energy(self, values: Decoded) -> float:
        """Return the sum of squares of what values decode to; inf if one of these may overflow."""
        if isinstance(self._gain, np.ndarray):
            sent, total = dense(values).reshape(-1), 0.0
            with np.errstate(over="ignore", invalid="ignore"):
                for here in chunks(sent.size):
                    doubles = sent[here].astype(np.float64)
                    total += float(np.dot(self._gain[here], doubles * doubles))
        else:
            assert self._gain is not None
            total = self._gain * (values.energy if isinstance(values, Sparse) else energy(values))
        # No element is larger than the root of the sum.
        return total if total <= float(np.finfo(self._shared.spec.dtype).max) else math.inf


@dataclass(frozen=True)
class Addend:
    """What one sender adds to a `CompressedSum`; a `fedsz.codecs.base.Opened`.

    Attributes:
        values: finite, as many as the linear parts leave.
        total: to which they are added.
        energy: the sum of squares of the tensor that they decode to; at least that for a `Sketch`
            of several rows.
    """

    values: Decoded
    total: CompressedSum
    energy: float

    def add(self, sums: NDArray, weight: float) -> None:
        """Add ``weight`` times the values to the total, which is added to ``sums`` in the end."""
        self.total.add(self.values, weight)


class CompressedSums:
    """Those of one tensor: one for each way in which senders have drawn and coded it.

    Of senders who know other bases than the first one, none: each such sum would be as large as the
    tensor, and where few of many clients train, each of them may have a basis of its own.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[Chain, Shared], CompressedSum] = {}

    def of(self, head: Chain, shared: Shared) -> CompressedSum | None:
        """Return the one that a sender's values go into; None if they are to be decoded instead.

        That is where they do not tell their norm, or are in another basis than those before.

        Raises:
            CodecError: as `CompressedSum`.
        """
        key = head, replace(shared, sender=0)
        if key not in self._sums:
            if shared.basis and any(other.basis for _, other in self._sums):
                return None
            self._sums[key] = CompressedSum(*key)
        found = self._sums[key]
        return found if found.tells_energy else None

    def take_sketches(self) -> Iterator[tuple[Sketch, Shared, NDArray]]:
        """Yield the sums of sketches of fixed columns, and keep them no longer."""
        for head, shared in list(self._sums):
            first, *others = head.parts
            if isinstance(first, Sketch) and first.fixed and not others:
                total = self._sums.pop((head, shared)).total
                if total is not None:
                    yield first, shared, total

    def add_to(self, sums: NDArray) -> None:
        """Add all of them, decoded, to ``sums``, as `fedsz.codecs.base.Opened.add` does."""
        for total in self._sums.values():
            decoded = total.decoded()
            if isinstance(decoded, Sparse):
                decoded.add(sums, 1.0)
            elif decoded is not None:
                add_scaled(decoded, 1.0, sums)


def _gain(head: Chain, shared: Shared) -> NDArray | float | None:
    """Return `Part.gain` of all parts together; None if one has none."""
    total: NDArray | float = 1.0
    for part, spec in zip(head.parts, head.specs({}, shared.spec), strict=False):
        own = part.gain(shared.of(spec))
        if own is None or isinstance(total, np.ndarray):  # nothing tells what mixes such values
            return None
        total = total * own
    return total
