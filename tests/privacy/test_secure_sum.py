"""Secure sums through Flower: any strategy gets the mean, and the server no update."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Krum

from fedsz.errors import ConfigError, TooFewReplies
from fedsz.flower import (
    FedBuff,
    FedSZGrid,
    FedSZMod,
    LocalGrid,
    SecureMember,
    SecureSum,
    StreamingFedAvg,
)
from fedsz.flower.records import SECURE, to_record, views_of
from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.privacy.client import Demands
from fedsz.privacy.flower_client import PLAN, REQUEST
from fedsz.privacy.graph import Assumptions
from fedsz.privacy.identity import CertificateVerifier, Identity
from fedsz.privacy.messages import SealedShares, Terms, encode
from fedsz.privacy.quantizer import TokenPlan
from fedsz.transport.authority import Authority
from tests.privacy import secure_apps
from tests.privacy.secure_apps import KINDS, STEP, DropOut, examples_of, secure_app, step_of

TERMS = encode(Terms(bytes(32), 20, 1281, Assumptions()))
SHARES = encode(SealedShares(bytes(32), {}))
N = 5  # of whom one may drop out


def initial() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "kernel": rng.normal(0, 0.5, (40, 30)).astype(np.float32),
        "bias": np.zeros(30, np.float32),
        "double": rng.normal(0, 0.5, 50),
        "seen": np.array(3),
    }


def grid_of(inner: Any, *, strategy_averages: bool = True, **more: Any) -> FedSZGrid:
    secure = SecureSum(bits=20, strategy_averages=strategy_averages, **more)
    return FedSZGrid(inner, downlink="exact", secure=secure)


def local(drop: DropOut | None = None, n: int = N, member: SecureMember | None = None) -> LocalGrid:
    return LocalGrid(secure_app(drop, member), [{"i": i} for i in range(n)])


def run(grid: Any, strategy: type[FedAvg] = FedAvg, rounds: int = 1, **more: Any) -> Any:
    least = {"min_available_nodes": 2, "min_train_nodes": 2}
    made = strategy(fraction_evaluate=0.0, **least | more)
    return made.start(grid=grid, initial_arrays=to_record(initial()), num_rounds=rounds)


def expected(clients: list[int], rounds: int = 1, most: int = 1024) -> dict[str, np.ndarray]:
    model = {name: x.astype(np.float64) for name, x in initial().items()}
    weights = [min(examples_of(i), most) for i in clients]
    for name in ("kernel", "bias", "double"):
        steps = [step_of(i, model[name].shape) for i in clients]
        model[name] = model[name] + rounds * np.average(steps, axis=0, weights=weights)
    return model


def check(result: Any, clients: list[int], rounds: int = 1) -> None:
    found, wanted = views_of(result.arrays), expected(clients, rounds)
    for name, x in wanted.items():
        assert np.abs(found[name] - x).max() < 2e-3 * STEP, name
    assert found["kernel"].dtype == np.float32
    assert found["seen"] == pytest.approx(3)


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
def test_any_average_is_the_mean(strategy: type[FedAvg]) -> None:
    grid = grid_of(local())

    result = run(grid, strategy, rounds=3)

    check(result, list(range(N)), rounds=3)
    traffic = grid.take_traffic()
    assert traffic.replies == 3 * N
    assert 0.6 < traffic.sent_up / traffic.raw_up < 1.05


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("stage", KINDS)
def test_clients_that_drop_out(stage: str, strategy: type[FedAvg]) -> None:
    grid = grid_of(local(DropOut(stage, (2,))))

    result = run(grid, strategy)

    there = [i for i in range(N) if i != 2 or stage == "Survivors"]
    check(result, there)
    traffic = grid.take_traffic()
    assert traffic.replies == len(there)
    assert len(traffic.failures) == 1


@pytest.mark.parametrize("stage", KINDS)
def test_a_round_of_which_too_many_drop_out_does_not_count(stage: str) -> None:
    grid = grid_of(local(DropOut(stage, (1, 2, 3, 4))))

    result = run(grid, StreamingFedAvg)

    failures = grid.take_traffic().failures
    assert not result.arrays  # of no round
    assert len({failure.client for failure in failures}) >= 4


class Ears(WrappedGrid):
    """Keeps what a server gets to see."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.heard: list[RecordDict] = []

    def send_and_receive(self, messages: Any, *, timeout: Any = None) -> Any:
        return list(self.stream_replies(messages, timeout=timeout))

    def stream_replies(self, messages: Any, *, timeout: Any = None) -> Iterator[Message]:
        for reply in self.inner.stream_replies(messages, timeout=timeout):
            if reply.has_content():
                self.heard.append(RecordDict(dict(reply.content)))
            yield reply


