"""The model on its way out: all clients hold the same one, whatever each of them missed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz.core.broadcast import FIRST_BOUND, Broadcast
from fedsz.core.grid import UNTRAINED
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError
from fedsz.flower import FedSZGrid, StreamingFedAvg
from fedsz.flower.records import to_array
from tests.federation import (
    CLIENTS,
    app_of,
    around,
    grid_of,
    initial,
    moved,
    record_of,
    run,
    to_arrays,
)

COARSE = "std:1"
CONFIG = Settings()


def walk(rounds: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """A model and where training takes it."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 50)).astype(np.float32)
    models = []
    for _ in range(rounds):
        models.append({"fc.weight": x, "fc.bias": x[:, 0].copy(), "n": np.array(len(models))})
        x = (x + 0.01 * rng.laplace(size=x.shape)).astype(np.float32)
    return models


def decoded(streams: Iterable[bytes], held: Reference | None = None) -> Reference | None:
    for stream in streams:
        held = Reference(fedsz.decompress(stream, reference=held, as_numpy=True))
    return held


def same(a: Reference | None, b: Reference | None) -> bool:
    return a is not None and b is not None and a.digest == b.digest


def test_a_broadcast_is_small_for_those_who_hold_the_last() -> None:
    downlink = Broadcast(CONFIG.replace(downlink=COARSE))
    first, second = walk(2)
    downlink.put(first, reference=True)
    held = downlink.model
    downlink.put(second, reference=True)

    (step,) = downlink.streams(held.digest if held else b"")
    both = downlink.streams(b"")

    assert 3 * len(step) < len(both[0])
    assert both[1] == step
    assert downlink.streams(downlink.model.digest if downlink.model else b"") == []


def test_the_first_model_is_fine() -> None:
    downlink = Broadcast(CONFIG.replace(downlink="std:5"))
    (model,) = walk(1)
    downlink.put(model, reference=True)

    assert downlink.model is not None
    error = np.abs(downlink.model.arrays["fc.weight"] - model["fc.weight"]).max()
    assert 0 < error <= fedsz.ErrorBound.rel(FIRST_BOUND).absolute(model["fc.weight"])


def test_a_model_that_is_sent_again_is_the_same() -> None:
    downlink = Broadcast(CONFIG.replace(downlink=COARSE))
    for model in walk(3):
        downlink.put(model, reference=True)
        held = downlink.model
        downlink.put({name: x.copy() for name, x in model.items()}, reference=True)
        assert downlink.model is held


def test_a_bound_of_steps_has_no_error_of_earlier_ones_in_it() -> None:
    """Where steps are put onto the model itself, the one that clients hold is off by a bound."""
    broadcast = Broadcast(CONFIG.replace(downlink="step:2.5"), feedback=False)
    models = [Reference(model) for model in walk(30)]
    for model, since in zip(models, [None, *models], strict=False):
        broadcast.put(model, reference=True, since=since)
    steps = [step.grid["fc.weight"] for step in broadcast.steps[1:]]
    assert max(steps) <= 2 * 2.5 * 0.0145 < 4 * min(steps)


@pytest.mark.parametrize("onto", ["meant", "held"])
def test_what_steps_are_put_onto_is_found_out(onto: str) -> None:
    """A strategy that adds to its own model has in it what broadcasts have left out."""
    broadcast, rng = Broadcast(CONFIG.replace(downlink="step:2.5")), np.random.default_rng(0)
    meant = {"fc.weight": rng.normal(size=(60, 50)).astype(np.float32)}
    total, frozen = meant["fc.weight"], {"fixed": rng.normal(size=(8, 5)).astype(np.float32)}
    for _ in range(30):
        broadcast.put({**meant, **frozen}, reference=True)
        assert broadcast.model is not None
        start = meant if onto == "meant" else broadcast.model.arrays
        step = 0.01 * rng.normal(size=(60, 50)).astype(np.float32)
        meant, total = {"fc.weight": start["fc.weight"] + step}, total + step
    steps = [one.grid["fc.weight"] for one in broadcast.steps[1:]]
    assert max(steps[2:]) <= 2 * 2.5 * 0.0105 < 4 * min(steps)
    sent = broadcast.model.arrays["fc.weight"] + step
    assert np.abs(sent - total).max() < 2.5 * 0.0105 + 1e-3
    assert len(broadcast.steps[-1].stream) < 1500


