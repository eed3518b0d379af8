"""Apps as users of Flower write them, small and in numpy: they know nothing of compression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits

WIDTHS = (64, 400, 200, 10)  # 108,210 parameters
BATCH = 16
LEARNING_RATE = 0.1

Weights = list[np.ndarray]  # a kernel (inputs, outputs) and a bias (outputs,) per layer, float32
NAMES = [f"{layer}.{part}" for layer in range(len(WIDTHS) - 1) for part in ("weight", "bias")]


@cache
def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """The 8x8 images of scikit-learn and their labels: to train on, and 600 held out."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16).astype(np.float32), labels[order]
    return (images[600:], labels[600:]), (images[:600], labels[:600])


def held_out() -> tuple[np.ndarray, np.ndarray]:
    return digits()[1]


def initial(seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    weights: Weights = []
    for inputs, outputs in pairwise(WIDTHS):
        kernel = rng.normal(0, np.sqrt(2 / inputs), (inputs, outputs))
        weights += [kernel.astype(np.float32), np.zeros(outputs, np.float32)]
    return weights


def _forward(weights: Weights, x: np.ndarray) -> list[np.ndarray]:
    """The input of each layer, and the logits."""
    layers = [x]
    for kernel, bias in zip(weights[::2], weights[1::2], strict=True):
        layers.append(np.maximum(layers[-1], 0) @ kernel + bias)
    return layers


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def learned(weights: Weights, context: Context) -> tuple[Weights, float]:
    """One epoch of SGD on a client's share; the weights after it, and the mean loss before."""
    client, clients = _place(context)
    images, labels = (x[client::clients] for x in digits()[0])
    loss = tested(weights, images, labels)[1]
    turn = context.state.setdefault("turn", MetricRecord({"n": 0}))
    turn["n"] += 1
    rng = np.random.default_rng((int(context.run_config.get("seed", 0)), client, turn["n"]))
    return descended(weights, images, labels, rng), loss


def descended(
    weights: Weights, images: np.ndarray, labels: np.ndarray, rng: np.random.Generator
) -> Weights:
    """The weights after one epoch of SGD, in an order that is drawn."""
    weights = [x.astype(np.float32) for x in weights]
    order = rng.permutation(len(labels))
    for batch in np.array_split(order, max(1, len(order) // BATCH)):
        *inputs, logits = _forward(weights, images[batch])
        error = np.exp(_log_probabilities(logits))
        error[np.arange(len(batch)), labels[batch]] -= 1
        error /= len(batch)
        for layer in reversed(range(len(inputs))):
            x = np.maximum(inputs[layer], 0)
            kernel, bias = weights[2 * layer : 2 * layer + 2]
            before = error @ kernel.T * (inputs[layer] > 0)
            kernel -= LEARNING_RATE * (x.T @ error)
            bias -= LEARNING_RATE * error.sum(axis=0)
            error = before
    return weights


def _place(context: Context) -> tuple[int, int]:
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


def tested(weights: Weights, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Accuracy and mean cross-entropy."""
    log_probabilities = _log_probabilities(_forward(weights, images)[-1])
    loss = -log_probabilities[np.arange(len(labels)), labels].mean()
    return float((log_probabilities.argmax(axis=1) == labels).mean()), float(loss)


def weights_of(record: ArrayRecord) -> Weights:
    return [array.numpy() for array in record.values()]


def named(weights: Weights, names: Sequence[str] = NAMES) -> ArrayRecord:
    return ArrayRecord(dict(zip(names, map(_array, weights), strict=True)))


def _array(x: np.ndarray) -> Any:
    return next(iter(ArrayRecord([x]).values()))


def client_app(
    mods: Sequence[Any] = (),
    *,
    evaluate_arrays: bool = False,
    fails: Callable[[str, Context], bool] = lambda kind, context: False,
) -> ClientApp:
    """The app of Flower's quickstarts: one ArrayRecord, one MetricRecord, whatever their names.

    Args:
        mods: of the ClientApp.
        evaluate_arrays: whether replies to evaluation hold the model too.
        fails: whether a handler raises, by the type of its message.
    """
    app = ClientApp(mods=list(mods))

    def reply(message: Message, weights: Weights | None, **metrics: float) -> Message:
        (record,) = message.content.array_records.values()
        content: dict[str, Any] = {"metrics": MetricRecord({"num-examples": 1, **metrics})}
        if weights is not None:
            content["arrays"] = named(weights, list(record))
        return Message(RecordDict(content), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if fails("train", context):
            raise RuntimeError("no power")
        (record,) = message.content.array_records.values()
        weights, loss = learned(weights_of(record), context)
        return reply(message, weights, train_loss=loss)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        if fails("evaluate", context):
            raise RuntimeError("no power")
        (record,) = message.content.array_records.values()
        weights = weights_of(record)
        client, clients = _place(context)
        share = (x[client::clients] for x in held_out())
        accuracy, loss = tested(weights, *share)
        return reply(message, weights if evaluate_arrays else None, accuracy=accuracy, loss=loss)

    return app