def test_the_server_sees_neither_updates_nor_weights() -> None:
    ears = Ears(local())

    run(grid_of(ears))

    assert len(ears.heard) == 4 * N
    for content in ears.heard:
        assert not content.array_records
        assert all("num-examples" not in metrics for metrics in content.metric_records.values())
    masked = [heard for heard in ears.heard if heard.metric_records]
    assert [set(m["m"]) for m in masked] == [{"loss"}] * N


def test_clients_that_train_for_secure_sums_only() -> None:
    member = SecureMember(Demands(clients=3))
    plain = FedSZGrid(local(member=member))

    assert not run(plain, StreamingFedAvg).arrays
    assert all("secure sums only" in f.reason for f in plain.take_traffic().failures)
    check(run(grid_of(local(member=member))), list(range(N)))
    few = grid_of(local(n=2, member=member))
    assert not run(few, StreamingFedAvg).arrays
    assert any("this one asks for 3" in f.reason for f in few.take_traffic().failures)


@pytest.mark.parametrize("record", [None, {}, {REQUEST: b"x"}, {REQUEST: TERMS}, {REQUEST: SHARES}])
@pytest.mark.parametrize("noted", [False, True])
def test_a_demand_is_not_met_by_what_only_looks_like_a_secure_sum(
    record: dict[str, bytes] | None, noted: bool
) -> None:
    """Nobody trains, and nothing leaves in clear."""
    trained: list[Message] = []
    app = ClientApp(mods=[FedSZMod(secure=SecureMember(Demands(clients=3)))])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trained.append(message)
        return Message(RecordDict(dict(message.content)), reply_to=message)

    inner = LocalGrid(app, [{}])
    content = RecordDict({"arrays": to_record(initial())})
    if record is not None:
        content[SECURE] = ConfigRecord(dict(record))
    grid: Any = FedSZGrid(inner, downlink="exact") if noted else inner
    message = Message(content, grid.get_node_ids()[0], "train")

    (reply,) = grid.send_and_receive([message])

    assert reply.has_error()
    assert not trained


def _beside(content: RecordDict, how: str) -> None:
    if how == "the model":
        content["arrays"] = to_record(initial())
    elif how == "another model":
        content["more"] = to_record(initial())
    elif how == "other metrics":
        content["n"] = MetricRecord({"loss": 1.0})
    elif how == "metrics as the model":
        content["arrays"] = content.pop("m")
    else:
        content["m"] = ConfigRecord({"loss": 1.0})


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize(
    "how", ["the model", "another model", "other metrics", "metrics as the model", "no metrics"]
)
def test_a_client_cannot_reply_beside_its_tokens(strategy: type[FedAvg], how: str) -> None:
    class Liar(DropOut):
        def __call__(self, message: Any, context: Any, call_next: Any) -> Any:
            reply = call_next(message, context)
            if context.node_config["i"] == 2 and message.content.array_records:
                _beside(reply.content, how)
            return reply

    grid = grid_of(local(Liar()))

    check(run(grid, strategy), [0, 1, 3, 4])
    assert len(grid.take_traffic().failures) == 1


