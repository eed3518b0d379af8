"""What a server tells while it works: to the screen, its run folder, or whoever started it."""

from __future__ import annotations

from typing import Any

import msgspec

from fedsz.control.record import Decision, Link
from fedsz.errors import FedszError


class Listening(msgspec.Struct, frozen=True, tag_field="event", tag="listening"):
    """The server is up.

    Attributes:
        port: where.
        run_dir: the folder that results go to.
        min_clients: how many clients it waits for.
    """

    port: int
    run_dir: str
    min_clients: int


class Client(msgspec.Struct, frozen=True, tag_field="event", tag="client"):
    """A client joined, left or failed.

    Attributes:
        client_id: which.
        what: "joined", "left", "refused" or "failed".
        detail: a sentence for people, or "".
    """

    client_id: str
    what: str
    detail: str


class Failure(msgspec.Struct, frozen=True):
    """A client whose reply a round went on without, and why."""

    client: str
    reason: str


class RoundDone(msgspec.Struct, frozen=True, tag_field="event", tag="round"):
    """A round is over; a line of rounds.jsonl.

    Attributes:
        round: from 1; 0 is the model before any training, when nothing has been sent.
        accuracy, loss: of the averaged model on the server's held-out set; the loss is null where
            training has diverged.
        seconds: since the round before.
        replies: how many clients' updates went into the average.
        failures: the others.
        raw_up, sent_up: bytes of these updates, before and after compression.
        raw_down, sent_down: bytes of the model, once for each client it went to.
        wire_up, wire_down: bytes of gRPC messages either way.
        ratio: raw_up / sent_up; null in round 0.
        encode_seconds: the clients' time to compress, added up, as they report it.
        decode_seconds: the server's time to decode.
        train_seconds: the clients' time to train, added up, as they report it.
        test_seconds: the server's time to test the averaged model.
        max_error: the largest error as a share of its bound, as the clients measured it.
        links: what each client's update took.
        decision: how updates and the model were sent; null in round 0.
        spread, sensitivity: what the policy asked for; see `fedsz.control.record.Observation`.
    """

    round: int
    accuracy: float
    loss: float | None
    seconds: float
    replies: int
    failures: list[Failure]
    raw_up: int
    sent_up: int
    raw_down: int
    sent_down: int
    wire_up: int
    wire_down: int
    ratio: float | None
    encode_seconds: float
    decode_seconds: float
    max_error: float
    train_seconds: float = 0.0
    test_seconds: float = 0.0
    links: list[Link] = []
    decision: Decision | None = None
    spread: dict[str, tuple[int, float]] = {}
    sensitivity: dict[str, float] = {}


class Done(msgspec.Struct, frozen=True, tag_field="event", tag="done"):
    """The run is over, and its folder complete.

    Attributes:
        run_dir: the folder.
        seconds: from the first round's start to the end.
    """

    run_dir: str
    seconds: float


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """The command ends without its result, and why."""

    error: str


Event = Listening | Client | RoundDone | Done | Failed


def to_json(event: Event) -> str:
    """Return an event as one line."""
    return msgspec.json.encode(event).decode()


def from_json(line: str | bytes) -> Event:
    """Return the event that a line holds.

    Raises:
        FedszError: it holds none.
    """
    try:
        event: Any = msgspec.json.decode(line, type=Event)
    except msgspec.DecodeError as err:
        raise FedszError(f"not an event: {line[:200]!r} ({err})") from err
    return event  # type: ignore[no-any-return]
