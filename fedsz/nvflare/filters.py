"""The filters of a job's server and clients, and a call that puts them into NVFlare's recipes."""

from __future__ import annotations

import hashlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_copy
from nvflare.app_common.app_constant import AppConstants
from nvflare.recipe.spec import Recipe

from fedsz.arrays import LOSSY_DTYPES, NDArray, StateDict
from fedsz.control.controller import Controller, asked_for
from fedsz.control.policy import DEFAULT_TOLERANCE
from fedsz.core.client import ClientSession, Memory
from fedsz.core.protocol import Request
from fedsz.core.reference import Reference
from fedsz.core.settings import DEFAULT, LEAST_BYTES
from fedsz.errors import ConfigError, FedszError
from fedsz.formatting import one_line
from fedsz.nvflare.content import (
    NAME,
    Announcement,
    Task,
    announced,
    arrays_in,
    opened,
    plain,
    sealed,
)
from fedsz.nvflare.task_server import TaskServer
from fedsz.safetensors_file import INITIAL, read_safetensors
from fedsz.stream import Limits

KINDS: Final = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]

T = TypeVar("T")


class Shared(Generic[T]):
    """Objects for the filters of both ways, which a job's config makes apart from each other.

    They are of the engine that runs the job here: contexts are copied, and written to disk.
    """

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Any, dict[str, T]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, fl_ctx: FLContext, name: str, make: Callable[[], T]) -> T:
        """Return what ``make`` has returned for this engine and name; it is called once."""
        with self._lock:
            known = self._of.setdefault(fl_ctx.get_engine(), {})
            if name not in known:
                known[name] = make()
            return known[name]

    def take(self, fl_ctx: FLContext) -> list[T]:
        """Return the objects of this engine, and forget them."""
        with self._lock:
            return list(self._of.pop(fl_ctx.get_engine(), {}).values())


class ModelFilter(DXOFilter):  # type: ignore[misc]  # NVFlare ships no type information
    """A filter of both ways, for DXOs that are one model; collections pass as they are."""

    def __init__(self) -> None:
        super().__init__(supported_data_kinds=KINDS, data_kinds_to_filter=KINDS)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Compress or decompress a DXO; None leaves it as it is."""
        if shareable["DXO"]["kind"] not in KINDS:
            return None
        name, task_id = (
            fl_ctx.get_prop(p, "") for p in (FLContextKey.TASK_NAME, FLContextKey.TASK_ID)
        )
        number = shareable.get_header(AppConstants.CURRENT_ROUND)
        task = Task(name, task_id, number if isinstance(number, int) else None)
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.OUT:
            return self.going_out(dxo, task, fl_ctx)
        return self.coming_in(dxo, task, fl_ctx)

    @abstractmethod
    def going_out(self, dxo: DXO, task: Task, fl_ctx: FLContext) -> DXO | None:
        """Compress a DXO on its way out."""

    @abstractmethod
    def coming_in(self, dxo: DXO, task: Task, fl_ctx: FLContext) -> DXO | None:
        """Decompress a DXO on its way in."""


class ClientState:
    """A `fedsz.core.client.Store` by the names of tasks, and what else a client's filters share.

    Attributes:
        references: the reference models.
        sessions: the tasks that wait for their results, with their ids.
        has_initial: whether the first model may be the server's; until it turns out not to be.
        is_new: whether this process has sent no result yet.
    """

    def __init__(self) -> None:
        self.references: dict[str, Reference] = {}
        self.sessions: dict[str, tuple[str, ClientSession]] = {}
        self.has_initial = self.is_new = True
        self._memories: dict[str, tuple[Memory, bytes, int]] = {}

    def reference(self, key: str) -> Reference | None:
        """Do as `Store.reference`."""
        return self.references.get(key)

    def keep_reference(self, key: str, model: Reference) -> Reference:
        """Do as `Store.keep_reference`."""
        self.references[key] = model
        return model

    def memory(self, key: str) -> tuple[Memory, bytes, int]:
        """Do as `Store.memory`."""
        return self._memories.get(key, ({}, b"", 0))

    def keep_memory(self, key: str, memory: Memory, run: bytes, round_number: int) -> None:
        """Do as `Store.keep_memory`."""
        self._memories[key] = memory, run, round_number


_clients: Final = Shared[ClientState]()


class FedSZClientFilter(ModelFilter):
    """The client's filter: it decompresses task data and compresses task results.

    It has no settings: the server's come with each task. The residual goes into the next result,
    and the reference model is kept for the next task. Both are in memory: a client that starts
    again says so with its first request, and is sent a key frame.

    Args:
        initial: a .safetensors file of the model that training starts from, where this site has it.
            A server with ``shared_initial`` names its first model then and does not send it. If it
            has another, the first task of this client fails, and the next one brings a key frame.
    """

    def __init__(self, initial: str | None = None) -> None:
        super().__init__()
        self.initial = initial

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Say at the start of the job that this filter is here."""
        if event_type == EventType.START_RUN:
            self._announce(fl_ctx)

    def _announce(self, fl_ctx: FLContext) -> None:
        """Have the next requests for tasks say which models are here."""
        state = _clients.of(fl_ctx, "", ClientState)
        digests = {task: model.digest for task, model in state.references.items()}
        has_initial = self.initial is not None and state.has_initial
        data = msgspec.msgpack.encode(Announcement(digests, has_initial, state.is_new))
        fl_ctx.set_prop(NAME, data, private=False, sticky=True)

    def coming_in(self, dxo: DXO, task: Task, fl_ctx: FLContext) -> DXO | None:
        """Decompress the model in a task's data.

        Raises:
            FedszError: it does not decode; NVFlare makes an error result of it. The reference model
                is forgotten, and the next task brings a key frame.
        """
        state = _clients.of(fl_ctx, "", ClientState)
        state.sessions.pop(task.name, None)
        try:
            content = opened(dxo)
            if content is None:
                return None
            client = hashlib.sha256(fl_ctx.get_identity_name().encode()).digest()
            session = ClientSession(
                Request.decode(content.note),
                state,
                sender=int.from_bytes(client[:8], "little"),
                initial=self._initial_model,
                limits=Limits().together(len(content.stream)),
            )
            model = session.receive(task.name, content.stream)
            # Training may write into its arrays.
            result = plain(dxo, {name: x.copy() for name, x in model.arrays.items()}, content)
        except FedszError:
            state.has_initial = False
            state.references.pop(task.name, None)
            raise
        finally:
            self._announce(fl_ctx)
        state.sessions[task.name] = task.id, session
        return result

    def _initial_model(self) -> StateDict | None:
        return read_safetensors(Path(self.initial), INITIAL) if self.initial else None

    def going_out(self, dxo: DXO, task: Task, fl_ctx: FLContext) -> DXO | None:
        """Compress a task's result; values that are no tensors of the model pass as they are.

        Raises:
            DivergedUpdate: training made NaN or infinities of a finite tensor.
        """
        state = _clients.of(fl_ctx, "", ClientState)
        task_id, session = state.sessions.pop(task.name, ("", None))
        if session is None or task_id != task.id:
            return None
        model = session.models[task.name].arrays
        arrays = {n: x for n, x in arrays_in(dxo).items() if n in model and _fits(x, model[n])}
        if not arrays:
            return None
        known_step = dxo.data_kind == DataKind.WEIGHT_DIFF
        stream = session.reply(task.name, arrays, known_step=known_step)
        state.is_new = False
        self._announce(fl_ctx)
        return sealed(dxo, arrays, stream, session.note().encode())


