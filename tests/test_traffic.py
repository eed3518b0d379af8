"""What a Grid counts: within limits whatever clients report, and without keeping its rounds."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz.control.policy import Controller
from fedsz.control.record import RoundRecord
from fedsz.core.reply_report import ReplyReport
from fedsz.core.settings import Settings
from fedsz.flower import FedSZGrid, LocalGrid, round_book
from fedsz.flower.admission import Admitted
from fedsz.flower.records import KEY, to_array
from fedsz.flower.refusal import Refusal
from fedsz.flower.round_book import RoundBook
from tests.federation import app_of
from tests.test_hostile_replies import Hostile

OWN = tracemalloc.Filter(True, __file__)
LIE = 9e14
KEYS = ("encode-seconds", "max-error", "tensors", "lossy-tensors", "lag")


def records_of(clients: int, lie: dict[str, float]) -> list[RoundRecord]:
    """Run ``clients`` clients under `auto`, of which the last reports a ``lie``."""
    rng = np.random.default_rng(0)
    app = app_of(lambda _, of: {"w": of["w"] + rng.normal(size=(40, 40)).astype(np.float32)})

    def lying(content: RecordDict) -> RecordDict:
        note = {**content.config_records[KEY], **lie}
        return RecordDict({**content, KEY: ConfigRecord(note)})

    inner = Hostile(lying, clients - 1, app=app, clients=clients)
    records: list[RoundRecord] = []
    grid = FedSZGrid(inner, on_round=records.append)
    model = ArrayRecord({"w": to_array(np.zeros((40, 40), np.float32))})
    FedAvg(fraction_evaluate=0).start(grid, model, num_rounds=3)
    grid.end_round()
    return records[1:]


@pytest.mark.parametrize("clients", [2, 3])
def test_what_one_client_reports_of_itself_steers_nobody(clients: int) -> None:
    honest = records_of(clients, {})
    lied = records_of(clients, dict.fromkeys(KEYS, LIE) | {"kept-energy": 0.0})

    assert [one.decision for one in lied] == [one.decision for one in honest]
    for one, other in zip(lied, honest, strict=True):
        assert (one.tensors, one.lossy) == (other.tensors, other.lossy) == (1, 1)
        assert (one.max_error, one.encode_seconds) <= (1.0, 3601.0)
        assert max(client.lag or 0 for client in one.clients) == 1000.0
        assert one.lag is not None
        assert one.lag < 1
        assert one.kept is not None
        assert one.kept > 0.5


@pytest.mark.parametrize("odd", [-1.0, float("nan"), "much", [1.0]])
def test_what_is_no_number_from_0_on_is_not_said(odd: Any) -> None:
    assert ReplyReport.read(ConfigRecord(dict.fromkeys(KEYS, odd))) == ReplyReport()


class Update:
    """An update that counted."""

    refused, raw_bytes, sent_bytes, seconds = None, 1000, 100, 0.1
    digest, scale, staleness, raised = bytes(32), 1.0, 0, frozenset[str]()


def play(book: RoundBook, rounds: int) -> int:
    """Count rounds of 20 clients, of which one fails; return how much memory is in use."""
    for _ in range(rounds):
        for node in range(19):
            updates: Any = {"arrays": Update()}
            book.received(Admitted(node, updates, ReplyReport(lag=1.0), True, 1.0))
            book.sent(1000, 50)
        book.failed(19, "gone", Refusal.FAILED)
        book.end({"accuracy": 0.5})
    gc.collect()
    # Of what this test keeps alone: threads of tests before it may still be at work.
    made = [tracemalloc.Filter(True, f"{Path(fedsz.__file__).parent}/*"), OWN]
    kept = tracemalloc.take_snapshot().filter_traces(made)
    return sum(trace.size for trace in kept.traces)


@pytest.mark.parametrize("tells", [True, False])
def test_rounds_leave_nothing_behind(tells: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_book, "LISTED", 30)
    controller = Controller("auto", Settings(), tolerance=0.5, rounds=None)
    book = RoundBook(LocalGrid(app_of(), []), controller, tells=tells)

    tracemalloc.start()
    try:
        grown = -play(book, 40) + play(book, 60)
    finally:
        tracemalloc.stop()

    assert grown < 20_000  # their records would be 400 kB
    if tells:
        traffic = book.take_traffic()
        assert (traffic.replies, traffic.raw_up, traffic.sent_down) == (1900, 1_900_000, 95_000)
        assert (len(traffic.clients), len(traffic.failures)) == (30, 30)
        assert book.take_traffic().replies == 0
