"""Which precisions the paper's ZFP may have had: it names none, but prints the ratios."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Final, cast

from fedsz import codecs
from fedsz.arrays import NDArray
from fedsz.codecs.zfp import Zfp
from fedsz.paper import published
from fedsz.paper.comparison import Line

LOWEST: Final = 2  # bits
HIGHEST: Final = 24  # a float32's significand


def closest_precisions(weights: Mapping[str, NDArray], model: str) -> list[Line]:
    """Return, for each ratio that Table I prints for ZFP, the precision that comes closest.

    Args:
        weights: a model's float32 tensors that may be lossy.
        model: which; nothing is returned for one that the table does not have.
    """
    if model not in published.MODELS or Zfp().missing():
        return []

    @cache
    def ratio(precision: int) -> float:
        codec = cast("Zfp", codecs.get("zfp", precision=precision))
        size = sum(len(codec.compress(x.reshape(-1), 0.0)) for x in weights.values())
        return sum(x.nbytes for x in weights.values()) / size

    def closest(wanted: float) -> int:
        # Ratios fall as precision grows.
        low, high = LOWEST, HIGHEST
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if ratio(middle) > wanted else (low, middle)
        return min((low, high), key=lambda precision: abs(ratio(precision) - wanted))

    printed = [published.TABLE_1[model, "zfp", bound].ratio for bound in published.BOUNDS]
    return [
        Line((model, f"zfp:precision={best}", "-"), "ratio", wanted, ratio(best))
        for wanted, best in zip(printed, map(closest, printed), strict=True)
    ]
