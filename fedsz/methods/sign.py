"""`sign` and `ternary`: one scale for all elements, and of each its sign."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.methods.base import Kind, Part, Parts, Shared, State, TensorSpec, require_count
from fedsz.methods.settings import check_setting


@dataclass(frozen=True)
class Sign(Part):
    """The sign of each element times their mean magnitude: EF-signSGD (Karimireddy et al. 2019).

    With v of d elements, (|v|_1 / d) sign(v); the sign of 0 is positive.
    """

    name = "sign"
    summary = "each element's sign, times the mean magnitude"
    planes = {"scale": Kind.SCALES, "signs": Kind.SIGNS}  # noqa: RUF012

    def contraction(self, spec: TensorSpec) -> float:
        """Return 1/d: what is taken off is |v|_1^2 / d, at least |v|_2^2 / d."""
        return 1 / spec.size

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:  # noqa: ARG002, D102
        v = x.reshape(-1)
        return {"scale": mean_magnitude(v), "signs": v < 0}, state

    def decode(self, parts: Parts, shared: Shared, summands: int = 1) -> NDArray:  # noqa: ARG002, D102
        scale, signs = _scale(parts["scale"]), parts["signs"]
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
    planes = {"scale": Kind.SCALES, "trits": Kind.TRITS}  # noqa: RUF012

    threshold: float = 0.0

    def __post_init__(self) -> None:
        check_setting("ternary threshold", self.threshold, 0, 0.999)

    def contraction(self, spec: TensorSpec) -> float:
        """Return 1/d: what is taken off is |v|_1^2 / k of the k elements that stay."""
        return 1 / spec.size

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Parts, State]:  # noqa: ARG002, D102
        v = x.reshape(-1)
        kept = np.abs(v) > self.threshold * np.abs(v).max(initial=0)
        trits = np.sign(v).astype(np.int8) * kept
        return {"scale": mean_magnitude(v[kept]), "trits": trits}, state

    def decode(self, parts: Parts, shared: Shared, summands: int = 1) -> NDArray:  # noqa: ARG002, D102
        scale, trits = _scale(parts["scale"]), parts["trits"]
        require_count("trits", trits, shared.spec.size)
        decoded: NDArray = (trits * scale).reshape(shared.spec.shape)
        return decoded


def mean_magnitude(v: NDArray) -> NDArray:
    """Return the mean magnitude of a flat array in its dtype, of shape (1,); 0 of none."""
    mean = np.abs(v).mean(dtype=np.longdouble) if v.size else 0
    return np.array([mean], v.dtype)


def _scale(plane: NDArray) -> np.floating:
    """Return the one scale that a plane holds."""
    require_count("scales", plane, 1)
    scale: np.floating = plane[0]
    return scale
