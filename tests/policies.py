"""A policy, and rounds for it to look back on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedsz.control.controller import Controller
from fedsz.control.record import ClientRecord, Decision, RoundRecord
from fedsz.core.settings import Settings

BASE = Settings(update="delta", error_bound="std:3", downlink="std:1")


def controller(spec: str, base: Settings = BASE, **options: Any) -> Controller:
    return Controller(spec, base, **({"tolerance": 0.5, "rounds": 9} | options))


def decide(
    spec: str, history: Iterable[RoundRecord] = (), base: Settings = BASE, **options: Any
) -> Decision:
    """Return what a policy decides after a history, which may have no rounds."""
    rounds = list(history) or [RoundRecord(round=0)]
    decision = controller(spec, base, history=rounds, **options).decision
    assert decision is not None
    return decision


def client(node: str = "1", **fields: Any) -> ClientRecord:
    usual = {"bandwidth": 1e6, "raw_bytes": 10**6, "sent_bytes": 10**5}
    return ClientRecord(
        node=node, **(usual | {"encode_seconds": 0.1, "decode_seconds": 0.1} | fields)
    )


def row(
    number: int, accuracy: float | None = 0.5, loss: float | None = 1.0, **fields: Any
) -> RoundRecord:
    usual: dict[str, Any] = {"raw_up": 10**6, "sent_up": 10**5, "raw_down": 0, "sent_down": 0}
    usual |= {"seconds": 60.0, "replies": int(number > 0), "clients": []}
    return RoundRecord(round=number, accuracy=accuracy, loss=loss, **(usual | fields))


def factor_of(decision: Decision) -> float:
    return decision.config.bound.value
