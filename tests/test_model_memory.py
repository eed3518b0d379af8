"""How many copies of a model both ends hold, and that none of them is what a failure needs."""

from __future__ import annotations

import gc
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz.core.broadcast import Broadcast
from fedsz.core.broadcast_state import PARKED_FROM
from fedsz.core.decode import decompress
from fedsz.core.protocol import Instructions
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg
from fedsz.flower.client_state import ClientState
from fedsz.flower.records import to_record, views_of
from fedsz.shelf import Parked
from tests.federation import app_of, grid_of, initial, moved, record_of, to_arrays
from tests.peak_memory import linux

BF16 = np.dtype(ml_dtypes.bfloat16)
KEY = "arrays"
RESIDUAL = "fedsz.residual."


@linux
@pytest.mark.slow
@pytest.mark.repository
def test_a_model_in_half_precision_is_held_seven_times_at_most() -> None:
    large_models = pytest.importorskip("benchmarks.large_models", reason="needs benchmarks")

    took = large_models.exchange("model", large_models.Size(layers=1, words=8192), rounds=3)

    assert 3 < took.server_memory <= 7
    assert 3 < took.client_memory <= 7


def told(turn: int, counted: int | None = None) -> Instructions:
    return Instructions(Settings(), turn, run=b"a run", counted=counted)


def client() -> tuple[ClientState, RecordDict]:
    state = RecordDict()
    return ClientState(Context(1, 2, {}, state, {})), state


def kept(x: float) -> dict[str, np.ndarray]:
    return {"w": np.full(4, x, BF16)}


def residuals_in(state: RecordDict) -> int:
    return sum(RESIDUAL in name for name in state)


def test_an_app_that_trains_has_one_residual_beside_it() -> None:
    seen: list[int] = []
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        seen.append(residuals_in(context.state))
        arrays = record_of(moved(to_arrays(message.content[KEY]), len(seen)))
        content = {KEY: arrays, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    strategy = StreamingFedAvg(fraction_evaluate=0, min_train_nodes=1, min_available_nodes=1)
    grid = FedSZGrid(LocalGrid(app, [{}]), "std:2")
    strategy.start(grid, record_of(initial()), num_rounds=4)

    assert seen == [0, 1, 1, 1]


def test_a_reply_that_counted_needs_no_residual_before_it() -> None:
    here, state = client()
    for turn in (1, 2):
        here.settle(told(turn))
        here.keep_residual(KEY, kept(turn), told(turn))
    assert residuals_in(state) == 2  # the second may not count

    here.settle(told(3))

    assert residuals_in(state) == 1
    residual, age = here.residual(KEY, told(3))
    assert residual["w"].tolist() == [2.0] * 4
    assert residual["w"].dtype == BF16
    assert age == 1


@pytest.mark.parametrize("fails", [True, False])
def test_a_residual_of_before_is_used_and_what_was_sent_without_it_is_forgotten(
    fails: bool,
) -> None:
    here, _ = client()
    here.keep_residual(KEY, kept(1), told(1))
    if fails:  # the app, in turns 2 and 3
        here.settle(told(2))
        here.settle(told(3, counted=1))
    else:
        here.keep_residual(KEY, kept(2), told(2))
        reply = RecordDict({"metrics": MetricRecord({"num-examples": 1})})
        here.keep_reply(b"turn 2", reply)
        assert here.reply(b"turn 2") == reply  # the link broke
        here.settle(told(3, counted=1))
        assert here.reply(b"turn 2") is None

    residual, age = here.residual(KEY, told(3, counted=1))
    assert residual["w"].tolist() == [1.0] * 4
    assert age == 2


def test_arrays_of_a_record_are_views_of_its_bytes() -> None:
    record = to_record({"w": np.ones(1000, BF16), "steps": np.array(3)})

    for name, x in views_of(record).items():
        whole = np.frombuffer(record[name].data, np.uint8)
        assert np.shares_memory(x, whole)
        assert not x.flags.writeable


def broadcast_of(rounds: int) -> tuple[Broadcast, list[Reference]]:
    """Broadcast a model large enough that its streams are parked."""
    rng = np.random.default_rng(0)
    downlink = Broadcast(Settings(downlink="step:1"))
    model = {"w": rng.normal(size=(1024, 2048)).astype(BF16)}
    models = []
    for _ in range(rounds):
        downlink.put(model, reference=True)
        models.append(downlink.model)
        downlink.pack_away()
        step = 0.01 * rng.normal(size=(1024, 2048))
        model = {"w": (downlink.model.arrays["w"] + step).astype(BF16)}
    return downlink, models


@pytest.mark.parametrize("disk", ["there", "full"])
def test_streams_of_earlier_rounds_lead_to_the_model_from_disk(
    disk: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if disk == "full":
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    downlink, models = broadcast_of(3)
    large = [step.stream for step in downlink.steps if len(step.stream) >= PARKED_FROM]

    assert large
    assert all(isinstance(stream, Parked) is (disk == "there") for stream in large)
    for held in (None, *models[:2]):
        got = held
        for stream in downlink.streams(held.digest if held else b""):
            got = Reference(decompress(bytes(stream[:]), reference=got, as_numpy=True))
        assert got.digest == models[-1].digest


def test_the_loop_of_a_strategy_lets_go_of_the_model_it_began_with() -> None:
    began: list[bytes] = []
    holders: list[int] = []

    def first() -> ArrayRecord:
        record = record_of(initial())
        began.append(record["fc.weight"].data)
        return record

    def look(_: int, arrays: ArrayRecord) -> MetricRecord:
        del arrays
        gc.collect()
        holders.append(sys.getrefcount(began[0]) - 2)  # all but the list and the argument
        return MetricRecord({})

    StreamingFedAvg(fraction_evaluate=0).start(
        FedSZGrid(grid_of(app_of())), first(), num_rounds=3, evaluate_fn=look
    )

    assert holders[0] > 0  # before the first round
    assert holders[-1] == 0
