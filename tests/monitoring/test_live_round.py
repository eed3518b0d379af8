"""What a server says of the round that goes on."""

from __future__ import annotations

import itertools
import sys
import threading

import pytest

from fedsz.monitoring.live_round import LiveRound
from fedsz.training.events import Client, Done, Event, Listening, Requested
from tests.monitoring.watched_runs import record


class Told(LiveRound):
    """One that takes events in a row."""

    def __init__(self, *events: Event) -> None:
        super().__init__()
        self.hear(Listening(8080, "runs/x", min_clients=4, rounds=10), *events)

    def hear(self, *events: Event) -> str:
        """Return its line after these events."""
        for event in events:
            self.take(event)
        return self.text()


def joined(*names: str) -> list[Event]:
    return [Client(name, "joined", "") for name in names]


def received(*names: str) -> list[Event]:
    return [Client(name, "received", "") for name in names]


@pytest.fixture
def live() -> Told:
    """Round 1 of four clients."""
    return Told(*joined("a", "b", "c", "d"), record(0))


def test_a_round_waits_for_the_clients_that_it_asks(live: Told) -> None:
    assert "0 of 2 replies, waiting for b, c" in live.hear(Requested(["b", "c"]))
    assert live.states() == {"a": "connected", "b": "training", "c": "training", "d": "connected"}
    assert "1 of 2 replies, waiting for b" in live.hear(*received("a", "c"))
    assert "2 of 2 replies, testing" in live.hear(*received("b"))


def test_it_is_read_while_other_threads_write(live: Told) -> None:
    """As the page and /readyz do."""
    ended = threading.Event()

    def write() -> None:
        for name in itertools.cycle(f"client {i}" for i in range(100)):
            live.take(Client(name, "left" if name in live.states() else "joined", ""))
            if ended.is_set():
                return

    writers = [threading.Thread(target=write) for _ in range(2)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for writer in writers:
            writer.start()
        for _ in range(2000):
            assert live.text()
            assert live.states()
    finally:
        ended.set()
        sys.setswitchinterval(before)
    for writer in writers:
        writer.join()


def test_it_starts_waits_tests_trains_and_ends() -> None:
    live = Told()
    assert (LiveRound().text(), LiveRound().ready) == ("starting the server", False)
    assert live.ready
    assert live.hear(*joined("a", "b")) == "waiting for clients: 2 of 4"
    assert live.hear(*joined("c", "d\n\x1b[2J")) == "testing the model to start from"
    training = "round 1 of 10: 0 of 4 replies, waiting for a, b, c, d\\n\\x1b[2J"
    assert live.hear(record(0)) == training
    assert live.hear(Done("runs/x", 1.0)) == "sending the clients home"
    assert not live.ready


def test_replies_are_seen_as_they_arrive(live: Told) -> None:
    late = Client("a", "received", "dropped: nobody waits for this reply any more")
    assert live.hear(late).startswith("round 1 of 10: 0 of 4 replies")
    assert live.hear(*received("c")).endswith("waiting for a, b, d")
    assert live.states() == {"a": "training", "b": "training", "c": "replied", "d": "training"}
    live.hear(Client("b", "left", "connection lost"))
    assert "b" not in live.states()
    said = live.hear(*received("a", "b", "d"))
    assert said == "round 1 of 10: 4 of 4 replies, testing their average"


def test_a_resumed_run_goes_on_with_its_round() -> None:
    resumed = Listening(8080, "runs/x", min_clients=1, first_round=7, rounds=9)
    said = Told().hear(resumed, *joined("a"))

    assert said == "round 7 of 9: 0 of 1 replies, waiting for a"