def _fits(x: NDArray, like: NDArray) -> bool:
    """Say whether a result's array can stand for a tensor of the model."""
    dtypes = {x.dtype, like.dtype}
    return x.shape == like.shape and (len(dtypes) == 1 or dtypes <= LOSSY_DTYPES)


_tasks: Final = Shared[TaskServer]()


class FedSZServerFilter(ModelFilter):
    """The server's filter: it compresses task data and decompresses task results.

    All settings of a job are its own, and it sends them along. Use it for both ways, with the same
    settings; `fedsz.nvflare.add_fedsz` does. A client without `FedSZClientFilter` is sent models as
    they are. What does not decode becomes an error result, with one line in the log.

    Args:
        policy: who decides how a round is sent, as in `fedsz.flower.FedSZGrid`.
        tolerance: likewise; so are rounds, codec, lossless, threshold, rule, update and decay.
        error_bound: of clients' results, likewise.
        downlink: how models are sent, likewise.
        shared_initial: whether clients may have the first model; see `FedSZClientFilter`.

    Raises:
        ConfigError: one of these is out of range or does not exist, or the policy measures models
            on held-out data, which the server of a job does not have.
        CodecUnavailable: a codec's library is not installed here.
    """

    def __init__(
        self,
        policy: str | None = None,
        tolerance: float = DEFAULT_TOLERANCE,
        rounds: int | None = None,
        error_bound: float | str | None = None,
        codec: str = DEFAULT.codec,
        lossless: str = DEFAULT.lossless,
        threshold: int | None = None,
        rule: str | None = None,
        update: str | None = None,
        decay: float = DEFAULT.decay,
        downlink: float | str | None = None,
        shared_initial: bool = False,
    ) -> None:
        super().__init__()
        # NVFlare writes the attributes of these names into a job's config.
        self.policy, self.tolerance, self.rounds = policy, tolerance, rounds
        self.error_bound, self.threshold, self.rule = error_bound, threshold, rule
        self.codec, self.lossless, self.decay = codec, lossless, decay
        self.update, self.downlink, self.shared_initial = update, downlink, shared_initial
        self._without: set[str] = set()  # clients that are known to have no such filter
        if self._controller().needs:
            raise ConfigError("this policy needs a held-out set: `fedsz server` has one")

    def _controller(self) -> Controller:
        names = ("error_bound", "threshold", "rule", "update", "downlink")
        named = {name: getattr(self, name) for name in names}
        others = {"codec": self.codec, "lossless": self.lossless, "decay": self.decay}
        policy, settings = asked_for(self.policy, named, **others)
        return Controller(policy, settings, tolerance=self.tolerance, rounds=self.rounds)

    def _task(self, fl_ctx: FLContext, name: str) -> TaskServer:
        """Return a task; the first filter that asks for it makes it, by its own settings."""
        initial = self.shared_initial
        return _tasks.of(
            fl_ctx, name, lambda: TaskServer(name, self._controller(), shared_initial=initial)
        )

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Log the last round at the end of the job."""
        if event_type == EventType.ABOUT_TO_END_RUN:
            for task in _tasks.take(fl_ctx):
                task.end_round()

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Do as NVFlare's filters do; a result that is of no use becomes an error result."""
        try:
            return super().process(shareable, fl_ctx)
        except FedszError as err:
            client, task = _peer(fl_ctx), fl_ctx.get_prop(FLContextKey.TASK_NAME, "")
            why = f"{type(err).__name__}: {one_line(str(err))}"
            if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.OUT:
                self.log_error(fl_ctx, f"fedsz: {task} goes to {client} as it is: {why}")
                return shareable
            self.log_error(fl_ctx, f"fedsz: {task} of {client} is left out: {why}")
            self._task(fl_ctx, task).failed(client, why)
            refused = make_copy(shareable)
            refused.pop("DXO", None)
            refused.set_return_code(ReturnCode.TASK_RESULT_FILTER_ERROR)
            return refused

    def going_out(self, dxo: DXO, task: Task, fl_ctx: FLContext) -> DXO | None:
        """Compress the model in a task's data, by which model the client says that it has."""
        client, arrays = _peer(fl_ctx), arrays_in(dxo)
        if sum(x.nbytes for x in arrays.values()) < LEAST_BYTES:
            return None
        announcement = announced(fl_ctx.get_peer_context().get_prop(NAME))
        if announcement is None:
            if client not in self._without:
                self._without.add(client)
                why = "it has no filter of fedsz, or one of another version"
                self.log_warning(fl_ctx, f"fedsz: {client} is sent models as they are: {why}")
            return None
        server = self._task(fl_ctx, task.name)
        stream, request = server.pack(client, announcement, task, arrays)
        return sealed(dxo, arrays, stream, request.encode())

    def coming_in(self, dxo: DXO, task: Task, fl_ctx: FLContext) -> DXO | None:
        """Decompress a task's result."""
        server, client = self._task(fl_ctx, task.name), _peer(fl_ctx)
        content, result = opened(dxo), None
        if content is not None:
            is_step = dxo.data_kind == DataKind.WEIGHT_DIFF
            result = plain(dxo, server.unpack(client, task, content, is_step=is_step), content)
        metrics = dxo.get_meta_prop(MetaKey.INITIAL_METRICS)
        if isinstance(metrics, dict):
            server.evaluated(client, {str(name): value for name, value in metrics.items()})
        return result


