"""Tables I, II, III and V."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Final

from benchmarks.paper import published
from benchmarks.paper.comparison import Comparison, Line
from benchmarks.paper.measurements import CODECS, OURS, Measurements, Row, TrainedModel
from benchmarks.paper.model_complexity import complexity, lossy_shares
from benchmarks.paper.published import RECOMMENDED_BOUND, CodecCosts
from fedsz.arrays import NDArray
from fedsz.codecs.spread import standard_deviation, value_range
from fedsz.core.decode import decompress
from fedsz.core.encode import compress_measured
from fedsz.errors import DataError
from fedsz.experiments import bench
from fedsz.training.examples import Examples

THRESHOLDS: Final = (0, 256, 512, 1000, 1024, 2048, 4096)
SIDE: Final = 224  # pixels that Table III's flops are usually counted at


def table_1(measurements: Measurements) -> Comparison:
    """Ratio, runtime, speed and accuracy of four codecs on three models."""
    dataset = measurements.config.first_dataset
    lines: list[Line] = []
    made_from, notes = [], []
    images = None
    try:
        images = measurements.test_images(dataset)
    except DataError as err:
        notes.append(f"No accuracy: {err}.")
    for trained in measurements.trained_models():
        model = trained.model
        made_from.append(trained.provenance)
        spread = 100 * _spread(measurements.lossy(trained))
        lines.append(Line((model, "weights", "-"), "spread / range", None, spread, "%"))
        lines += _codecs(measurements, trained)
        if images is not None:
            lines += _accuracies(measurements, trained, images)
    headings = ("model", "codec", "bound")
    return Comparison(f"lossy codecs, {dataset}", headings, lines, made_from, notes=notes)


def _spread(weights: Mapping[str, NDArray]) -> float:
    """Return standard deviation over range, the mean over all weights of their tensors'."""
    tensors = [(x, value_range(x)) for x in weights.values()]
    shares = [x.size * standard_deviation(x) / width for x, width in tensors if width]
    return float(sum(shares) / sum(x.size for x, _ in tensors))


def _costs(of: tuple[str, ...], printed: CodecCosts | None, row: Row) -> list[Line]:
    """Compare a codec's ratio, runtime and speed with a row of the table "bench"."""
    seconds = row["encode_seconds"]
    speed = row["raw_bytes"] / seconds / 1e6 if seconds else None
    return [
        Line(of, "ratio", printed and printed.ratio, row["ratio"]),
        Line(of, "runtime", printed and printed.runtime, seconds, "s"),
        Line(of, "speed", printed and printed.speed, speed, "MB/s"),
    ]


def _cells(model: str) -> Iterator[tuple[str, float, tuple[str, ...], CodecCosts | None]]:
    """Yield our names for the codecs of Table I, bounds, what lines are of, and what it has."""
    for (codec, spec), bound in itertools.product(CODECS.items(), published.BOUNDS):
        of, printed = (model, codec, f"{bound:g}"), published.TABLE_1.get((model, codec, bound))
        yield spec, bound, of, printed


def _codecs(measurements: Measurements, trained: TrainedModel) -> list[Line]:
    rows = measurements.codec_costs(trained, tuple(CODECS.values()), published.BOUNDS)
    by_codec = {(row["codec"], row["error_bound"]): row for row in rows}
    return [
        line
        for spec, bound, of, printed in _cells(trained.model)
        for line in _costs(of, printed, by_codec[spec, f"rel:{bound!r}"])
    ]


def _accuracies(measurements: Measurements, trained: TrainedModel, images: Examples) -> list[Line]:
    model, device = trained.model, measurements.config.device
    measurements.on_step(f"testing {trained.name}, decoded, on {len(images)} images")
    before = trained.accuracy(trained.state, images, device)
    lines = [Line((model, "none", "-"), "top-1", None, 100 * before, "%")]
    for spec, bound, of, printed in _cells(model):
        stream, _ = compress_measured(trained.state, measurements.settings(spec, bound))
        after = trained.accuracy(decompress(stream, as_numpy=True), images, device)
        lines.append(Line(of, "top-1", printed and printed.accuracy, 100 * after, "%"))
    return lines