def test_weights_stay_on_their_lattice_while_only_a_counter_moves() -> None:
    broadcast, models = Broadcast(CONFIG.replace(downlink="step:2"), feedback=False), walk(5)
    still = {**models[-1], "n": np.array(9)}
    for model, since in zip([*models, still], [None, *models], strict=True):
        broadcast.put(model, reference=True, since=Reference(since) if since else None)
    assert set(broadcast.steps[-1].grid) == {"fc.weight"}
    assert len(broadcast.steps[-1].stream) < 400


def test_another_model_is_a_key_frame() -> None:
    downlink = Broadcast(CONFIG.replace(downlink=COARSE))
    downlink.put(walk(1)[0], reference=True)
    held = downlink.model
    downlink.put({"other.weight": np.ones((50, 50), np.float32)}, reference=True)

    assert held is not None
    assert same(decoded(downlink.streams(held.digest)), downlink.model)


def app_that(forgets: dict[int, set[int]], seen: list[dict[str, Any]]) -> Any:
    """An app whose client i forgets all it knew before the rounds in ``forgets[i]``."""
    turns: Counter[int] = Counter()

    def forget(client: int, message: Message, context: Context) -> None:
        turns[client] += 1
        if turns[client] in forgets.get(client, set()):
            context.state = RecordDict()

    return around(app_of(lambda i, arrays: seen.append(arrays) or moved(arrays, i)), forget)


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("update", ["weights", "delta", "delta+ef"])
@pytest.mark.parametrize("downlink", ["exact", COARSE])
def test_a_client_that_was_restarted_misses_no_round(
    strategy: type[FedAvg], update: str, downlink: str
) -> None:
    seen: list[dict[str, Any]] = []
    app = app_that({1: {2, 4}, 2: {3}}, seen)
    grid = FedSZGrid(grid_of(app), 1e-2, update=update, downlink=downlink)

    run(strategy(fraction_evaluate=0), grid, rounds=4)

    traffic = grid.take_traffic()
    assert (traffic.replies, traffic.failures) == (4 * CLIENTS, [])
    for t in range(4):
        of_round = seen[t * CLIENTS : (t + 1) * CLIENTS]
        assert len({Reference(arrays).digest for arrays in of_round}) == 1


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
def test_a_model_that_is_tested_and_then_trained_goes_out_once(strategy: type[FedAvg]) -> None:
    sent = []
    for share in (0.0, 1.0):
        grid = FedSZGrid(grid_of(app_of()), 1e-2, update="delta+ef", downlink=COARSE)
        run(strategy(fraction_evaluate=share), grid, rounds=4)
        traffic = grid.take_traffic()
        assert traffic.failures == []
        sent.append(traffic.sent_down)
    # One step more: the last average, which nobody trains.
    assert sent[0] < sent[1] < 1.3 * sent[0]


def test_different_models_for_different_clients_go_out_exactly() -> None:
    seen: dict[int, Any] = {}
    app = app_of(lambda i, arrays: seen.setdefault(i, arrays) and arrays)
    inner = grid_of(app)
    grid = FedSZGrid(inner, 1e-2, update="delta", downlink=COARSE)
    models = [{"fc.weight": np.full((40, 50), i, np.float32)} for i in range(CLIENTS)]
    pushed = [
        Message(RecordDict({"arrays": record_of(model)}), node, "train")
        for model, node in zip(models, inner.get_node_ids(), strict=True)
    ]

    replies = list(grid.send_and_receive(pushed))

    assert not any(reply.has_error() for reply in replies)
    for i, model in enumerate(models):
        assert (seen[i]["fc.weight"] == model["fc.weight"]).all()


