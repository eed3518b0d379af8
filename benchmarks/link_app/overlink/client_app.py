"""The client: it adds the recorded step of the round to the model that it receives."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from safetensors.numpy import load_file

from fedsz.flower import FedSZMod
from fedsz.flower.mod import ClientAppCallable


def stamp(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Note when a message has come and when its reply leaves. A mod, to stand first."""
    came = time.monotonic()
    reply = call_next(message, context)
    if reply.has_content():
        reply.content.metric_records["metrics"].update({"came": came, "left": time.monotonic()})
    return reply


app = ClientApp(mods=[stamp, FedSZMod(state_dir=os.environ["LINK_STATE"])])


@app.train()
def train(message: Message, _: Context) -> Message:
    """Replay the step of a round; ``busy`` is the time that this takes, which is no coding."""
    begin = time.monotonic()
    number = int(message.content["config"]["server-round"])
    step = load_file(Path(os.environ["LINK_STEPS"], f"step-{number}.safetensors"))
    model = message.content["arrays"]
    moved = {name: np.asarray(x.numpy() + step[name]) for name, x in model.items()}
    arrays = ArrayRecord({name: Array(x) for name, x in moved.items()})
    metrics = MetricRecord({"num-examples": 1, "busy": time.monotonic() - begin})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
