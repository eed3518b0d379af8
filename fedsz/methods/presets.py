"""Names of chains that the field knows by a name of their own."""

from __future__ import annotations

from typing import Final, NamedTuple


class Preset(NamedTuple):
    """A name that stands for a chain, or for the beginning of one.

    Attributes:
        name: what users write.
        chain: what it stands for.
        summary: whose method it is, on one line.
    """

    name: str
    chain: str
    summary: str


PRESETS: Final = (
    Preset("fedpaq", "qsgd", "Reisizadeh et al. 2020"),
    Preset("terngrad", "qsgd:bits=2,bucket=0,norm=max", "Wen et al. 2017, without its clipping"),
    Preset("stc", "feedback>topk>ternary", "sparse ternary compression, Sattler et al. 2019"),
    Preset("qsparse", "feedback>topk>qsgd:unbiased=0", "Qsparse-local-SGD, Basu et al. 2019"),
    Preset("3lc", "feedback>ternary:threshold=0.5", "Lim et al. 2019, with the mean magnitude"),
    Preset("fedzip", "topk:k=10%>centroids:bits=4", "Malekijoo et al. 2021"),
    Preset("sparseloco", "feedback:decay=0.95>topk:k=64,chunk=4096>centroids", "Sarfi et al. 2025"),
    Preset("drive", "feedback>rotate>sign", "Vargaftik et al. 2021, with the scale of least error"),
    Preset("accordion", "adaptive>feedback>topk", "Agarwal et al. 2021, by top-k"),
    Preset("hybrid", "adaptive:by=variance>feedback>topk>qsgd:unbiased=0", "after Sato 2025"),
    Preset("eden", "feedback>rotate>centroids", "Vargaftik et al. 2022, with fitted centroids"),
)
CHAIN_OF: Final = {preset.name: preset.chain for preset in PRESETS}
