"""What a Grid counts: within limits whatever clients report, and without keeping its rounds."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz.control.controller import Controller
from fedsz.control.record import RoundRecord
from fedsz.core.protocol import ReplyNote
from fedsz.core.settings import Settings
from fedsz.flower import FedSZGrid, LocalGrid, round_statistics
from fedsz.flower.records import note_of, replaced, to_array
from fedsz.flower.refusal import Refusal
from fedsz.flower.round_statistics import CountedReply, RoundStatistics
from fedsz.flower.update import Update
from tests.federation import app_of
from tests.flower.test_hostile_replies import Hostile

OWN = tracemalloc.Filter(True, __file__)
LIE = 9e14
NUMBERS = ("encode_seconds", "max_error", "tensors", "lossy", "residual_ratio")


def records_of(clients: int, lie: dict[str, float]) -> list[RoundRecord]:
    """Run ``clients`` clients under `auto`, of which the last reports a ``lie``."""
    rng = np.random.default_rng(0)
    app = app_of(lambda _, of: {"w": of["w"] + rng.normal(size=(40, 40)).astype(np.float32)})

    def lying(content: RecordDict) -> RecordDict:
        note = msgspec.structs.replace(ReplyNote.decode(note_of(content)), **lie)
        return replaced(content, {}, note.encode())

    inner = Hostile(lying, clients - 1, app=app, clients=clients)
    records: list[RoundRecord] = []
    grid = FedSZGrid(inner, on_round=records.append)
    model = ArrayRecord({"w": to_array(np.zeros((40, 40), np.float32))})
    FedAvg(fraction_evaluate=0).start(grid, model, num_rounds=3)
    return records


@pytest.mark.parametrize("clients", [2, 3])
def test_what_one_client_reports_of_itself_steers_nobody(clients: int) -> None:
    honest = records_of(clients, {})
    lied = records_of(clients, dict.fromkeys(NUMBERS, LIE) | {"energy_fraction": 0.0})

    assert [one.decision for one in lied] == [one.decision for one in honest]
    for one, other in zip(lied, honest, strict=True):
        assert (one.tensors, one.lossy) == (other.tensors, other.lossy) == (1, 1)
        assert (one.max_error, one.encode_seconds) <= (1.0, 3601.0)
        assert max(client.residual_ratio or 0 for client in one.clients) == 1000.0
        assert one.residual_ratio is not None
        assert one.residual_ratio < 1
        assert one.energy_fraction is not None
        assert one.energy_fraction > 0.5


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), "much", [1.0]])
def test_numbers_that_are_not_at_least_0_say_nothing(wrong: Any) -> None:
    said = msgspec.msgpack.encode(dict.fromkeys(NUMBERS, wrong))
    assert ReplyNote.decode(said) == ReplyNote()


def play(statistics: RoundStatistics, rounds: int) -> int:
    """Count rounds of 20 clients, of which one fails; return how much memory is in use."""
    for _ in range(rounds):
        for node in range(19):
            update = Update(ArrayRecord(), {}, None, {}, {}, 1000, 100, bytes(32))
            note = ReplyNote(residual_ratio=1.0)
            statistics.received(CountedReply(node, note, True, 1.0, {"arrays": update}))
            statistics.sent(1000, 50)
        statistics.failed(19, "gone", Refusal.FAILED)
        statistics.end({"accuracy": 0.5})
        statistics.decide()
    gc.collect()
    # Of what this test keeps alone: threads of tests before it may still be at work.
    made = [tracemalloc.Filter(True, f"{Path(fedsz.__file__).parent}/*"), OWN]
    kept = tracemalloc.take_snapshot().filter_traces(made)
    return sum(trace.size for trace in kept.traces)


@pytest.mark.parametrize("logs", [True, False])
def test_rounds_leave_nothing_behind(logs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_statistics, "LISTED", 30)
    controller = Controller("auto", Settings(), tolerance=0.5, rounds=None)
    rounds = RoundStatistics(LocalGrid(app_of(), []), controller, logs=logs)

    tracemalloc.start()
    try:
        grown = -play(rounds, 40) + play(rounds, 60)
    finally:
        tracemalloc.stop()

    assert grown < 20_000  # their records would be 400 kB
    if logs:
        traffic = rounds.take_traffic()
        assert (traffic.replies, traffic.raw_up, traffic.sent_down) == (1900, 1_900_000, 95_000)
        assert (len(traffic.clients), len(traffic.failures)) == (30, 30)
        assert rounds.take_traffic().replies == 0


def test_traffic_is_the_sum_of_the_rounds_whenever_it_is_taken() -> None:
    """Also in the midst of a round, whose record has all of it."""
    controller = Controller("auto", Settings(), tolerance=0.5, rounds=None)
    records: list[RoundRecord] = []
    rounds = RoundStatistics(
        LocalGrid(app_of(), []), controller, logs=True, on_round=records.append
    )
    taken = [rounds.take_traffic()]
    rounds.decide()
    for number in range(1, 4):
        for node, ratio in enumerate((1.0, number)):
            update = Update(ArrayRecord(), {}, None, {}, {}, 1000, 100 + number, bytes(32))
            note = ReplyNote(residual_ratio=ratio, tensors=number, max_error=0.1 * number)
            rounds.received(CountedReply(node, note, True, 1.0, {"arrays": update}))
            rounds.sent(1000, 50)
            if number != 2:
                taken.append(rounds.take_traffic())
        rounds.failed(2, "gone", Refusal.FAILED)
        rounds.end({})
        rounds.decide()
    taken.append(rounds.take_traffic())

    assert [(one.replies, one.sent_up, one.sent_down) for one in records] == [
        (2, 2 * (100 + number), 100) for number in (1, 2, 3)
    ]
    assert [one.replies for one in taken] == [0, 1, 1, 3, 1, 0]
    assert [len(one.failures) for one in taken] == [0, 0, 0, 2, 0, 1]
    assert sum(one.sent_up for one in taken) == sum(one.sent_up for one in records)
    assert [one.tensors for one in records] == [1, 2, 3]
    assert [one.residual_ratio for one in records] == [1.0, 1.0, 1.0]
    assert (taken[3].tensors, taken[3].max_error) == (2, pytest.approx(0.3))
