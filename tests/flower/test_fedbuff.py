"""Asynchronous rounds: who waits for whom, what stale updates weigh, and what they lead to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

import fedsz
from fedsz.core.feedback import by_tensor
from fedsz.errors import ConfigError, TooFewReplies
from fedsz.flower import FedBuff, FedSZGrid, StreamingFedAvg, fedbuff
from fedsz.flower.records import stream_of
from fedsz.flower.refusal import Refusal
from fedsz.flower.store import RecordStore
from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.flower_compat import data_of
from tests.federation import (
    CLIENTS,
    app_of,
    around,
    grid_of,
    initial,
    moved,
    record_of,
    run,
    steps_norm,
    to_arrays,
)
from tests.flower.test_hostile_replies import REFUSED, Hostile
from tests.flower.test_liveness import equal, failing
from tests.small_model import model


class Slow(WrappedGrid):
    """Holds back the replies of client 0 until so many others have come since it was asked."""

    def __init__(self, inner: Any, others: int) -> None:
        super().__init__(inner)
        self._others, self._after = others, 0
        self._slow = next(iter(inner.get_node_ids()))
        self._held: set[str] = set()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        pushed = list(messages)
        ids = list(self.inner.push_messages(pushed))
        for message, i in zip(pushed, ids, strict=True):
            if message.metadata.dst_node_id == self._slow:
                self._held.add(i)
                self._after = self._others
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ids = [i for i in message_ids if i not in self._held or self._after <= 0]
        replies = list(self.inner.pull_messages(ids[:1]))  # one at a time, as over a network
        self._after -= len(replies)
        return replies


def steps(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every client moves each weight by a power of two of its own."""
    return {
        name: (x + 2.0**client).astype(x.dtype) if x.dtype.kind == "f" else x
        for name, x in arrays.items()
    }


def trained(grid: Any, rounds: int, **options: Any) -> dict[str, np.ndarray]:
    strategy = FedBuff(fraction_evaluate=0, **options)
    return to_arrays(strategy.start(grid, record_of(initial()), num_rounds=rounds).arrays)


@pytest.mark.parametrize("update", ["weights", "delta", "delta+ef"])
def test_stale_steps_weigh_one_over_the_root_of_one_more(update: str) -> None:
    """Client 0 replies to the first model when there are two newer ones."""
    grid = FedSZGrid(Slow(grid_of(app_of(steps)), 7), 1e-6, update=update)

    bias = trained(grid, 3, buffer=3)["fc.bias"]

    clients = grid.take_traffic().clients
    assert [client.staleness for client in clients] == [0, 0, 0, 0, 0, 0, 0, 2, 0]
    others = (2 * 2 + 3 * 4 + 4 * 8) / (2 + 3 + 4)
    last = (1 / math.sqrt(3) + 2 * 2 + 3 * 4) / (1 + 2 + 3)
    assert np.allclose(bias - initial()["fc.bias"], 2 * others + last, rtol=1e-4)


def test_a_slow_client_does_not_hold_others() -> None:
    grid = FedSZGrid(Slow(grid_of(app_of(steps)), 10**6), 1e-3)

    trained(grid, 5, buffer=3)

    traffic = grid.take_traffic()
    assert (traffic.replies, traffic.failures) == (15, [])
    assert len(grid._requests) == 1  # of the first model, which somebody trains on


def test_an_update_that_is_too_stale_is_refused() -> None:
    slow = FedSZGrid(Slow(grid_of(app_of()), 7), "std:2")

    trained(slow, 4, buffer=3, max_staleness=1)

    (failure,) = slow.take_traffic().failures
    assert failure.kind == Refusal.STALE
    assert failure.client == str(slow.get_node_ids()[0])


