"""What a server says of the round that goes on."""

from __future__ import annotations

import io

import msgspec
import pytest

from fedsz.monitoring.live_round import LiveRound
from fedsz.training.events import Client, Done, Listening, Receiving
from fedsz.transport.frames import Begin
from fedsz.transport.upload import Upload
from tests.watched_runs import record


class Clock:
    """Seconds that pass when a test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def live(clock: Clock) -> LiveRound:
    live = LiveRound(clock)
    live.take(Listening(8080, "runs/x", min_clients=4, rounds=10))
    return live


def join(live: LiveRound, *names: str) -> None:
    for name in names:
        live.take(Client(name, "joined", ""))


def test_it_waits_for_clients_then_tests_then_trains(live: LiveRound) -> None:
    join(live, "a", "b")
    assert live.text() == "waiting for clients: 2 of 4"
    join(live, "c", "d")
    assert live.text() == "testing the model to start from"
    live.take(record(0))
    assert live.text() == ("round 1 of 10: 0 of 4 replies, waiting for a, b, c, d (4 training)")


def test_replies_are_seen_as_they_arrive(live: LiveRound) -> None:
    join(live, "a", "b", "c", "d")
    live.take(record(0))
    live.take(Receiving("a", 37, 100))
    live.take(Receiving("b", 50, 100))
    live.take(Client("c", "received", ""))
    assert live.text().endswith("waiting for a, b, d (1 training, 2 uploading 44 %)")
    assert live.states() == {
        "a": "uploading 37 %", "b": "uploading 50 %", "c": "replied", "d": "training",
    }  # fmt: skip

    live.take(Client("b", "left", "connection lost"))
    assert live.text().endswith("waiting for a, b, d (1 training, 1 uploading 37 %)")
    for name in ("a", "b", "d"):
        live.take(Client(name, "received", ""))
    assert live.text() == "round 1 of 10: 4 of 4 replies, testing their average"


def test_a_late_reply_of_a_round_before_is_none(live: LiveRound) -> None:
    join(live, "a", "b", "c", "d")
    live.take(record(0))
    live.take(Client("a", "received", "dropped: nobody waits for this reply any more"))

    assert live.text().startswith("round 1 of 10: 0 of 4 replies")


def test_the_time_left_is_that_of_usual_rounds(live: LiveRound, clock: Clock) -> None:
    join(live, "a", "b", "c", "d")
    live.take(record(0))
    assert "left" not in live.text()
    for number, seconds in ((1, 20.0), (2, 10.0), (3, 600.0)):
        live.take(msgspec.structs.replace(record(number), seconds=seconds))
    assert live.text().endswith(", about 2 min left")  # rounds 4 to 10, 20 s each
    clock.now += 5 + 20
    for number in (4, 5, 6, 7, 8, 9):
        live.take(msgspec.structs.replace(record(number), seconds=20.0))
    clock.now += 5
    assert live.text().endswith(", about 15 s left")
    clock.now += 100
    assert live.text().endswith(", about 0 s left")


def test_a_run_that_is_over_or_has_not_begun(live: LiveRound) -> None:
    assert LiveRound().text() == "starting the server"
    assert not LiveRound().ready
    assert live.ready
    live.take(Done("runs/x", 1.0))
    assert live.text() == "sending the clients home"
    assert not live.ready


def test_a_resumed_run_goes_on_with_its_round() -> None:
    live = LiveRound()
    live.take(Listening(8080, "runs/x", min_clients=1, first_round=7, rounds=9))
    join(live, "a")

    assert live.text() == "round 7 of 9: 0 of 1 replies, waiting for a (1 training)"


def test_names_of_clients_are_one_line(live: LiveRound) -> None:
    join(live, "a", "b", "c", "d\n\x1b[2J")
    live.take(record(0))

    assert "d\\n\\x1b[2J" in live.text()


def test_an_upload_tells_of_itself_once_a_second() -> None:
    size = 100_000
    upload = Upload(Begin("m", size), io.BytesIO(), 0.0, limit=size)
    told = []
    for step in range(99):  # 1 kB each 0.1 s
        now = 0.1 * (step + 1)
        upload.take(memoryview(bytes(1000)), now)
        if (news := upload.news("pi", now)) is not None:
            told.append((news.client_id, news.message_id, news.passed, news.size))

    assert told == [("pi", "m", 10_000 * second, size) for second in range(1, 10)]


def test_an_upload_that_nobody_waits_for_tells_nothing() -> None:
    upload = Upload(Begin("m", 100), None, 0.0, limit=100)
    upload.take(memoryview(bytes(10)), 5.0)

    assert upload.news("pi", 5.0) is None
