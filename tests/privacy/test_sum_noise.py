"""PrivateFedAvg with noise in secure sums: each client adds a share, and the sum has enough."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedsz import extras
from fedsz.errors import ConfigError, RefusedRequest
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, PrivateFedAvg, SecureSum
from fedsz.flower.records import SECURE, to_record
from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.privacy.budget import epsilon_of
from fedsz.privacy.flower_client import LocalNoise
from fedsz.privacy.graph import Assumptions, plan
from tests.federation import app_of
from tests.privacy.secure_apps import KINDS, DropOut
from tests.privacy.test_private_fedavg import ONE, C, Model, run

pytestmark = pytest.mark.skipif(
    bool(extras.missing("dp_accounting")), reason="dp-accounting is not installed"
)

CLIENTS = 10  # of whom two may drop out, and one may collude
NOISE = 4.0
SIZE = 20_000


def strategy_of(**more: Any) -> PrivateFedAvg:
    return PrivateFedAvg(**{"epsilon": 30, "noise": NOISE, "clip": C, "at": "sum", **ONE, **more})


def grid_of(
    edit: Any = lambda i, model: model,
    *mods: Any,
    clients: int = CLIENTS,
    bits: int = 20,
    **secure: Any,
) -> FedSZGrid:
    nodes = [{"partition-id": i, "i": i} for i in range(clients)]
    app = app_of(edit, mods=[*mods, FedSZMod()])
    return FedSZGrid(LocalGrid(app, nodes), secure=SecureSum(bits=bits, **secure))


def model() -> Model:
    return {"w": np.zeros((200, 100), np.float32), "running_mean": np.ones(30), "n": np.array([7])}


def noise_in(before: Model, after: Model, survivors: int) -> np.ndarray:
    """The noise of the sum, in clipping norms, of clients that have not moved."""
    moved = [(after[n] - before[n]).ravel() for n in ("w", "running_mean")]
    return np.concatenate(moved) * survivors / C


def test_the_sum_has_the_noise_of_all_and_the_accounted_one_is_of_the_honest() -> None:
    """Clients weigh alike with 1 to 10 examples, and only what is no float keeps still."""
    strategy, members = strategy_of(), plan(CLIENTS, Assumptions())

    before, after = run(strategy, grid_of(), start=model())

    honest = members.least - members.corrupt
    found = noise_in(before, after, CLIENTS)
    assert honest == 7
    assert found.std() == pytest.approx(NOISE * math.sqrt(CLIENTS / honest), rel=0.03)
    assert abs(found.mean()) < 5 * found.std() / math.sqrt(found.size)
    assert after["n"] == before["n"]
    # Any update may have been any other, which is twice the norm away.
    assert strategy.releases == 1
    assert strategy.epsilon == epsilon_of(NOISE / 2, 1, 1e-5, renyi=True)


@pytest.mark.parametrize("stage", KINDS)
def test_those_who_stay_make_noise_enough(stage: str) -> None:
    """Two of ten may drop out, at any stage; and those before the roster do not count in it."""
    strategy = strategy_of()
    grid = grid_of(lambda i, model: model, DropOut(stage, (2, 5)))

    before, after = run(strategy, grid, start=model())

    members = plan(CLIENTS - 2 * (stage == "Terms"), Assumptions())
    survivors = CLIENTS - 2 * (stage != "Survivors")
    found = noise_in(before, after, survivors)
    honest = members.least - members.corrupt
    assert survivors >= members.least
    assert found.std() == pytest.approx(NOISE * math.sqrt(survivors / honest), rel=0.03)
    assert found.std() > NOISE
    assert grid.take_traffic().replies == survivors


@pytest.mark.parametrize("stage", ["Roster", "SealedShares"])
def test_a_round_with_fewer_tells_nothing_and_is_spent(stage: str) -> None:
    strategy = strategy_of()

    before, after = run(strategy, grid_of(lambda i, m: m, DropOut(stage, (2, 5, 7))), start=model())

    assert strategy.quorum.why
    assert all(np.array_equal(before[n], after[n]) for n in before)
    assert strategy.releases == 1


def test_the_mean_is_of_updates_within_the_norm_that_weigh_alike() -> None:
    def edit(i: int, model: Model) -> Model:
        step = np.zeros((200, 100), np.float32)
        step[:, 4 * i : 4 * i + 4] = 1e3 if i else 0.01  # of 800 elements each
        return {**model, "w": model["w"] + step, "n": model["n"] + i}

    strategy = strategy_of(noise=0.05, epsilon=1e6)

    before, after = run(strategy, grid_of(edit), start=model())

    moved = (after["w"] - before["w"]) * CLIENTS / C * math.sqrt(800)
    means = moved.reshape(200, 25, 4).mean(axis=(0, 2))
    wanted = np.array([0.01 * math.sqrt(800) / C, *[1.0] * (CLIENTS - 1), *[0.0] * (25 - CLIENTS)])
    assert means == pytest.approx(wanted, abs=0.36)  # six deviations
    assert after["n"] == before["n"]


def test_a_client_adds_no_second_share_in_a_round() -> None:
    """By other shares of secrets, it would be another sum: maybe without one of its clients."""
    answers: list[list[bytes]] = []

    def again(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(copy.deepcopy(message), context)
        if "arrays" in message.content:
            same = call_next(copy.deepcopy(message), context)
            asked: Any = message.content[SECURE]
            message.content[SECURE] = ConfigRecord({**asked, "request": b"other shares"})
            with pytest.raises(RefusedRequest, match="its share of noise in this round before"):
                call_next(message, context)
            answers.append([_said(one) for one in (reply, same)])
        return reply

    run(strategy_of(), grid_of(lambda i, m: m, again, clients=3), rounds=2, start=model())

    assert len(answers) == 6
    assert all(first == same for first, same in answers)  # it was kept, noise and all


def _said(reply: Message) -> bytes:
    if reply.has_error():
        return reply.error.reason.encode()
    record: Any = reply.content[SECURE]
    return bytes(record["answer"])


def test_a_server_cannot_have_one_client_add_less_noise(caplog: pytest.LogCaptureFixture) -> None:
    """Tokens are about the noise that was asked for: with another, masks do not cancel."""

    def meddle(message: Message, context: Any, call_next: Any) -> Message:
        if "arrays" in message.content and context.node_config["i"] == 1:
            LocalNoise(C, 1e-3).write(message.content["config"])  # type: ignore[arg-type]
        return call_next(message, context)

    grid = grid_of(lambda i, m: m, meddle)
    run(strategy_of(), grid, start=model())

    (failure,) = grid.take_traffic().failures
    assert "masked tokens of another plan or model" in failure.reason


class Claims(WrappedGrid):
    """Says that it makes secure sums; and its messages say something of them."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.is_secure = True

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        told = list(messages)
        for message in told:
            message.content[SECURE] = MetricRecord({"stage": 1.0})
        return self.inner.send_and_receive(told, timeout=timeout)


