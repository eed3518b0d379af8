"""The clients: one pass of gradient descent a round, evaluation, and a query."""

from __future__ import annotations

import os
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from contract import task
from fedsz.flower import FedSZMod

app = ClientApp(mods=[FedSZMod(state_dir=os.environ.get("CONTRACT_STATE_DIR"))])


def _part(context: Context) -> tuple[int, int]:
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])


def _model(message: Message) -> dict[str, np.ndarray]:
    return {name: x.numpy() for name, x in message.content["arrays"].items()}


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's points; one of them may be slow from some round on."""
    config, model = context.run_config, _model(message)
    part, parts = _part(context)
    x, y = task.data(part, parts)
    number = int(message.content["config"]["server-round"])
    if part == config["late-partition"] and number >= config["late-from-round"]:
        time.sleep(float(config["late-seconds"]))
    rng = np.random.default_rng((part, number))
    for batch in np.array_split(rng.permutation(len(y)), max(1, len(y) // 32)):
        error = task.shares(model, x[batch]) - np.eye(10, dtype=np.float32)[y[batch]]
        model["weight"] = model["weight"] - 0.02 * x[batch].T @ error / len(batch)
        model["bias"] = model["bias"] - 0.02 * error.mean(0)
    if "padding" in model:
        model["padding"] = model["padding"] + rng.normal(0, 1e-3, len(model["padding"])).astype(
            "f4"
        )
    arrays = ArrayRecord({name: Array(v.astype(np.float32)) for name, v in model.items()})
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Return the accuracy on this client's points."""
    x, y = task.data(*_part(context))
    accuracy = float((task.shares(_model(message), x).argmax(1) == y).mean())
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Return this client's part."""
    answer = MetricRecord({"part": _part(context)[0]})
    return Message(RecordDict({"answer": answer}), reply_to=message)