def test_keys_that_certificates_sign(tmp_path: Path) -> None:
    """The server lets in whom it knows; its clients ask for that, and each other's names."""
    authority = Authority.create(tmp_path)
    files = [authority.certify_client(f"client-{i}", 1) for i in range(N)]
    ca = authority.ca.read_bytes()
    keys = [(file.read_bytes(), file.with_suffix(".key").read_bytes()) for file in files]
    verifier = CertificateVerifier(ca)
    members = [SecureMember(Demands(), Identity(*pair, ca)) for pair in keys]
    places = [{"i": i} for i in range(N)]
    signed = {"assumed": Assumptions(signed=True), "verifier": verifier}

    check(run(grid_of(LocalGrid(secure_app(members=members), places), **signed)), list(range(N)))
    drop = DropOut("Survivors", (2,))
    lossy = LocalGrid(secure_app(drop, members=members), places)
    check(run(grid_of(lossy, **signed)), list(range(N)))
    assert not run(grid_of(LocalGrid(secure_app(members=members), places)), StreamingFedAvg).arrays


def test_a_legacy_server_is_refused() -> None:
    """Its messages go to one client each, from threads of their own."""
    grid = grid_of(local())
    content = RecordDict({"fitins.parameters": to_record(initial())})
    message = Message(content, grid.get_node_ids()[0], "train")

    with pytest.raises(ConfigError, match="legacy"):
        grid.push_messages([message])
    with pytest.raises(ConfigError, match="legacy"):
        grid.send_and_receive([message])


def test_the_other_ways_to_ask_are_refused() -> None:
    grid = grid_of(local())
    content = RecordDict({"arrays": to_record(initial()), "config": ConfigRecord({})})
    message = Message(content, grid.get_node_ids()[0], "train")

    with pytest.raises(ConfigError, match="send_and_receive"):
        grid.push_messages([message])
    for bits in (40, 1, 0, 0.8, 2.5):
        with pytest.raises(ConfigError, match="a whole number of bits from 2 to 32"):
            SecureSum(bits=bits)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        FedSZGrid(local(), secure=SecureSum(assumed=Assumptions(signed=True)))


