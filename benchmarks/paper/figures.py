"""Figures of weights (2, 3, 10) and of an update on a link (7, 8)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Final

import numpy as np

from benchmarks.paper import published
from benchmarks.paper.comparison import Comparison, Line
from benchmarks.paper.drawing import Curve, curves, histogram
from benchmarks.paper.error_distribution import Distribution, distribution
from benchmarks.paper.measurements import CODECS, OURS, Measurements
from benchmarks.paper.published import RECOMMENDED_BOUND
from fedsz import codecs
from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.control.transfer_time import UpdateCost, worth_below
from fedsz.formatting import bandwidth as rate
from fedsz.report.runs import UNCOMPRESSED

SLICE: Final = 500  # weights of Figure 2
BANDWIDTHS: Final = np.logspace(6, 10.5, 61).tolist()  # 1 Mbps to 30 Gbps


def figure_2(measurements: Measurements) -> Comparison:
    """Weights in the order they are stored in: nothing smooth about them."""
    panels, lines, made_from = [], [], []
    for trained in measurements.trained_models():
        made_from.append(trained.provenance)
        name, x = max(measurements.lossy(trained).items(), key=lambda item: item[1].size)
        flat, of = x.reshape(-1), (trained.model, name)
        drawn: dict[float, float] = dict(enumerate(flat[flat.size // 2 :][:SLICE].tolist()))
        panels.append(curves(": ".join(of), {"weights": drawn}, x="place", y="weight"))
        lines.append(Line(of, "correlation with the next weight", None, _autocorrelation(flat)))
    title, headings = f"{SLICE} weights from the middle of the largest tensor", ("model", "tensor")
    return Comparison(title, headings, lines, made_from, panels)


def figure_3(measurements: Measurements) -> Comparison:
    """Histograms of all weights."""
    panels, lines, made_from = [], [], []
    for trained in measurements.trained_models():
        of = (trained.model,)
        made_from.append(trained.provenance)
        weights = list(measurements.lossy(trained).values())
        joined = np.concatenate([x.reshape(-1) for x in weights])
        found = distribution(joined, "weights", "all lossy tensors")
        panels.append(histogram(trained.model, found, "weight", log=True))
        matrices = max(float(np.abs(x).max()) for x in weights if x.ndim > 1)
        lines += [
            *_fits(of, found),
            Line(of, "largest magnitude", 1.0, max(abs(found.low), abs(found.high))),
            Line(of, "largest magnitude but for BatchNorm", 1.0, matrices),
        ]
    return Comparison("All weights that may be lossy", ("model",), lines, made_from, panels)


def figure_10(measurements: Measurements) -> Comparison:
    """What decoding has added to weights, at several bounds, and which law it follows."""
    config = measurements.config
    model = config.model_names[0]
    trained = measurements.trained(model, config.first_dataset)
    name, x = max(measurements.lossy(trained).items(), key=lambda item: item[1].size)
    panels, lines, best = [], [], []
    for bound, spec in itertools.product(config.bounds, ("sz2", OURS)):
        codec, absolute = codecs.get(spec), ErrorBound.rel(bound).absolute(x)
        decoded = codec.decode(codec.encode(x, absolute), x.shape)
        error = distribution(decoded.astype(np.float64) - x, "error", name)
        of = (model, spec, f"{bound:g}")
        zeros = 100 * float(np.mean(decoded == 0))
        lines += [*_fits(of, error), Line(of, "decoded to zero", None, zeros, "%")]
        if error.best:
            best.append(f"{spec} {bound:g}: {error.best}")
        if spec == "sz2":
            panels.append(histogram(f"sz2, {bound:g}", error, "decoded - original"))
    notes = [f"Best of Laplace, uniform and normal: {'; '.join(best)}."]
    title, headings = f"Errors of {name}", ("model", "codec", "bound")
    made_from = [trained.provenance, f"tensor {name}, {x.size} weights"]
    return Comparison(title, headings, lines, made_from, panels, notes)


def _autocorrelation(flat: NDArray) -> float:
    x = flat.astype(np.float64) - float(flat.mean(dtype=np.float64))
    return float(np.dot(x[:-1], x[1:]) / np.dot(x, x))


def _fits(of: tuple[str, ...], found: Distribution) -> list[Line]:
    """Return how well each law fits, and the scale of the one that the paper names."""
    lines = [Line(of, f"K-S to {law.name}", None, law.ks) for law in found.laws]
    named = (law for law in found.laws if law.name == published.ERROR_LAW)
    lines += [Line(of, f"scale of {law.name}", None, law.scale) for law in named]
    return lines


def figure_7(measurements: Measurements) -> Comparison:
    """Seconds of an update on a slow link, with compression and decompression, over the bound."""
    config, bandwidth = measurements.config, measurements.options.bandwidth
    lines, panels, made_from = [], [], []
    for trained in measurements.trained_models():
        model = trained.model
        made_from.append(trained.provenance)
        drawn: dict[str, Curve] = {}
        for codec in ("sz2", OURS):
            times: dict[float, float] = {}
            for bound in config.bounds:
                cost = measurements.update_cost(trained, codec, bound)
                seconds = times[bound] = cost.seconds(bandwidth)
                uncompressed = cost.plain.seconds(bandwidth)
                known = model if (codec, bound) == ("sz2", RECOMMENDED_BOUND) else ""
                saved, faster = uncompressed - seconds, uncompressed / seconds
                of = (model, codec, f"{bound:g}")
                lines += [
                    Line(of, "seconds", None, seconds, "s"),
                    Line(of, "saved", published.SAVED_SECONDS.get(known), saved, "s"),
                    Line(of, "times faster", published.SPEEDUP.get(known), faster),
                ]
            drawn[codec] = times
        lines.append(Line((model, "none", "-"), "seconds", None, uncompressed, "s"))
        levels = {UNCOMPRESSED: uncompressed}
        panels.append(curves(model, drawn, x="error bound", y="s", log="xy", levels=levels))
    title, headings = f"An update at {rate(bandwidth)}", ("model", "codec", "bound")
    return Comparison(title, headings, lines, made_from, panels)


def figure_8(measurements: Measurements) -> Comparison:
    """Seconds of an update over bandwidth, and where codecs hand over to each other."""
    config = measurements.config
    model = config.model_like("alexnet")
    trained = measurements.trained(model, config.first_dataset)
    bound = RECOMMENDED_BOUND
    costs = {c: measurements.update_cost(trained, spec, bound) for c, spec in CODECS.items()}
    drawn = {c: {b / 1e6: cost.seconds(b) for b in BANDWIDTHS} for c, cost in costs.items()}
    drawn[UNCOMPRESSED] = {b / 1e6: costs[OURS].plain.seconds(b) for b in BANDWIDTHS}
    marks = {
        "500 Mbps, says the paper": published.WORTH_BELOW,
        "100 Mbps, says the paper": published.SZ2_BEST_BELOW,
    }
    title, headings = f"An update of {model} over bandwidth, {bound:g}", ("model", "codec")
    lines = [*_crossovers(model, costs), *_handovers(model, costs), *_by_table_1(model)]
    panels = [curves("", drawn, x="Mbps", y="s", log="xy", marks=marks)]
    return Comparison(title, headings, lines, [trained.provenance], panels)


def _crossovers(model: str, costs: Mapping[str, UpdateCost]) -> list[Line]:
    """Return up to which bandwidth each codec pays, with decompression and without."""
    lines = []
    for codec, cost in costs.items():
        of, printed = (model, codec), published.WORTH_BELOW if codec == "sz2" else None
        alone = worth_below(cost.encode_seconds, cost.raw_bytes, cost.sent_bytes) / 1e6
        lines += [
            Line(of, "worth it below, without t_D", printed, alone, "Mbps"),
            Line(of, "worth it below", printed, cost.worth_below / 1e6, "Mbps"),
        ]
    return lines


def _handovers(model: str, costs: Mapping[str, UpdateCost]) -> list[Line]:
    """Return up to which bandwidth SZ2 beats each other codec that is larger and faster."""
    sz2, lines = costs["sz2"], []
    for codec, other in costs.items():
        longer = sz2.coding_seconds - other.coding_seconds
        if other.sent_bytes > sz2.sent_bytes and longer > 0:
            at = worth_below(longer, other.sent_bytes, sz2.sent_bytes) / 1e6
            of, printed = (model, f"sz2 before {codec}"), published.SZ2_BEST_BELOW
            lines.append(Line(of, "smaller wins below", printed, at, "Mbps"))
    return lines


def _by_table_1(model: str) -> list[Line]:
    """Return up to which bandwidth each codec pays by Table I's own runtimes and ratios."""
    if model not in published.MODELS:
        return []
    table = {c: published.TABLE_1[model, c, RECOMMENDED_BOUND] for c in published.CODECS}
    nbytes = 1e6 * table["sz2"].runtime * table["sz2"].speed
    lines = []
    for codec, row in table.items():
        at = worth_below(row.runtime, nbytes, nbytes / row.ratio) / 1e6
        printed = published.WORTH_BELOW if codec == "sz2" else None
        lines.append(Line((model, f"{codec} by Table I"), "worth it below", printed, at, "Mbps"))
    return lines
