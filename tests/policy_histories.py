"""Histories of runs that policies decide over, the same on every machine, and what was decided."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow.parquet as pq

from fedsz.bounds import ErrorBound
from fedsz.control.controller import Controller
from fedsz.control.record import ClientRecord, Decision, RoundRecord
from fedsz.core.settings import EXACT
from tests.conftest import ROOT
from tests.policies import controller

ROUNDS: Final = 40
MADE: Final = datetime(2026, 11, 24, tzinfo=UTC)  # later runs in a file were not decided over
ODD: Final = (math.nan, math.inf, 0.0, None)


def _curve(shape: str, i: int) -> tuple[float, float]:
    """Accuracy and loss of round ``i``, without noise."""
    share = i / ROUNDS
    return {
        "learning": (0.1 + 0.6 * math.sqrt(share), 2.3 - 1.5 * math.sqrt(share)),
        "falling": (0.1 + 1.2 * min(share, 0.8 - share), 2.3 - 3 * min(share, 0.8 - share)),
        "flat": (0.1 + (i > 15) * 0.02 * (i - 15), 2.3 - (i > 15) * 0.04 * (i - 15)),
        "overfit": (0.1 + 0.5 * min(1.0, 3 * share), 2.3 - 2 * min(share, 0.5) + share),
    }[shape]


def _metric(family: str, i: int, draw: random.Random) -> tuple[float | None, float | None]:
    accuracy, loss = _curve(family if family in ("falling", "flat", "overfit") else "learning", i)
    noise = draw.uniform(-0.01, 0.01)
    accuracy, loss = accuracy + noise, loss - 2 * noise + draw.uniform(-0.01, 0.01)
    if family == "ugly" and draw.random() < 0.3:
        return accuracy if i < 3 else draw.choice((*ODD[:3], 1.0)), draw.choice(ODD)
    if family == "unmeasured" or (family == "late" and i < 2):
        return None, None
    return accuracy, None if family == "no loss" else loss


def _client(node: int, family: str, draw: random.Random) -> ClientRecord:
    raw = 10**6
    speed = 10 ** draw.uniform(5, 9)
    if family == "ugly" and draw.random() < 0.3:
        speed, raw = draw.choice((0.0, math.inf, math.nan, -1.0)), draw.choice((0, raw))
    return ClientRecord(
        node=str(node),
        client="" if node % 3 else f"client-{node}",
        bandwidth=speed,
        raw_bytes=raw,
        sent_bytes=draw.randrange(10**4, 2 * 10**6),
        encode_seconds=draw.uniform(0, 0.2),
        decode_seconds=draw.uniform(0, 0.1),
    )


def decisions_of(spec: str, name: str) -> Iterator[Decision]:
    """Yield what a policy decides after each round.

    ``name`` is a family of runs, of which one is made up, or ``results/`` and a file of many.
    """
    family, _, file = name.partition("/")
    if not file:
        yield from play(family, controller(spec, rounds=ROUNDS))
        return
    for run in recorded(file):
        asked = controller(spec, rounds=ROUNDS)
        for seen in run:
            yield asked.decide(seen)


def play(family: str, asked: Controller) -> Iterator[Decision]:
    """Make up a run of ``family``, and yield what is decided after each of its rounds."""
    draw = random.Random(family)  # noqa: S311 - numpy may draw otherwise in another release
    decided: Decision | None = None
    for i in range(ROUNDS):
        accuracy, loss = _metric(family, i, draw)
        nodes = draw.sample(range(30), 4) if family == "sampled" else range(4)
        failed = family in ("ugly", "gaps") and draw.random() < 0.2
        clients = [_client(node, family, draw) for node in nodes] if i and not failed else []
        seen: dict[str, Any] = {
            "round": 3 * i if family == "gaps" else i,
            "accuracy": accuracy,
            "loss": loss,
            "replies": len(clients),
            "clients": clients,
            "raw_up": sum(client.raw_bytes for client in clients),
            "sent_up": sum(client.sent_bytes for client in clients),
            "seconds": draw.choice((5.0, 60.0)),
            "residual_ratio": draw.uniform(0, 4) if family == "lagging" else None,
            "spread": {
                name: (draw.randrange(1, 9999), draw.uniform(0.01, 1)) for name in _some(draw)
            },
            "sensitivity": {name: draw.uniform(0, 9) for name in _some(draw)},
            "decision": decided,
        }
        yield (decided := asked.decide(RoundRecord(**seen)))


def _some(draw: random.Random) -> list[str]:
    return [name for name in ("conv", "fc", "norm") if draw.random() < 0.9]


def recorded(name: str) -> Iterator[list[RoundRecord]]:
    """Yield the rounds of each run of a file of results up to `MADE`, in order."""
    columns = ["run", "round", "replies", "accuracy", "loss", "time"]
    rows = pq.read_table(ROOT / "docs" / "results" / f"{name}.parquet", columns=columns)
    runs: dict[str, list[RoundRecord]] = {}
    for row in rows.to_pylist():
        if row.pop("time") < MADE and row["round"] is not None:
            runs.setdefault(row.pop("run"), []).append(RoundRecord(**row))
    for run in sorted(runs):
        yield sorted(runs[run], key=lambda one: one.round)


def digest(decisions: Iterable[Decision]) -> str:
    """Return what tells lists of decisions apart, but for the last digits of their bounds."""
    hashed = hashlib.sha256()
    for one in decisions:
        config = one.config
        told = (
            config.update, config.codec, _short(config.error_bound),
            _short(config.downlink),
            sorted((name, f"{x:.9g}") for name, x in config.factors.items()),
            sorted(one.codecs.items()), one.why,
        )  # fmt: skip
        hashed.update(repr(told).encode())
    return hashed.hexdigest()[:16]


def _short(text: str) -> str:
    if text == EXACT:
        return text
    bound = ErrorBound.of(text)
    return f"{bound.kind}:{bound.value:.9g}"