@pytest.mark.parametrize("update", ["weights", "delta", "delta+ef"])
def test_an_update_with_nan_is_left_out_and_its_residual_forgotten(update: str) -> None:
    turns: list[int] = []

    def edit(i: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        turns.append(i)
        after = moved(arrays, i)
        if i == 1 and turns.count(1) == 2:
            after["fc.weight"][3, 4] = math.nan
        return after

    states: list[set[str]] = []

    def watched(app: Any, message: Message, context: Context) -> Message:
        try:
            return app(message, context)
        finally:
            if context.node_config["partition-id"] == 1:
                states.append({name for name in context.state if "residual" in name})

    grid = FedSZGrid(grid_of(partial(watched, app_of(edit))), "std:2", update=update)
    result = run(StreamingFedAvg(fraction_evaluate=0), grid, rounds=3)

    traffic = grid.take_traffic()
    assert traffic.replies == 3 * CLIENTS - 1
    (reason,) = (failure.reason for failure in traffic.failures)
    assert "DivergedUpdate: training made NaN or infinities of 'fc.weight'" in reason
    assert np.isfinite(to_arrays(result.arrays)["fc.weight"]).all()
    kept = {"fedsz.residual.arrays"} if update == "delta+ef" else set()
    assert states == [kept, set(), kept]


@pytest.mark.parametrize("bug", [False, True])
def test_training_that_diverges_is_one_line_and_a_bug_has_its_traceback(
    bug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def edit(_: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {} if bug and 1 / 0 else {name: x * math.nan for name, x in arrays.items()}

    run(StreamingFedAvg(fraction_evaluate=0), FedSZGrid(grid_of(app_of(edit)), downlink=COARSE))

    told = [record for record in caplog.records if record.name == "fedsz.flower.mod"]
    assert len(told) == CLIENTS
    name = "ZeroDivisionError" if bug else "DivergedUpdate: training made NaN"
    assert all(name in record.message for record in told)
    assert all(bool(record.exc_info) is bug for record in told)


def test_a_tensor_that_was_never_finite_is_no_divergence() -> None:
    arrays = {"mask": np.array([0, -np.inf], np.float32), **initial()}
    grid = FedSZGrid(grid_of(app_of()), 1e-2, update="delta+ef", downlink=COARSE)

    StreamingFedAvg(fraction_evaluate=0).start(grid, record_of(arrays), num_rounds=2)

    assert grid.take_traffic().failures == []


def planted(state: RecordDict, x: np.ndarray) -> None:
    """A state of another run."""
    if not state:
        for name in ("fedsz.model.arrays", "fedsz.residual.arrays"):
            state[name] = record_of({"fc.weight": x})
        state["fedsz.turn.arrays"] = ConfigRecord({"turn": 7})


def damaged(state: RecordDict, x: np.ndarray) -> None:
    """A memory with a tensor that is another."""
    if "fedsz.model.arrays" in state:
        state["fedsz.model.arrays"]["fc.weight"] = to_array(x)


@pytest.mark.parametrize(
    ("change", "x"),
    [
        (planted, np.ones((3, 3), np.float32)),
        (planted, np.full((60, 50), np.nan, np.float32)),
        (damaged, np.zeros((60, 50), np.float32)),
    ],
    ids=["shape", "nan", "damage"],
)
def test_a_memory_that_does_not_fit_counts_as_none(change: Any, x: np.ndarray) -> None:
    app = around(app_of(), before=lambda client, message, context: change(context.state, x))
    grid = FedSZGrid(grid_of(app), "std:1", update="delta+ef", downlink=COARSE)
    result = run(StreamingFedAvg(fraction_evaluate=0), grid, rounds=3)

    traffic = grid.take_traffic()
    assert (traffic.replies, traffic.failures) == (3 * CLIENTS, [])
    assert np.isfinite(to_arrays(result.arrays)["fc.weight"]).all()


@pytest.mark.parametrize("bound", ["0", "-1", "nan", "std:inf", "fine", "std:0", "abs:-2"])
def test_a_bound_that_is_none_is_refused(bound: str) -> None:
    with pytest.raises(ConfigError, match="error bound"):
        FedSZGrid(grid_of(app_of()), 1e-2, downlink=bound)
    with pytest.raises(ConfigError, match="error bound"):
        FedSZGrid(grid_of(app_of()), bound, update="delta+ef")


def test_an_untrained_model_goes_coarsely_and_what_that_leaves_out_never() -> None:
    """Clients train from what they got: where that has hardly moved, nothing is made up for."""
    (model,) = walk(1)
    x = model["fc.weight"]
    sizes = []
    for untrained, bound in ((True, UNTRAINED), (False, fedsz.ErrorBound.of(FIRST_BOUND))):
        downlink = Broadcast(CONFIG.replace(downlink="step:0.8"), untrained=untrained)
        downlink.put(model, reference=True)
        held = downlink.model
        assert held is not None
        error = np.abs(held.arrays["fc.weight"] - x).max()
        assert bound.absolute(x) / 2 < error <= bound.absolute(x)
        assert np.array_equal(held.arrays["n"], model["n"])
        sizes.append(sum(map(len, downlink.streams(b""))))

        after = {**held.arrays, "fc.weight": held.arrays["fc.weight"] + np.float32(1e-6)}
        downlink.put(after, reference=True)

        assert downlink.model is not None
        step = np.abs(downlink.model.arrays["fc.weight"] - held.arrays["fc.weight"]).max()
        assert (step < 1e-5) == untrained
    assert 2 * sizes[0] < sizes[1]
