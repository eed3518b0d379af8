"""The tables: ratios (the paper's Tables I and V), accuracy, times, and what failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from fedsz.bounds import ErrorBound
from fedsz.experiments.link_model import Link
from fedsz.formatting import NOTHING, bandwidth, digits, percent, points, seconds, size_in_digits
from fedsz.report.chart import Omitted, Table
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, named, paired, updates
from fedsz.report.statistics import Spread, spread
from fedsz.report.times import NO_UPDATE, compressed, compressing_pays, uncompressed

SHOWN: Final = ("model", "dataset", "clients", "rounds")  # what tells a failed run from others


def ratios(settings: Sequence[Setting]) -> Table | Omitted:
    """Return how much smaller updates become, by model, data set, way and bound."""
    title = "Ratio"
    bounds: list[ErrorBound | None] = []
    for setting in settings:
        bounds += [bound for bound in setting.bounds if bound not in bounds]
    bounds.sort(key=lambda b: (b.kind, b.value) if b else ("", 0))
    unsteered = any(
        set(setting.labels) - set(setting.bounded) - {UNCOMPRESSED} for setting in settings
    )
    columns = bounds + ([None] if unsteered else [])
    rows = []
    for setting in settings:
        for label in setting.labels:
            if label == UNCOMPRESSED:
                continue
            cells = []
            for bound in columns:
                steered = label in setting.bounded
                runs = setting.of(label, bound) if steered == (bound is not None) else []
                cells.append(spread(Spread.of(update.ratio for update in updates(runs))))
            rows.append((setting.title, label, *cells))
    if not rows:
        return Omitted(title, "no run compresses")
    return Table(
        "ratios",
        title,
        "Bytes of the updates over bytes of their streams, the lossless part and all headers"
        " counted, over all rounds of a run; the median over seeds (least … greatest).",
        ("run", "way", *(named(bound, "no bound") for bound in columns)),
        tuple(rows),
        words=2,
    )


def accuracies(setting: Setting) -> Table | Omitted:
    """Return accuracies after the last round, and how far they are from the uncompressed."""
    rows = []
    for label, bound in setting.compared:
        runs = setting.of(label, bound)
        differences = Spread.of(paired(runs, setting.baseline, lambda run: run.accuracy))
        plain = label == UNCOMPRESSED
        worst = max((run.max_error for run in runs), default=math.nan)
        rows.append(
            (
                label,
                named(bound),
                spread(Spread.of(run.accuracy for run in runs), percent),
                NOTHING if plain else _difference(differences),
                str(differences.count) if differences and not plain else NOTHING,
                digits(worst) if bound else NOTHING,
            )
        )
    if not setting.baseline:
        note = " There is no uncompressed run (codec raw, lossless raw) to compare with."
    else:
        note = (
            " The difference to uncompressed is in percentage points, between runs of the same"
            " seed: their mean (least … greatest)."
        )
    return Table(
        f"{setting.name}-accuracies",
        "Accuracy after the last round",
        f"In percent, the median over seeds (least … greatest).{note} Error / bound is the largest"
        f" error of any client in any round. {setting.provenance}",
        ("way", "bound", "accuracy, %", "difference, points", "pairs", "error / bound"),
        tuple(rows),
        words=2,
    )


def timings(setting: Setting, link: Link) -> Table | Omitted:
    """Return what an update costs, and the bandwidths at which compressing pays."""
    title = "Time of an update"
    if not updates(setting.runs):
        return Omitted(title, NO_UPDATE)
    plain = uncompressed(setting, link)
    rows = []
    for label, bound in setting.compared:
        found = updates(setting.of(label, bound))
        if not found:
            continue
        training = _median([update.train for update in found], seconds)
        if label == UNCOMPRESSED:
            raw = _median([update.raw for update in found], size_in_digits)
            whole = spread(plain, seconds)
            rows.append((label, NOTHING, training, NOTHING, NOTHING, raw, whole, "1.00", NOTHING))
            continue
        times = Spread.of(compressed(update, link) for update in found)
        assert times is not None
        rows.append(
            (
                label,
                named(bound),
                training,
                _median([update.encode for update in found], seconds),
                _median([update.decode for update in found], seconds),
                _median([update.sent for update in found], size_in_digits),
                spread(times, seconds),
                digits(plain.middle / times.middle),
                compressing_pays(found),
            )
        )
    delay = f" and {seconds(link.latency)} of latency" if link.latency else ""
    return Table(
        f"{setting.name}-timings",
        title,
        "Means over the updates of a run, then the median over seeds (least … greatest). The sum is"
        f" encode + transfer + decode with {bandwidth(link.bandwidth)}{delay}, without training;"
        " uncompressed, it is the transfer alone. Compressing pays at the bandwidths in the last"
        f" column. {setting.provenance}",
        ("way", "bound", "training", "encode", "decode", "sent", "sum", "times faster", "pays"),
        tuple(rows),
        words=2,
    )


def failures(runs: Sequence[Run]) -> Table | None:
    """Return the runs that failed, and why."""
    rows = tuple(
        (*(str(run.conditions[name]) for name in SHOWN), str(run.way), str(run.seed), run.error)
        for run in runs
        if run.error
    )
    if not rows:
        return None
    return Table(
        "failures",
        "Runs that failed",
        "They are in no figure and in no other table.",
        (*SHOWN, "way", "seed", "error"),
        rows,
        words=7,
    )


def _median(values: Sequence[float], show: Callable[[float], str]) -> str:
    found = Spread.of(values)
    return show(found.middle) if found else NOTHING


def _difference(differences: Spread | None) -> str:
    if differences is None:
        return NOTHING
    limits = f" ({points(differences.least)} … {points(differences.greatest)})"
    return points(differences.mean) + (limits if differences.count > 1 else "")
