"""A job's server and clients without their processes: NVFlare's own contexts, filters and bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import Shareable, make_copy
from nvflare.apis.utils.decomposers import flare_decomposers
from nvflare.apis.utils.fl_context_utils import gen_new_peer_ctx
from nvflare.apis.utils.task_utils import apply_filters
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.decomposers import common_decomposers
from nvflare.fuel.utils import fobs
from nvflare.private.privacy_manager import Scope

from fedsz.nvflare import FedSZClientFilter, FedSZServerFilter

TASK = "train"
Train = Callable[[dict[str, Any]], DXO]

flare_decomposers.register()
common_decomposers.register()


class Engine:
    """What runs a job at a site: filters know it apart from others, and tell it of events."""

    def fire_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Tell nobody."""


class Site:
    """The server or a client of a job."""

    def __init__(self, name: str, *filters: Filter) -> None:
        self.name, self.filters = name, filters
        self.contexts = FLContextManager(Engine(), name, "a job", {}, {})
        with self.contexts.new_context() as fl_ctx:
            for one in filters:
                one.handle_event(EventType.START_RUN, fl_ctx)

    def filtered(
        self, what: Shareable, direction: str, task_id: str, peer: FLContext | None = None
    ) -> Shareable:
        """Return what the site's filters make of task data or of a result."""
        incoming = direction == FilterKey.IN
        chain = Scope.TASK_DATA_FILTERS_NAME
        if incoming == (self.name == "server"):
            chain = Scope.TASK_RESULT_FILTERS_NAME
        with self.contexts.new_context() as fl_ctx:
            if peer is not None:
                fl_ctx.set_peer_context(peer)
            fl_ctx.set_prop(FLContextKey.TASK_NAME, TASK, private=True, sticky=False)
            fl_ctx.set_prop(FLContextKey.TASK_ID, task_id, private=True, sticky=False)
            known = {f"{TASK}{FilterKey.DELIMITER}{direction}": self.filters}
            return apply_filters(chain, what, fl_ctx, known, TASK, direction)

    @property
    def public(self) -> FLContext:
        """What the other end is told of this one with each message."""
        with self.contexts.new_context() as fl_ctx:
            return fobs.loads(fobs.dumps(gen_new_peer_ctx(fl_ctx)))


class Link:
    """What crosses between the sites of a job: bytes, which a test may change, or lose."""

    def __init__(self) -> None:
        self.down = self.up = 0
        self.change: Callable[[Shareable], Shareable | None] = lambda sent: sent

    def carried(self, sent: Shareable, *, down: bool) -> Shareable | None:
        data = fobs.dumps(sent)
        if down:
            self.down += len(data)
        else:
            self.up += len(data)
        return self.change(fobs.loads(data))


class Job:
    """A server and its clients, which are asked one after the other."""

    def __init__(self, clients: int = 2, **settings: Any) -> None:
        self.server = Site("server", FedSZServerFilter(**settings))
        self.clients = [self.client(i) for i in range(clients)]
        self.down, self.up, self._tasks = Link(), Link(), 0

    def client(self, i: int) -> Site:
        """Return a client that has just started."""
        return Site(f"site-{i + 1}", FedSZClientFilter())

    def data(self, arrays: Mapping[str, Any], number: int | None, kind: str) -> Shareable:
        """Return a task's data."""
        shareable = DXO(kind, dict(arrays), {"beside": "the model"}).to_shareable()
        if number is not None:
            shareable.set_header(AppConstants.CURRENT_ROUND, number)
        return shareable

    def round(
        self,
        arrays: Mapping[str, Any],
        train: Callable[[Site, dict[str, Any]], DXO],
        number: int | None = None,
        kind: str = DataKind.WEIGHTS,
    ) -> list[Shareable | None]:
        """Return each client's result as the workflow has it; None of one that was lost."""
        shared = self.data(arrays, number, kind)
        return [self.ask(client, make_copy(shared), train) for client in self.clients]

    def ask(
        self, client: Site, data: Shareable, train: Callable[[Site, dict[str, Any]], DXO]
    ) -> Shareable | None:
        """Return a client's result as the workflow has it; None if it was lost."""
        self._tasks += 1
        task_id, peer = f"task {self._tasks}", client.public
        sent = self.down.carried(
            self.server.filtered(data, FilterKey.OUT, task_id, peer), down=True
        )
        assert sent is not None
        try:
            received = client.filtered(sent, FilterKey.IN, task_id)
            result = train(client, from_shareable(received).data).to_shareable()
            result = client.filtered(result, FilterKey.OUT, task_id)
        except Exception as err:  # as NVFlare's client does
            result = Shareable()
            result.set_return_code(ReturnCode.TASK_DATA_FILTER_ERROR)
            result["why"] = f"{type(err).__name__}: {err}"
        back = self.up.carried(result, down=False)
        return None if back is None else self.server.filtered(back, FilterKey.IN, task_id, peer)


Arrays = dict[str, Any]
RATE = 0.5  # of the way to a client's target that it goes in a round
LATE = 0.25  # of the way that a job may lack after a dozen rounds, in which clients pull apart


def model(seed: int = 0, scale: float = 1.0) -> Arrays:
    """Return a model with what models have: a matrix, a vector, a count, an empty tensor."""
    rng = np.random.default_rng(seed)
    return {
        "fc.weight": scale * rng.normal(size=(200, 300)).astype(np.float32),
        "fc.bias": scale * rng.normal(size=300).astype(np.float32),
        "bn.num_batches_tracked": np.array(seed, np.int64),
        "empty": np.zeros((0, 4), np.float32),
    }


TARGETS = {"site-1": model(1), "site-2": model(2), "site-3": model(3)}


def stepped(name: str, data: Arrays) -> Arrays:
    """Return what a client makes of a model: it goes towards its target."""
    moved = {
        key: (x + RATE * (TARGETS[name][key] - x)).astype(x.dtype)
        for key, x in data.items()
        if isinstance(x, np.ndarray)
    }
    return {**moved, "bn.num_batches_tracked": data["bn.num_batches_tracked"] + 1}


def trained(client: Site, data: Arrays) -> DXO:
    return DXO(DataKind.WEIGHTS, stepped(client.name, data))


def mean(results: list[Arrays]) -> Arrays:
    return {
        key: np.mean([r[key] for r in results], axis=0).astype(x.dtype)
        for key, x in results[0].items()
    }


def apart(one: Arrays, other: Arrays) -> float:
    """Return the root mean square of the difference of two models' matrices."""
    return float(np.sqrt(np.mean((one["fc.weight"] - other["fc.weight"]) ** 2)))


def data_of(result: Shareable | None) -> Arrays:
    assert result is not None
    assert result.get_return_code() == ReturnCode.OK, result
    return dict(from_shareable(result).data)


def federate(job: Job, rounds: int, train: Any = trained, start: Arrays | None = None) -> Arrays:
    """Return the model that a job comes to by averaging."""
    whole = start or model()
    for number in range(rounds):
        whole = mean([data_of(result) for result in job.round(whole, train, number)])
    return whole