def test_a_server_holds_no_more_for_more_clients() -> None:
    size = 200_000
    first = {"kernel": np.random.default_rng(0).normal(size=size).astype(np.float32)}
    peaks = []
    for n in (4, 24):
        grid = FedSZGrid(local(n=n), update="delta", downlink="exact", secure=SecureSum(bits=16))
        strategy = StreamingFedAvg(fraction_evaluate=0.0)
        tracemalloc.start()
        strategy.start(grid=grid, initial_arrays=to_record(dict(first)), num_rounds=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    assert peaks[1] - peaks[0] < 5 * 2 * size  # bytes of masked tokens, of 20 clients more


def test_a_client_that_has_lost_its_model_is_sent_it_in_the_same_round() -> None:
    class Forgetful(DropOut):
        def __call__(self, message: Any, context: Any, call_next: Any) -> Any:
            kept = [name for name in context.state if name.startswith("fedsz.reference.")]
            if context.node_config["i"] == 1 and SECURE in context.state:
                for name in kept:
                    del context.state[name]
                lost.extend(kept)
            return call_next(message, context)

    lost: list[str] = []
    grid = FedSZGrid(local(Forgetful()), downlink="abs:1e-5", secure=SecureSum(bits=20))

    check(run(grid, StreamingFedAvg, rounds=3), list(range(N)), rounds=3)

    assert lost
    assert grid.take_traffic().replies == 3 * N


class Plans(WrappedGrid):
    """Changes the plans of one round, for its first clients."""

    def __init__(self, inner: Any, change: dict[str, Any], in_round: int, clients: int = N) -> None:
        super().__init__(inner)
        self.sent = 0  # rounds of masked tokens
        self._change, self._round, self._clients = change, in_round, clients

    def stream_replies(self, messages: Any, *, timeout: Any = None) -> Iterator[Message]:
        out = list(messages)
        records: list[Any] = [message.content.get(SECURE, {}) for message in out]
        found = [record for record in records if PLAN in record]
        self.sent += bool(found)
        if self.sent == self._round:
            for record in found[: self._clients]:
                plan = msgspec.structs.replace(TokenPlan.decode(record[PLAN]), **self._change)
                record[PLAN] = msgspec.msgpack.encode(plan)
        return iter(self.inner.stream_replies(out, timeout=timeout))


OTHERS: list[dict[str, Any]] = [
    {"scales": (1.0,)},
    {"bits": 19},
    {"cap": 5},
    {"scales": (1.0,) * 4},
    {"clients": 6},
]


@pytest.mark.parametrize("change", OTHERS)
def test_a_plan_that_does_not_fit_is_refused_by_all(change: dict[str, Any]) -> None:
    """Of another model, of other tokens than the server's, or on another grid."""
    plans = Plans(local(), change, in_round=3)
    grid = grid_of(plans)

    run(grid, StreamingFedAvg, rounds=3)

    assert plans.sent == 3
    traffic = grid.take_traffic()
    assert traffic.replies == 2 * N
    assert len({failure.client for failure in traffic.failures}) == N


def test_a_plan_for_one_client_alone_is_not_in_the_sum() -> None:
    grid = grid_of(Plans(local(), {"scales": (1.0,) * 4}, in_round=3, clients=1))

    run(grid, StreamingFedAvg, rounds=3)

    assert len(grid.take_traffic().failures) == 1


# Weights.


@pytest.mark.parametrize("weight", [-5, math.nan, math.inf])
def test_a_client_whose_weight_is_none_is_left_out(
    weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secure_apps, "examples_of", lambda i: weight if i == 1 else examples_of(i))
    grid = grid_of(local())

    check(run(grid, StreamingFedAvg), [0, 2, 3, 4])
    (failure,) = grid.take_traffic().failures
    assert f"a weight lies in [0, infinity), got {weight}" in failure.reason


def test_clients_without_examples_weigh_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of five do not move the mean; if all have none, the round does not count."""
    without = {1, 3}
    monkeypatch.setattr(secure_apps, "examples_of", lambda i: 0 if i in without else examples_of(i))
    grid = grid_of(local())

    check(run(grid, StreamingFedAvg), [0, 2, 4])
    assert grid.take_traffic().replies == 5
    without |= {0, 2, 4}
    assert not run(grid, StreamingFedAvg).arrays
    assert all("no client has any weight" in f.reason for f in grid.take_traffic().failures)


def test_clients_without_the_mod_end_the_run_with_the_reason() -> None:
    app = ClientApp()

    @app.train()
    def train(message: Message, _: Context) -> Message:
        return Message(message.content["arrays"], reply_to=message)

    grid = grid_of(LocalGrid(app, [{}] * 5))

    with pytest.raises(TooFewReplies, match=r"in 3 secure sums.*is FedSZMod\(\) the first"):
        run(grid, StreamingFedAvg, rounds=9)


# Strategies: fedsz's own say that they average; of others, the user must say so.


class Logs(StreamingFedAvg):
    """What most strategies of one's own are: it does more, and averages as before."""

    rounds = 0

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.rounds += 1
        return super().aggregate_train(server_round, replies)


@pytest.mark.parametrize("strategy", [StreamingFedAvg, Logs])
def test_strategies_of_fedsz_are_taken(strategy: type[FedAvg]) -> None:
    grid = grid_of(local(), strategy_averages=False)

    check(run(grid, strategy, rounds=2), list(range(N)), rounds=2)


@pytest.mark.parametrize("strategy", [FedAvg, FedAdam, FedMedian, Krum])
def test_any_other_strategy_is_taken_if_the_user_says_that_it_averages(
    strategy: type[FedAvg],
) -> None:
    """Before anybody trains; a mean from each client would look as if it was robust."""
    ears = Ears(local())
    with pytest.raises(ConfigError, match=r"say so by SecureSum\(strategy_averages=True\)"):
        run(grid_of(ears, strategy_averages=False), strategy)
    assert not ears.heard

    assert run(grid_of(ears, strategy_averages=True), strategy).arrays


def test_a_strategy_that_takes_replies_as_they_come_is_refused() -> None:
    with pytest.raises(ConfigError, match="use send_and_receive"):
        run(grid_of(local()), FedBuff)
