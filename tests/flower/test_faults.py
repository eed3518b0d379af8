"""Faults that were found once by attacks, by other people's apps and by reading: they stay away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import message_size_mod
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp.strategy import FedAvg
from safetensors.numpy import save_file

from fedsz.control.controller import Controller
from fedsz.control.record import ClientRecord, RoundRecord
from fedsz.core.settings import DEFAULT
from fedsz.errors import TooFewReplies
from fedsz.flower import FedBuff, FedSZMod, LocalGrid, StreamingFedAvg, state_dict_of
from fedsz.flower import record_of as record_of_state
from fedsz.flower.strategy import streamed
from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.stream import format as stream_format
from tests.federation import (
    Arrays,
    Federation,
    Train,
    Visit,
    around,
    record_of,
    to_arrays,
    training,
)

STRATEGIES = pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])

# A task that numpy learns in a second: ten classes around points of their own.

CLASSES, FEATURES, EXAMPLES, CLIENTS, ROUNDS = 10, 48, 60, 10, 10
CENTRES = np.random.default_rng(0).normal(size=(CLASSES, FEATURES)).astype(np.float32)


def examples(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, EXAMPLES)
    noise = rng.normal(0, 1.5, (EXAMPLES, FEATURES))
    return (CENTRES[labels] + noise).astype(np.float32), labels


def initial() -> Arrays:
    return {"w": np.zeros((FEATURES, CLASSES), np.float32), "b": np.zeros(CLASSES, np.float32)}


def learnt(client: int, model: Arrays) -> Arrays:
    """The model after two passes of gradient descent over a client's examples."""
    x, labels = examples(client)
    w, b = model["w"].copy(), model["b"].copy()
    for _ in range(2):
        for here in np.array_split(np.arange(EXAMPLES), 6):
            scores = x[here] @ w + b
            p = np.exp(scores - scores.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(len(here)), labels[here]] -= 1
            w -= 0.05 * x[here].T @ p / len(here)
            b -= 0.05 * p.mean(0)
    return {"w": w.astype(np.float32), "b": b.astype(np.float32)}


def accuracy(model: Arrays) -> float:
    x, labels = (
        np.concatenate(parts) for parts in zip(*map(examples, range(100, 120)), strict=True)
    )
    return float(((x @ model["w"] + model["b"]).argmax(1) == labels).mean())


BODY_AND_HEAD = {"body": np.zeros((50, 50), np.float32), "head": np.zeros((20, 50), np.float32)}


def federation(
    app: Any, clients: int, strategy: Any = FedAvg, model: Arrays = BODY_AND_HEAD, **options: Any
) -> Federation:
    return Federation(app, clients, strategy, model, **options)


# A1: one of ten clients ended learning


def attacking(factor: float, weight: float, since: int, grows: float = 1.0) -> Train:
    """Client 0 steps away from where it should go, ever further, with a weight that it makes up."""

    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        after = learnt(at.client, model)
        if at.client or at.round < since:
            return after, {"num-examples": EXAMPLES}
        away = -factor * grows ** (at.round - since)
        bad = {n: (x + np.float32(away) * (after[n] - x)) for n, x in model.items()}
        return bad, {"num-examples": weight}

    return train


HONEST = attacking(0, EXAMPLES, since=ROUNDS + 1)
ATTACKS = {
    "first round": attacking(9, 10**6, since=1),
    "late": attacking(9, 10**6, since=5),
    "first round, far": attacking(20, 10**12, since=1),
    "late, far": attacking(20, 10**12, since=5),
    "ever further": attacking(3, 10**6, since=1, grows=2.0),
    "an honest weight": attacking(9, EXAMPLES, since=1),
}


def learns_to(train: Train, strategy: type[FedAvg]) -> float:
    return accuracy(
        federation(training(train), CLIENTS, strategy, initial(), rules="fleet").run(ROUNDS)
    )


