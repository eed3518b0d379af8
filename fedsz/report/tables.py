"""The tables: ratios (the paper's Tables I and V), accuracy, times, and what failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fedsz.experiments.link_model import Link
from fedsz.formatting import NOTHING, digits, percent, points, seconds, size_in_digits
from fedsz.report.chart import Omitted, Table
from fedsz.report.runs import Group, Run, Setting, named
from fedsz.report.statistics import Spread, spread
from fedsz.report.times import NO_UPDATE, compressed, compressing_pays, named_link, uncompressed


def ratios(settings: Sequence[Setting]) -> Table | Omitted:
    """Return how much smaller updates become, by model, data set, way and bound."""
    title = "Ratio"
    found = {
        (setting.title, group.label, group.bound): spread(group.ratio)
        for setting in settings
        for group in setting.groups
        if not group.uncompressed
    }
    if not found:
        return Omitted(title, "no run compresses")
    bounds = sorted(
        {bound for _, _, bound in found},
        key=lambda bound: (False, bound.kind, bound.value) if bound else (True, "", 0.0),
    )
    return Table(
        "ratios",
        title,
        "Bytes of the updates over bytes of their streams, the lossless part and all headers"
        " counted, over all rounds of a run; the median over seeds (least … greatest).",
        ("run", "way", *(named(bound, "no bound") for bound in bounds)),
        tuple(
            (run, way, *(found.get((run, way, bound), NOTHING) for bound in bounds))
            for run, way in dict.fromkeys((run, way) for run, way, _ in found)
        ),
        words=2,
    )


def accuracies(setting: Setting) -> Table:
    """Return accuracies after the last round, and how far they are from the uncompressed."""

    def difference(group: Group) -> tuple[str, str]:  # in points, and of how many pairs
        found = None if group.uncompressed else setting.difference(group.runs)
        if found is None:
            return NOTHING, NOTHING
        limits = f" ({points(found.least)} … {points(found.greatest)})" if found.count > 1 else ""
        return points(found.mean) + limits, str(found.count)

    def error(group: Group) -> str:
        return digits(max(run.max_error for run in group.runs)) if group.bound else NOTHING

    note = " There is no uncompressed run (codec raw, lossless raw) to compare with."
    if setting.baseline:
        note = (
            " The difference to uncompressed is in percentage points, between runs of the same"
            " seed: their mean (least … greatest)."
        )
    return Table.of(
        f"{setting.name}-accuracies",
        "Accuracy after the last round",
        f"In percent, the median over seeds (least … greatest).{note} Error / bound is the largest"
        f" error of any client in any round. {setting.provenance}",
        setting.groups,
        {
            "way": lambda group: group.label,
            "bound": lambda group: named(group.bound),
            "accuracy, %": lambda group: spread(group.spread(lambda run: run.accuracy), percent),
            "difference, points": lambda group: difference(group)[0],
            "pairs": lambda group: difference(group)[1],
            "error / bound": error,
        },
        words=2,
    )


def timings(setting: Setting, link: Link) -> Table | Omitted:
    """Return what an update costs, and the bandwidths at which compressing pays."""
    title = "Time of an update"
    if not setting.updates:
        return Omitted(title, NO_UPDATE)
    plain = uncompressed(setting, link)

    def median(group: Group, name: str, show: Callable[[float], str] = seconds) -> str:
        found = Spread.of(getattr(update, name) for update in group.updates)
        return show(found.middle) if found else NOTHING

    def coding(group: Group, name: str) -> str:
        return NOTHING if group.uncompressed else median(group, name)

    def sent(group: Group) -> str:
        return median(group, "raw" if group.uncompressed else "sent", size_in_digits)

    def pays(group: Group) -> str:
        return NOTHING if group.uncompressed else compressing_pays(group.updates)

    def sum_of_all(group: Group) -> Spread:
        times = Spread.of(compressed(update, link) for update in group.updates)
        return plain if group.uncompressed or times is None else times

    return Table.of(
        f"{setting.name}-timings",
        title,
        "Means over the updates of a run, then the median over seeds (least … greatest). The sum is"
        f" encode + transfer + decode with {named_link(link, ' of latency')}, without training;"
        " uncompressed, it is the transfer alone. Compressing pays at the bandwidths in the last"
        f" column. {setting.provenance}",
        [group for group in setting.groups if group.updates],
        {
            "way": lambda group: group.label,
            "bound": lambda group: named(group.bound),
            "training": lambda group: median(group, "train"),
            "encode": lambda group: coding(group, "encode"),
            "decode": lambda group: coding(group, "decode"),
            "sent": sent,
            "sum": lambda group: spread(sum_of_all(group), seconds),
            "times faster": lambda group: digits(plain.middle / sum_of_all(group).middle),
            "pays": pays,
        },
        words=2,
    )


def failures(runs: Sequence[Run]) -> Table | None:
    """Return the runs that failed, and why."""
    failed = [run for run in runs if run.error]
    if not failed:
        return None

    def condition(name: str) -> Callable[[Run], str]:
        return lambda run: str(run.conditions[name])

    return Table.of(
        "failures",
        "Runs that failed",
        "They are in no figure and in no other table.",
        failed,
        {
            **{name: condition(name) for name in ("model", "dataset", "clients", "rounds")},
            "way": lambda run: str(run.way),
            "seed": lambda run: str(run.seed),
            "error": lambda run: run.error,
        },
        words=7,
    )
