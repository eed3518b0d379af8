"""The filter of a job's clients."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext

from fedsz.arrays import Layout
from fedsz.core.client import check_finite, coded_update, initial_point, received
from fedsz.core.decode import decompress
from fedsz.core.protocol import Instructions
from fedsz.core.reference import Reference
from fedsz.core.reply_report import ReplyReport
from fedsz.core.settings import LEAST_BYTES
from fedsz.errors import CorruptStream, FedszError
from fedsz.nvflare.content import NAME, VERSION, content_of, opened, plain, sealed
from fedsz.nvflare.kept import Kept
from fedsz.nvflare.model_filter import ModelFilter, Shared, TaskContext
from fedsz.safetensors_file import INITIAL, read_safetensors
from fedsz.stream import Limits


class _Asked(NamedTuple):
    """What a client was last sent of a task: what it was told, and the model."""

    task_id: str
    told: Instructions
    sent: Reference


class _Job:
    """What a client's filters know of a job."""

    def __init__(self, client: str) -> None:
        self.kept = Kept(client)
        self.has_initial = True  # as long as the server's has been no other
        self.asked: dict[str, _Asked] = {}  # by task


_jobs: Final = Shared[_Job]()


class FedSZClientFilter(ModelFilter):
    """The client's filter: it decompresses task data and compresses task results.

    It has no settings: the server's come with each task. What a result leaves out goes into the
    next one, and the model is kept until the next one is sent as what it differs by. Both are in
    memory: a client that starts again says so with its first request, and is sent the whole.

    Args:
        initial: a .safetensors file of the model that training starts from, where this site has it.
            A server with ``shared_initial`` names its first model then and does not send it. If it
            has another, the first task of this client fails, and the next one brings the whole.
    """

    def __init__(self, initial: str | None = None) -> None:
        super().__init__()
        self.initial = initial

    def _job(self, fl_ctx: FLContext) -> _Job:
        return _jobs.of(fl_ctx, lambda: _Job(fl_ctx.get_identity_name()))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Say at the start of the job that this filter is here."""
        if event_type == EventType.START_RUN:
            self._tell(fl_ctx)

    def _tell(self, fl_ctx: FLContext) -> None:
        """Have the next requests say which models are here."""
        job = self._job(fl_ctx)
        has_initial = self.initial is not None and job.has_initial
        said = {"version": VERSION, "holds": job.kept.digests, "initial": has_initial}
        fl_ctx.set_prop(NAME, said, private=False, sticky=True)

    def coming_in(self, dxo: DXO, task: TaskContext) -> DXO | None:
        """Decompress the model in a task's data.

        Raises:
            FedszError: it does not decode; NVFlare makes an error result of it. The model that was
                kept is forgotten, and the next task brings a whole one.
        """
        name, job = task.name, self._job(task.fl_ctx)
        job.asked.pop(name, None)
        try:
            content = opened(dxo)
            if content is None:
                return None
            said = content.note.get("told")
            told = Instructions.read(said if isinstance(said, dict) else {})
            model = self._received(name, content.streams, told, job.kept)
        except FedszError:
            job.has_initial = False
            job.kept.keep_model(name, None)
            job.kept.forget_residual(name)
            self._tell(task.fl_ctx)
            raise
        job.kept.keep_model(name, model if name in told.holds else None)
        self._tell(task.fl_ctx)
        as_tensors = content.note.get("tensors") is True
        job.asked[name] = _Asked(task.task_id, told, model)
        own = {name: x.copy() for name, x in model.arrays.items()}  # training may write into them
        return plain(dxo, own, content.beside, as_tensors=as_tensors)

    def going_out(self, dxo: DXO, task: TaskContext) -> DXO | None:
        """Compress a task's result, where its data came compressed.

        Raises:
            DivergedUpdate: training made NaN or infinities of a finite tensor.
        """
        name, job, content = task.name, self._job(task.fl_ctx), content_of(dxo)
        asked = job.asked.get(name)
        if asked is None or asked.task_id != task.task_id:
            return None
        if content is None or content.nbytes < LEAST_BYTES:
            return None
        kept, told, arrays = job.kept, asked.told, content.arrays
        if not asked.sent.fits(Layout.of(arrays)):  # another model, or other dtypes
            check_finite(name, arrays, asked.sent, kept)
            kept.forget_residual(name)
            return None
        differs = dxo.data_kind == DataKind.WEIGHT_DIFF
        start = asked.sent
        if differs:
            start = Reference({name: np.zeros_like(x) for name, x in arrays.items()})
        stream, report, arrived = coded_update(name, arrays, told, start, kept, differs=differs)
        if len(stream) >= content.nbytes:
            kept.forget_residual(name)
            return None
        said = ReplyReport.of([report], [arrived], feeds_back=told.config.feeds_back)
        note = {"said": said.written(), "turn": told.turn, "tensors": content.as_tensors}
        return sealed(dxo, [stream], content.beside, **note)

    def _received(
        self, task: str, streams: list[bytes], told: Instructions, kept: Kept
    ) -> Reference:
        """Return the model in a task's data."""
        limits = Limits().together(sum(map(len, streams)))
        if task in told.holds:
            return received(
                task, streams, {}, told, kept, partial(self._initial_point, told), limits
            )
        model = None
        for stream in streams:
            model = Reference(decompress(stream, reference=model, as_numpy=True, limits=limits))
        if model is None:
            raise CorruptStream("a sealed DXO holds no streams", offset=0)
        return model

    def _initial_point(self, told: Instructions) -> Reference | None:
        if self.initial is None:
            return None
        return initial_point(read_safetensors(Path(self.initial), INITIAL), told.config)
