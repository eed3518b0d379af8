"""Figures 6, 7 and 8: where an epoch's time goes, and what a link makes of compression.

An update of S bytes that codecs turn into S' takes, on a link of B bit/s,

    t_C + t_D + 8 S' / B    instead of    8 S / B

so compression is worth it below B = 8 (S - S') / (t_C + t_D) (FedSZ, Equation 1).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from fedsz.experiments.link_model import Link
from fedsz.formatting import bandwidth as shown
from fedsz.paper import published as printed
from fedsz.paper.compare import Comparison, Line
from fedsz.paper.drawing import curves, stacked, write
from fedsz.paper.workshop import CODECS, OURS, USUAL, Update, Workshop
from fedsz.report.chart import Chart
from fedsz.report.runs import UNCOMPRESSED

BANDWIDTHS: Final = np.logspace(6, 10.5, 61)  # 1 Mbps to 30 Gbps
PARTS: Final = ("train", "compress", "decompress", "test")


def figure_6(shop: Workshop) -> Comparison:
    """Seconds of a client's epoch, and of a server's part for it, at 1e-2."""
    models, datasets = shop.config.model_names, shop.config.dataset_names
    rows = shop.swept(models, datasets, ("sz2", OURS), (USUAL,))
    lines, panels = [], []
    overheads: dict[str, list[float]] = {"sz2": [], OURS: []}
    for dataset in datasets:
        bars = {}
        for model, codec in itertools.product(models, overheads):
            spent = _epoch(rows, model, dataset, codec)
            if spent is None:
                continue
            bars[f"{model} {codec}"] = spent
            overhead = spent["compress"] / sum(spent.values())
            overheads[codec].append(overhead)
            of = (model, dataset, codec)
            worst = printed.OVERHEAD.get((model, dataset)) if codec == "sz2" else None
            seconds = printed.OVERHEAD_SECONDS.get((model, dataset)) if codec == "sz2" else None
            lines += [Line(of, part, None, spent[part], "s") for part in PARTS]
            lines[-3] = Line(of, "compress", seconds, spent["compress"], "s")
            lines.append(Line(of, "overhead", worst and 100 * worst, 100 * overhead, "%"))
        panels.append(stacked(dataset, bars, y="s of a client's round"))
    for codec, known in overheads.items():
        if known:
            mean = 100 * sum(known) / len(known)
            paper = 100 * printed.OVERHEAD_MEAN if codec == "sz2" else None
            lines.append(Line(("all", "all", codec), "mean overhead", paper, mean, "%"))
    notes = printed.notes("figure 6")
    notes.append(
        "A client's seconds to train and compress, the server's to decode its reply, and to test"
        " the average once. The overhead is compression's share of all four."
    )
    chart = Chart("figure-6", "Where a round's time goes, at 1e-2", "", said(rows), tuple(panels))
    files = write(chart, shop.sources.folder, "figure 6")
    headings = ("model", "data", "codec")
    made_from = [shop.machine, said(rows)]
    return Comparison("figure 6", chart.title, headings, lines, made_from, notes, files)


def _epoch(
    rows: list[dict[str, Any]], model: str, dataset: str, codec: str
) -> dict[str, float] | None:
    """Return the mean seconds of a round's parts, per client; None without such a run."""
    same = [
        row
        for row in rows
        if (row["model"], row["dataset"], row["codec"]) == (model, dataset, codec)
        and row["bound_value"] == USUAL
        and row["bound_kind"] == "rel"
        and row["round"]
        and row["replies"]
    ]
    if not same:
        return None
    replies = sum(row["replies"] for row in same)
    parts = {
        name: sum(row[f"{column}_seconds"] for row in same) / replies
        for name, column in (("train", "train"), ("compress", "encode"), ("decompress", "decode"))
    }
    return {**parts, "test": sum(row["test_seconds"] for row in same) / len(same)}


def figure_7(shop: Workshop) -> Comparison:
    """Seconds of an update on a slow link, with compression and decompression, over the bound."""
    dataset = shop.config.dataset_names[0]
    link = Link(shop.sources.bandwidth)
    lines, panels = [], []
    made_from = [shop.machine]
    bounds = [bound.value for bound in shop.config.bounds]
    for model in shop.config.model_names:
        made_from.append(shop.trained(model, dataset).how)
        drawn = {}
        for codec in ("sz2", OURS):
            updates = [shop.update(model, dataset, codec, bound) for bound in bounds]
            times = [_seconds(update, link) for update in updates]
            drawn[codec] = (bounds, times)
            for bound, update, seconds in zip(bounds, updates, times, strict=True):
                plain = link.seconds(update.raw)
                of = (model, codec, f"{bound:g}")
                known = codec == "sz2" and bound == USUAL
                factor = printed.SPEED_UP.get(model) if known else None
                saved = printed.SAVED_SECONDS.get(model) if known else None
                lines += [
                    Line(of, "seconds", None, seconds, "s"),
                    Line(of, "saved", saved, plain - seconds, "s"),
                    Line(of, "times faster", factor, plain / seconds),
                ]
        plain = link.seconds(updates[0].raw)
        lines.append(Line((model, "none", "-"), "seconds", None, plain, "s"))
        panels.append(
            curves(model, drawn, x="error bound", y="s", log="xy", levels={UNCOMPRESSED: plain})
        )
    title = f"An update at {shown(link.bandwidth)}"
    chart = Chart("figure-7", title, "", " ".join(made_from), tuple(panels))
    files = write(chart, shop.sources.folder, "figure 7")
    notes = printed.notes("figure 7")
    notes.append(
        "Ours: t_C + t_D + 8 S' / B against 8 S / B, one update, nothing else on the link. A ratio"
        " is the most that a link can make of it."
    )
    headings = ("model", "codec", "bound")
    return Comparison("figure 7", title, headings, lines, made_from, notes, files)


