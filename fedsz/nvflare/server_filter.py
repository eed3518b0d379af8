"""The filter of a job's server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_copy

from fedsz.control.policy import Controller, asked_for
from fedsz.control.rule import DEFAULT_TOLERANCE
from fedsz.core.reply_report import ReplyReport
from fedsz.core.settings import DEFAULT, LEAST_BYTES
from fedsz.errors import CorruptStream, FedszError
from fedsz.formatting import one_line
from fedsz.nvflare.content import NAME, VERSION, Sealed, content_of, opened, plain, sealed
from fedsz.nvflare.model_filter import ModelFilter, Shared, TaskContext
from fedsz.nvflare.task_server import TaskServer, require_usable


class _Job:
    """The tasks of a job, by name."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskServer] = {}
        self.without: set[str] = set()  # clients that are known to have no such filter
        self._lock = threading.Lock()

    def task(self, name: str, make: Callable[[str], TaskServer]) -> TaskServer:
        """Return a task; the first filter that asks for it makes it, by its own settings."""
        with self._lock:
            if name not in self.tasks:
                self.tasks[name] = make(name)
            return self.tasks[name]


_jobs: Final = Shared[_Job]()


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
        untrained: whether the first model has random weights: of them, those with two dimensions
            or more go out within a sixteenth of their range. Say so of no model that was trained.
        shared_initial: whether clients may have the first model; see `FedSZClientFilter`.

    Raises:
        ConfigError: one of these is out of range or does not exist, or needs `fedsz.flower`.
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
        untrained: bool = False,
        shared_initial: bool = False,
    ) -> None:
        super().__init__()
        # NVFlare writes the attributes of these names into a job's config.
        self.policy, self.tolerance, self.rounds = policy, tolerance, rounds
        self.error_bound, self.threshold, self.rule = error_bound, threshold, rule
        self.update, self.downlink = update, downlink
        self.codec, self.lossless, self.decay = codec, lossless, decay
        self.untrained, self.shared_initial = untrained, shared_initial
        require_usable(self._controller())

    def _controller(self) -> Controller:
        names = ("error_bound", "threshold", "rule", "update", "downlink")
        named = {name: getattr(self, name) for name in names}
        others = {"codec": self.codec, "lossless": self.lossless, "decay": self.decay}
        policy, config = asked_for(self.policy, named, **others)
        return Controller(policy, config, tolerance=self.tolerance, rounds=self.rounds)

    def _job(self, fl_ctx: FLContext) -> _Job:
        return _jobs.of(fl_ctx, _Job)

    def _task(self, fl_ctx: FLContext, name: str) -> TaskServer:
        return self._job(fl_ctx).task(name, self._new_task)

    def _new_task(self, name: str) -> TaskServer:
        shared, untrained = self.shared_initial, self.untrained
        return TaskServer(name, self._controller(), shared_initial=shared, untrained=untrained)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Log the last round at the end of the job."""
        if event_type == EventType.ABOUT_TO_END_RUN:
            tasks = self._job(fl_ctx).tasks
            while tasks:
                tasks.popitem()[1].end_round()

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

    def going_out(self, dxo: DXO, task: TaskContext) -> DXO | None:
        """Compress the model in a task's data, by what the client says that it holds."""
        fl_ctx, content = task.fl_ctx, content_of(dxo)
        job, client = self._job(fl_ctx), _peer(fl_ctx)
        if content is None or content.nbytes < LEAST_BYTES:
            return None
        said = fl_ctx.get_peer_context().get_prop(NAME)
        if not isinstance(said, dict) or said.get("version") != VERSION:
            if client not in job.without:
                job.without.add(client)
                have = said.get("version") if isinstance(said, dict) else "none"
                why = f"its filter is of version {have}, and this of {VERSION}"
                self.log_warning(fl_ctx, f"fedsz: {client} is sent models as they are: {why}")
            return None
        streams, told = self._task(fl_ctx, task.name).pack(
            client,
            content.arrays,
            task.number,
            _held(said, task.name),
            has_initial=said.get("initial") is True,
        )
        note = {"told": told.written(), "tensors": content.as_tensors}
        return sealed(dxo, streams, content.beside, **note)

    def coming_in(self, dxo: DXO, task: TaskContext) -> DXO | None:
        """Decompress a task's result."""
        server, client = self._task(task.fl_ctx, task.name), _peer(task.fl_ctx)
        content = opened(dxo)
        result = None if content is None else _unpacked(dxo, content, client, server)
        metrics = dxo.get_meta_prop(MetaKey.INITIAL_METRICS)
        if isinstance(metrics, dict):
            server.evaluated(client, {str(name): value for name, value in metrics.items()})
        return result


def _unpacked(dxo: DXO, content: Sealed, client: str, server: TaskServer) -> DXO:
    """Return a sealed result's arrays in its place."""
    if len(content.streams) != 1:
        raise CorruptStream(f"a result of {len(content.streams)} streams", offset=0)
    said = content.note.get("said")
    report = ReplyReport.read(said if isinstance(said, dict) else None)
    turn, as_tensors = content.note.get("turn"), content.note.get("tensors") is True
    (stream,) = content.streams
    differs = dxo.data_kind == DataKind.WEIGHT_DIFF
    arrays = server.unpack(client, stream, turn, report, differs=differs)
    return plain(dxo, arrays, content.beside, as_tensors=as_tensors)


def _peer(fl_ctx: FLContext) -> str:
    """Return the name of the site at the other end."""
    return str(fl_ctx.get_peer_context().get_identity_name())


def _held(said: dict[str, Any], task: str) -> bytes:
    """Return the digest of the model that a client says it holds, or b""."""
    holds = said.get("holds")
    digest = holds.get(task, "") if isinstance(holds, dict) else ""
    try:
        return bytes.fromhex(digest)
    except (TypeError, ValueError):
        return b""
