"""The tables: ways, ratios (the paper's Tables I and V), accuracy, times, and what failed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedsz.experiments.link_model import Link
from fedsz.formatting import NOTHING, digits, percent, points, seconds, size_in_digits
from fedsz.report.accuracy import NO_BYTES, SEEDS, columns_to, goals
from fedsz.report.chart import Omitted, Table
from fedsz.report.rate_accuracy import USUAL_WAY, Compared, RateAccuracy
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, Spread, difference, named, spread
from fedsz.report.times import NO_UPDATE, compressing_pays, named_link, uncompressed


def ways(compared: Compared, reach: float | None) -> Table | Omitted:
    """Return what each way of each setting saves and costs; for ``reach`` see `rate_accuracies`."""
    title = "Ways"
    if not any(math.isfinite(way.up) for _, found in compared for way in found):
        return Omitted(title, NO_BYTES)
    rows = [
        ("" if i else setting.title, *_cells(way))
        for setting, found in compared
        for i, way in enumerate(found)
    ]
    caption = (
        "Ratios are uncompressed bytes over sent ones, of all rounds and seeds. Points are the mean"
        " difference to the uncompressed run of the same seed, after the last round."
        f"{SEEDS} Kept: the least share of an update's energy that arrived in a round. Fewer up:"
        f" bytes up of {USUAL_WAY} over this way's, of the same seeds. Bytes to an accuracy are up"
        f" plus down until {goals(reach)}, on a straight line between rounds; medians"
        " over the seeds that got there, and how many did if not all."
    )
    head = (
        *("run", "way", "ratio up", "ratio down", "ratio of all", "points", "seeds"),
        *("energy, %", "times fewer up", *columns_to(reach)),
    )
    return Table("ways", title, caption, head, rows, words=2)


def ratios(settings: Sequence[Setting]) -> Table:
    """Return how much smaller updates become, by model, data set, scheme and bound."""
    found = {
        (setting.title, group.label, group.bound): spread(group.ratio)
        for setting in settings
        for group in setting.groups
        if group.bound
    }
    bounds = sorted({bound for _, _, bound in found}, key=lambda bound: (bound.kind, bound.value))
    caption = (
        "Bytes of the updates over bytes of their streams, the lossless part and all headers"
        " counted, over all rounds of a run; the median over seeds (least … greatest)."
    )
    rows = [
        (run, way, *(found.get((run, way, bound), NOTHING) for bound in bounds))
        for run, way in dict.fromkeys((run, way) for run, way, _ in found)
    ]
    return Table("ratios", "Ratio", caption, ("run", "scheme", *map(named, bounds)), rows, words=2)


def accuracies(setting: Setting) -> Table:
    """Return accuracies after the last round, and how far they are from the uncompressed."""
    rows = []
    for group in setting.groups:
        lost = None if group.uncompressed else setting.difference(group.runs)
        mean = points(lost.mean) if lost else NOTHING
        if lost and lost.count > 1:
            mean += f" ({points(lost.least)} … {points(lost.greatest)})"
        accuracy = spread(Spread.of(run.accuracy for run in group.runs), percent)
        error = max(run.max_error for run in group.runs) if group.bound else math.nan
        pairs = str(lost.count) if lost else NOTHING
        rows.append((group.label, named(group.bound), accuracy, mean, pairs, digits(error)))
    note = " There is no uncompressed run (codec raw, lossless raw) to compare with."
    if setting.baseline:
        note = (
            " The difference to uncompressed is in percentage points, between runs of the same"
            " seed: their mean (least … greatest)."
        )
    caption = (
        f"In percent, the median over seeds (least … greatest).{note} Error / bound is the largest"
        f" error of any client in any round. {setting.provenance}"
    )
    head = ("scheme", "bound", "accuracy, %", "difference, points", "pairs", "error / bound")
    name, title = f"{setting.name}-accuracies", "Accuracy after the last round"
    return Table(name, title, caption, head, rows, words=2)


def timings(setting: Setting, link: Link) -> Table | Omitted:
    """Return what an update costs, and the bandwidths at which compressing pays."""
    title = "Time of an update"
    if not setting.updates:
        return Omitted(title, NO_UPDATE)
    plain = uncompressed(setting, link)
    names = ("train_seconds", "encode_seconds", "decode_seconds", "sent_bytes")
    rows = []
    for group in setting.groups:
        if not group.updates:
            continue
        spreads = (Spread.of(getattr(update, name) for update in group.updates) for name in names)
        train, encode, decode, sent = (x.middle if x else math.nan for x in spreads)
        times = (update.seconds(link.bandwidth, link.latency) for update in group.updates)
        total = Spread.of(times) or plain
        pays = compressing_pays(group.updates)
        if group.uncompressed:
            encode, decode, pays = math.nan, math.nan, NOTHING
        parts = map(seconds, (train, encode, decode))
        faster = digits(plain.middle / total.middle)
        cells = (*parts, size_in_digits(sent), spread(total, seconds), faster, pays)
        rows.append((group.label, named(group.bound), *cells))
    caption = (
        "Means over the updates of a run, then the median over seeds (least … greatest). The sum is"
        f" encode + transfer + decode with {named_link(link, ' of latency')}, without training;"
        " uncompressed, it is the transfer alone. Compressing pays at the bandwidths in the last"
        f" column. {setting.provenance}"
    )
    sums = ("sum", "times faster", "pays")
    head = ("scheme", "bound", "training", "encode", "decode", "sent", *sums)
    return Table(f"{setting.name}-timings", title, caption, head, rows, words=2)


def failures(runs: Sequence[Run]) -> Table | None:
    """Return the runs that failed, and why."""
    conditions = ("model", "dataset", "clients", "rounds")
    rows = [
        (*(str(run.conditions[x]) for x in conditions), str(run.way), str(run.seed), run.error)
        for run in runs
        if run.error
    ]
    head = (*conditions, "scheme", "seed", "error")
    caption = "They are in no figure and in no other table."
    return Table("failures", "Runs that failed", caption, head, rows, words=7) if rows else None


def _cells(way: RateAccuracy) -> tuple[str, ...]:
    ratios = map(digits, (way.up, way.down, way.total))
    lost = NOTHING if way.name == UNCOMPRESSED else difference(way.difference)
    seeds = str(way.difference.count) if way.difference else NOTHING
    fraction = way.energy_fraction
    energy = f"{100 * fraction:.0f}" if math.isfinite(fraction) else NOTHING
    reached = (_sent(reached.sent) for reached in way.reached)
    return way.name, *ratios, lost, seeds, energy, digits(way.fewer), *reached


def _sent(found: Sequence[float]) -> str:
    if not found:
        return NOTHING
    known = Spread.of(found)
    if known is None:
        return "not reached"
    some = f" ({known.count} of {len(found)})" if known.count < len(found) else ""
    return size_in_digits(known.middle) + some
