"""A federation in one process: a model, clients that change it, and a Grid to reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedsz
from fedsz.core.encode import compress_measured
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.flower import FedSZMod, LocalGrid
from fedsz.flower.records import KEY, sealed, to_array
from fedsz.flower.wrapped_grid import WrappedGrid

BOUND = 1e-2


CLIENTS = 4


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
    app = ClientApp(mods=[FedSZMod()] if mods is None else list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        assert mods is not None or KEY not in message.content
        client = int(context.node_config.get("partition-id", 0))
        arrays = record_of(edit(client, to_arrays(message.content["arrays"])))
        metrics = MetricRecord({"num-examples": examples(client), "loss": float(client)})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        number: Any = message.content["config"]["server-round"]
        told = tell(int(context.node_config.get("partition-id", 0)), number)
        content = RecordDict({"metrics": MetricRecord(told)})
        if evaluates_arrays:
            content["arrays"] = record_of(to_arrays(message.content["arrays"]))
        return Message(content, reply_to=message)

    return app


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


def grid_of(app: ClientApp) -> LocalGrid:
    return LocalGrid(app, [{"partition-id": i} for i in range(CLIENTS)])


def run(strategy: Any, grid: Any, rounds: int = 1) -> Any:
    return strategy.start(grid=grid, initial_arrays=record_of(initial()), num_rounds=rounds)


def steps_norm(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The norm of the step between two models, of all floats together."""
    floats = [name for name, x in one.items() if x.dtype.kind == "f"]
    return float(np.sqrt(sum(np.square(one[n].astype(float) - other[n]).sum() for n in floats)))


def bound_of(x: np.ndarray) -> float:
    return fedsz.ErrorBound.rel(BOUND).absolute(x.astype(np.float64))
