"""What a chain takes to decode a tensor, known before it decodes any.

A payload of a few bytes can stand for a large tensor, as of any codec. But parts multiply: a sketch
may have more values than the tensor has elements, and its rows are decoded one by one. So a chain
may ask for so much memory and work for each element, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedsz.errors import LimitExceeded
from fedsz.methods.base import NOTHING, VALUES, Part, TensorSpec

MOST_BYTES: Final = 3.0  # times the tensor
MOST_WORK: Final = 40.0  # for each element, in the unit of `Part.work`
FREE: Final = 1 << 8  # elements that a tensor counts as, at least


def require_affordable(parts: Sequence[Part], spec: TensorSpec) -> None:
    """Raise `LimitExceeded` for a chain that takes too much to decode such a tensor.

    In memory at a time are what a part is given, and what it makes of that.
    """
    size, most, work, made = max(spec.size, FREE), spec.size, 0.0, spec
    for part in parts:
        given = part.values_spec(NOTHING, made) if VALUES in part.planes else made
        most = max(most, made.size + given.size)
        work += part.work * max(made.size, given.size)
        made = given
    if most > MOST_BYTES * size:
        raise LimitExceeded(f"a chain of {most / size:.1f} times its tensor; limit {MOST_BYTES:g}")
    if work > MOST_WORK * size:
        raise LimitExceeded(f"a chain of {work / size:.0f} steps an element; limit {MOST_WORK:g}")
