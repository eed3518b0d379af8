"""Rounds of real processes: clients that only fail, and one that is stopped."""

from __future__ import annotations

import signal

import pytest

from tests.fleets import HELD, LIMIT, Fleet
from tests.links import free_port

pytestmark = pytest.mark.slow
FAILING = "tests.resume_task:FailingRegression"


def test_clients_that_only_fail_end_the_run_with_an_error(fleet: Fleet) -> None:
    server = fleet.server("--rounds", 50, "--min-clients", 3)
    clients = [fleet.client(server.port, i, 3, "--max-wait", 1, task=FAILING) for i in range(3)]

    assert server.process.wait(LIMIT) == 2
    start, *rounds = server.rounds()
    assert (start["round"], start["uncounted"]) == (0, "")
    assert [(one["round"], one["replies"]) for one in rounds] == [(1, 0), (2, 0), (3, 0)]
    assert {one["uncounted"] for one in rounds} == {"0 of 1 usable replies that it needs"}
    assert rounds[-1]["loss"] == start["loss"]
    failed = server.wait_for(lambda event: event["event"] == "failed")
    assert failed["error"].startswith("3 rounds in a row do not count")
    for client in clients:
        assert "the server stopped" in client.communicate(timeout=LIMIT)[0]


def test_a_stopped_client_is_left_out_and_may_go_on(fleet: Fleet) -> None:
    options = ("--rounds", 100_000, "--round-timeout", 1e6)
    server = fleet.server("--min-clients", 3, *options)
    clients = [fleet.client(server.port, i, 3) for i in range(3)]
    server.wait_for(lambda event: event.get("round") == 1)
    clients[2].send_signal(signal.SIGSTOP)

    without = server.wait_for(lambda event: bool(event.get("failures")))
    (failure,) = without["failures"]
    assert failure["client"].endswith("2/3")
    assert without["replies"] == 2
    clients[2].send_signal(signal.SIGCONT)
    server.wait_for(
        lambda event: event.get("round", 0) > without["round"] and event["replies"] == 3
    )
    clients[2].kill()
    assert "too late, the server goes on without this reply" in clients[2].communicate()[0]


def test_with_a_buffer_nobody_waits_for_a_stopped_client(fleet: Fleet) -> None:
    server = fleet.server("--rounds", 12, "--min-clients", 4, "--buffer", 2)
    clients = [fleet.client(server.port, i, 4) for i in range(4)]
    server.wait_for(lambda event: event.get("round") == 2)
    clients[3].send_signal(signal.SIGSTOP)

    assert server.process.wait(LIMIT) == 0

    clients[3].kill()
    assert [client.wait(LIMIT) for client in clients[:3]] == [0, 0, 0]
    start, *rounds = server.rounds()
    assert [one["round"] for one in rounds] == list(range(1, 13))
    assert {one["replies"] for one in rounds} == {2}
    assert {link["staleness"] for one in rounds for link in one["links"]} > {0}
    assert rounds[-1]["loss"] < start["loss"]


def test_a_run_with_a_buffer_is_resumed(fleet: Fleet) -> None:
    port, hold = free_port(), fleet.folder / "hold"
    options = ("--rounds", 12, "--min-clients", 3, "--buffer", 2, "--run-dir", "out")
    first = fleet.server(*options, port=port)
    clients = [
        fleet.client(first.port, i, 3, "--state-dir", f"state{i}", task=HELD) for i in range(3)
    ]
    first.wait_for(lambda event: event.get("round") == 4)
    hold.touch()  # the run does not end before the server does
    first.process.kill()
    first.process.wait(LIMIT)
    hold.unlink()

    second = fleet.server("--resume", "out", port=port)

    assert second.process.wait(LIMIT) == 0
    assert [client.wait(LIMIT) for client in clients] == [0, 0, 0]
    assert second.rounds()[-1]["round"] == 12
    assert all(not one["failures"] for one in second.rounds())
