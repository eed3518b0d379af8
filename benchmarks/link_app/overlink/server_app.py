"""The server: rounds of federated averaging with one client, and when each began and ended."""

from __future__ import annotations

import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from flwr.app import Array, ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from safetensors.numpy import load_file

from fedsz.control.record import RoundRecord
from fedsz.flower import FedSZGrid

WAYS: Final[dict[str, dict[str, str] | None]] = {
    "Flower": None,
    "FedSZ as published": {"update": "weights", "codec": "sz2", "error_bound": "rel:1e-2"},
    "fedsz": {},
}

app = ServerApp()


def run(grid: Grid, way: str, rounds: int) -> list[dict[str, float]]:
    """Return the seconds and the bytes of each round.

    Down is from the round's begin until the client has its message, up from its reply's leaving
    until the server has the average. ``seconds`` is the whole round, without the replayed training.
    """
    while not list(grid.get_node_ids()):
        time.sleep(0.1)
    model = load_file(Path(os.environ["LINK_STEPS"], "model.safetensors"))
    raw = sum(x.nbytes for x in model.values())
    moments: list[float] = []
    replies: list[dict[str, Any]] = []
    records: list[RoundRecord] = []

    def note(contents: list[RecordDict], _: str) -> MetricRecord:
        replies.append(dict(contents[0].metric_records["metrics"]))
        return MetricRecord()

    options = WAYS[way]
    FedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=1,
        min_evaluate_nodes=0,
        min_available_nodes=1,
        train_metrics_aggr_fn=note,
    ).start(
        grid if options is None else FedSZGrid(grid, on_round=records.append, **options),
        ArrayRecord({name: Array(x) for name, x in model.items()}),
        num_rounds=rounds,
        evaluate_fn=lambda *_: moments.append(time.monotonic()),  # before round 1, after each
    )
    sent = {one.round: (one.sent_down, one.sent_up) for one in records if one.replies}
    return [
        {
            "round": number,
            "seconds": end - begin - reply["busy"],
            "down_seconds": reply["came"] - begin,
            "client_seconds": reply["left"] - reply["came"] - reply["busy"],
            "up_seconds": end - reply["left"],
            "down_bytes": sent.get(number, (raw, raw))[0],
            "up_bytes": sent.get(number, (raw, raw))[1],
        }
        for number, ((begin, end), reply) in enumerate(
            zip(pairwise(moments), replies, strict=True), start=1
        )
    ]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run it, and write what it came to into a file."""
    config = context.run_config
    found = run(grid, str(config["way"]), int(config["rounds"]))
    Path(os.environ["LINK_RESULT"]).write_text(json.dumps(found))
