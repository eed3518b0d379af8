"""`sign`, `ternary` and `sbc`: one scale for all elements, and of each its sign."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import Decoded, Kind, Part, Planes, Shared, placed, require_count
from fedsz.methods.settings import Count
from fedsz.methods.top_k import largest
from fedsz.spec_strings import setting


@dataclass(frozen=True)
class Sign(Part):
    """The sign of each element times their mean magnitude: EF-signSGD (Karimireddy et al. 2019).

    With v of d elements, (|v|_1 / d) sign(v); the sign of 0 is positive.
    """

    name = "sign"
    summary = "each element's sign, times the mean magnitude"
    planes = {"scale": Kind.SCALES, "signs": Kind.SIGNS}

    def code(self, x: NDArray, shared: Shared) -> Planes:
        return {"scale": mean_magnitude(x), "signs": x < 0}

    def decode(self, planes: Planes, shared: Shared) -> NDArray:
        scale, signs = _scale(planes["scale"]), planes["signs"]
        require_count("signs", signs, shared.spec.size)
        return np.where(signs, -scale, scale).reshape(shared.spec.shape)


@dataclass(frozen=True)
class Ternary(Part):
    """The sign of each element times one scale, and 0 for those that are small.

    The scale is the mean magnitude of the others. After `topk` that is sparse ternary compression
    (STC, Sattler et al. 2019).

    Attributes:
        threshold: elements of up to this share of the largest magnitude become 0; 0 to below 1.

    Raises:
        ConfigError: the threshold is out of range.
    """

    name = "ternary"
    summary = "each element's sign, times the mean magnitude; small ones become 0"
    planes = {"scale": Kind.SCALES, "trits": Kind.TRITS}

    threshold: float = setting(0.0, 0, 0.999)

    def code(self, x: NDArray, shared: Shared) -> Planes:
        kept = np.abs(x) > self.threshold * np.abs(x).max(initial=0)
        trits = np.sign(x).astype(np.int8) * kept
        return {"scale": mean_magnitude(x[kept]), "trits": trits}

    def decode(self, planes: Planes, shared: Shared) -> NDArray:
        scale, trits = _scale(planes["scale"]), planes["trits"]
        require_count("trits", trits, shared.spec.size)
        decoded: NDArray = (trits * scale).reshape(shared.spec.shape)
        return decoded


@dataclass(frozen=True)
class SparseBinary(Part):
    """Sparse binary compression (SBC, Sattler et al. 2018).

    Of the k largest elements above 0 and the k smallest below 0, those of the larger mean magnitude
    are sent, as their positions and that mean with its sign. Where fewer have a sign, k are fewer.

    Attributes:
        k: how many, or which share of a tensor.
    """

    name = "sbc"
    summary = "the k largest elements of one sign, all as their mean"
    planes = {"mean": Kind.SCALES, "indices": Kind.INDICES}

    k: Count = Count("1%")

    def code(self, x: NDArray, shared: Shared) -> Planes:
        k = self.k.of(x.size)
        sides = []
        for sign in (1, -1):
            of_sign = np.flatnonzero(x * sign > 0)
            indices = of_sign[largest(x[of_sign], min(k, of_sign.size))]
            sides.append((mean_magnitude(x[indices]), sign, indices))
        mean, sign, indices = max(sides, key=lambda side: float(side[0][0]))
        return {"mean": mean * mean.dtype.type(sign), "indices": indices}

    def decode(self, planes: Planes, shared: Shared) -> Decoded:
        require_count("means", planes["mean"], 1)
        return placed(planes["indices"], planes["mean"].reshape(()), shared.spec)


def mean_magnitude(v: NDArray) -> NDArray:
    """Return the mean magnitude of a flat array in its dtype, of shape (1,); 0 of none."""
    mean = np.abs(v).mean(dtype=np.longdouble) if v.size else 0
    return np.array([mean], v.dtype)


def _scale(plane: NDArray) -> np.floating:
    """Return the one scale that a plane holds."""
    require_count("scales", plane, 1)
    scale: np.floating = plane[0]
    return scale
