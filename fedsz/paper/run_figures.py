"""Figures 4, 5 and 6: accuracy over rounds and over bounds, and where a round's time goes."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from typing import Final

from fedsz.paper import published
from fedsz.paper.comparison import Comparison, Line
from fedsz.paper.drawing import Curve, curves, stacked_bars
from fedsz.paper.measurements import CODECS, OURS, Measurements, Row
from fedsz.paper.published import RECOMMENDED_BOUND
from fedsz.report.runs import UNCOMPRESSED

RAW: Final = "raw"
# Parts of a client's round, and the columns of a sweep that have them.
PARTS: Final = {
    "train": "train_seconds", "compress": "encode_seconds", "decompress": "decode_seconds"
}  # fmt: skip


def figure_4(measurements: Measurements) -> Comparison:
    """Accuracy over rounds: four codecs, one model, 1e-2."""
    config = measurements.config
    model, dataset = config.model_like("alexnet"), config.first_dataset
    specs = {UNCOMPRESSED: RAW, **CODECS}
    rows = measurements.rounds((model,), (dataset,), tuple(specs.values()), (RECOMMENDED_BOUND,))
    lines: list[Line] = []
    drawn: dict[str, Curve] = {}
    for label, spec in specs.items():
        found = _rounds(rows, model, dataset, spec, RECOMMENDED_BOUND)
        if not found:
            continue
        numbers = sorted({row["round"] for row in found})
        accuracies = [_accuracy(row for row in found if row["round"] == i) for i in numbers]
        drawn[label] = dict(zip(numbers, accuracies, strict=True))
        printed = published.TABLE_1.get((model, label, RECOMMENDED_BOUND))
        last = printed.accuracy if printed and dataset == "cifar10" else None
        of = (model, label, f"{numbers[-1]} rounds")
        lines.append(Line(of, "accuracy", last, accuracies[-1], "%"))
    title = f"Accuracy over rounds, {model}, {dataset}, {RECOMMENDED_BOUND:g}"
    headings = ("model", "codec", "after")
    panels = [curves("", drawn, x="round", y="accuracy, %")]
    return Comparison(title, headings, lines, [_settings(rows)], panels, _failures(rows))


def figure_5(measurements: Measurements) -> Comparison:
    """Accuracy after the last round over the bound, SZ2 and ours, and without compression."""
    config = measurements.config
    models, datasets, bounds = config.model_names, config.dataset_names, config.bounds
    rows = measurements.rounds(models, datasets, (RAW, "sz2", OURS), bounds)
    lines, panels = [], []
    for dataset, model in itertools.product(datasets, models):
        baseline = _last_accuracy(_rounds(rows, model, dataset, RAW, None))
        drawn: dict[str, Curve] = {}
        for codec in ("sz2", OURS):
            found = {}
            for bound in bounds:
                accuracy = _last_accuracy(_rounds(rows, model, dataset, codec, bound))
                if accuracy is None:
                    continue
                found[bound] = accuracy
                of = (model, dataset, codec, f"{bound:g}")
                lines.append(Line(of, "accuracy", None, accuracy, "%"))
                if baseline is not None:
                    within = 0.0 if codec == "sz2" and bound <= RECOMMENDED_BOUND else None
                    lines.append(Line(of, "less uncompressed", within, accuracy - baseline, "%"))
            if found:
                drawn[codec] = found
        levels = {} if baseline is None else {UNCOMPRESSED: baseline}
        title, x, y = f"{model}, {dataset}", "error bound", "accuracy, %"
        panels.append(curves(title, drawn, x=x, y=y, log="x", levels=levels))
    title, headings = "Accuracy over the error bound", ("model", "data", "codec", "bound")
    return Comparison(title, headings, lines, [_settings(rows)], panels, _failures(rows))


def figure_6(measurements: Measurements) -> Comparison:
    """Seconds of a client's epoch, and of a server's part for it, at 1e-2."""
    models, datasets = measurements.config.model_names, measurements.config.dataset_names
    rows = measurements.rounds(models, datasets, ("sz2", OURS), (RECOMMENDED_BOUND,))
    lines, panels = [], []
    overheads: dict[str, list[float]] = {"sz2": [], OURS: []}
    for dataset in datasets:
        bars = {}
        for model, codec in itertools.product(models, overheads):
            found = _rounds(rows, model, dataset, codec, RECOMMENDED_BOUND)
            seconds = _seconds_by_part(found)
            if not seconds:
                continue
            bars[f"{model} {codec}"] = seconds
            overhead = 100 * seconds["compress"] / sum(seconds.values())
            overheads[codec].append(overhead)
            of, key = (model, dataset, codec), (model, dataset) if codec == "sz2" else ("", "")
            printed = {"compress": published.OVERHEAD_SECONDS.get(key)}
            lines += [Line(of, part, printed.get(part), s, "s") for part, s in seconds.items()]
            lines.append(Line(of, "overhead", published.OVERHEAD.get(key), overhead, "%"))
        panels.append(stacked_bars(dataset, bars, y="s of a client's round"))
    for codec, known in overheads.items():
        if known:
            mean = published.MEAN_OVERHEAD if codec == "sz2" else None
            of = ("all", "all", codec)
            lines.append(Line(of, "mean overhead", mean, statistics.fmean(known), "%"))
    title, headings = "Where a round's time goes, at 1e-2", ("model", "data", "codec")
    return Comparison(title, headings, lines, [_settings(rows)], panels)


def _rounds(
    rows: list[Row], model: str, dataset: str, codec: str, bound: float | None
) -> list[Row]:
    """Return the rounds of runs of a kind; a codec that no bound steers has them at any."""
    of = {"model": model, "dataset": dataset, "codec": codec}
    bounds = [(None, None), ("rel", bound)]
    known = [row for row in rows if row["round"] is not None and of.items() <= row.items()]
    return [row for row in known if (row["bound_kind"], row["bound_value"]) in bounds]


def _accuracy(rows: Iterable[Row]) -> float:
    """Return the median accuracy in %."""
    return 100 * float(statistics.median(row["accuracy"] for row in rows))


def _last_accuracy(rows: list[Row]) -> float | None:
    """Return the median accuracy after the last round in %; None without such a round."""
    last = [row for row in rows if row["round"] == row["rounds"]]
    return _accuracy(last) if last else None


def _seconds_by_part(rows: list[Row]) -> dict[str, float]:
    """Return the mean seconds of a round's parts, per client; none without a trained round."""
    trained = [row for row in rows if row["round"] and row["replies"]]
    if not trained:
        return {}
    replies = sum(row["replies"] for row in trained)
    seconds = {part: sum(row[name] for row in trained) / replies for part, name in PARTS.items()}
    return {**seconds, "test": statistics.fmean(row["test_seconds"] for row in trained)}


def _settings(rows: list[Row]) -> str:
    """Return the settings that runs share, for people."""
    row, seeds = rows[-1], sorted({row["seed"] for row in rows})
    images = f"{row['samples']} images" if row["samples"] else "all images"
    return (
        f"{row['clients']} clients, {images}, {row['rounds']} rounds of {row['epochs']} epochs,"
        f" batch {row['batch_size']}, learning rate {row['learning_rate']:g},"
        f" seeds {', '.join(map(str, seeds))}; {row['machine']}"
    )


def _failures(rows: list[Row]) -> list[str]:
    """Return a sentence for each kind of run that failed."""
    failed = [row for row in rows if row["error"]]
    said = {f"{r['model']} {r['dataset']} {r['codec']} failed: {r['error']}" for r in failed}
    return sorted(said)