@STRATEGIES
@pytest.mark.parametrize("name", ATTACKS)
def test_one_of_ten_clients_does_not_end_learning(name: str, strategy: type[FedAvg]) -> None:
    honest, attacked = learns_to(HONEST, strategy), learns_to(ATTACKS[name], strategy)

    assert honest > 0.95
    assert attacked > honest - 0.08  # without the rules it ends at 0.1


# A2 to A7: the run was lost


def one_step(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
    return {n: x + np.float32(0.01) for n, x in model.items()}, {"num-examples": 10.0}


@STRATEGIES
@pytest.mark.parametrize("rules", [None, "fleet"])
@pytest.mark.parametrize("weight", [np.nan, np.inf, -1.0])
def test_a_weight_that_is_no_number_changes_nothing(
    weight: float, rules: str | None, strategy: type[FedAvg]
) -> None:
    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        arrays, metrics = one_step(at, model)
        return arrays, metrics if at.client else {"num-examples": weight}

    ours = federation(training(train), 6, strategy, rules=rules, error_bound="abs:1e-5")

    assert np.allclose(ours.run(3)["body"], 0.03, atol=2e-3)
    assert {failure.kind for failure in ours.take_traffic().failures} == {"weight"}


def test_flowers_mod_that_counts_bytes_may_stand_first() -> None:
    """It cannot count empty lists in a ConfigRecord."""
    ours = federation(training(one_step, [message_size_mod, FedSZMod()]), 2)
    ours.run(3)

    traffic = ours.take_traffic()
    assert (traffic.replies, traffic.failures) == (6, [])


OTHER_FORMS: dict[str, Callable[[Arrays], Arrays]] = {
    "a part": lambda model: {"body": model["body"]},
    "renamed": lambda model: {f"_orig_mod.{name}": x for name, x in model.items()},
    "grown": lambda model: {**model, "new": np.ones((30, 30), np.float32)},
}


@STRATEGIES
@pytest.mark.parametrize("name", OTHER_FORMS)
def test_all_clients_may_reply_another_form(name: str, strategy: type[FedAvg]) -> None:
    """As in plain Flower: personalised apps, compiled models, models that grow."""

    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        arrays, metrics = one_step(at, model)
        return OTHER_FORMS[name](arrays), metrics

    ours = federation(training(train), 4, strategy, error_bound="abs:1e-5")
    arrays = ours.run()

    assert ours.take_traffic().replies == 4
    assert arrays.keys() == OTHER_FORMS[name](BODY_AND_HEAD).keys()
    assert all(np.allclose(x, 0.01, atol=1e-3) for n, x in arrays.items() if n != "new")


@STRATEGIES
def test_one_client_does_not_decide_the_form_of_others(strategy: type[FedAvg]) -> None:
    """Neither one that replies all of the model where others reply a part, nor the reverse."""
    for of_one, others in (("a part", None), (None, "a part")):

        def train(
            at: Visit, model: Arrays, one: Any = of_one, rest: Any = others
        ) -> tuple[Arrays, dict[str, Any]]:
            arrays, metrics = one_step(at, model)
            form = one if at.client == 0 else rest
            return (OTHER_FORMS[form](arrays) if form else arrays), metrics

        ours = federation(training(train), 4, strategy)
        ours.run()

        traffic = ours.take_traffic()
        assert traffic.replies == 3
        assert {failure.kind for failure in traffic.failures} == {"model"}


@STRATEGIES
def test_a_run_whose_replies_are_all_refused_ends_with_the_reason(strategy: type[FedAvg]) -> None:
    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        arrays, metrics = one_step(at, model)
        return arrays | {"body": np.zeros((50, 51 + at.client), np.float32)}, metrics

    with pytest.raises(TooFewReplies, match=r"all 4 replies were refused: .*'body' has shape"):
        federation(training(train), 4, strategy).run(3)


@STRATEGIES
def test_a_later_round_whose_replies_are_all_refused_ends_the_run(strategy: type[FedAvg]) -> None:
    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        arrays, metrics = one_step(at, model)
        return arrays, metrics | ({"num-examples": -1.0} if at.round > 1 else {})

    with pytest.raises(TooFewReplies):
        federation(training(train), 4, strategy).run(6)


@pytest.mark.parametrize("rules", [None, "fleet"])
@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_arrays_of_replies_that_do_not_train_are_no_model(kind: str, rules: str | None) -> None:
    """Predictions, say: they come as they are, and are compared with nothing."""
    app = ClientApp(mods=[FedSZMod()])
    predictions = np.random.default_rng(1).normal(size=(300, 10)).astype(np.float32)
    predictions[0, 0] = np.nan

    def answer(message: Message, context: Context) -> Message:
        content = {"arrays": record_of({"predictions": predictions}), "m": MetricRecord({"n": 1})}
        return Message(RecordDict(content), reply_to=message)

    app.evaluate()(answer)
    app.query()(answer)
    grid = federation(app, 3, rules=rules).grid
    content = RecordDict({"arrays": record_of(BODY_AND_HEAD)})

    for _ in range(2):
        replies = list(
            grid.send_and_receive([Message(content, n, kind) for n in grid.get_node_ids()])
        )
        assert not any(reply.has_error() for reply in replies)
        for reply in replies:
            (x,) = to_arrays(reply.content["arrays"]).values()
            assert np.array_equal(x, predictions, equal_nan=True)


def test_one_client_with_another_metric_has_no_other_refused() -> None:
    """Each poll of asynchronous rounds compared replies with those of the poll before."""

    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        arrays, metrics = one_step(at, model)
        return arrays, metrics | {"loss": 1.0} | ({"extra": 1.0} if at.client == 5 else {})

    class OneByOne(WrappedGrid):
        """Replies come one at a time."""

        def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
            return list(self.inner.pull_messages(list(message_ids)[:1]))

    strategy = FedBuff(buffer=3, fraction_evaluate=0)
    ours = federation(training(train), 6, strategy, between=OneByOne, rules="fleet")
    ours.run(12)

    traffic = ours.take_traffic()
    assert (traffic.replies, traffic.failures) == (36, [])


def first_of_fedbn(context: Context) -> int:
    """As Flower's baseline of FedBN does."""
    if not context.state.array_records:
        first = ArrayRecord({"initialisation": Array(np.array([-1]))})
        context.state.array_records["local_batch_norm"] = first
        return 1
    assert list(context.state) == ["local_batch_norm"]
    return 0


def first_of_counter(context: Context) -> int:
    first = len(context.state) == 0
    context.state["mine"] = ConfigRecord({"x": 1})
    return int(first)


def first_of_replaced(context: Context) -> int:
    """An app may put another state into the place of its own."""
    first = len(context.state) == 0
    context.state = RecordDict({"mine": ConfigRecord({"x": 1})})
    return int(first)


@pytest.mark.parametrize("first", [first_of_fedbn, first_of_counter, first_of_replaced])
def test_an_app_sees_its_own_state_alone(first: Callable[[Context], int]) -> None:
    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        arrays, metrics = one_step(at, model)
        return arrays, metrics | {"first": first(at.context)}

    ours = federation(training(train), 2, downlink="step:1")
    ours.run(3)

    firsts = {n: m["first"] for n, m in ours.metrics.items()}
    assert firsts == {1: 1.0, 2: 0.0, 3: 0.0}
    assert all(any(name.startswith("fedsz.") for name in c.state) for c in ours.contexts.values())


# D: wrong, slow or silent


class Parallel(WrappedGrid):
    """As Flower's Grids: all nodes work at the same time, and replies are pulled."""

    def __init__(self, inner: LocalGrid) -> None:
        super().__init__(inner)
        self.calls, self._pool = 0, ThreadPoolExecutor(8)
        self._working: dict[str, Future[list[Message]]] = {}

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.calls += 1
        ids = list(self.inner.push_messages(messages))
        for one in ids:
            self._working[one] = self._pool.submit(self.inner.pull_messages, [one])
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        done = [one for one in message_ids if one in self._working and self._working[one].done()]
        return [reply for one in done for reply in self._working.pop(one).result()]

    def __getattribute__(self, name: str) -> Any:
        if name == "stream_replies":
            raise AttributeError(name)
        return super().__getattribute__(name)


def test_second_tries_go_out_together() -> None:
    """Clients that lack the first model that the server names; each works for a moment."""
    nap = 0.3

    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        time.sleep(nap)
        return one_step(at, model)

    ours = federation(training(train), 8, between=Parallel, shared_initial=True, downlink="step:1")
    begun = time.monotonic()
    ours.run()

    # With the first model's name, and with the model to all.
    assert ours.watched.inner.calls == 2
    assert ours.take_traffic().replies == 8
    assert time.monotonic() - begun < 8 * nap


def test_a_pull_returns_replies_to_its_own_messages_alone() -> None:
    app = training(one_step)

    @app.query()
    def _(message: Message, context: Context) -> Message:
        return Message(RecordDict({"answer": MetricRecord({"x": 1.0})}), reply_to=message)

    grid = federation(app, 2).grid
    nodes = list(grid.get_node_ids())
    records = {"arrays": record_of(BODY_AND_HEAD), "config": ConfigRecord({"server-round": 1})}
    content = RecordDict(records)
    ids = list(grid.push_messages(streamed([Message(content, n, "train") for n in nodes])))
    asked = list(grid.push_messages([Message(RecordDict(), nodes[0], "query")]))

    (answer,) = grid.pull_messages(asked)

    assert answer.metadata.message_type == "query"
    assert answer.metadata.reply_to_message_id == asked[0]
    trained = {reply.metadata.reply_to_message_id for reply in grid.pull_messages(ids)}
    assert trained == set(ids)
    assert grid.pull_messages(ids + asked) == []


def test_bounds_do_not_grow_by_new_node_ids() -> None:
    """SuperNodes that restart have other ids."""

    def bounds(every: int) -> tuple[str, str]:
        controller = Controller("auto", DEFAULT, tolerance=0.5, rounds=None)
        controller.decide(RoundRecord(round=0, accuracy=0.1))
        for number in range(1, 60):
            nodes = [i + (100 * (number // every) if every else 0) for i in range(4)]
            controller.decide(
                RoundRecord(
                    round=number,
                    replies=4,
                    accuracy=0.9,
                    clients=[
                        ClientRecord(
                            node=str(node),
                            client=str(node),
                            bandwidth=0.0,
                            raw_bytes=1,
                            sent_bytes=1,
                            encode_seconds=0.0,
                            decode_seconds=0.0,
                        )
                        for node in nodes
                    ],
                )
            )
        assert controller.decision is not None
        return controller.decision.config.error_bound, controller.decision.config.downlink

    assert bounds(10) == bounds(0)


def test_all_clients_train_and_evaluate_one_reference_model() -> None:
    """Some of them are away for rounds, and one loses its state."""
    models: dict[tuple[str, int], list[bytes]] = {}
    rng = np.random.default_rng(0)

    def note(at: Visit, model: Arrays) -> tuple[None, dict[str, Any]]:
        seen = models.setdefault((at.message.metadata.message_type, at.round), [])
        seen.append(b"".join(x.tobytes() for x in model.values()))
        return None, {"num-examples": 1, "loss": 1.0}

    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        note(at, model)
        after = {n: x + rng.normal(0, 0.01, x.shape) for n, x in model.items()}
        return {n: x.astype(np.float32) for n, x in after.items()}, {"num-examples": 1}

    def lose(client: int, message: Message, context: Context) -> None:
        number: Any = message.content["config"]["server-round"]
        if client == 1 and number in (3, 5):
            context.state.clear()

    app = around(training(train, evaluate=note), before=lose)
    strategy = FedAvg(fraction_train=0.5, fraction_evaluate=1.0, min_train_nodes=3)
    federation(app, 6, strategy).run(8)

    assert len(models) == 16
    assert all(len(set(seen)) == 1 for seen in models.values())
    for number in range(1, 8):  # the next round trains from the model that was evaluated
        assert models["evaluate", number][0] == models["train", number + 1][0]


@STRATEGIES
def test_each_round_has_one_record_whatever_came_of_it(strategy: type[FedAvg]) -> None:
    """Also one of which nobody has replied, and one whose replies were refused."""

    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        if at.round == 2 or (at.round == 3 and at.client):
            raise RuntimeError("not today")
        arrays, metrics = one_step(at, model)
        return arrays, metrics | ({"num-examples": -1.0} if at.round == 3 else {})

    records: list[RoundRecord] = []
    federation(training(train), 3, strategy, on_round=records.append).run(4)

    assert [record.round for record in records] == [1, 2, 3, 4]
    assert [record.replies for record in records] == [3, 0, 0, 3]
    assert [len(record.failures) for record in records] == [0, 3, 3, 0]


@pytest.mark.parametrize("policy", ["auto", None])
def test_the_state_of_a_client_is_two_models(policy: str | None) -> None:
    """It travels with each message in one protobuf message, of 2 GiB at most."""
    rng = np.random.default_rng(0)
    model = {"w": rng.normal(size=(400, 500)).astype(np.float32)}

    def train(at: Visit, arrays: Arrays) -> tuple[Arrays, dict[str, Any]]:
        after = {n: x + rng.normal(0, 0.01, x.shape) for n, x in arrays.items()}
        return {n: x.astype(np.float32) for n, x in after.items()}, {"num-examples": 1}

    options = {"policy": policy} if policy else {"error_bound": "step:2", "downlink": "step:1"}
    ours = federation(training(train), 1, FedAvg, model, **options)
    ours.run(4)

    size = recorddict_to_proto(ours.contexts[0].state).ByteSize()
    assert 2.0 * model["w"].nbytes <= size <= 2.1 * model["w"].nbytes


# C: bad input


def test_a_client_that_knows_the_model_takes_deltas_of_as_many_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose streams are short: what does not move takes no bytes."""
    monkeypatch.setattr(stream_format, "FREE_TENSORS", 100)
    start = {f"experts.{i}": np.full(4, i, np.float32) for i in range(300)}

    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        return {name: x + np.float32(1) for name, x in model.items()}, {"num-examples": 1}

    initial = tmp_path / "model.safetensors"
    save_file(start, initial)
    app = training(train, [FedSZMod(initial)])
    ours = federation(app, 2, FedAvg, start, shared_initial=True, downlink="step:1")
    ours.run(2)

    assert ours.take_traffic().failures == []


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float32", "int64"])
def test_a_state_dict_of_any_dtype_crosses_a_flower_app(name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    values = torch.linspace(-2, 2, 6000).reshape(60, 100)
    start = {"w": values.to(dtype), "n": torch.tensor(7)}
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def _(message: Message, context: Context) -> Message:
        state = state_dict_of(message.content["arrays"])
        assert state["w"].dtype == dtype
        trained = {"w": (state["w"].float() * 2).to(dtype), "n": state["n"] + 1}
        content = {"arrays": record_of_state(trained), "m": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    grid = federation(app, 2, error_bound=1e-3).grid
    result = StreamingFedAvg(fraction_evaluate=0).start(grid, record_of_state(start), num_rounds=1)

    trained = state_dict_of(result.arrays)
    assert list(trained) == ["w", "n"]
    assert (trained["w"].dtype, trained["n"].item()) == (dtype, 8)
    wanted = (start["w"].float() * 2).to(dtype).float()
    assert torch.allclose(trained["w"].float(), wanted, atol=0.3, rtol=0.1)
