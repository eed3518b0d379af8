"""Figures of federated runs: 4, 5 and 6.

Runs are compared where they differ in codec and bound alone, over the same seeds. If a file holds
runs of several settings, each setting has lines and a panel of its own.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from benchmarks.paper import published
from benchmarks.paper.comparison import Comparison, Line
from benchmarks.paper.drawing import Curve, curves, stacked_bars
from benchmarks.paper.measurements import CODECS, OURS, Measurements
from benchmarks.paper.published import RECOMMENDED_BOUND
from fedsz.bounds import ErrorBound
from fedsz.experiments.scheme import RAW
from fedsz.report.runs import UNCOMPRESSED, Run, Setting, Spread, settings_of

# Parts of a client's round, and what an update's cost calls them.
PARTS: Final = {
    "train": "train_seconds", "compress": "encode_seconds", "decompress": "decode_seconds",
}  # fmt: skip


def figure_4(measurements: Measurements) -> Comparison:
    """Accuracy over rounds: four codecs, one model, 1e-2."""
    config = measurements.config
    model, dataset = config.model_like("alexnet"), config.first_dataset
    specs = {UNCOMPRESSED: RAW, **CODECS}
    runs = measurements.runs((model,), (dataset,), tuple(specs.values()), (RECOMMENDED_BOUND,))
    lines, panels = [], []
    for setting, data in _settings(runs):
        drawn: dict[str, Curve] = {}
        for label, spec in specs.items():
            found = _of(setting, spec, RECOMMENDED_BOUND)
            if not found:
                continue
            curve = drawn[label] = _medians(found)
            # Where ours have as many rounds as the paper's accuracies are of, after as many.
            after = min(published.ROUNDS, max(curve))
            of = (model, data, label, f"{after:g}")
            printed = published.TABLE_1.get((model, label, RECOMMENDED_BOUND))
            known = printed.accuracy if printed and dataset == "cifar10" else None
            lines.append(_line(of, "accuracy", known, curve.get(after), found))
        panels.append(curves(setting.title, drawn, x="round", y="accuracy, %"))
    title = f"Accuracy over rounds, {model}, {dataset}, {RECOMMENDED_BOUND:g}"
    headings = ("model", "data", "codec", "rounds")
    return Comparison(title, headings, lines, _made_from(runs), panels, _failures(runs), here=False)


def figure_5(measurements: Measurements) -> Comparison:
    """Accuracy after the last round over the bound, SZ2 and ours, and without compression."""
    config = measurements.config
    models, datasets, bounds = config.model_names, config.dataset_names, config.bounds
    runs = measurements.runs(models, datasets, (RAW, "sz2", OURS), bounds)
    lines, panels, notes = [], [], []
    for setting, data in _settings(runs):
        model, plain = str(setting.runs[0].conditions["model"]), setting.baseline
        levels = {}
        if plain:
            levels[UNCOMPRESSED] = _accuracy(plain)
            of = (model, data, "none", "-")
            lines.append(_line(of, "accuracy", None, levels[UNCOMPRESSED], plain))
        else:
            notes.append(f"{setting.title} has no uncompressed run to be compared with.")
        drawn: dict[str, Curve] = {}
        for codec in ("sz2", OURS):
            held = {bound: _of(setting, codec, bound) for bound in bounds}
            drawn[codec] = {bound: _accuracy(found) for bound, found in held.items() if found}
            for bound, accuracy in drawn[codec].items():
                of, found = (model, data, codec, f"{bound:g}"), held[bound]
                lines.append(_line(of, "accuracy", None, accuracy, found))
                pairs = [run for run in found if run.seed in {other.seed for other in plain}]
                if pairs and (less := setting.difference(pairs)):
                    within = 0.0 if codec == "sz2" and bound <= RECOMMENDED_BOUND else None
                    lines.append(_line(of, "change", within, 100 * less.mean, pairs))
        drawn = {codec: curve for codec, curve in drawn.items() if curve}
        x, y = "error bound", "accuracy, %"
        panels.append(curves(setting.title, drawn, x=x, y=y, log="x", levels=levels))
    title, headings = "Accuracy over the error bound", ("model", "data", "codec", "bound")
    notes += _failures(runs)
    return Comparison(title, headings, lines, _made_from(runs), panels, notes, here=False)


def figure_6(measurements: Measurements) -> Comparison:
    """Seconds of a client's round, and of a server's part for it, at 1e-2."""
    models, datasets = measurements.config.model_names, measurements.config.dataset_names
    runs = measurements.runs(models, datasets, ("sz2", OURS), (RECOMMENDED_BOUND,))
    lines, panels = [], []
    overheads: dict[str, list[float]] = {"sz2": [], OURS: []}
    for setting, data in _settings(runs):
        of_setting = setting.runs[0].conditions
        model, dataset = str(of_setting["model"]), str(of_setting["dataset"])
        bars = {}
        for codec, known in overheads.items():
            found = _of(setting, codec, RECOMMENDED_BOUND)
            seconds = _seconds_by_part(found)
            if not seconds:
                continue
            bars[codec] = seconds
            overhead = 100 * seconds["compress"] / sum(seconds.values())
            known.append(overhead)
            of, key = (model, data, codec), (model, dataset) if codec == "sz2" else ("", "")
            printed = {"compress": published.OVERHEAD_SECONDS.get(key)}
            lines += [
                _line(of, part, printed.get(part), s, found, "s") for part, s in seconds.items()
            ]
            lines.append(_line(of, "overhead", published.OVERHEAD.get(key), overhead, found))
        panels.append(stacked_bars(setting.title, bars, y="s of a client's round"))
    for codec, known in overheads.items():
        if known:
            of, mean = ("all", "all", codec), published.MEAN_OVERHEAD if codec == "sz2" else None
            lines.append(Line(of, "mean overhead", mean, statistics.fmean(known), "%"))
    title, headings = "Where a round's time goes, at 1e-2", ("model", "data", "codec")
    return Comparison(title, headings, lines, _made_from(runs), panels, _failures(runs), here=False)


def _settings(runs: Sequence[Run]) -> Iterator[tuple[Setting, str]]:
    """Yield what can be compared, with its data set and what it differs in from the others.

    Runs that lack their last round, or in which no client trained, are left out. So are those of
    seeds that some codec or bound lacks, if there are seeds that all have.
    """
    for setting in settings_of(run for run in runs if _ended(run)):
        seeds = set.intersection(*({run.seed for run in group.runs} for group in setting.groups))
        shared = tuple(run for run in setting.runs if run.seed in seeds) or setting.runs
        yield dataclasses.replace(setting, runs=shared), setting.title.partition(" on ")[2]


def _ended(run: Run) -> bool:
    return not run.missing_rounds and any(done.replies for done in run.trained)


def _of(setting: Setting, codec: str, bound: float) -> list[Run]:
    """Return the runs of a codec, at a bound if one steers it, by seed."""
    found = [run for run in setting.runs if run.way.codec == codec]
    found = [run for run in found if run.bound in (None, ErrorBound.rel(bound))]
    return sorted(found, key=lambda run: run.seed)


def _line(
    of: tuple[str, ...], quantity: str, printed: float | None, ours: float | None,
    runs: Iterable[Run], unit: str = "%",
) -> Line:  # fmt: skip
    seeds = tuple(run.seed for run in runs)
    return Line(of, quantity, printed, ours, unit, seeds=seeds)


def _accuracy(runs: Iterable[Run]) -> float:
    """Return the median accuracy after the last round, in %."""
    return 100 * float(statistics.median(run.accuracy for run in runs))


def _medians(runs: Sequence[Run]) -> dict[float, float]:
    """Return the median accuracy in % after each round that all of the runs have."""
    curves_of = [
        {done.round: accuracy for done, accuracy in zip(run.rounds, run.accuracies, strict=True)}
        for run in runs
    ]
    shared = set.intersection(*map(set, curves_of))
    found = {i: Spread.of(curve[i] for curve in curves_of) for i in sorted(shared)}
    return {i: 100 * spread.middle for i, spread in found.items() if spread}


def _seconds_by_part(runs: Sequence[Run]) -> dict[str, float]:
    """Return the mean seconds of a round's parts, per client; none without a trained round."""
    updates = [run.update for run in runs if run.update]
    if not updates:
        return {}

    def mean(part: str) -> float:
        return statistics.fmean(getattr(update, part) for update in updates)

    parts = {name: mean(part) for name, part in PARTS.items()}
    test = [done.test_seconds for run in runs for done in run.trained]
    return {**parts, "test": statistics.fmean(test)}


def _made_from(runs: Sequence[Run]) -> list[str]:
    """Return what the runs of each setting are: model, data, clients, rounds, seeds, machine."""
    said = []
    for setting, _ in _settings(runs):
        of, way = setting.runs[0].conditions, setting.groups[-1].runs[0].way
        sgd = f"Batch {of['batch_size']}, learning rate {of['learning_rate']:g}"
        what = f"clients send {way.update}, downlink {way.downlink}"
        said.append(f"{setting.provenance} {sgd}; {what}, policy {way.policy}.")
    return said


def _failures(runs: Sequence[Run]) -> list[str]:
    failed = [(run, run.conditions) for run in runs if run.error]
    said = {f"{of['model']} {of['dataset']} {run.way} failed: {run.error}" for run, of in failed}
    return sorted(said)
