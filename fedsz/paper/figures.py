"""Figures of weights (2, 3, 10), of runs (4, 5, 6) and of an update on a link (7, 8)."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from fedsz import codecs
from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.control.transfer_time import transfer_seconds, worth_below
from fedsz.experiments.error_distribution import Distribution, distribution
from fedsz.experiments.scheme import RAW
from fedsz.formatting import bandwidth as rate
from fedsz.paper import published
from fedsz.paper.comparison import Comparison, Curve, Line, curves, stacked_bars
from fedsz.paper.measurements import CODECS, OURS, Measurements, Row
from fedsz.paper.published import RECOMMENDED_BOUND
from fedsz.report.distributions import histogram_panel
from fedsz.report.runs import UNCOMPRESSED, UpdateCost

SLICE: Final = 500  # weights of Figure 2
# Parts of a client's round, and the columns of a sweep that have them.
PARTS: Final = {
    "train": "train_seconds", "compress": "encode_seconds", "decompress": "decode_seconds"
}  # fmt: skip
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
        panels.append(histogram_panel(trained.model, found, "weight", log=True))
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
            panels.append(histogram_panel(f"sz2, {bound:g}", error, "decoded - original"))
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
    best = (law for law in found.laws if law.name == found.best)
    return lines + [Line(of, "best K-S", None, law.ks, why=law.name) for law in best]


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
    headings, panels = ("model", "codec", "after"), [curves("", drawn, x="round", y="accuracy, %")]
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
            seconds = _seconds_by_part(_rounds(rows, model, dataset, codec, RECOMMENDED_BOUND))
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
            of, mean = ("all", "all", codec), published.MEAN_OVERHEAD if codec == "sz2" else None
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
    row, seeds = rows[-1], sorted({row["seed"] for row in rows})
    images = f"{row['samples']} images" if row["samples"] else "all images"
    return (
        f"{row['clients']} clients, {images}, {row['rounds']} rounds of {row['epochs']} epochs,"
        f" batch {row['batch_size']}, learning rate {row['learning_rate']:g},"
        f" seeds {', '.join(map(str, seeds))}; {row['machine']}"
    )


def _failures(rows: list[Row]) -> list[str]:
    failed = [row for row in rows if row["error"]]
    said = {f"{r['model']} {r['dataset']} {r['codec']} failed: {r['error']}" for r in failed}
    return sorted(said)


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
                seconds = times[bound] = _seconds(cost, bandwidth)
                uncompressed = transfer_seconds(0.0, cost.raw, bandwidth)
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
