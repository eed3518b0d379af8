"""`centroids`: each element's nearest of a few values that fit the tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from fedsz.arrays import NDArray, chunks
from fedsz.codecs import _methods
from fedsz.errors import CorruptStream
from fedsz.methods.base import Kind, Shared, Stage, Symbols, require_count
from fedsz.spec_strings import setting

ITERATIONS: Final = 10  # of Lloyd; the error of bell-shaped values hardly falls later
SAMPLE: Final = 1 << 16  # elements, about, that centroids are fitted to


@dataclass(frozen=True)
class Centroids(Stage):
    """k-means in one dimension (Lloyd 1982), sent as labels and centroids.

    Half of the clusters begin below 0 and half above, each with an equal share of the elements
    there. In the end a centroid is the mean of those that are nearest to it.

    Attributes:
        bits: of a label, 1 to 8.
    """

    name = "centroids"
    summary = "the nearest of a few values that fit the tensor, by k-means"
    symbols = {"centroids": Kind.VALUES, "labels": Kind.LEVELS}

    bits: int = setting(2, 1, 8)

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        sample = x[:: max(x.size // SAMPLE, 1)].astype(np.float64)
        centres = fitted(sample, 1 << self.bits)
        centres, labels = moved(x, centres)
        labels -= centres.size // 2  # on both sides of 0 they are shorter as levels
        return {"centroids": centres.astype(x.dtype), "labels": labels}

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        centroids, labels = symbols["centroids"], symbols["labels"]
        require_count("labels", labels, shared.spec.size)
        first = -(centroids.size // 2)
        if labels.min(initial=0) < first or labels.max(initial=first - 1) >= first + centroids.size:
            raise CorruptStream(f"a label beyond {centroids.size} centroids")
        y = np.empty(labels.size, centroids.dtype)
        for here in chunks(y.size):
            y[here] = centroids[labels[here] - first]
        return y.reshape(shared.spec.shape)


def fitted(x: NDArray, count: int) -> NDArray:
    """Return up to ``count`` different centres of a flat array of float64, ascending."""
    groups = [
        group
        for side in (x[x < 0], x[x >= 0])
        if side.size
        for group in np.array_split(np.sort(side), min(count // 2, side.size))
    ]
    centres = np.unique([group.mean() for group in groups])
    for _ in range(ITERATIONS):
        centres, _ = moved(x, centres)
    return centres


def moved(x: NDArray, centres: NDArray) -> tuple[NDArray, NDArray]:
    """Return the mean of the elements nearest to each centre, and each element's nearest centre.

    The mean of none is the centre. Elements are flat, what they are labelled by is int16.
    """
    labels = np.empty(x.size, np.int16)
    sums, counts = np.zeros(centres.size), np.zeros(centres.size, np.int64)
    if x.size:  # else there is no centre
        _methods.cluster(x, (centres[1:] + centres[:-1]) / 2, labels, sums, counts)
    return np.where(counts, sums / np.maximum(counts, 1), centres), labels
