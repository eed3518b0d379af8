"""The rows of sweeps that nobody ran: training is made up, all else is as it would be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsz.control.record import RoundRecord
from fedsz.experiments.results import SWEEP, Results
from fedsz.experiments.sweep import Step, rows_of
from fedsz.experiments.sweep_plan import SweepConfig

Rows = Sequence[Mapping[str, Any]]

MEGA = 10**6  # bytes up, and as many down, of all clients in a round


def course(
    way: str,
    accuracies: Sequence[float],  # after each round, from round 0 on
    seed: int = 0,
    *,
    options: Mapping[str, Any] = {},  # of `SweepConfig`
    error: str = "",
    **more: Any,  # columns that are told otherwise; those of rounds from round 1 on
) -> Rows:
    """The rows of a run of a scheme, as ``ways`` write it, with two clients."""
    config = SweepConfig(
        **{"ways": way, "seed": seed, "rounds": len(accuracies) - 1, "clients": 2, **options}
    )
    (run,) = config.runs
    compressed = {"sent_up": MEGA // 4, "max_error": 0.5} if run.codec != "raw" else {}
    trained = {
        "replies": run.clients, "raw_up": MEGA, "sent_up": MEGA + 100, "raw_down": MEGA,
        "sent_down": MEGA, "train_seconds": 1.0, "encode_seconds": 0.2, "decode_seconds": 0.4,
        "test_seconds": 0.5, **compressed,
    }  # fmt: skip
    rounds = [
        RoundRecord(round=i, accuracy=accuracy, loss=1.0, seconds=1.0, **trained if i else {})
        for i, accuracy in enumerate(accuracies)
    ]
    rows = rows_of(config, Step(run, rounds, error), threads=1)
    sent = {name: more.pop(name) for name in trained.keys() & more.keys()}
    name = f"{rows[0]['run']}{more or ''}"
    return [{**row, **more, **(sent if row.get("round") else {}), "run": name} for row in rows]


def written(path: Path, rows: Rows) -> Path:
    """The file that holds these rows."""
    with Results(path, SWEEP) as results:
        results.add(rows)
    return path