class Late(WrappedGrid):
    """Holds back each reply for as many looks as are drawn."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._rng, self._looks = np.random.default_rng(3), dict[str, int]()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = list(self.inner.push_messages(messages))
        self._looks |= {i: int(self._rng.integers(1, 12)) for i in ids}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ids = list(message_ids)
        self._looks |= {i: self._looks[i] - 1 for i in ids}
        return list(self.inner.pull_messages([i for i in ids if not self._looks[i]]))


@pytest.mark.parametrize("policy", ["auto", "fixed"])
def test_no_step_is_lost_or_counted_twice_though_replies_are_stale(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps that have arrived of a client, and its residual, are its steps, staleness or not.

    Many are asked again in the round that takes their last reply, which has not ended.
    """
    monkeypatch.setattr(fedbuff, "POLL_SECONDS", 0.0)
    contexts: dict[int, Context] = {}
    steps: dict[int, np.ndarray] = {}  # by client, of all its rounds
    arrived: dict[int, np.ndarray] = {}
    starts: dict[int, dict[str, np.ndarray]] = {}
    rng = np.random.default_rng(1)

    def note(client: int, _: Message, context: Context) -> None:
        contexts[client] = context

    def train(client: int, x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        after = {k: (a + rng.normal(0, 0.05, a.shape)).astype(a.dtype) for k, a in x.items()}
        starts[client] = x
        step = after["fc.weight"] - x["fc.weight"].astype(float)
        steps[client] = steps.get(client, 0) + step
        return after

    def sent(client: int, __: Message, reply: Message) -> None:
        stream = stream_of(next(iter(reply.content.array_records.values())))
        decoded = fedsz.decompress(stream, reference=starts[client], as_numpy=True)
        step = decoded["fc.weight"] - starts[client]["fc.weight"].astype(float)
        arrived[client] = arrived.get(client, 0) + step

    app = around(app_of(train), before=note, after=sent)
    how = {"policy": policy} if policy == "auto" else {"error_bound": "step:2", "threshold": 0}
    grid = FedSZGrid(Late(grid_of(app)), downlink="step:1", update="delta+ef", **how)
    strategy = FedBuff(fraction_evaluate=0, buffer=2)
    strategy.start(grid, record_of(model()), num_rounds=15)

    assert max(client.staleness for client in grid.take_traffic().clients) > 0
    assert contexts.keys() == set(range(CLIENTS))
    for client, context in contexts.items():
        memory = RecordStore(data_of(context.state)).memory("arrays")[0]
        residual = by_tensor(memory)["fc.weight"]["feedback"]
        np.testing.assert_allclose(arrived[client] + residual, steps[client], atol=1e-5)
        assert np.abs(residual).max() > 0.01


def test_whoever_waits_for_all_averages_as_in_rounds() -> None:
    """If the buffer holds all, no update is stale."""
    options: dict[str, Any] = {"error_bound": "std:1", "update": "delta+ef", "downlink": "std:1"}

    ours = trained(FedSZGrid(grid_of(app_of()), **options), 4, buffer=CLIENTS)

    grid = FedSZGrid(grid_of(app_of()), **options)
    theirs = to_arrays(run(StreamingFedAvg(fraction_evaluate=0), grid, rounds=4).arrays)
    assert all(np.allclose(ours[name], theirs[name], atol=1e-2) for name in theirs)


def test_a_buffer_that_nobody_will_fill_is_used_as_it_is() -> None:
    grid = FedSZGrid(grid_of(app_of()), 1e-3)

    trained(grid, 2, buffer=100)

    assert grid.take_traffic().replies == 2 * CLIENTS


def test_rounds_that_nobody_replies_to_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsz.flower.liveness.PAUSE", 0.0)
    always = {(number, client) for number in range(9) for client in range(CLIENTS)}
    with pytest.raises(TooFewReplies):
        trained(FedSZGrid(grid_of(failing(app_of(), always))), 9, buffer=2)


def test_a_run_goes_on_from_what_the_grid_remembers() -> None:
    inner = grid_of(app_of())
    before = FedSZGrid(Slow(inner, 10**6), "std:2")
    model = trained(before, 2, buffer=3)
    before.end_round()
    after = FedSZGrid(inner, "std:2")
    after.restore(before.state())

    strategy = FedBuff(fraction_evaluate=0, buffer=3)
    result = strategy.start(after, record_of(model), num_rounds=2)

    assert after.take_traffic().failures == []
    assert not equal(to_arrays(result.arrays), model)


@pytest.mark.parametrize("name", ["NaN", "1e15", "half damaged", "weight 1e18", "no arrays"])
def test_hostile_replies_move_no_buffer_beyond_the_limit(name: str) -> None:
    inner = Hostile(REFUSED[name][0], CLIENTS - 1, clients=CLIENTS)
    model = trained(FedSZGrid(inner, 1e-3, rules="fleet"), 3, buffer=3)

    start = initial()
    most = 3 * 10 * max(steps_norm(moved(start, i), start) for i in range(CLIENTS))
    assert steps_norm(model, start) < most


class OneByOne(WrappedGrid):
    """Has one reply at a time, that of client 0 first."""

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return list(self.inner.pull_messages(list(message_ids)[:1]))


def test_the_first_reply_does_not_decide_alone_what_is_typical() -> None:
    inner = Hostile(REFUSED["1e15"][0], 0, clients=CLIENTS)
    model = trained(FedSZGrid(OneByOne(inner), 1e-3, rules="fleet"), 3, buffer=1)

    start = initial()
    most = 3 * 10 * max(steps_norm(moved(start, i), start) for i in range(CLIENTS))
    assert steps_norm(model, start) < most


def test_options_that_cannot_be() -> None:
    for options in ({"buffer": 0}, {"buffer": 2, "min_replies": 3}, {"max_staleness": -1}):
        with pytest.raises(ConfigError):
            FedBuff(fraction_evaluate=0, **options)
    with pytest.raises(ConfigError, match="fraction_evaluate=0"):
        FedBuff()
