"""Servers that step otherwise than by the mean of their clients' steps are told from the others."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp import strategy as flower

from fedsz.bounds import ErrorBound
from fedsz.control.auto import APART, EARLY, ODD, OTHERWISE
from fedsz.control.learned import PATIENCE
from fedsz.control.record import RoundRecord
from fedsz.control.rule import STEP
from fedsz.flower import FedSZGrid, StreamingFedAvg
from fedsz.flower.server_step import MeanOfReplies, some_of
from tests.federation import app_of, grid_of, record_of
from tests.policies import controller, decide, row

SAYS = "the server's step is no mean of updates"
NARROW = pytest.approx(OTHERWISE, abs=1e-3)
MODEL = {"fc.weight": np.random.default_rng(0).normal(size=(100, 80)).astype(np.float32)}


def bounds_after(apart: list[float | None]) -> tuple[float, float]:
    """The bounds of the round after as many, over those of a run in which nobody measured a step.

    Of updates, and of the model.
    """
    rows = [row(0), *(row(i + 1, apart=far) for i, far in enumerate(apart))]
    plain = [row(i) for i in range(len(rows))]
    decisions = decide("auto", rows), decide("auto", plain)
    bounds = [ErrorBound.of(decision.config.error_bound).value for decision in decisions]
    down = [decision.config.downlink_bound for decision in decisions]
    assert (SAYS in decisions[0].why) == (bounds[0] < bounds[1])
    assert down[0]
    assert down[1]
    return round(bounds[0] / bounds[1], 3), round(down[0].value / down[1].value, 3)


@pytest.mark.parametrize("odd", range(EARLY + 1))
@pytest.mark.parametrize("far", [1.01 * APART, 1e30, math.nan])
def test_other_steps_narrow_the_bounds_once_there_are_two(far: float, odd: int) -> None:
    near: list[float | None] = [0.99 * APART] * (EARLY - odd)
    assert bounds_after(near + [far] * odd) == (NARROW if odd >= ODD else (1, 1))


def test_a_first_step_of_another_kind_narrows_them_until_the_next_is_a_mean() -> None:
    assert bounds_after([9.0]) == bounds_after([9.0, None]) == NARROW
    assert bounds_after([9.0, 0.0]) == (1, 1)
    assert bounds_after([9.0, 0.0, 9.0]) == NARROW


def test_later_rounds_and_those_of_which_nothing_is_known_tell_nothing() -> None:
    assert bounds_after([0.0, None] * EARLY + [9.0] * 9) == (1, 1)
    assert bounds_after([None] * 9) == (1, 1)
    assert bounds_after([None] * PATIENCE + [9.0] * 9) == (1, 1)


def test_a_step_is_asked_for_until_it_is_known() -> None:
    asked = controller("auto+gate", rounds=None)
    for number in range(EARLY + 2):
        assert asked.needs == (frozenset({STEP}) if number <= EARLY else frozenset())
        asked.observe(row(number, apart=0.1 if number else None))


def of(kind: str = "train", **arrays: np.ndarray) -> list[Message]:
    """A push of one model."""
    content = RecordDict({"arrays": record_of(arrays)})
    about = SimpleNamespace(message_type=kind)
    return [cast(Message, SimpleNamespace(content=content, metadata=about))]


def test_how_far_a_model_is_from_a_mean() -> None:
    sent = {"w": np.full(9999, 5, np.float32), "h": np.ones(4, np.float16), "n": np.array([7])}
    one, other = ({k: (x + i).astype(x.dtype) for k, x in sent.items()} for i in (1, 4))
    mean = {k: (x + 2).astype(x.dtype) for k, x in sent.items()}  # of two shares to one

    def apart(after: dict[str, np.ndarray], *weights: float | None) -> float | None:
        known = MeanOfReplies()
        known.begin(of(**sent))
        for reply, weight in zip((one, other), weights, strict=True):
            known.add([some_of(reply)], weight)
        known.add([], None)  # a reply without arrays
        return known.apart(of(**after))

    assert apart(mean, 2, 1) == pytest.approx(0, abs=1e-7)
    assert apart({**sent, "h": mean["h"]}, 2, 1) == pytest.approx(1, rel=1e-2)
    assert apart(sent, 2, 1) is None  # of a round that does not count, for one
    assert apart({k: (x + 6).astype(x.dtype) for k, x in sent.items()}, 2, 1) == pytest.approx(2)
    assert apart({"elsewhere": mean["w"]}, 2, 1) is None
    assert apart({"w": np.full(9999, np.nan, np.float32)}, 2, 1) is None
    for weights in ((None, 1), (0, 0)):
        assert apart(mean, *weights) is None


def test_clients_may_reply_with_some_of_the_tensors() -> None:
    known, sent = MeanOfReplies(), {"a": np.zeros(3), "b": np.zeros(3)}
    known.begin(of(**sent))
    known.add([some_of({"a": np.ones(3)})], 3.0)
    known.add([some_of({"b": np.ones(3)})], 1.0)

    assert known.apart(of(a=np.ones(3), b=np.ones(3))) == 0


def after_replies(sent: dict[str, np.ndarray], *replies: dict[str, np.ndarray]) -> MeanOfReplies:
    known = MeanOfReplies()
    known.begin(of(**sent))
    for reply in replies:
        known.add([some_of(reply)], 1.0)
    return known


def test_masks_of_infinities_and_overflows_tell_nothing_and_end_nothing() -> None:
    mask = np.where(np.tri(4, dtype=bool), 0, -np.inf).astype(np.float32)
    sent = {"w": np.zeros(3), "mask": mask, "far": np.full(3, 1.7e308)}
    reply = {"w": np.ones(3), "mask": mask, "far": np.full(3, -1.7e308)}

    with np.errstate(all="raise"):
        known = after_replies(sent, reply)
        assert known.apart(of(**{**reply, "w": np.ones(3)})) == 0
        assert known.apart(of(**{**sent, "w": np.full(3, 2.0)})) == pytest.approx(1)


def test_replies_may_be_steps_in_place_of_models() -> None:
    rng = np.random.default_rng(5)
    sent = {"w": rng.normal(size=500)}
    steps = [{"w": rng.normal(0, 0.01, 500)} for _ in range(3)]
    mean = sum(step["w"] for step in steps) / 3

    known = after_replies(sent, *steps)

    assert known.apart(of(w=sent["w"] + mean)) == pytest.approx(0, abs=1e-6)
    assert known.apart(of(w=sent["w"] + 2 * mean)) == pytest.approx(1)


def test_other_messages_and_models_of_their_own_are_no_next_model() -> None:
    sent, reply = {"w": np.zeros(3)}, {"w": np.ones(3)}
    known = after_replies(sent, reply)
    assert known.apart(of(w=np.ones(3))) == 0
    assert known.apart(of("train.other", w=np.ones(3))) is None
    assert known.apart([*of(w=np.ones(3)), *of(w=np.zeros(3))]) is None
    known.begin([*of(**sent), *of(**reply)])
    known.add([some_of(reply)], 1.0)
    assert known.apart(of(w=np.ones(3))) is None


def test_replies_may_come_from_threads() -> None:
    known = after_replies({"w": np.zeros(9)})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: known.add([{"w": np.full(9, float(i))}], 1.0), range(400)))
    assert known.apart(of(w=np.full(9, 199.5))) == pytest.approx(0, abs=1e-12)


def test_nothing_is_known_of_several_models_nor_without_a_round() -> None:
    known = MeanOfReplies()
    assert (known.asks, known.apart(of(w=np.ones(3)))) == (False, None)
    known.begin(of(w=np.ones(3)))
    assert known.asks
    known.add([some_of({"w": np.ones(3)})] * 2, 1.0)
    assert not known.asks
    known.begin([])
    assert not known.asks


SERVERS: dict[str, tuple[Any, bool | None]] = {
    "FedAvg": (flower.FedAvg, False),
    "FedProx": (partial(flower.FedProx, proximal_mu=0.01), False),
    "FedMedian": (flower.FedMedian, False),
    "FedTrimmedAvg": (flower.FedTrimmedAvg, False),
    "StreamingFedAvg": (StreamingFedAvg, None),
    "momentum of 0.5": (partial(flower.FedAvgM, server_momentum=0.5), True),
    "momentum of 0.9": (partial(flower.FedAvgM, server_momentum=0.9), True),
    "FedAdam": (flower.FedAdam, True),
    "FedYogi": (flower.FedYogi, True),
    "twice the mean": (partial(flower.FedAvgM, server_learning_rate=2.0), True),
}


@pytest.mark.parametrize("name", SERVERS)
def test_flowers_own_servers_are_told_apart(name: str) -> None:
    server, otherwise = SERVERS[name]
    towards = np.random.default_rng(11).normal(0, 0.02, MODEL["fc.weight"].shape)

    def edit(i: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        own = np.random.default_rng(i).normal(0, 0.01, towards.shape)
        return {k: (x + towards + own).astype(x.dtype) for k, x in arrays.items()}

    grid = FedSZGrid(grid_of(app_of(edit)))
    records: list[RoundRecord] = []
    grid._book._on_round = records.append
    server(fraction_evaluate=0.0).start(grid, record_of(MODEL), num_rounds=EARLY + 2)

    known = [False] + [otherwise is not None] * EARLY + [False]  # one that averages itself does so
    assert [one.apart is not None for one in records] == known
    last = records[-1].decision
    assert last is not None
    assert (SAYS in last.why) == bool(otherwise)


def test_policies_that_need_the_spread_of_a_servers_step_get_it() -> None:
    towards = np.random.default_rng(11).normal(0, 0.02, MODEL["fc.weight"].shape)

    def edit(i: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {k: (x + towards).astype(x.dtype) for k, x in arrays.items()}

    how: dict[str, Any] = {"update": "delta", "error_bound": "std:0.1", "rule": "shape"}
    grid = FedSZGrid(grid_of(app_of(edit)), policy="layers:cost=mse", threshold=0, **how)
    records: list[RoundRecord] = []
    grid._book._on_round = records.append
    flower.FedAvg(fraction_evaluate=0.0).start(grid, record_of(MODEL), num_rounds=3)

    spreads = [one.spread for one in records]
    assert spreads[0] == {}
    for spread in spreads[1:]:
        assert spread == {"fc.weight": (8000, pytest.approx(0.02, rel=0.1))}
