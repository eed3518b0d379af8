"""A federation in one process: models, clients that change them, and Grids to reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz.control.record import Traffic
from fedsz.core.encode import compress_measured
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid
from fedsz.flower.records import KEY, sealed, to_array
from fedsz.flower.wrapped_grid import WrappedGrid

BOUND = 1e-2


CLIENTS = 4
Arrays = dict[str, np.ndarray]


def initial() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "fc.weight": rng.normal(size=(60, 50)).astype(np.float32),
        "fc.bias": rng.normal(size=60).astype(np.float32),
        "bn.num_batches_tracked": np.array(3),
        "mask": np.array([True, False, True]),
        "half.weight": rng.normal(size=(40, 50)).astype(np.float16),
        "empty": np.empty((0, 3), np.float32),
    }


def moved(arrays: dict[str, np.ndarray], client: int) -> dict[str, np.ndarray]:
    """What client ``client`` makes of the model: other values, the same dtypes."""
    rng = np.random.default_rng(client)
    return {
        name: (x + rng.normal(0, 0.1, x.shape)).astype(x.dtype)
        if x.dtype.kind == "f"
        else (x + client if x.dtype.kind == "i" else x)
        for name, x in arrays.items()
    }


def to_arrays(record: ArrayRecord) -> dict[str, np.ndarray]:
    return {name: array.numpy() for name, array in record.items()}


def record_of(arrays: dict[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: to_array(x) for name, x in arrays.items()})


Edit = Callable[[int, dict[str, np.ndarray]], dict[str, np.ndarray]]


def seal(
    arrays: dict[str, np.ndarray], config: Settings, reference: Reference | None = None
) -> ArrayRecord:
    """Return arrays as a client seals them that feeds nothing back."""
    return sealed(compress_measured(arrays, config, reference)[0])


class Visit(NamedTuple):
    """A message that a client answers."""

    client: int
    round: int  # 0 if the message names none
    message: Message
    context: Context

    @classmethod
    def of(cls, message: Message, context: Context) -> Visit:
        config: Any = message.content.get("config", {})
        client = int(context.node_config.get("partition-id", 0))
        return cls(client, int(config.get("server-round", 0)), message, context)

    def reply(self, arrays: Arrays | None, metrics: dict[str, Any]) -> Message:
        content = RecordDict({"metrics": MetricRecord(metrics)})
        if arrays is not None:
            content["arrays"] = record_of(arrays)
        return Message(content, reply_to=self.message)


Train = Callable[[Visit, Arrays], tuple[Arrays, dict[str, Any]]]
Evaluate = Callable[[Visit, Arrays], tuple[Arrays | None, dict[str, Any]]]


def training(
    train: Train,
    mods: Sequence[Any] | None = None,
    evaluate: Evaluate = lambda visit, arrays: (None, {"num-examples": 1, "loss": 1.0}),
) -> ClientApp:
    """A ClientApp that replies with the arrays and metrics of ``train`` and ``evaluate``.

    ``mods`` are `FedSZMod` alone by default.
    """
    app = ClientApp(mods=[FedSZMod()] if mods is None else list(mods))

    for register, work in ((app.train, train), (app.evaluate, evaluate)):

        def answer(message: Message, context: Context, work: Evaluate = work) -> Message:
            visit = Visit.of(message, context)
            return visit.reply(*work(visit, to_arrays(message.content["arrays"])))

        register()(answer)
    return app


def app_of(
    edit: Edit = lambda i, arrays: moved(arrays, i),
    *,
    mods: Sequence[Any] | None = None,
    examples: Callable[[int], float] = lambda i: i + 1,
    tell: Callable[[int, int], dict[str, float]] = lambda i, number: {"num-examples": 1},
    evaluates_arrays: bool = False,
) -> ClientApp:
    """A ClientApp of which client i replies ``edit(i, arrays)``.

    Args:
        edit: see above.
        mods: by default, `FedSZMod` alone.
        examples: client i says that it has so many.
        tell: client i says so of a round's model.
        evaluates_arrays: whether it sends the model back that it has evaluated.
    """

    def train(visit: Visit, arrays: Arrays) -> tuple[Arrays, dict[str, Any]]:
        assert mods is not None or KEY not in visit.message.content
        metrics = {"num-examples": examples(visit.client), "loss": float(visit.client)}
        return edit(visit.client, arrays), metrics

    def evaluate(visit: Visit, arrays: Arrays) -> tuple[Arrays | None, dict[str, Any]]:
        return arrays if evaluates_arrays else None, tell(visit.client, visit.round)

    return training(train, mods, evaluate)


def around(
    app: Any,
    before: Callable[[int, Message, Context], object] = lambda client, message, context: None,
    after: Callable[[int, Message, Message], object] = lambda client, message, reply: None,
) -> Any:
    """An app whose clients do something else before they answer, or to their replies."""

    def answer(message: Message, context: Context) -> Message:
        client = int(context.node_config.get("partition-id", 0))
        before(client, message, context)
        reply: Message = app(message, context)
        after(client, message, reply)
        return reply

    return answer


class Watched(WrappedGrid):
    """A Grid that keeps and counts what crosses it; messages change hands, their contents stay."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.down: list[RecordDict] = []
        self.up: list[RecordDict] = []
        self.errors: list[str] = []
        self.bytes_down = self.bytes_up = 0  # of arrays

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return super().push_messages(self._sent(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return list(self._received(super().pull_messages(message_ids)))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = super().send_and_receive(self._sent(messages), timeout=timeout)
        return list(self._received(replies))

    def stream_replies(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        return self._received(super().stream_replies(self._sent(messages), timeout=timeout))

    def _sent(self, messages: Iterable[Message]) -> list[Message]:
        sent = list(messages)
        self.down += [message.content for message in sent]
        self.bytes_down += sum(array_bytes(message.content) for message in sent)
        return sent

    def _received(self, replies: Iterable[Message]) -> Iterator[Message]:
        for reply in replies:
            if reply.has_error():
                self.errors.append(str(reply.error.reason))
            else:
                self.up.append(copied(reply.content))
                self.bytes_up += array_bytes(reply.content)
            yield reply


def copied(content: RecordDict) -> RecordDict:
    """Return a content with the same arrays, which stay when its receiver frees its own."""
    arrays = {key: ArrayRecord(dict(record)) for key, record in content.array_records.items()}
    return RecordDict({**content, **arrays})


def array_bytes(content: RecordDict) -> int:
    return sum(len(a.data) for record in content.array_records.values() for a in record.values())


def grid_of(app: ClientApp, clients: int = CLIENTS) -> LocalGrid:
    return LocalGrid(app, [{"partition-id": i} for i in range(clients)])


def run(strategy: Any, grid: Any, rounds: int = 1) -> Any:
    return strategy.start(grid=grid, initial_arrays=record_of(initial()), num_rounds=rounds)


class Federation:
    """Clients behind a `FedSZGrid`, a strategy, and a model that goes on from run to run.

    Args:
        app: what the clients run.
        clients: how many there are.
        strategy: a strategy, or a class of it, which then evaluates nothing on clients.
        model: that the clients train first.
        between: wraps the clients' Grid, beneath `FedSZGrid`.
        wrapped: whether there is a `FedSZGrid`.
        options: of `FedSZGrid`.

    Attributes:
        contexts: of each client, as of its last message.
        watched: what crosses between `FedSZGrid` and the clients.
        models: the model before the first round, and after each.
    """

    def __init__(
        self,
        app: Any,
        clients: int = CLIENTS,
        strategy: Any = FedAvg,
        model: Arrays | None = None,
        *,
        between: Callable[[Any], Any] = lambda grid: grid,
        wrapped: bool = True,
        **options: Any,
    ) -> None:
        self.contexts: dict[int, Context] = {}
        app = around(app, lambda i, _, context: self.contexts.update({i: context}))
        self.watched = Watched(between(grid_of(app, clients)))
        self.grid: Any = FedSZGrid(self.watched, **options) if wrapped else self.watched
        if isinstance(strategy, type):
            strategy = strategy(fraction_evaluate=0, min_train_nodes=1, min_available_nodes=1)
        self.strategy = strategy
        self.models = [initial() if model is None else model]

    def run(self, rounds: int = 1, **more: Any) -> Arrays:
        """Run the strategy's own loop, and return the model after its last round."""

        def note(number: int, arrays: ArrayRecord) -> None:
            if number:
                self.models.append(to_arrays(arrays))

        start = record_of(self.models[-1])
        result = self.strategy.start(
            grid=self.grid, initial_arrays=start, num_rounds=rounds, evaluate_fn=note, **more
        )
        self.metrics = result.train_metrics_clientapp
        return self.models[-1]

    def train(
        self, number: int, change: Callable[[Message], object] = lambda reply: None
    ) -> list[Message]:
        """Do one round of training by the strategy's parts; return the replies, once changed."""
        record = record_of(self.models[-1])
        asked = self.strategy.configure_train(number, record, ConfigRecord(), self.grid)
        replies = list(self.grid.send_and_receive(list(asked)))
        for reply in replies:
            change(reply)
        averaged, _ = self.strategy.aggregate_train(number, replies)
        self.models.append(to_arrays(averaged) if averaged else self.models[-1])
        return replies

    @property
    def model(self) -> Arrays:
        """The strategy's last model."""
        return self.models[-1]

    def take_traffic(self) -> Traffic:
        """Return what was counted since the last call."""
        traffic: Traffic = self.grid.take_traffic()
        return traffic


def steps_norm(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The norm of the step between two models, of all floats together."""
    floats = [name for name, x in one.items() if x.dtype.kind == "f"]
    return float(np.sqrt(sum(np.square(one[n].astype(float) - other[n]).sum() for n in floats)))


def bound_of(x: np.ndarray) -> float:
    return fedsz.ErrorBound.rel(BOUND).absolute(x.astype(np.float64))
