"""Figure 9: weak and strong scaling, measured on Flower's simulation on this machine."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Final

from benchmarks.paper import published
from benchmarks.paper.comparison import Comparison, Line
from benchmarks.paper.drawing import Curve, curves
from benchmarks.paper.measurements import Measurements
from benchmarks.paper.published import RECOMMENDED_BOUND
from benchmarks.paper.simulation import simulate
from fedsz.errors import FedszError
from fedsz.system import cores
from fedsz.training.options import RunConfig

WEAK: Final = (1, 2, 4, 8, 16)  # clients
STRONG: Final = 16  # clients of strong scaling
SAMPLES_PER_CLIENT: Final = 64  # at most
TEST_SAMPLES: Final = 100  # at most
ROUNDS: Final = 3  # after one in which workers start and load what they need


def figure_9(measurements: Measurements) -> Comparison:
    """Seconds of a round by clients and workers, and the speedup."""
    asked, workers = measurements.config, cores()
    model, dataset = asked.model_like("mobilenetv2"), asked.first_dataset
    samples = min(SAMPLES_PER_CLIENT, asked.samples // WEAK[-1] or SAMPLES_PER_CLIENT)
    config = dataclasses.replace(
        asked.run_config(model, dataset), codec="sz2", lossless=asked.lossless,
        error_bound=RECOMMENDED_BOUND, rounds=ROUNDS + 1,
        test_samples=min(TEST_SAMPLES, asked.test_samples or TEST_SAMPLES),
    )  # fmt: skip
    # Beyond the machine's workers, clients take turns.
    settings = [("weak", n, min(n, workers)) for n in WEAK]
    settings += [("strong", STRONG, w) for w in sorted({1, workers})]
    seconds: dict[tuple[str, int, int], float] = {}
    for kind, clients, at in settings:
        run = dataclasses.replace(
            config, clients=clients, min_clients=clients, samples=clients * samples
        )
        seconds[kind, clients, at] = _seconds(run, at)
        took = f"{clients} clients on {at} workers, {seconds[kind, clients, at]:.2f} s a round"
        measurements.on_step(f"{kind} scaling: {took}")
    weak: Curve = {n: s for (kind, n, _), s in seconds.items() if kind == "weak"}
    strong: Curve = {w: s for (kind, _, w), s in seconds.items() if kind == "strong"}
    return Comparison(
        title=f"Scaling, {model}, {dataset}",
        headings=("scaling", "clients", "workers"),
        lines=[line for setting in seconds for line in _lines(setting, seconds)],
        made_from=[
            f"{model}, {dataset}, sz2 at {RECOMMENDED_BOUND:g}, {samples} images a client,"
            f" {ROUNDS} rounds after one to warm up, medians"
        ],
        notes=[
            f"The paper has {published.STRONG_CLIENTS} clients and 128 cores; measured here are"
            f" {STRONG} clients on up to {workers} workers. More clients than workers take turns."
            " Weak: speedup n T(1) / T(n); strong: T(1) / T(w)."
        ],
        panels=[
            curves("Weak scaling", {"measured": weak}, x="clients", y="s of a round", log="xy"),
            curves("Strong scaling", {"measured": strong}, x="workers", y="s of a round", log="xy"),
        ],
    )


def _seconds(run: RunConfig, workers: int) -> float:
    """Return the median seconds of a round.

    Raises:
        FedszError: a client's reply was missing, or the run failed.
    """
    rounds = simulate(run, workers=workers)[2:]
    for row in rounds:
        if row.replies < run.clients:
            why = row.failures[0].reason if row.failures else "no reason given"
            raise FedszError(f"not all of {run.clients} clients replied: {why}")
    return statistics.median(row.seconds for row in rounds)


def _lines(setting: tuple[str, int, int], seconds: dict[tuple[str, int, int], float]) -> list[Line]:
    kind, clients, workers = setting
    of = (kind, str(clients), str(workers))
    lines = [Line(of, "a round", None, seconds[setting], "s")]
    weak = kind == "weak"
    if not weak or clients == workers:  # else clients wait for each other
        alone = seconds[kind, 1 if weak else clients, 1]
        speedup = alone / seconds[setting] * (clients if weak else 1)
        printed = published.WEAK_SPEEDUP if weak else published.STRONG_SPEEDUP
        lines.append(Line(of, "speedup", printed.get(workers), speedup))
    return lines
