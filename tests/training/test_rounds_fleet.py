"""Rounds of real processes: a client that only fails, a hostile one, and a buffer."""

from __future__ import annotations

import signal

import pytest

from tests.fleets import HELD, LIMIT, Fleet
from tests.links import free_port

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