def table_2(measurements: Measurements) -> Comparison:
    """Lossless codecs on what is not weights, and on everything."""
    config = measurements.config
    trained = measurements.trained(config.model_like("alexnet"), config.first_dataset)
    rows = measurements.codec_costs(trained, tuple(published.TABLE_2), ())
    lines = []
    for codec, printed in published.TABLE_2.items():
        for row in (row for row in rows if row["codec"].partition(":")[0] == codec):
            part = "rest" if row["part"] == bench.LOSSLESS else "all"
            lines += _costs((codec, part, f"{row['raw_bytes'] / 1e6:.3f} MB"), printed, row)
    smallest = []
    for part, what in ((bench.LOSSLESS, "non-weight data"), (bench.EVERYTHING, "the whole model")):
        of = [row for row in rows if row["part"] == part and row["ratio"]]
        if of:
            best = max(of, key=lambda row: float(row["ratio"]))
            smallest.append(f"{best['codec']} makes {what} smallest, {best['ratio']:.3f}x")
    notes = [f"{'; '.join(smallest)}."] if smallest else []
    title = f"lossless codecs, {trained.model}, {trained.dataset}"
    headings = ("codec", "part", "bytes")
    return Comparison(title, headings, lines, [trained.provenance], notes=notes)


def table_3(measurements: Measurements) -> Comparison:
    """Parameters, size, lossy share and flops; and which threshold gives that share."""
    rule, threshold = measurements.config.rule, measurements.config.threshold
    lines = []
    for model in measurements.config.model_names:
        parameters, megabytes, lossy, gigaflops = published.TABLE_3.get(model, (None,) * 4)
        for classes in (10, 1000):
            found = complexity(model, classes=classes, side=SIDE, threshold=threshold, rule=rule)
            of, at = (model, f"{classes} classes"), f"at {SIDE} px"
            lines += [
                Line(of, "parameters", parameters, found.parameters / 1e6, "M"),
                Line(of, "size", megabytes, found.raw_bytes / 1e6, "MB"),
                Line(of, "lossy", lossy, 100 * found.lossy_share, "%"),
                Line(of, f"flops {at}", gigaflops, found.flops / 1e9, "G"),
                Line(of, f"multiply-adds {at}", gigaflops, found.multiply_adds / 1e9, "G"),
            ]
        for side in (32, 128):
            found = complexity(model, classes=10, side=side)
            lines.append(Line((model, f"{side} pixels"), "flops", None, found.flops / 1e9, "G"))
        lines += [
            Line((model, f"threshold {above}"), "lossy", lossy, 100 * share, "%")
            for above, share in lossy_shares(model, THRESHOLDS, rule=rule).items()
        ]
    note = (
        f"Lossy is a share of bytes, of tensors above {threshold} elements by rule {rule!r}. Flops"
        " are of one image forward, convolutions and matrix products: a multiply-add is two."
        " alexnet scales images below 128 pixels up to 128."
    )
    return Comparison("models", ("model", "of"), lines, notes=[note])


def table_5(measurements: Measurements) -> Comparison:
    """Ratios of whole streams: SZ2 for weights, blosc-lz for the rest."""
    config = measurements.config
    lines, made_from, notes = [], [], []
    at_recommended = []
    for model, dataset in itertools.product(config.model_names, config.dataset_names):
        trained = measurements.trained(model, dataset)
        made_from.append(trained.provenance)
        for codec, bound in itertools.product(("sz2", OURS), config.bounds):
            ratio = measurements.update_cost(trained, codec, bound).ratio
            printed = published.TABLE_5.get((model, dataset, bound)) if codec == "sz2" else None
            lines.append(Line((model, dataset, codec, f"{bound:g}"), "ratio", printed, ratio))
            if (codec, bound) == ("sz2", RECOMMENDED_BOUND):
                at_recommended.append(ratio)
    if at_recommended:
        low, high = published.TABLE_5_RANGE
        ours = f"{min(at_recommended):.2f} to {max(at_recommended):.2f}"
        notes.append(f"At 1e-2, ours range from {ours}; the paper's from {low} to {high}.")
    implied = ", ".join(f"{model} {ratio:.2f}" for model, ratio in _implied_ratios().items())
    notes.append(f"By Tables I to III, SZ2 and blosc-lz at 1e-2 come to: {implied}.")
    title, headings = "ratios of whole updates", ("model", "data", "codec", "bound")
    return Comparison(title, headings, lines, made_from, notes=notes)


def _implied_ratios() -> dict[str, float]:
    """Return the ratios of whole updates that follow from Tables I, II and III."""
    rest = published.TABLE_2["blosclz"].ratio
    ratios = {}
    for model, size in published.TABLE_3.items():
        lossy = published.TABLE_1[model, "sz2", RECOMMENDED_BOUND].ratio
        ratios[model] = 100 / (size.lossy / lossy + (100 - size.lossy) / rest)
    return ratios
