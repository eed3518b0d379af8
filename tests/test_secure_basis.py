"""Secure sums below 2 bits: coefficients of a basis that all clients have seen, or of none."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from fedsz.errors import ConfigError
from fedsz.flower import FedSZGrid, LocalGrid, SecureSum, StreamingFedAvg
from fedsz.flower.records import to_record, views_of
from fedsz.flower.secure_member import PLAN, SECURE
from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.secagg import planner as planner_module
from fedsz.secagg.planner import Learned, Planner
from fedsz.secagg.token_plan import TokenPlan
from fedsz.secagg.tokens import TokenCodec
from tests.secure_apps import DropOut, processes, secure_app
from tests.test_secure_sum import expected, initial
from tests.token_rounds import history_of

if TYPE_CHECKING:
    from tests.conftest import Serve

N = 5  # of whom one may drop out
ROUNDS = 24


class Plans(WrappedGrid):
    """Keeps the plans that go out, and changes them if told to."""

    def __init__(self, inner: Any, change: dict[str, Any] | None = None, first: int = 0) -> None:
        super().__init__(inner)
        self.plans: list[TokenPlan] = []
        self.sent = 0  # rounds of masked tokens
        self._change, self._first = change, first

    def stream_replies(self, messages: Any, *, timeout: Any = None) -> Iterator[Message]:
        out = list(messages)
        records: list[Any] = [message.content.get(SECURE, {}) for message in out]
        found = [record for record in records if PLAN in record]
        if len(found) > 1:  # of one, a model is sent again that a client has lost
            self.sent += 1
            self.plans.append(TokenPlan.decode(found[0][PLAN]))
            if self._change is not None and self.sent > self._first:
                for record in found:
                    plan = msgspec.structs.replace(TokenPlan.decode(record[PLAN]), **self._change)
                    record[PLAN] = plan.encode()
        return iter(self.inner.stream_replies(out, timeout=timeout))

    @property
    def by_history(self) -> list[bool]:
        """By round, whether its coefficients are of a basis."""
        return [plan.history is not None for plan in self.plans]


def grid_of(inner: Any, bits: float = 0.8, **more: Any) -> FedSZGrid:
    return FedSZGrid(inner, **{"downlink": "step:0.05", **more}, secure=SecureSum(bits=bits))


def local(drop: Any = None, n: int = N) -> LocalGrid:
    return LocalGrid(secure_app(drop), [{"i": i} for i in range(n)])


def run(grid: Any, rounds: int = ROUNDS, n: int = 2) -> Any:
    strategy = StreamingFedAvg(fraction_evaluate=0.0, min_available_nodes=n, min_train_nodes=n)
    return strategy.start(grid=grid, initial_arrays=to_record(initial()), num_rounds=rounds)


def late(found: Any, clients: list[int], rounds: int) -> float:
    """How much of the way that the clients' steps lead is not made yet, or goes elsewhere."""
    start, wanted = initial()["kernel"], expected(clients, rounds)["kernel"]
    moved = views_of(found.arrays)["kernel"].astype(np.float64) - start
    return float(np.linalg.norm(moved - (wanted - start)) / np.linalg.norm(wanted - start))


def test_all_clients_code_in_the_basis_that_they_have_seen() -> None:
    plans = Plans(local())
    grid = grid_of(plans)

    found = run(grid)

    assert plans.by_history == [False] + [True] * (ROUNDS - 1)
    assert len({plan.history for plan in plans.plans}) == ROUNDS
    assert all(plan.ahead for plan in plans.plans)
    assert late(found, list(range(N)), ROUNDS) < 0.6
    traffic = grid.take_traffic()
    assert traffic.replies == N * ROUNDS
    assert not traffic.failures


@pytest.mark.parametrize(
    ("rounds", "bits", "clients"),
    [(12, 0.8, 4), (12, 1.6, 100), (60, 0.4, 4), (60, 0.8, 4), (60, 0.8, 100), (100, 1.6, 100)],
)
def test_a_share_takes_the_bits_that_were_asked_for(rounds: int, bits: float, clients: int) -> None:
    """But for messages' heads: what early rounds take, late ones save."""
    start = {"w": np.random.default_rng(0).normal(size=(300, 400)).astype(np.float32)}
    history = history_of(start)
    known = Learned(cap=100, seed=3)
    planner, size = Planner(bits, 1.0, known, rounds), start["w"].size
    taken = []
    for number in range(rounds + 2):
        known.done = number
        room = planner.room(start, clients)
        codec = planner.codec(start, clients, history, room)
        assert 0.9 * room < codec.needed <= codec.count == room
        taken.append(codec.plan.bits * room / size)

    assert np.mean(taken[:rounds]) == pytest.approx(bits, rel=0.05)
    early, late = (1 + 1.5 * np.exp(-number / 25) for number in (1, rounds - 1))
    assert taken[1] / taken[rounds - 1] == pytest.approx(early / late, rel=0.06)
    assert taken[rounds:] == pytest.approx(2 * [bits], rel=0.05)


