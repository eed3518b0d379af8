"""Rounds of real processes: a client that only fails, a hostile one, and a buffer."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz.flower import FedSZMod
from fedsz.flower.records import to_record
from tests.fleets import HELD, LIMIT, Fleet
from tests.links import Client, free_port

pytestmark = pytest.mark.slow
FAILING = "tests.resume_task:FailingRegression"


def test_a_client_that_only_fails_ends_the_run_with_an_error(fleet: Fleet) -> None:
    server = fleet.server("--rounds", 50, "--min-clients", 1)
    client = fleet.client(server.port, 0, 1, "--max-wait", 1, task=FAILING)

    assert server.process.wait(LIMIT) == 2
    start, *rounds = server.rounds()
    assert (start["round"], start["uncounted"]) == (0, "")
    assert [(one["round"], one["replies"]) for one in rounds] == [(1, 0), (2, 0), (3, 0)]
    assert {one["uncounted"] for one in rounds} == {"0 of 1 usable replies that it needs"}
    assert rounds[-1]["loss"] == start["loss"]
    failed = server.wait_for(lambda event: event["event"] == "failed")
    assert failed["error"].startswith("3 rounds in a row do not count")
    assert "the server stopped" in client.communicate(timeout=LIMIT)[0]


def test_a_server_finishes_without_a_hostile_client(fleet: Fleet) -> None:
    """tests/flower/test_hostile_replies.py has other attacks, in one process."""
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, _: Context) -> Message:
        arrays = message.content["arrays"].items()
        huge = to_record({name: np.full_like(x.numpy(), 1e38) for name, x in arrays})
        metrics = MetricRecord({"train-loss": 0.1, "train-seconds": 1.0, "num-examples": 100})
        return Message(RecordDict({"arrays": huge, "metrics": metrics}), reply_to=message)

    server = fleet.server("--rounds", 5, "--min-clients", 4)
    for i in range(3):
        fleet.client(server.port, i, 3)
    hostile = Client(f"127.0.0.1:{server.port}", "hostile", app, max_wait=30)

    assert server.process.wait(LIMIT) == 0
    hostile.ended()
    start, *rounds = server.rounds()
    assert [one["replies"] for one in rounds] == [3] * 5
    assert all(one["failures"][0]["client"] == "hostile" for one in rounds)
    assert rounds[-1]["loss"] < start["loss"] / 2


def test_a_run_with_a_buffer_is_resumed_and_waits_for_no_stopped_client(fleet: Fleet) -> None:
    port, hold, length = free_port(), fleet.folder / "hold", 60
    options = ("--rounds", length, "--min-clients", 3, "--buffer", 2, "--run-dir", "out")
    first = fleet.server(*options, port=port)
    clients = fleet.clients(port, 3, task=HELD)
    first.wait_for_round(4)
    hold.touch()  # the run does not end before the server does
    first.process.kill()
    first.process.wait(LIMIT)
    hold.unlink()

    second = fleet.server("--resume", "out", port=port)
    resumed = second.wait_for(lambda event: event.get("round", 0) > 4)["round"]
    clients[2].send_signal(signal.SIGSTOP)

    assert second.process.wait(LIMIT) == 0
    clients[2].kill()
    assert [client.wait(LIMIT) for client in clients[:2]] == [0, 0]
    start, *rounds = [*first.rounds(), *second.rounds()]
    assert [one["round"] for one in rounds[-(length - resumed) :]] == [*range(resumed + 1, 61)]
    assert {one["replies"] for one in rounds} == {2}
    assert {link["staleness"] for one in rounds for link in one["clients"]} > {0}
    assert all(not one["failures"] for one in rounds if one["round"] <= resumed)
    assert rounds[-1]["loss"] < start["loss"]
