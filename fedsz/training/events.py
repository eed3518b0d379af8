"""What a server tells while it works: to the screen, its run folder, or whoever started it."""

from __future__ import annotations

from typing import Any

import msgspec

from fedsz.control.record import RoundRecord, Traffic
from fedsz.errors import FedszError


class Listening(msgspec.Struct, frozen=True, tag_field="event", tag="listening"):
    """The server is up."""

    port: int
    run_dir: str  # the folder that results go to
    min_clients: int  # how many clients it waits for
    first_round: int = 0  # that it will tell of; 0 is the model to start from, before any training
    rounds: int = 0  # of the whole run; 0 if that is not known
    privacy: str = ""  # what it may spend, and how; "" without differential privacy


class Watched(msgspec.Struct, frozen=True, tag_field="event", tag="watched"):
    """Something that shows the run is served."""

    what: str  # "dashboard" or "metrics"
    url: str  # for a browser on this machine


class Client(msgspec.Struct, frozen=True, tag_field="event", tag="client"):
    """A client joined, replied, left or failed."""

    client_id: str
    what: str  # "joined", "received" (a reply), "left", "refused" or "failed"
    detail: str  # a sentence for people, or ""; with "received", why nobody waits for the reply


class Requested(msgspec.Struct, frozen=True, tag_field="event", tag="requested"):
    """A round of training has begun. Other clients may be connected, and do nothing in it."""

    clients: list[str]  # that are asked to train


class Done(msgspec.Struct, frozen=True, tag_field="event", tag="done"):
    """The run is over, and its folder complete."""

    run_dir: str
    seconds: float  # since this server listened
    # By client, and by kind, how often a round went on without it; all rounds of a resumed run.
    failures: dict[str, dict[str, int]] = {}
    # Likewise: how many rounds there were, how long they and round 0 took, and the sum of their
    # traffic, without its lists.
    rounds: int = 0
    round_seconds: float = 0.0
    totals: Traffic = msgspec.field(default_factory=Traffic)


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    """The command ends without its result, and why."""

    error: str


Event = Watched | Listening | Client | Requested | RoundRecord | Done | Failed


def to_json(event: Event) -> str:
    """Return an event as one line; a round's is one of rounds.jsonl, with its ratio for people."""
    line: Any = event
    if isinstance(event, RoundRecord):
        line = {**msgspec.to_builtins(event), "ratio": event.ratio}
    return msgspec.json.encode(line).decode()


def from_json(line: str | bytes) -> Event:
    """Return the event in a line from `to_json`.

    Raises:
        FedszError: it holds none.
    """
    try:
        event: Event = msgspec.json.decode(line, type=Event)
    except msgspec.DecodeError as err:
        raise FedszError(f"not an event: {line[:200]!r} ({err})") from err
    return event
