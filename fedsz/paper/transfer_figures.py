"""Figures 7 and 8: how long an update takes on a link, with compression and without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from fedsz.control.transfer_time import transfer_seconds, worth_below
from fedsz.formatting import bandwidth as rate
from fedsz.paper import published
from fedsz.paper.comparison import Comparison, Line
from fedsz.paper.drawing import Curve, curves
from fedsz.paper.measurements import CODECS, OURS, Measurements
from fedsz.paper.published import RECOMMENDED_BOUND
from fedsz.report.runs import UNCOMPRESSED, UpdateCost

BANDWIDTHS: Final = np.logspace(6, 10.5, 61).tolist()  # 1 Mbps to 30 Gbps


def figure_7(measurements: Measurements) -> Comparison:
    """Seconds of an update on a slow link, with compression and decompression, over the bound."""
    config, bandwidth = measurements.config, measurements.options.bandwidth
    lines, panels, made_from = [], [], []
    for trained in measurements.trained_models():
        model = trained.model
        made_from.append(trained.provenance)
        drawn: dict[str, Curve] = {}
        for codec in ("sz2", OURS):
            times = []
            for bound in config.bounds:
                cost = measurements.update_cost(trained, codec, bound)
                times.append(_seconds(cost, bandwidth))
                uncompressed = transfer_seconds(0.0, cost.raw, bandwidth)
                known = model if (codec, bound) == ("sz2", RECOMMENDED_BOUND) else ""
                saved, faster = uncompressed - times[-1], uncompressed / times[-1]
                of = (model, codec, f"{bound:g}")
                lines += [
                    Line(of, "seconds", None, times[-1], "s"),
                    Line(of, "saved", published.SAVED_SECONDS.get(known), saved, "s"),
                    Line(of, "times faster", published.SPEEDUP.get(known), faster),
                ]
            drawn[codec] = dict(zip(config.bounds, times, strict=True))
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
    raw = costs[OURS].raw
    drawn = {c: {b / 1e6: _seconds(cost, b) for b in BANDWIDTHS} for c, cost in costs.items()}
    drawn[UNCOMPRESSED] = {b / 1e6: transfer_seconds(0.0, raw, b) for b in BANDWIDTHS}
    marks = {
        "500 Mbps, says the paper": published.WORTH_BELOW,
        "100 Mbps, says the paper": published.SZ2_BEST_BELOW,
    }
    title, headings = f"An update of {model} over bandwidth, {bound:g}", ("model", "codec")
    lines = [*_crossovers(model, costs), *_handovers(model, costs), *_by_table_1(model)]
    panels = [curves("", drawn, x="Mbps", y="s", log="xy", marks=marks)]
    return Comparison(title, headings, lines, [trained.provenance], panels)


def _seconds(cost: UpdateCost, bandwidth: float) -> float:
    return transfer_seconds(cost.encode + cost.decode, cost.sent, bandwidth)


def _crossovers(model: str, costs: Mapping[str, UpdateCost]) -> list[Line]:
    """Return up to which bandwidth each codec pays, with decompression and without."""
    lines = []
    for codec, cost in costs.items():
        of, printed = (model, codec), published.WORTH_BELOW if codec == "sz2" else None
        alone = worth_below(cost.encode, cost.raw, cost.sent) / 1e6
        lines += [
            Line(of, "worth it below, without t_D", printed, alone, "Mbps"),
            Line(of, "worth it below", printed, cost.worth_below / 1e6, "Mbps"),
        ]
    return lines


def _handovers(model: str, costs: Mapping[str, UpdateCost]) -> list[Line]:
    """Return up to which bandwidth SZ2 beats each other codec that is larger and faster."""
    sz2, lines = costs["sz2"], []
    for codec, other in costs.items():
        longer = sz2.encode + sz2.decode - other.encode - other.decode
        if other.sent > sz2.sent and longer > 0:
            at = worth_below(longer, other.sent, sz2.sent) / 1e6
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
