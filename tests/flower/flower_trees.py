"""Gradient boosting as FedXgb's strategies know it: a model is bytes that grow, JSON of XGBoost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from sklearn.datasets import load_breast_cancer

from tests.flower.flower_runs import Score, ServerSide

STEP = 0.3
HELD_OUT = 150

Tree = dict[str, Any]  # a stump: "feature", "above" which its margin is "right", else "left"


@cache
def tumours() -> tuple[np.ndarray, np.ndarray]:
    """Measurements and labels, 0 or 1; the first ``HELD_OUT`` are not trained on."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    return x[order], y[order]


def encoded(trees: list[Tree]) -> np.ndarray:
    """A model of XGBoost with these trees, as far as Flower looks into it."""
    parameters = {"num_trees": str(len(trees)), "num_parallel_tree": "1"}
    model = {
        "gbtree_model_param": parameters,
        "trees": trees,
        "tree_info": [0] * len(trees),
        "iteration_indptr": list(range(len(trees) + 1)),
    }
    text = json.dumps({"learner": {"gradient_booster": {"model": model}}})
    return np.frombuffer(text.encode(), np.uint8)


def decoded(data: np.ndarray) -> list[Tree]:
    if not data.size:
        return []
    return json.loads(data.tobytes())["learner"]["gradient_booster"]["model"]["trees"]


def margins(trees: list[Tree], x: np.ndarray) -> np.ndarray:
    total = np.zeros(len(x))
    for tree in trees:
        total += np.where(x[:, tree["feature"]] > tree["above"], tree["right"], tree["left"])
    return total


def grow(trees: list[Tree], x: np.ndarray, y: np.ndarray) -> Tree:
    """The stump that follows the gradient of the logistic loss best."""
    gradient = y - 1 / (1 + np.exp(-margins(trees, x)))
    best: tuple[float, Tree] = (-1.0, {})
    for feature in range(x.shape[1]):
        for above in np.quantile(x[:, feature], [0.2, 0.35, 0.5, 0.65, 0.8]):
            right = x[:, feature] > above
            sums = gradient[right].sum(), gradient[~right].sum()
            counts = max(right.sum(), 1), max((~right).sum(), 1)
            gain = sum(s * s / n for s, n in zip(sums, counts, strict=True))
            if gain > best[0]:
                leaves = [4 * STEP * s / n for s, n in zip(sums, counts, strict=True)]
                tree = {"id": 0, "feature": feature, "above": above}
                best = gain, {**tree, "right": leaves[0], "left": leaves[1]}
    return best[1]


def tree_app(mods: Sequence[Any] = (), *, whole: bool = False) -> ClientApp:
    """Clients that answer with the ``whole`` model and a tree more, or with that tree alone."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trees = decoded(message.content["arrays"]["0"].numpy())
        client, clients = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
        x, y = (part[HELD_OUT:][client::clients] for part in tumours())
        tree = grow(trees, x, y)
        content = {
            "arrays": ArrayRecord([encoded([*trees, tree] if whole else [tree])]),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        trees = decoded(message.content["arrays"]["0"].numpy())
        accuracy, loss = score(trees)
        metrics = MetricRecord({"num-examples": HELD_OUT, "accuracy": accuracy, "loss": loss})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def score(trees: list[Tree]) -> Score:
    x, y = (part[:HELD_OUT] for part in tumours())
    margin = margins(trees, x)
    loss = np.logaddexp(0, np.where(y == 1, -margin, margin)).mean()
    return float(((margin > 0) == y).mean()), float(loss)


def grown(strategy: Any) -> ServerSide:
    """A server that runs one of FedXgb's strategies, which begin with no bytes at all."""

    def serve(grid: Grid, rounds: int, seed: int) -> Score:
        empty = ArrayRecord([np.zeros(0, np.uint8)])
        result = strategy().start(grid=grid, initial_arrays=empty, num_rounds=rounds)
        return score(decoded(result.arrays["0"].numpy()))

    return serve
