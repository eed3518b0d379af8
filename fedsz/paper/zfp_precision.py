"""Which precisions the paper's ZFP may have had: it names none, but prints the ratios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from fedsz import codecs
from fedsz.arrays import NDArray
from fedsz.codecs.zfp import Zfp
from fedsz.paper import published as printed
from fedsz.paper.compare import Line

MOST: Final = 24  # bits, a float32's significand


def closest(weights: Mapping[str, NDArray], model: str) -> list[Line]:
    """Return, for each ratio that Table I prints for ZFP, the precision that comes closest.

    Args:
        weights: a model's float32 tensors that may be lossy.
        model: which; nothing is returned for one that the table does not have.
    """
    cell = printed.TABLE_1.get((model, "zfp"))
    if cell is None or Zfp().missing():
        return []
    raw = sum(x.nbytes for x in weights.values())
    found: dict[int, float] = {}

    def ratio(precision: int) -> float:
        if precision not in found:
            codec = cast("Zfp", codecs.get("zfp", precision=precision))
            size = sum(len(codec.compress(x.reshape(-1), 0.0)) for x in weights.values())
            found[precision] = raw / size
        return found[precision]

    lines = []
    for wanted in cell.ratio:
        # Ratios fall as precision grows.
        low, high = 2, MOST
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if ratio(middle) > wanted else (low, middle)
        best = min((low, high), key=lambda precision: abs(ratio(precision) - wanted))
        of = (model, f"zfp:precision={best}", "-")
        lines.append(Line(of, "ratio", wanted, ratio(best)))
    return lines
