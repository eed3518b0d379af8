"""Apps for `fedsz check`: one is fine, the others do what users' apps do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod, message_size_mod

from fedsz.flower import FedSZMod
from tests.flower import flower_apps
from tests.flower.flower_legacy import legacy_app

Arrays = dict[str, np.ndarray]


def initial() -> Arrays:
    rng = np.random.default_rng(0)
    return {
        "conv.weight": rng.normal(size=(40, 60)).astype(np.float32),
        "conv.bias": np.zeros(60, np.float32),
        "bn.running_var": np.ones(40, np.float32),
        "bn.num_batches_tracked": np.array(3),
        "head.weight": rng.normal(size=(60, 10)).astype(np.float32),
    }


def digits() -> list[np.ndarray]:
    return flower_apps.initial(0)


def moved(arrays: Arrays) -> Arrays:
    rng = np.random.default_rng(1)
    return {
        name: x + rng.normal(0, 1e-2, x.shape).astype(x.dtype) if x.dtype.kind == "f" else x + 1
        for name, x in arrays.items()
    }


def made(
    change: Callable[[Arrays, Context], Any] = lambda arrays, context: arrays,
    mods: Sequence[Any] = (),
    own: Sequence[Any] = (),
) -> ClientApp:
    app = ClientApp(mods=list(mods))

    @app.train(mods=list(own))
    def train(message: Message, context: Context) -> Message:
        arrays = {name: x.numpy() for name, x in message.content["arrays"].items()}
        changed = change(moved(arrays), context)
        if not isinstance(changed, ArrayRecord):
            changed = ArrayRecord({name: Array(np.asarray(x)) for name, x in changed.items()})
        content = {"arrays": changed, "metrics": MetricRecord({"num-examples": 8})}
        return Message(RecordDict(content), reply_to=message)

    return app


def _without_head(arrays: Arrays, _: Context) -> Arrays:
    return {name: x for name, x in arrays.items() if name != "head.weight"}


def _renamed(arrays: Arrays, _: Context) -> Arrays:
    return {f"module.{name}": x for name, x in arrays.items()}


def _stateful(arrays: Arrays, context: Context) -> Arrays:
    if "head" not in context.state:
        context.state["head"] = ArrayRecord({"w": Array(arrays["head.weight"])})
    return arrays


def _listing(arrays: Arrays, context: Context) -> Arrays:
    assert not context.state.array_records
    return arrays


def _emptying(arrays: Arrays, context: Context) -> Arrays:
    context.state.clear()
    context.state = RecordDict()
    return arrays


def _with_text(arrays: Arrays, _: Context) -> Arrays:
    doubled = {"head.weight": arrays["head.weight"].astype(np.float64)}
    return {**arrays, **doubled, "label": np.array(["a", "b"])}


def _failing(_: Arrays, __: Context) -> Arrays:
    raise RuntimeError("no data\nhere")


def _configured(arrays: Arrays, context: Context) -> Arrays:
    assert context.run_config["lr"] == 0.5
    assert context.run_config["optimizer.name"] == "sgd"
    assert context.node_config["partition-id"] == 7
    return arrays


fine = made(mods=[FedSZMod()])
plain = made()
configured = made(_configured)
part = made(_without_head)
renamed = made(_renamed)
stateful = made(_stateful, [FedSZMod()])
listing = made(_listing)
emptying = made(_emptying, [FedSZMod()])
silent = ClientApp()
silent.train()(lambda message, context: None)
text = made(_with_text)
failing = made(_failing)
diverging = made(lambda arrays, _: {n: x * np.float32(np.nan) for n, x in arrays.items()})
private = made(mods=[FedSZMod(), fixedclipping_mod])
wrong_order = made(mods=[LocalDpMod(1.0, 1e-3, 1.0, 0.01), FedSZMod()])
late = made(mods=[message_size_mod], own=[FedSZMod()])
class_as_mod = made(mods=[FedSZMod])
legacy = legacy_app([FedSZMod()])
