"""The filter of a job's clients."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext

from fedsz.arrays import LOSSY_DTYPES, NDArray, StateDict
from fedsz.core.client import ClientSession
from fedsz.core.protocol import Request
from fedsz.errors import FedszError
from fedsz.nvflare.content import NAME, Announcement, arrays_in, opened, plain, sealed
from fedsz.nvflare.kept import ClientState
from fedsz.nvflare.model_filter import ModelFilter, Shared, Task
from fedsz.safetensors_file import INITIAL, read_safetensors
from fedsz.stream import Limits

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
