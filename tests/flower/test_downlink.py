"""The model on its way out: all clients hold the same one, whatever each of them missed."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz.core.broadcast import Broadcast
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
SETTINGS = Settings()


def walk(rounds: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """A model and where training takes it."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(60, 50)).astype(np.float32)
    models = []
    for _ in range(rounds):
        models.append({"fc.weight": x, "fc.bias": x[:, 0].copy(), "n": np.array(len(models))})
        x = (x + 0.01 * rng.laplace(size=x.shape)).astype(np.float32)
    return models


def decoded(stream: bytes | None, base: Reference | None = None) -> Reference:
    assert stream
    return Reference(fedsz.decompress(stream, reference=base, as_numpy=True))


def test_a_broadcast_is_small_for_clients_that_have_the_last() -> None:
    broadcast, settings = Broadcast(), SETTINGS.replace(downlink=COARSE)
    first, second = (broadcast.publish(model, settings) for model in walk(2))

    delta = broadcast.since(first.digest)

    assert delta is not None
    assert 3 * len(delta) < len(broadcast.key_frame())
    assert decoded(delta, first).digest == decoded(broadcast.key_frame()).digest == second.digest
    assert broadcast.since(second.digest) == b""


def test_weights_stay_on_their_grid_while_only_a_counter_moves() -> None:
    broadcast, models = Broadcast(), walk(5)
    references = [
        broadcast.publish(model, SETTINGS.replace(downlink="step:2"))
        for model in [*models, {**models[-1], "n": np.array(9)}]
    ]
    before, after = references[-2:]
    assert np.array_equal(before.arrays["fc.weight"], after.arrays["fc.weight"])
    assert after.arrays["n"] == 9
    assert len(broadcast.since(before.digest) or b"") < 400


@pytest.mark.parametrize(
    ("odd", "downlink"),
    [
        *itertools.product([np.nan, np.inf], ["step:2", "std:1", "1e-2", "abs:1e-3"]),
        (3.0, "1e-2"),  # a constant has no range
    ],
)
def test_a_tensor_that_has_no_bound_any_more_goes_exactly(odd: float, downlink: str) -> None:
    broadcast, settings = Broadcast(), SETTINGS.replace(downlink=downlink)
    (model,) = walk(1)
    before = broadcast.publish(model, settings)
    model = {**model, "fc.weight": np.full_like(model["fc.weight"], odd)}

    after = broadcast.publish(model, settings)

    assert after.arrays["fc.weight"].tobytes() == model["fc.weight"].tobytes()
    assert decoded(broadcast.since(before.digest), before).digest == after.digest


def test_another_model_is_a_key_frame() -> None:
    broadcast, settings = Broadcast(), SETTINGS.replace(downlink=COARSE)
    before = broadcast.publish(walk(1)[0], settings)
    after = broadcast.publish({"other.weight": np.ones((50, 50), np.float32)}, settings)

    assert broadcast.since(before.digest) is None
    assert decoded(broadcast.key_frame()).digest == after.digest


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
                states.append({name for name in context.state if "memory" in name})

    grid = FedSZGrid(grid_of(partial(watched, app_of(edit))), "std:2", update=update)
    result = run(StreamingFedAvg(fraction_evaluate=0), grid, rounds=3)

    traffic = grid.take_traffic()
    assert traffic.replies == 3 * CLIENTS - 1
    (reason,) = (failure.reason for failure in traffic.failures)
    assert "DivergedUpdate: training made NaN or infinities of 'fc.weight'" in reason
    assert np.isfinite(to_arrays(result.arrays)["fc.weight"]).all()
    kept = {"fedsz.memory.arrays"} if update == "delta+ef" else set()
    assert states == [kept, set(), kept]


@pytest.mark.parametrize("bug", [False, True])
def test_training_that_diverges_is_one_line_and_a_bug_has_its_traceback(
    bug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def edit(_: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {} if bug and 1 / 0 else {name: x * math.nan for name, x in arrays.items()}

    run(StreamingFedAvg(fraction_evaluate=0), FedSZGrid(grid_of(app_of(edit)), downlink=COARSE))

    told = [record for record in caplog.records if record.name == "fedsz.transport.node"]
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
        state["fedsz.reference.arrays"] = record_of({"fc.weight": x})
        state["fedsz.memory.arrays"] = record_of({"feedback/fc.weight": x})
        state["fedsz.about.arrays"] = ConfigRecord({"run": b"another run", "round": 7})


def damaged(state: RecordDict, x: np.ndarray) -> None:
    """A memory with a tensor that is another."""
    if "fedsz.reference.arrays" in state:
        state["fedsz.reference.arrays"]["fc.weight"] = to_array(x)


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
