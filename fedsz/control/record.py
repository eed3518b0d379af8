"""What a policy sees of a run's rounds, and what it decides for the next one.

They are stored, a line a round, so that a run's decisions can be worked out again from its record.
"""

from __future__ import annotations

import msgspec


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """How the updates of one round are sent.

    Attributes:
        update: what clients send: "weights", "delta" or "delta+ef".
        error_bound: of what they send, as `fedsz.bounds.ErrorBound` prints it.
        downlink: "exact", or the error bound of the model's way to the clients.
        threshold, rule: which tensors stay lossless; None leaves it to the run.
        factors: by tensor, what its bound is multiplied with; 1 for those not named.
        codecs: by client (its node id as text), its codec where it is not the run's; "raw" sends
            the update as it is.
        why: one line for people, with the numbers that decided.
    """

    update: str
    error_bound: str
    downlink: str
    threshold: int | None = None
    rule: str | None = None
    factors: dict[str, float] = {}
    codecs: dict[str, str] = {}
    why: str = ""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One client in one round.

    Attributes:
        node: its node id, as text.
        bandwidth: of its way to the server, in bits a second; 0 where it is not known.
        raw_bytes: of its update, before compression.
        sent_bytes: of what it sent.
        encode_seconds: it took to compress.
        decode_seconds: the server took to decompress.
    """

    node: str
    bandwidth: float
    raw_bytes: int
    sent_bytes: int
    encode_seconds: float
    decode_seconds: float


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a round when it is over.

    Attributes:
        round: from 1; 0 is the model before any training.
        accuracy: of the averaged model on held-out data, in [0, 1]; None where nobody measured it.
        loss: its mean cross-entropy there, in nats; None where it is not finite, or not measured.
        raw_up, sent_up: bytes of the updates, before and after compression.
        raw_down, sent_down: bytes of the model, once for each client it went to.
        seconds: since the round before.
        train_seconds: the clients' time to train, added up.
        replies: how many updates went into the average.
        links: the clients that replied.
        decision: what this round used; None in round 0.
        spread: by lossy tensor, its elements and the standard deviation of this round's averaged
            update.
        sensitivity: by lossy tensor, the rise of the held-out loss, in nats, over the mean squared
            error of its elements, as `fedsz.training.sensitivity` measures it.
    """

    round: int
    accuracy: float | None
    loss: float | None
    raw_up: int
    sent_up: int
    raw_down: int
    sent_down: int
    seconds: float
    train_seconds: float = 0.0
    replies: int
    links: list[Link]
    decision: Decision | None = None
    spread: dict[str, tuple[int, float]] = {}
    sensitivity: dict[str, float] = {}
