"""Methods of compression as stages of chains, composed in one line: ``topk:k=1%>ternary``.

`METHODS` are the core's; `all_methods` adds those of `fedsz.contrib` and of entry points. The
grammar, the command line and the laws in the tests are derived from these lists. docs/methods.md
says what each does, and how to add one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from fedsz import plugins
from fedsz.codecs import CODECS
from fedsz.errors import ConfigError
from fedsz.methods.base import Part, Shared, Sparse, Stage, State, TensorSpec
from fedsz.methods.bounded import AT, Bounded
from fedsz.methods.centroids import Centroids
from fedsz.methods.chain import THEN, Chain, Feedback, Wrapper
from fedsz.methods.qsgd import Qsgd
from fedsz.methods.random_k import RandomK
from fedsz.methods.rotation import Rotate
from fedsz.methods.ternary import Ternary
from fedsz.methods.top_k import TopK
from fedsz.spec_strings import chosen

METHODS: Final[tuple[Part, ...]] = (
    Feedback(), Rotate(), TopK(), RandomK(), Ternary(), Qsgd(), Centroids(),
)  # fmt: skip


class Preset(NamedTuple):
    """A name of the field that stands for a chain, or for a part of one.

    Attributes:
        name: what users write.
        chain: what it stands for.
        summary: whose method it is, on one line.
    """

    name: str
    chain: str
    summary: str


PRESETS: Final = (
    Preset("sign", "ternary", "EF-signSGD of a dense tensor, Karimireddy et al. 2019"),
    Preset("fedpaq", "qsgd", "Reisizadeh et al. 2020"),
    Preset("terngrad", "qsgd:bits=2,bucket=0,norm=max", "Wen et al. 2017, without its clipping"),
    Preset("stc", "feedback>topk>ternary", "sparse ternary compression, Sattler et al. 2019"),
    Preset("qsparse", "feedback>topk>qsgd:unbiased=0", "Qsparse-local-SGD, Basu et al. 2019"),
    Preset("3lc", "feedback>ternary:threshold=0.5", "Lim et al. 2019, with the mean magnitude"),
    Preset("fedzip", "topk:k=10%>centroids:bits=4", "Malekijoo et al. 2021"),
    Preset("sparseloco", "feedback:decay=0.95>topk:k=64,chunk=4096>centroids", "Sarfi et al. 2025"),
    Preset("drive", "feedback>rotate>ternary", "Vargaftik et al. 2021, by the least error's scale"),
    Preset("accordion", "adaptive>feedback>topk", "Agarwal et al. 2021, by top-k"),
    Preset("hybrid", "adaptive:by=variance>feedback>topk>qsgd:unbiased=0", "after Sato 2025"),
    Preset("eden", "feedback>rotate>centroids", "Vargaftik et al. 2022, with fitted centroids"),
)
_CHAIN_OF: Final = {preset.name: preset.chain for preset in PRESETS}

__all__ = [
    "METHODS",
    "PRESETS",
    "Bounded",
    "Chain",
    "Feedback",
    "Part",
    "Preset",
    "Shared",
    "Sparse",
    "Stage",
    "State",
    "TensorSpec",
    "Wrapper",
    "all_methods",
    "parse",
    "parse_sent",
]


def all_methods() -> tuple[Part, ...]:
    """Return the core's methods, then those of `fedsz.contrib` and of installed packages.

    Raises:
        ConfigError: one of an installed package does not load.
    """
    return METHODS + plugins.loaded(plugins.METHODS)


def parse(text: str, /) -> Chain:
    """Return the chain that ``text`` says; its ``str`` says the same, without presets.

    Args:
        text: presets, methods and at last a codec with its bound, joined by ``>``:
            ``"feedback:decay=0.95>topk:k=1%>uniform@std:1"``.

    Raises:
        ConfigError: no such method, codec or setting, a value that it cannot have, or methods in an
            order that makes no sense.
    """
    return parse_sent(THEN.join(_CHAIN_OF.get(name, name) for name in text.split(THEN)))


def parse_sent(text: str, /) -> Chain:
    """Do as `parse` of the text of a stream: without presets, whose meaning may change."""
    parts = [_part(written) for written in text.split(THEN)]
    wrappers = tuple(part for part in parts if isinstance(part, Wrapper))
    for part in parts[len(wrappers) :]:
        if isinstance(part, Wrapper):
            raise ConfigError(f"{part.name} must stand before all stages in {text!r}")
    return Chain(tuple(part for part in parts if isinstance(part, Stage)), wrappers)


def _part(text: str) -> Part:
    """Return the method, or the codec with its bound, that ``text`` says."""
    name = text.partition(AT)[0].partition(":")[0]
    if any(codec.name == name for codec in CODECS):
        return Bounded.of(text)
    # Plugins are loaded for names that the core does not have.
    methods: Sequence[Part] = METHODS if name in (m.name for m in METHODS) else all_methods()
    if name not in (method.name for method in methods):
        names = [part.name for part in methods], _CHAIN_OF, [codec.name for codec in CODECS]
        raise ConfigError(f"no method {name!r}; have {', '.join(itertools.chain(*names))}")
    return chosen("method", text, methods)
