"""Figures 2, 3 and 10: weights, and the errors of what they decode to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fedsz import codecs
from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.experiments.error_distribution import BINS, Distribution, density, distribution
from fedsz.paper import published as printed
from fedsz.paper.compare import Comparison, Line
from fedsz.paper.drawing import curves, histogram, write
from fedsz.paper.workshop import Workshop
from fedsz.report.chart import Chart, Panel

SLICE: Final = 500  # weights of Figure 2
LARGE: Final = 1e-1  # the bound where errors are weights


def figure_2(shop: Workshop) -> Comparison:
    """Weights in the order they are stored in: nothing smooth about them."""
    dataset = shop.config.dataset_names[0]
    panels, lines, made_from = [], [], []
    for model in shop.config.model_names:
        made_from.append(shop.trained(model, dataset).how)
        name, x = _largest(shop, model, dataset)
        flat = x.reshape(-1)
        middle = flat.size // 2
        some = flat[middle : middle + SLICE].tolist()
        place = list(map(float, range(len(some))))
        panels.append(curves(f"{model}: {name}", {"weights": (place, some)}, x="place", y="weight"))
        lines.append(Line((model, name), "correlation with the next weight", None, _next(flat)))
    notes = printed.notes("figure 2")
    notes.append(
        "The paper shows weights beside slices of MIRANDA, a smooth simulation, which is not here;"
        " the correlation of neighbours says the same in a number: smooth fields have nearly 1,"
        " independent numbers 0."
    )
    title = f"{SLICE} weights from the middle of the largest tensor"
    return _figure(shop, "figure 2", title, ("model", "tensor"), panels, lines, made_from, notes)


def figure_3(shop: Workshop) -> Comparison:
    """Histograms of all weights."""
    dataset = shop.config.dataset_names[0]
    panels, lines, made_from = [], [], []
    for model in shop.config.model_names:
        made_from.append(shop.trained(model, dataset).how)
        weights = [x.reshape(-1) for x in shop.lossy(model, dataset).values()]
        found = distribution(np.concatenate(weights), "weights", "all lossy tensors")
        panels.append(_panel(model, found, x="weight", log=True))
        whole = [x for x in shop.lossy(model, dataset).values() if x.ndim > 1]
        matrices = [float(np.abs(x).max()) for x in whole]
        lines += _laws((model,), found)
        lines += [
            Line((model,), "largest magnitude", 1.0, max(abs(found.low), abs(found.high))),
            Line((model,), "largest magnitude but for BatchNorm", 1.0, max(matrices)),
        ]
    notes = printed.notes("figure 3")
    notes.append("The paper's weights all lie in [-1, 1]: the printed 1 is that limit.")
    title = "All weights that may be lossy"
    return _figure(shop, "figure 3", title, ("model",), panels, lines, made_from, notes)


def figure_10(shop: Workshop) -> Comparison:
    """What decoding has added to weights, at several bounds, and which law it follows."""
    dataset = shop.config.dataset_names[0]
    model = shop.config.model_names[0]
    name, x = _largest(shop, model, dataset)
    panels, lines = [], []
    for bound in shop.config.bounds:
        for spec in ("sz2", "uniform"):
            codec = codecs.get(spec)
            absolute = ErrorBound.of(bound).absolute(x)
            decoded = codec.decode(codec.encode(x, absolute), x.shape)
            error = decoded.astype(np.float64) - x
            found = distribution(error, "error", name)
            of = (model, spec, f"{bound.value:g}")
            lines += _laws(of, found)
            same = float(np.mean(decoded == 0))
            lines.append(Line(of, "decoded to zero", None, 100 * same, "%"))
            if spec == "sz2":
                panels.append(_panel(f"sz2, {bound.value:g}", found, x="decoded - original"))
    notes = printed.notes("figure 10")
    notes.append(
        'The paper: "similar to Laplacian". K-S is the largest difference of distribution'
        " functions, 0 for a perfect fit; the law with the least fits best."
    )
    best = {
        line.of[1:]: line.why for line in lines if line.quantity.startswith("best") and line.why
    }
    notes.append(
        "Best of Laplace, uniform and normal: "
        + "; ".join(f"{' '.join(of)}: {law}" for of, law in best.items())
        + "."
    )
    made_from = [shop.trained(model, dataset).how, f"tensor {name}, {x.size} weights"]
    title = f"Errors of {name}"
    headings = ("model", "codec", "bound")
    return _figure(shop, "figure 10", title, headings, panels, lines, made_from, notes)


def _largest(shop: Workshop, model: str, dataset: str) -> tuple[str, NDArray]:
    return max(shop.lossy(model, dataset).items(), key=lambda item: item[1].size)


def _next(flat: NDArray) -> float:
    x = flat.astype(np.float64) - float(flat.mean(dtype=np.float64))
    return float(np.dot(x[:-1], x[1:]) / np.dot(x, x))


def _laws(of: tuple[str, ...], found: Distribution) -> list[Line]:
    lines = [Line(of, f"K-S to {law.name}", None, law.ks) for law in found.laws]
    lines += [
        Line(of, f"scale of {law.name}", None, law.scale)
        for law in found.laws
        if law.name == printed.ERROR_LAW
    ]
    if found.best:
        least = min(law.ks for law in found.laws)
        lines.append(Line(of, "best K-S", None, least, why=found.best))
    return lines


def _panel(title: str, found: Distribution, *, x: str, log: bool = False) -> Panel:
    if found.low == found.high:  # nothing moved
        edges, shares = [found.low - 0.5, found.high + 0.5], [1.0]
        return histogram(title, edges, shares, {}, x=x)
    edges_array = np.linspace(found.low, found.high, BINS + 1)
    width = float(edges_array[1] - edges_array[0])
    heights = [count / found.numbers / width for count in found.counts]
    at = np.linspace(found.low, found.high, 401)
    laws = {
        law.name: (at.tolist(), density(law, at).tolist()) for law in found.laws if law.scale > 0
    }
    return histogram(title, edges_array.tolist(), heights, laws, x=x, log=log)


def _figure(
    shop: Workshop,
    name: str,
    title: str,
    headings: tuple[str, ...],
    panels: Sequence[Panel],
    lines: list[Line],
    made_from: list[str],
    notes: list[Any],
) -> Comparison:
    provenance = " ".join([*made_from, shop.machine])
    chart = Chart(name.replace(" ", "-"), title, "", provenance, tuple(panels))
    files = write(chart, shop.sources.folder, name)
    return Comparison(name, title, headings, lines, [shop.machine, *made_from], notes, files)
