"""Apps of secure sums, and clients that drop out of them at a stage."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from fedsz.flower import FedSZMod, SecureMember, run_client
from fedsz.flower.records import SECURE
from fedsz.privacy.flower_client import REQUEST

STEP = 0.25


# Kinds of messages that ask a client for something, if keys are not signed.
KINDS = ["Terms", "Roster", "SealedShares", "Survivors"]


def asked(message: Message) -> tuple[str, str]:
    """Return the kind of a secure sum's message, and the round that it is of; "" of another."""
    request: Any = message.content.get(SECURE, {})
    if REQUEST not in request:
        return "", ""
    kind, round_id, *_ = msgspec.msgpack.decode(request[REQUEST])
    return kind, round_id.hex()


class DropOut:
    """A mod that fails, or ends the process, in the clients and at the message that are named."""

    def __init__(self, stage: str = "", clients: tuple[int, ...] = (), *, exits: bool = False):
        self.stage, self.clients, self.exits = stage, clients, exits

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if asked(message)[0] == self.stage != "" and context.node_config["i"] in self.clients:
            if self.exits:
                os._exit(1)
            raise RuntimeError(f"drops out at {self.stage}")
        return call_next(message, context)


class HoldsAt:
    """A mod that notes what it is asked, and in round 2 waits at a stage for the file ``go``."""

    def __init__(self, stage: str, notes: Path) -> None:
        self.stage, self.notes = stage, notes

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        stage, round_id = asked(message)
        if stage:
            with self.notes.open("a") as notes:
                notes.write(f"{stage} {round_id}\n")
            noted = self.notes.read_text().split()
            if stage == self.stage and noted.count(stage) == 2:
                Path("reached").touch()
                while not Path("go").exists():
                    time.sleep(0.01)
        return call_next(message, context)


def examples_of(i: int) -> int:
    return 10 * (i + 1)


def step_of(i: int, shape: tuple[int, ...]) -> np.ndarray:
    """What client i adds to a tensor in each round."""
    rng = np.random.default_rng((i, *shape))
    return STEP * rng.uniform(-1, 1, shape)


def secure_app(
    drop: DropOut | HoldsAt | None = None,
    member: SecureMember | None = None,
    members: Sequence[SecureMember] = (),
) -> ClientApp:
    """An app of somebody's who knows nothing of secure sums, with the mod in front."""
    mod = MemberOf(members) if members else FedSZMod(secure=member)
    app = ClientApp(mods=[drop or DropOut(), mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        i = int(context.node_config["i"])
        arrays = {
            name: array.numpy() + step_of(i, array.shape).astype(array.numpy().dtype)
            if array.numpy().dtype.kind == "f"
            else array.numpy()
            for name, array in message.content["arrays"].items()
        }
        made = ArrayRecord([*arrays.values()]).values()
        record = ArrayRecord(dict(zip(arrays, made, strict=True)))
        metrics = MetricRecord({"num-examples": examples_of(i), "loss": float(i)})
        return Message(RecordDict({"a": record, "m": metrics}), reply_to=message)

    return app


class MemberOf(FedSZMod):
    """A mod that is another member for each client."""

    def __init__(self, members: Sequence[SecureMember]) -> None:
        super().__init__()
        self._members = members

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        self._guard = self._members[int(context.node_config["i"])]
        return super().__call__(message, context, call_next)


@contextmanager
def processes(
    address: str, *clients: tuple[int, int, str], states: Path | None = None
) -> Iterator[list[BaseProcess]]:
    """Processes of clients ``(first, last, stage)`` each; see `be_clients`.

    They are forked from one that has imported all, which takes a busy machine long.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([__name__])
    made = [forks.Process(target=be_clients, args=(address, *each, states)) for each in clients]
    for process in made:
        process.start()
    try:
        yield list(made)
    finally:
        for process in made:
            process.kill()
            process.join()


def be_clients(server: str, first: int, last: int, stage: str, states: Path | None) -> None:
    """Be clients ``first`` to ``last - 1``, one of which ends the process at ``stage`` if given.

    If there are ``states``, each keeps its state in a folder there.
    """
    clients = range(first, last)
    app = secure_app(DropOut(stage, tuple(clients), exits=True) if stage else None)
    for i in clients:
        run = partial(run_client, app, server, client_id=f"c{i}", node_config={"i": i})
        kept = states and states / f"c{i}"
        threading.Thread(target=run, kwargs={"state_dir": kept}).start()


def be_held() -> None:
    """Be client ``server I STAGE``, which waits at a stage, if it is given one."""
    server, i, stage = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    app = secure_app(HoldsAt(stage, Path(f"asked-{i}")))
    run_client(app, server, client_id=f"c{i}", node_config={"i": i})
