"""What a chain takes to decode a tensor, known before it decodes any.

A payload of a few bytes can stand for a large tensor, as of any codec. But parts multiply: a sketch
may have more values than the tensor has elements, and its rows are decoded one by one. So a chain
may ask for so much memory and work for each element, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from fedsz.errors import LimitExceeded
from fedsz.methods.base import NOTHING, VALUES, Part, TensorSpec

MOST_BYTES: Final = 3.0  # times the tensor
MOST_WORK: Final = 40.0  # for each element, in the unit of `Part.work`
FREE: Final = 1 << 8  # elements that a tensor counts as, at least


class Cost(NamedTuple):
    """What decoding takes at most.

    Attributes:
        elements: in memory at a time: what a part is given, and what it makes of that.
        work: in the unit of `Part.work`.
    """

    elements: int
    work: float


def cost(parts: Sequence[Part], spec: TensorSpec) -> Cost:
    """Return what a chain of ``parts`` takes to decode a tensor."""
    elements, work = spec.size, 0.0
    for part in parts:
        given = part.values_spec(NOTHING, spec) if VALUES in part.planes else spec
        elements = max(elements, spec.size + given.size)
        work += part.work * max(spec.size, given.size)
        spec = given
    return Cost(elements, work)


def require_affordable(parts: Sequence[Part], spec: TensorSpec) -> None:
    """Raise `LimitExceeded` for a chain that takes too much to decode such a tensor."""
    found, size = cost(parts, spec), max(spec.size, FREE)
    if found.elements > MOST_BYTES * size:
        times = found.elements / size
        raise LimitExceeded(f"a chain of {times:.1f} times its tensor; limit {MOST_BYTES:g}")
    if found.work > MOST_WORK * size:
        times = found.work / size
        raise LimitExceeded(f"a chain of {times:.0f} steps an element; limit {MOST_WORK:g}")
