"""Methods of compression as parts of one kind, composed in one line: ``topk:k=1%>ternary``.

`METHODS` is the one list: the grammar, the command line and the laws in the tests are derived from
it. docs/methods.md has a page for each family, and says how to add one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fedsz.codecs import CODECS
from fedsz.errors import ConfigError
from fedsz.methods.adaptive import Adaptive
from fedsz.methods.base import Part, Shared, Sparse, State, TensorSpec
from fedsz.methods.bounded import AT, Bounded
from fedsz.methods.centroids import Centroids
from fedsz.methods.combinators import (
    THEN,
    ByLayer,
    Chain,
    Difference,
    Transform,
    Wrapper,
    keeps_state,
    parts_of,
    texts_sent,
)
from fedsz.methods.eigen import Eigen, History, with_history
from fedsz.methods.feedback import Dgc, Ecx, Feedback
from fedsz.methods.layered import Layered
from fedsz.methods.low_rank import Atomo, PowerSgd
from fedsz.methods.presets import CHAIN_OF, PRESETS, Preset
from fedsz.methods.qsgd import Natural, Qsgd
from fedsz.methods.random_k import RandomK
from fedsz.methods.rotation import Rotate
from fedsz.methods.sign import Sign, SparseBinary, Ternary
from fedsz.methods.sketch import Sketch
from fedsz.methods.threshold import Threshold
from fedsz.methods.top_k import RandomTopK, TopK
from fedsz.methods.uveqfed import Uveqfed
from fedsz.spec_strings import chosen

METHODS: Final[tuple[Part | Wrapper, ...]] = (
    Adaptive(), Feedback(), Ecx(), Dgc(), Difference(),
    Eigen(), PowerSgd(), Atomo(), Sketch(), Rotate(),
    TopK(), RandomTopK(), Threshold(), RandomK(), SparseBinary(),
    Sign(), Ternary(), Qsgd(), Natural(), Uveqfed(), Layered(),
    Centroids(),
)  # fmt: skip

DELTA: Final = "delta"  # may stand first: chains are of differences in any case
OR, IF = "|", "?"  # between the choices of `ByLayer`, and behind a rule

__all__ = [
    "METHODS",
    "PRESETS",
    "Bounded",
    "Difference",
    "Eigen",
    "Feedback",
    "History",
    "Preset",
    "Shared",
    "Sparse",
    "State",
    "TensorSpec",
    "Transform",
    "keeps_state",
    "parse",
    "parts_of",
    "texts_sent",
    "with_history",
]


def parse(text: str, /, *, sent: bool = False) -> Transform:
    """Return the transform that ``text`` says; its ``str`` says the same.

    Args:
        text: methods and at last a codec with its bound, joined by ``>``:
            ``"feedback:decay=0.95>topk:k=1%>uniform@std:1"``. A choice by tensor has ``|`` between
            chains and a rule before each: ``"matrix?topk>sign|*.bias?qsgd"``; see `ByLayer`.
        sent: whether a stream says it, and not a user: with what senders add to parts, and without
            names that stand for chains.

    Raises:
        ConfigError: no such method, codec or setting, a value that it cannot have, or parts in an
            order that makes no sense.
    """
    choices = [_choice(written, sent) for written in text.removeprefix(DELTA + THEN).split(OR)]
    rule, transform = choices[0]
    return transform if len(choices) == 1 and rule == "*" else ByLayer(tuple(choices))


def _choice(text: str, sent: bool) -> tuple[str, Transform]:
    rule, mark, written = text.rpartition(IF)
    if not sent:
        written = THEN.join(CHAIN_OF.get(name, name) for name in written.split(THEN))
    things = [_thing(part, sent) for part in written.split(THEN)]
    parts = [thing for thing in things if isinstance(thing, Part)]
    transform: Transform = Chain(tuple(parts))
    wrappers = [thing for thing in things if isinstance(thing, Wrapper)]
    for wrapper in reversed(wrappers):
        if wrapper not in things[: len(wrappers)]:
            raise ConfigError(f"{wrapper.name} must stand before all parts in {written!r}")
        transform = replace(wrapper, inner=transform)
    if not parts:
        raise ConfigError(f"{written!r} has no part that compresses: write one, such as topk")
    return rule if mark else "*", transform


def _thing(text: str, sent: bool) -> Part | Wrapper:
    """Return the method, or the codec with its bound, that ``text`` says."""
    name = text.partition(AT)[0].partition(":")[0]
    if any(codec.name == name for codec in CODECS):
        return Bounded.of(text)
    if not any(method.name == name for method in METHODS):
        have = ", ".join(thing.name for thing in (*METHODS, *PRESETS, *CODECS))
        raise ConfigError(f"no method {name!r}; have {have}")
    return chosen("method", text, METHODS, sent=sent)
