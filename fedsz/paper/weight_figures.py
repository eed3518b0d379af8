"""Figures 2, 3 and 10: weights, and the errors of what they decode to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from fedsz import codecs
from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.experiments.error_distribution import Distribution, distribution
from fedsz.paper import published
from fedsz.paper.comparison import Comparison, Line
from fedsz.paper.drawing import curves
from fedsz.paper.measurements import OURS, Measurements
from fedsz.report.distributions import histogram_panel

SLICE: Final = 500  # weights of Figure 2


def figure_2(measurements: Measurements) -> Comparison:
    """Weights in the order they are stored in: nothing smooth about them."""
    panels, lines, made_from = [], [], []
    for trained in measurements.trained_models():
        model = trained.model
        made_from.append(trained.provenance)
        name, x = _largest(measurements.lossy(trained))
        flat = x.reshape(-1)
        shown = flat[flat.size // 2 :][:SLICE].tolist()
        drawn: dict[float, float] = dict(enumerate(shown))
        panels.append(curves(f"{model}: {name}", {"weights": drawn}, x="place", y="weight"))
        of = (model, name)
        lines.append(Line(of, "correlation with the next weight", None, _autocorrelation(flat)))
    title, headings = f"{SLICE} weights from the middle of the largest tensor", ("model", "tensor")
    return Comparison(title, headings, lines, made_from, panels)


def figure_3(measurements: Measurements) -> Comparison:
    """Histograms of all weights."""
    panels, lines, made_from = [], [], []
    for trained in measurements.trained_models():
        model = trained.model
        made_from.append(trained.provenance)
        weights = list(measurements.lossy(trained).values())
        joined = np.concatenate([x.reshape(-1) for x in weights])
        found = distribution(joined, "weights", "all lossy tensors")
        panels.append(histogram_panel(model, found, "weight", log=True))
        matrices = max(float(np.abs(x).max()) for x in weights if x.ndim > 1)
        lines += [
            *_fits((model,), found),
            Line((model,), "largest magnitude", 1.0, max(abs(found.low), abs(found.high))),
            Line((model,), "largest magnitude but for BatchNorm", 1.0, matrices),
        ]
    title, headings = "All weights that may be lossy", ("model",)
    return Comparison(title, headings, lines, made_from, panels)


def figure_10(measurements: Measurements) -> Comparison:
    """What decoding has added to weights, at several bounds, and which law it follows."""
    config = measurements.config
    model = config.model_names[0]
    trained = measurements.trained(model, config.first_dataset)
    name, x = _largest(measurements.lossy(trained))
    panels, lines, best = [], [], []
    for bound in config.bounds:
        for spec in ("sz2", OURS):
            codec, absolute = codecs.get(spec), ErrorBound.rel(bound).absolute(x)
            decoded = codec.decode(codec.encode(x, absolute), x.shape)
            error = distribution(decoded.astype(np.float64) - x, "error", name)
            of = (model, spec, f"{bound:g}")
            lines += _fits(of, error)
            zeros = 100 * float(np.mean(decoded == 0))
            lines.append(Line(of, "decoded to zero", None, zeros, "%"))
            if error.best:
                best.append(f"{spec} {bound:g}: {error.best}")
            if spec == "sz2":
                panels.append(histogram_panel(f"sz2, {bound:g}", error, "decoded - original"))
    notes = [f"Best of Laplace, uniform and normal: {'; '.join(best)}."]
    title, headings = f"Errors of {name}", ("model", "codec", "bound")
    made_from = [trained.provenance, f"tensor {name}, {x.size} weights"]
    return Comparison(title, headings, lines, made_from, panels, notes)


def _largest(tensors: Mapping[str, NDArray]) -> tuple[str, NDArray]:
    return max(tensors.items(), key=lambda item: item[1].size)


def _autocorrelation(flat: NDArray) -> float:
    """Return the correlation of each weight with the next."""
    x = flat.astype(np.float64) - float(flat.mean(dtype=np.float64))
    return float(np.dot(x[:-1], x[1:]) / np.dot(x, x))


def _fits(of: tuple[str, ...], found: Distribution) -> list[Line]:
    """Return how well each law fits, and the scale of the one that the paper names."""
    lines = [Line(of, f"K-S to {law.name}", None, law.ks) for law in found.laws]
    named = (law for law in found.laws if law.name == published.ERROR_LAW)
    lines += [Line(of, f"scale of {law.name}", None, law.scale) for law in named]
    if found.best:
        least = min(law.ks for law in found.laws)
        lines.append(Line(of, "best K-S", None, least, why=found.best))
    return lines
