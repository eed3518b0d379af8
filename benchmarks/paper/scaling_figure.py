"""Figure 9: weak and strong scaling, measured on this machine and calculated."""

from __future__ import annotations

import dataclasses
from typing import Final

from benchmarks.paper import published, scaling
from benchmarks.paper.comparison import Comparison, Line
from benchmarks.paper.drawing import scaling_panels
from benchmarks.paper.measurements import Measurements, Row
from benchmarks.paper.published import RECOMMENDED_BOUND
from fedsz import formatting
from fedsz.errors import FedszError
from fedsz.experiments.results import SCALING, Results
from fedsz.system import cores

WEAK: Final = (1, 2, 4, 8, 16)  # clients
STRONG: Final = 16  # clients that this machine measures strong scaling with
SAMPLES_PER_CLIENT: Final = 64  # at most
TEST_SAMPLES: Final = 100  # at most
ROUNDS: Final = 3


def figure_9(measurements: Measurements) -> Comparison:
    """Seconds of a round by clients and workers, and the speedup."""
    asked, bandwidth, workers = measurements.config, measurements.options.bandwidth, cores()
    model, dataset = asked.model_like("mobilenetv2"), asked.first_dataset
    samples = min(SAMPLES_PER_CLIENT, asked.samples // WEAK[-1] or SAMPLES_PER_CLIENT)
    config = dataclasses.replace(
        asked.run_config(model, dataset), codec="sz2", lossless=asked.lossless,
        error_bound=RECOMMENDED_BOUND, rounds=ROUNDS,
        test_samples=min(TEST_SAMPLES, asked.test_samples or TEST_SAMPLES),
    )  # fmt: skip
    # Beyond the machine's workers, clients of weak scaling take turns.
    settings = [("weak", n, min(n, workers)) for n in WEAK]
    settings += [("strong", STRONG, w) for w in sorted({1, workers})]

    def on_point(point: scaling.Point) -> None:
        where = f"{point.clients} clients on {point.workers} workers"
        measurements.on_step(f"{point.kind} scaling: {where}, {point.seconds:.2f} s a round")

    points = scaling.measure(config, settings, samples_per_client=samples, on_point=on_point)
    rows = scaling.rows(
        points, config, samples_per_client=samples, bandwidth=bandwidth,
        strong_clients=published.STRONG_CLIENTS,
    )  # fmt: skip
    path = measurements.options.folder / "scaling.parquet"
    try:
        path.unlink(missing_ok=True)
    except OSError as err:
        raise FedszError(f"cannot write {path}: {err.strerror}") from err
    with Results(path, SCALING) as results:
        results.add(rows)
    costs = scaling.costs(points)
    return Comparison(
        title=f"Scaling, {model}, {dataset}",
        headings=("scaling", "how", "link", "clients", "workers"),
        lines=[line for row in rows for line in _lines(row)],
        made_from=[
            f"{model}, {dataset}, sz2 at {RECOMMENDED_BOUND:g}, {samples} images a client,"
            f" {ROUNDS} rounds after one to warm up, medians",
            f"a client costs {costs.train:.3f} s to train, {costs.encode:.3f} s to compress;"
            f" the server {costs.decode:.3f} s to decode, {costs.engine:.3f} s for all else;"
            f" {costs.sent_down} bytes go down, {costs.sent_up} come up",
        ],
        notes=[
            "Calculated: T = ceil(n/w) (t_train + t_encode) + n (t_decode + t_engine) + t_test, and"
            " the transfer of model and update over each client's own link or, one after another,"
            f" the server's, at {formatting.bandwidth(bandwidth)}. Weak: speedup"
            " n T(1) / T(n); strong: T(1) / T(w).",
            f"The paper has {published.STRONG_CLIENTS} clients and 128 cores; measured here are"
            f" {STRONG} clients on up to {workers} workers. More clients than workers take turns.",
        ],
        files=[str(path)],
        panels=scaling_panels(rows),
    )


def _lines(row: Row) -> list[Line]:
    of = (row["kind"], row["how"], row["link"], str(row["clients"]), str(row["workers"]))
    speedups = published.WEAK_SPEEDUP if row["kind"] == "weak" else published.STRONG_SPEEDUP
    printed = speedups.get(row["workers"]) if row["how"] == "calculated" else None
    lines = [Line(of, "a round", None, row["seconds"], "s")]
    if row.get("speedup") is not None:
        lines.append(Line(of, "speedup", printed, row["speedup"]))
    return lines