@pytest.mark.parametrize("sealed", [True, False], ids=["FedSZGrid", "Flower's own"])
def test_without_a_secure_sum_each_client_adds_all_of_the_noise(sealed: bool) -> None:
    app = app_of(lambda i, model: model, mods=[FedSZMod()])
    plain: Any = LocalGrid(app, [{"partition-id": i} for i in range(3)])
    grid = FedSZGrid(plain) if sealed else plain

    before, after = run(strategy_of(), Claims(grid), start=model())

    assert noise_in(before, after, 3).std() == pytest.approx(NOISE * math.sqrt(3), rel=0.05)
    with pytest.raises(ConfigError, match=r"needs FedSZGrid\(grid, secure=SecureSum\(\)\)"):
        run(strategy_of(), grid, start=model())
    with pytest.raises(ConfigError, match="a secure sum has its noise in the sum"):
        run(strategy_of(at="client"), grid_of(), start=model())


def test_a_round_of_an_unlucky_number_ends_no_run() -> None:
    """As samples have: no plan fits 4 of which a quarter colludes."""
    assumed = Assumptions(corrupt=0.25, dropout=0.25)
    grid = grid_of(bits=14, clients=8, assumed=assumed, strategy_averages=True)
    nodes = list(grid.get_node_ids())

    def failed(number: int, clients: int) -> list[str]:
        config = ConfigRecord({"server-round": number})
        LocalNoise(C, NOISE).write(config)
        content = RecordDict({"arrays": to_record(model()), "config": config})
        replies = grid.send_and_receive([Message(content, i, "train") for i in nodes[:clients]])
        return [reply.error.reason for reply in replies if reply.has_error()]

    assert not failed(1, 8)
    unlucky = failed(2, 4)
    assert len(unlucky) == 4
    assert "the round does not count: no secure sum of 4" in unlucky[0]
    assert not failed(3, 8)


@pytest.mark.parametrize("at", ["server", "client", "sum"])
def test_a_second_run_of_the_same_strategy_and_grid_spends_more(at: str) -> None:
    """It begins at the same model and number: what clients kept of the first answers nothing."""
    strategy = strategy_of(at=at, epsilon=1e4)
    grid = grid_of() if at == "sum" else FedSZGrid(grid_of().inner, downlink="exact")

    first, second = (run(strategy, grid, 2, start=model()) for _ in range(2))

    traffic = grid.take_traffic()
    assert traffic.replies == 2 * 2 * CLIENTS
    assert not traffic.failures
    assert strategy.releases == 4
    assert not strategy.ended
    noise = [after["w"] - before["w"] for one in (first, second) for before, after in pairwise(one)]
    for i, one in enumerate(noise):
        for other in noise[:i]:
            assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 5 / math.sqrt(SIZE)
