"""Methods of compression as stages of chains, composed in one line: ``topk:k=1%>ternary``.

`METHODS` are the core's; `all_methods` adds those of `fedsz.contrib` and of entry points. The
grammar, the command line and the laws in the tests are derived from these lists. docs/methods.md
has a page for each family, and says how to add one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from fedsz import plugins
from fedsz.codecs import CODECS
from fedsz.errors import ConfigError
from fedsz.methods.base import Shared, Sparse, Stage, State, TensorSpec
from fedsz.methods.bounded import AT, Bounded
from fedsz.methods.centroids import Centroids
from fedsz.methods.combinators import (
    THEN,
    ByLayer,
    Chain,
    Feedback,
    Transform,
    Wrapper,
    by_step,
    feedback_of,
    keeps_state,
    parts_of,
    texts_sent,
)
from fedsz.methods.presets import CHAIN_OF, PRESETS, Preset
from fedsz.methods.qsgd import Qsgd
from fedsz.methods.random_k import RandomK
from fedsz.methods.rotation import Rotate
from fedsz.methods.sign import Sign, Ternary
from fedsz.methods.top_k import TopK
from fedsz.spec_strings import chosen

Method = Stage | Wrapper

METHODS: Final[tuple[Method, ...]] = (
    Feedback(), Rotate(), TopK(), RandomK(), Sign(), Ternary(), Qsgd(), Centroids(),
)  # fmt: skip

DELTA: Final = "delta"  # may stand first: chains are of differences in any case
OR, IF = "|", "?"  # between the choices of `ByLayer`, and behind a rule

__all__ = [
    "METHODS",
    "PRESETS",
    "Bounded",
    "Chain",
    "Feedback",
    "Preset",
    "Shared",
    "Sparse",
    "Stage",
    "State",
    "TensorSpec",
    "Transform",
    "Wrapper",
    "all_methods",
    "by_step",
    "feedback_of",
    "keeps_state",
    "parse",
    "parts_of",
    "texts_sent",
]


def all_methods() -> tuple[Method, ...]:
    """Return the core's methods, then those of `fedsz.contrib` and of installed packages.

    Raises:
        ConfigError: one of an installed package does not load.
    """
    return METHODS + plugins.loaded(plugins.METHODS)


def parse(text: str, /, *, sent: bool = False) -> Transform:
    """Return the transform that ``text`` says; its ``str`` says the same.

    Args:
        text: methods and at last a codec with its bound, joined by ``>``:
            ``"feedback:decay=0.95>topk:k=1%>uniform@std:1"``. A choice by tensor has ``|`` between
            chains and a rule before each: ``"matrix?topk>sign|*.bias?qsgd"``; see `ByLayer`.
        sent: whether it is of a stream: without presets, whose meaning may change.

    Raises:
        ConfigError: no such method, codec or setting, a value that it cannot have, or methods in an
            order that makes no sense.
    """
    choices = [_choice(written, sent) for written in text.removeprefix(DELTA + THEN).split(OR)]
    rule, transform = choices[0]
    return transform if len(choices) == 1 and rule == "*" else ByLayer(tuple(choices))


def _choice(text: str, sent: bool) -> tuple[str, Transform]:
    rule, mark, written = text.rpartition(IF)
    if not sent:
        written = THEN.join(CHAIN_OF.get(name, name) for name in written.split(THEN))
    parts = [_part(part) for part in written.split(THEN)]
    stages = [part for part in parts if isinstance(part, Stage)]
    wrappers = [part for part in parts if isinstance(part, Wrapper)]
    transform: Transform = Chain(tuple(stages))
    for wrapper in reversed(wrappers):
        if wrapper not in parts[: len(wrappers)]:
            raise ConfigError(f"{wrapper.name} must stand before all stages in {written!r}")
        transform = replace(wrapper, inner=transform)
    if not stages:
        raise ConfigError(f"{written!r} has no stage that compresses: write one, such as topk")
    return rule if mark else "*", transform


def _part(text: str) -> Method:
    """Return the method, or the codec with its bound, that ``text`` says."""
    name = text.partition(AT)[0].partition(":")[0]
    if any(codec.name == name for codec in CODECS):
        return Bounded.of(text)
    # Plugins are loaded for names that the core does not have.
    methods: Sequence[Method] = METHODS if name in (m.name for m in METHODS) else all_methods()
    if not any(method.name == name for method in methods):
        have = ", ".join(thing.name for thing in (*methods, *PRESETS, *CODECS))
        raise ConfigError(f"no method {name!r}; have {have}")
    return chosen("method", text, methods)