@pytest.mark.parametrize("bits", [0.01, 0.1, 0.2, 0.8])
@pytest.mark.parametrize(("clients", "shape"), [(7, (100, 100)), (5, (40, 40)), (31, (64, 64))])
def test_there_is_room_for_what_a_round_sends_at_least(
    bits: float, clients: int, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coefficients wait for 32 rounds at most, and with a history, classes say their sizes."""
    start = {"w": np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    history, made = history_of(start), []
    monkeypatch.setattr(
        planner_module, "TokenCodec", lambda *told: made.append(told) or TokenCodec(*told)
    )
    known = Learned(cap=100, seed=3)
    planner = Planner(bits, 1.0, known)
    for known.done in range(40):
        room = planner.room(start, clients)
        assert planner.codec(start, clients, history, room).needed <= room

    assert len(made) < 6 * 40


def test_who_comes_later_has_one_round_go_without_a_basis(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inner = local()
    nodes = dict(inner._nodes)
    plans = Plans(inner)
    grid = grid_of(plans)
    late_comer = inner.get_node_ids()[4]
    strategy = StreamingFedAvg(fraction_evaluate=0.0, min_available_nodes=2, min_train_nodes=2)
    inner._nodes = {node: x for node, x in nodes.items() if node != late_comer}

    class Joins(Plans):
        def stream_replies(self, messages: Any, *, timeout: Any = None) -> Iterator[Message]:
            yield from super().stream_replies(messages, timeout=timeout)
            if self.sent == 4:
                inner._nodes = nodes

    plans = Joins(inner)
    grid = grid_of(plans)
    with caplog.at_level(logging.INFO, "flwr.fedsz"):
        strategy.start(grid=grid, initial_arrays=to_record(initial()), num_rounds=8)

    assert plans.by_history == [False, True, True, True, False, True, True, True]
    assert [plan.clients for plan in plans.plans] == [4] * 4 + [5] * 4
    assert "a round without a basis" in caplog.text
    assert not grid.take_traffic().failures


class Loses(DropOut):
    """Takes what a client keeps away from it, once."""

    def __init__(self, prefixes: tuple[str, ...], in_round: int) -> None:
        super().__init__()
        self.prefixes, self.left = prefixes, in_round

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if context.node_config["i"] == 1 and SECURE not in context.state:  # a round begins
            self.left -= 1
            if not self.left:
                for name in [n for n in context.state if n.startswith(self.prefixes)]:
                    del context.state[name]
        return call_next(message, context)


@pytest.mark.parametrize("prefixes", [("fedsz.history.", "fedsz.seen."), ("fedsz.",)])
def test_who_lost_what_it_has_seen_costs_no_client_its_part(prefixes: tuple[str, ...]) -> None:
    """It says so before anything is planned; so does one that was started anew."""
    plans = Plans(local(Loses(prefixes, 4)))
    grid = grid_of(plans)

    run(grid, 7)

    assert plans.by_history == [False, True, True, False, True, True, True]
    traffic = grid.take_traffic()
    assert traffic.replies == 7 * N
    assert not traffic.failures


def test_who_drops_out_of_a_round_comes_back_in_the_next() -> None:
    class Away(DropOut):
        rounds = 0

        def __call__(self, message: Any, context: Any, call_next: Any) -> Any:
            record: Any = message.content.get(SECURE, {})
            if context.node_config["i"] == 1 and PLAN in record:
                Away.rounds += 1
                if Away.rounds == 3:
                    raise RuntimeError("drops out")
            return call_next(message, context)

    plans = Plans(local(Away()))
    grid = grid_of(plans)

    run(grid, 7)

    assert plans.by_history[:3] == [False, True, True]
    assert plans.by_history[-2:] == [True, True]
    assert grid.take_traffic().replies == 7 * N - 1


@pytest.mark.parametrize(
    "change",
    [{"history": b"x" * 16}, {"history": None}, {"layout": b"x" * 16}, {"share": 0.5}, {"room": 9}],
)
def test_a_plan_that_does_not_fit_is_refused_by_all(change: dict[str, Any]) -> None:
    """Of a history that nobody has, of another model, of other tokens than the server's."""
    plans = Plans(local(), change, first=2)
    grid = grid_of(plans)

    run(grid, 3)

    assert plans.sent == 3
    traffic = grid.take_traffic()
    assert traffic.replies == 2 * N
    assert len({failure.client for failure in traffic.failures}) == N


def test_a_plan_for_one_client_alone_is_not_in_the_sum() -> None:
    class One(Plans):
        def stream_replies(self, messages: Any, *, timeout: Any = None) -> Iterator[Message]:
            out = list(messages)
            record: Any = out[0].content.get(SECURE, {})
            if PLAN in record and self.sent == 2:
                plan = TokenPlan.decode(record[PLAN])
                other = msgspec.structs.replace(plan, scales=tuple(9 * x for x in plan.scales))
                record[PLAN] = other.encode()
            yield from super().stream_replies(out, timeout=timeout)

    grid = grid_of(One(local()))

    run(grid, 3)

    assert len(grid.take_traffic().failures) == 1


def test_what_cannot_be() -> None:
    for bits, share in ((0.001, 1.0), (2.5, 1.0), (33, 1.0), (0.8, 0.5)):
        with pytest.raises(ConfigError):
            SecureSum(bits=bits, share=share)
    with pytest.raises(ConfigError, match="needs an update with feedback"):
        run(grid_of(local(), update="delta"), 1)


def test_without_a_bound_of_the_downlink_there_is_no_basis() -> None:
    plans = Plans(local())

    found = run(grid_of(plans, downlink="exact"))

    assert not any(plans.by_history)
    assert late(found, list(range(N)), ROUNDS) < 0.6


@pytest.mark.slow
def test_clients_of_other_processes_share_a_basis(serve: Serve) -> None:
    server = serve(reconnect_grace=1)
    plans = Plans(server.grid)
    with processes(server.address, (0, 3, ""), (3, 5, "")):
        found = run(grid_of(plans), 6, n=N)

    assert plans.by_history == [False] + [True] * 5
    assert late(found, list(range(N)), 6) < 0.9