def _peer(fl_ctx: FLContext) -> str:
    """Return the name of the site at the other end."""
    return str(fl_ctx.get_peer_context().get_identity_name())


def add_fedsz(
    recipe: Recipe,
    *,
    tasks: Sequence[str] = ("train",),
    initial: str | None = None,
    **settings: Any,
) -> None:
    """Compress what the tasks of a recipe send, both ways.

    Filters of a task run in the order in which they are added. So add those that change a model,
    such as differential privacy, before: on a way out fedsz should be the last.

    Args:
        recipe: of any algorithm whose tasks carry WEIGHTS or WEIGHT_DIFF.
        tasks: their names.
        initial: a .safetensors file of the first model, where all sites have it at this path; see
            `FedSZClientFilter`.
        settings: of `FedSZServerFilter`; without any, the policy "auto" decides all.

    Raises:
        ConfigError: a setting is out of range or does not exist.
        CodecUnavailable: a codec's library is not installed here.
    """
    server = FedSZServerFilter(**settings, shared_initial=initial is not None)
    client, names = FedSZClientFilter(initial), list(tasks)
    # NVFlare copies what it takes for an app's own sources into the job; fedsz is of the sites, and
    # a copy would lack its native modules. The recipe has no public way to say so.
    job = recipe._job
    job.set_app_packages([*job.job.app_packages, "fedsz"])
    recipe.add_server_output_filter(server, tasks=names)
    recipe.add_server_input_filter(server, tasks=names)
    recipe.add_client_input_filter(client, tasks=names)
    recipe.add_client_output_filter(client, tasks=names)
