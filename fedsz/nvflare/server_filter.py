"""The filter of a job's server."""

from __future__ import annotations

from typing import Final

from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_copy

from fedsz.control.controller import Controller, asked_for
from fedsz.control.policy import DEFAULT_TOLERANCE
from fedsz.core.settings import DEFAULT, LEAST_BYTES
from fedsz.errors import ConfigError, FedszError
from fedsz.formatting import one_line
from fedsz.nvflare.content import NAME, announced, arrays_in, opened, plain, sealed
from fedsz.nvflare.model_filter import ModelFilter, Shared, Task
from fedsz.nvflare.task_server import TaskServer

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