def figure_8(shop: Workshop) -> Comparison:
    """Seconds of an update over bandwidth, and where codecs hand over to each other."""
    dataset = shop.config.dataset_names[0]
    names = shop.config.model_names
    model = "alexnet" if "alexnet" in names else names[0]
    updates = {
        codec: shop.update(model, dataset, spec, USUAL)
        for codec, spec in {**CODECS, OURS: OURS}.items()
    }
    raw = next(iter(updates.values())).raw
    across = (BANDWIDTHS / 1e6).tolist()
    drawn = {
        codec: (across, [_seconds(update, Link(bits)) for bits in BANDWIDTHS])
        for codec, update in updates.items()
    }
    drawn[UNCOMPRESSED] = (across, [Link(bits).seconds(raw) for bits in BANDWIDTHS])
    lines = []
    for codec, update in updates.items():
        both = crossover(raw, update.sent, update.encode + update.decode)
        alone = crossover(raw, update.sent, update.encode)
        known = printed.WORTH_BELOW / 1e6 if codec == "sz2" else None
        lines += [
            Line((model, codec), "worth it below, without t_D", known, alone / 1e6, "Mbps"),
            Line((model, codec), "worth it below", known, both / 1e6, "Mbps"),
        ]
    lines += _handovers(model, updates)
    lines += _by_the_paper(model)
    title = f"An update of {model} over bandwidth, {USUAL:g}"
    made_from = [shop.machine, shop.trained(model, dataset).how]
    marks = {
        "500 Mbps, says the paper": printed.WORTH_BELOW / 1e6,
        "100 Mbps, says the paper": printed.SZ2_BEST_BELOW / 1e6,
    }
    panel = curves("", drawn, x="Mbps", y="s", log="xy", marks=marks)
    chart = Chart("figure-8", title, "", " ".join(made_from), (panel,))
    files = write(chart, shop.sources.folder, "figure 8")
    notes = printed.notes("figure 8")
    notes.append(
        "Worth it below B = 8 (S - S') / (t_C + t_D); two codecs hand over to each other where"
        ' their lines in 1 / B cross. Rows "by Table I" are the paper\'s own numbers, put into the'
        " same formula with t_C alone."
    )
    headings = ("model", "codec")
    return Comparison("figure 8", title, headings, lines, made_from, notes, files)


def crossover(first: float, second: float, seconds: float) -> float:
    """Return the bandwidth below which ``second`` bytes and ``seconds`` beat ``first`` bytes.

    Returns:
        bit/s; infinite where nothing is spent, 0 where nothing is saved.
    """
    saved = 8 * (first - second)
    if saved <= 0:
        return 0.0
    return saved / seconds if seconds > 0 else math.inf


def _seconds(update: Update, link: Link) -> float:
    return update.encode + update.decode + link.seconds(update.sent)


def _handovers(model: str, updates: Mapping[str, Update]) -> list[Line]:
    """Return up to which bandwidth SZ2 beats each other codec that is larger and faster."""
    sz2 = updates["sz2"]
    lines = []
    for codec, other in updates.items():
        faster = sz2.encode + sz2.decode - other.encode - other.decode
        if other.sent > sz2.sent and faster > 0:
            at = crossover(other.sent, sz2.sent, faster)
            known = printed.SZ2_BEST_BELOW / 1e6
            lines.append(
                Line((model, f"sz2 before {codec}"), "smaller wins below", known, at / 1e6, "Mbps")
            )
    return lines


def _by_the_paper(model: str) -> list[Line]:
    """Return what Table I's own runtimes and ratios give."""
    lines = []
    sizes = {codec: printed.TABLE_1.get((model, codec)) for codec in printed.CODECS}
    for codec, cell in sizes.items():
        if cell is None:
            continue
        nbytes = (
            1e6 * printed.TABLE_1[model, "sz2"].runtime[0] * printed.TABLE_1[model, "sz2"].speed[0]
        )
        at = crossover(nbytes, nbytes / cell.ratio[0], cell.runtime[0])
        known = printed.WORTH_BELOW / 1e6 if codec == "sz2" else None
        lines.append(
            Line((model, f"{codec} by Table I"), "worth it below", known, at / 1e6, "Mbps")
        )
    return lines


def said(rows: list[dict[str, Any]]) -> str:
    """Return the settings that runs share, for people."""
    if not rows:
        return "no runs"
    row = rows[-1]
    images = f"{row['samples']} images" if row["samples"] else "all images"
    return (
        f"{row['clients']} clients, {images}, {row['rounds']} rounds of {row['epochs']} epochs,"
        f" batch {row['batch_size']}, learning rate {row['learning_rate']:g}, seeds"
        f" {', '.join(str(seed) for seed in sorted({r['seed'] for r in rows}))};"
        f" {row['machine']}"
    )
