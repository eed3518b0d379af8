"""A policy, and rounds for it to look back on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fedsz.control.policy import Controller
from fedsz.control.record import ClientRecord, Decision, RoundRecord
from fedsz.update.config import CompressionConfig

BASE = CompressionConfig(update="delta", error_bound="std:3", downlink="std:1")


@dataclass(frozen=True)
class Policy:
    """A policy that knows no round, to be asked about several histories."""

    spec: str
    base: CompressionConfig
    tolerance: float
    rounds: int | None

    def begin(self) -> Controller:
        return Controller(self.spec, self.base, tolerance=self.tolerance, rounds=self.rounds)

    def decide(self, history: Iterable[RoundRecord]) -> Decision:
        """Return what is decided after a history, which may have no rounds."""
        controller = self.begin()
        for seen in history:
            controller.observe(seen)
        return controller.decided()


def policy(
    spec: str, base: CompressionConfig = BASE, *, tolerance: float = 0.5, rounds: int | None = 9
) -> Policy:
    asked = Policy(spec, base, tolerance, rounds)
    asked.begin()  # what cannot be is refused
    return asked


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
