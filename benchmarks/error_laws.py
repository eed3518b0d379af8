"""What law compression errors follow, and whether they tell of what was compressed.

    python -m benchmarks.error_laws docs/results/error-laws.parquet
    python -m benchmarks.error_laws docs/results/error-laws.parquet --table

The first compresses the update of one client: `cnn` after an epoch on the digits. The second prints
the table of docs/privacy.md: of the largest tensor's errors, Kolmogorov and Smirnov's distance to
each law that was fitted to them, and the rank correlation of their magnitudes with those of the
step.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from flwr.app import MetricRecord
from scipy import stats

from fedsz.arrays import NDArray
from fedsz.core.client import ClientSession
from fedsz.core.decode import decompress
from fedsz.core.encode import compress_measured
from fedsz.core.protocol import Request
from fedsz.core.settings import Settings
from fedsz.experiments.error_distribution import distribution
from fedsz.flower.records import to_record
from fedsz.flower.store import RecordStore
from fedsz.training.apps import train_share
from fedsz.training.federation import prepare
from fedsz.training.model_state import arrays_of
from fedsz.training.options import RunConfig

WAYS: Final[dict[str, dict[str, Any]]] = {
    "`auto`, round 1": {"update": "delta", "error_bound": "step:0.5"},
    "`auto`, late": {"update": "delta", "error_bound": "step:1.5"},
    "FedSZ as published": {"update": "weights", "error_bound": "1e-2", "codec": "sz2"},
    "`uveqfed`": {"update": "uveqfed"},
    "`layered:sigma=1e-3`": {"update": "layered:sigma=1e-3"},
}
MODEL: Final = "arrays"
LAWS: Final = ("laplace", "normal", "uniform")


def received(
    trained: Mapping[str, NDArray], start: Mapping[str, NDArray], settings: Settings
) -> dict[str, NDArray]:
    """Return the model of a client's first reply as a server decodes it."""
    run = (1).to_bytes(8, "little")
    request = Request(run=run, round=1, trains=True, base={}, reference={}, settings=settings)
    session = ClientSession(request, RecordStore({}), sender=1)
    reference = session.receive(MODEL, compress_measured(start, settings.lossless_only)[0])
    return decompress(session.reply(MODEL, trained), reference=reference, as_numpy=True)


def measured() -> list[dict[str, Any]]:
    """Return a row for each way."""
    config = RunConfig(dataset="digits", seed=0)
    start = arrays_of(prepare(config).model)
    model, metrics = train_share(config, to_record(dict(start)), 1, (0, 4))
    assert isinstance(metrics, MetricRecord)
    trained = arrays_of(model)
    name = max(start, key=lambda n: start[n].size)
    step = (trained[name].astype(np.float64) - start[name]).reshape(-1)
    rows = []
    for way, options in WAYS.items():
        back = received(trained, start, Settings(**options))
        error = (back[name].astype(np.float64) - trained[name]).reshape(-1)
        found = {law.name: law.ks for law in distribution(error, "error", name).laws}
        tells = float(stats.spearmanr(np.abs(step), np.abs(error)).statistic)
        rows.append({"way": way, "tensor": name, "numbers": error.size, **found, "tells": tells})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/privacy.md."""
    lines = [
        "| error of | Laplace | normal | uniform | correlation |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['way']} | " + " | ".join(f"{row[law]:.3f}" for law in LAWS)
        + f" | {abs(row['tells']):.2f} |"
        for row in rows
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        pq.write_table(pa.Table.from_pylist(measured()), given.file, compression="zstd")
    print(table(pq.read_table(given.file).to_pylist()))


if __name__ == "__main__":
    main()
