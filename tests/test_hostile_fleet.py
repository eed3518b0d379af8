"""A hostile client over loopback, beside real ones: `fedsz server` finishes its run."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz.errors import LinkError
from fedsz.flower import FedSZMod, run_client
from fedsz.flower.records import to_record
from fedsz.training.run_folder import read_rounds
from fedsz.update.config import DEFAULT
from tests.fleets import LIMIT, Fleet

pytestmark = pytest.mark.slow

METRICS: dict[str, dict[str, Any]] = {
    "another length": {"train-loss": [1.0, 2.0]},
    "NaN": {"train-seconds": float("nan")},
    "weight": {"num-examples": 10**18},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("attack", [*METRICS, "arrays"])
def test_the_server_finishes_without_the_hostile_client(fleet: Fleet, attack: str) -> None:
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, _: Context) -> Message:
        arrays = {name: x.numpy() for name, x in message.content["arrays"].items()}
        if attack == "arrays":
            arrays = {name: np.full_like(x, 1e38) for name, x in arrays.items()}
        told = {"train-loss": 0.1, "train-seconds": 1.0, "num-examples": 100}
        metrics = MetricRecord({**told, **METRICS.get(attack, {})})
        content = RecordDict({"arrays": to_record(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    def join() -> None:
        try:
            run_client(app, f"127.0.0.1:{port}", client_id="hostile", max_wait=30)
        except LinkError:
            return

    server = fleet.server("--rounds", 5, "--min-clients", 4)
    port = server.wait_for(lambda event: event["event"] == "listening")["port"]
    for i in range(3):
        fleet.client(port, i, 3)
    hostile = threading.Thread(target=join, daemon=True)
    hostile.start()

    done = server.wait_for(lambda event: event["event"] == "done")
    assert server.process.wait(LIMIT) == 0
    hostile.join(LIMIT)
    rounds = list(read_rounds(fleet.folder / done["run_dir"], DEFAULT))
    assert [record.replies for record in rounds] == [0, 3, 3, 3, 3, 3]
    refused = [record.failures for record in rounds[1:]]
    assert all(failures[0].client == "hostile" for failures in refused)
    # Most replies may have another form one day: nobody is benched for its own.
    benched = "records" if attack == "another length" else "benched"
    assert [failures[0].kind for failures in refused][3] == benched
    assert rounds[0].loss is not None
    assert rounds[-1].loss is not None
    assert rounds[-1].loss < rounds[0].loss / 2
