"""A client's side of a request: the reference model that it is sent, and its update as a stream.

Knows no Flower: the mod, the filters of NVFlare and the fleet's client use it. A `Store` has what a
client keeps from one request to the next: two models, the reference and the residual.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Final, Protocol

import numpy as np

from fedsz.arrays import LOSSY_DTYPES, Layout, NDArray, StateDict, as_arrays, cast, is_finite
from fedsz.core.broadcast import initial_reference
from fedsz.core.coders import PipelineCoder
from fedsz.core.decode import arrays_of
from fedsz.core.encode import Report, compress_measured
from fedsz.core.feedback import RESIDUAL, Update, UpdateEnergy, by_tensor, flat
from fedsz.core.protocol import ReplyNote, Request
from fedsz.core.reference import (
    Reference,
    bounds_of_step,
    energies,
    is_step,
    require_reference,
    scales_of_step,
    shown,
)
from fedsz.errors import DivergedUpdate, NeedsKeyFrame
from fedsz.methods import Chain, State
from fedsz.stream import Limits, Reader

logger = logging.getLogger(__name__)

# Of a tensor, beside the residual: the one that a reply of this round began with.
BEFORE: Final = "before"

Memory = dict[str, NDArray]  # residuals and methods' state, see `fedsz.core.feedback.flat`


class Store(Protocol):
    """Where a client keeps its state from one request to the next, by the keys of its models."""

    def reference(self, key: str) -> Reference | None:
        """Return the reference model, if there is one."""

    def keep_reference(self, key: str, model: Reference) -> Reference:
        """Keep the reference model, and return it as it is kept; the arrays leave ``model``."""

    def memory(self, key: str) -> tuple[Memory, bytes, int]:
        """Return residuals and methods' state, and the run and the round that they are of."""

    def keep_memory(self, key: str, memory: Memory, run: bytes, round_number: int) -> None:
        """Keep them; the arrays leave ``memory``. An empty memory forgets."""


class ClientSession:
    """One request, from its message to the reply.

    Args:
        request: of the server.
        store: of this client.
        sender: a number that tells this client apart from others, 0 to 2^64 - 1.
        initial: returns the model that training starts from, if this client has it.
        limits: what the streams of the message may ask for together.

    Attributes:
        models: by key, the reference models that were received.
        is_step: whether the app has replied with a step in place of a model.
    """

    def __init__(
        self,
        request: Request,
        store: Store,
        *,
        sender: int = 0,
        initial: Callable[[], StateDict | None] = lambda: None,
        limits: Limits | None = None,
    ) -> None:
        self.request, self._store, self._sender = request, store, sender
        self._initial, self._limits = initial, limits or Limits()
        self.models: dict[str, Reference] = {}
        self.is_step = False
        self._had: dict[str, bytes] = {}
        self._reports: list[Report] = []

    def receive(self, key: str, stream: bytes) -> Reference:
        """Return the model that a message has under a key, and keep it if the server says so.

        Args:
            key: of the model.
            stream: of a key frame or a delta; b"" if this client is to have the model.

        Raises:
            NeedsKeyFrame: this client lacks the model that the stream starts from.
            ReferenceMismatch: a key frame is another model than the server says.
            CorruptStream: the stream is damaged, or asks for more than the limits.
        """
        base, wanted = self.request.base.get(key, b""), self.request.reference.get(key)
        before = self._store.reference(key)
        if before is not None:
            self._had[key] = before.digest
        if before is not None and before.digest == wanted:
            self.models[key] = before
            return before
        model = start = self._starting_from(key, base, before) if base else None
        if stream or model is None:
            known = (
                self._limits if start is None else self._limits.of_known(Layout.of(start.arrays))
            )
            reader = Reader(stream, known)
            self._limits = self._limits.less(reader.header.decoded_bytes)
            model = Reference(arrays_of(reader, start))
        if wanted:
            if base and model.digest != wanted:
                raise NeedsKeyFrame(f"{key!r}: the delta leads to another model than the server's")
            require_reference(wanted, model)
            model = self._store.keep_reference(key, model)
        self.models[key] = model
        return model

    def _starting_from(self, key: str, base: bytes, before: Reference | None) -> Reference:
        """Return the model of a digest: the one kept here, or the initial one."""
        if before is not None and before.digest == base:
            return before
        try:
            initial = self._initial()
            model = (
                initial_reference(as_arrays(initial), self.request.settings) if initial else None
            )
        except Exception as err:  # of the caller's function
            logger.warning("no initial model here, the server sends it: %s", err)
            model = None
        if model is not None and model.digest == base:
            self._had[key] = base
            return model
        have = [shown(one.digest) for one in (before, model) if one is not None] or ["none"]
        raise NeedsKeyFrame(f"{key!r} starts from model {shown(base)}; here: {', '.join(have)}")

    def reply(self, key: str, trained: Mapping[str, NDArray], *, known_step: bool = False) -> bytes:
        """Return the arrays of a reply as a stream, and keep the residual.

        Args:
            key: as the reply calls its arrays.
            trained: the app's arrays. Those of a reply that does not train, or that no model was
                received for, are sent without loss. Floats are sent in the dtypes of the
                reference model.
            known_step: whether they are known to be a step; else their values tell.

        Raises:
            DivergedUpdate: a tensor that was finite is not any more.
        """
        reference = self.models.get(key)
        if reference is None and len(self.models) == 1:
            (reference,) = self.models.values()
        if self.request.trains and reference is not None:
            arrays = _in_dtypes_of(reference, trained)
            replies_step = known_step or is_step(arrays, reference)
            return self._coded(key, arrays, reference, replies_step=replies_step)
        stream, report = compress_measured(trained, self.request.settings.lossless_only)
        self._reports.append(report)
        return stream

    def _coded(
        self,
        key: str,
        arrays: Mapping[str, NDArray],
        reference: Reference,
        *,
        replies_step: bool,
    ) -> bytes:
        """Code an update with error feedback, if the server asks for it."""
        request, settings = self.request, self.request.settings
        self.is_step |= replies_step
        start, base = reference, reference if settings.sends_differences else None
        if replies_step:
            start, base = Reference({n: np.zeros_like(x) for n, x in arrays.items()}), None
        states, waited = self._states(key)
        # Each residual is freed as the new one is made: an error on the way forgets all.
        self._store.keep_memory(key, {}, request.run, request.round - waited)
        chain = settings.pipeline
        is_by_step = chain.by_step if chain else settings.bound.kind == "step"
        moved = energies(arrays, start, settings) if is_by_step else {}
        self._check_finite(key, arrays, reference, moved)
        decay = settings.feedback_decay
        stream, report = compress_measured(
            arrays,
            settings,
            base,
            bounds=bounds_of_step(moved, settings),
            pipeline=None if chain is None else self._pipeline(chain, scales_of_step(moved)),
            update=Update(start, states, None if decay is None else decay**waited),
        )
        memory = flat(report.states) if settings.keeps_state else {}
        self._reports.append(replace(report, states={}))
        del report  # its arrays are in the memory
        self._store.keep_memory(key, memory, request.run, request.round)
        return stream

    def residuals(self, key: str) -> dict[str, NDArray]:
        """Return the residual of earlier rounds, by tensor, for an encoder of the caller's own.

        Also where this round has been answered before: such a reply is made anew, not kept.
        """
        memory, run, of_round = self._store.memory(key)
        if (run, of_round) == (self.request.run, self.request.round):
            return _of_all(by_tensor(memory), BEFORE)
        return _of_all(self._states(key)[0], RESIDUAL)

    def keep_residuals(self, key: str, residuals: Mapping[str, NDArray]) -> None:
        """Keep the residual of this round, by tensor, beside that of earlier rounds."""
        memory = flat({name: {RESIDUAL: r} for name, r in residuals.items()})
        memory |= flat({name: {BEFORE: r} for name, r in self.residuals(key).items()})
        self._store.keep_memory(key, memory, self.request.run, self.request.round)

    def _states(self, key: str) -> tuple[dict[str, dict[str, NDArray]], int]:
        """Return residuals and methods' state by tensor, and the rounds since, at least 1.

        What is of another run, or of this round or a later one, is of another past than the
        server's: nothing is returned.
        """
        memory, run, of_round = self._store.memory(key)
        if run != self.request.run or of_round >= self.request.round:
            return {}, 1
        finite = {name: x for name, x in memory.items() if is_finite(x)}
        return by_tensor(finite), self.request.round - of_round

    def _pipeline(self, chain: Chain, scales: Mapping[str, float]) -> PipelineCoder:
        """Return what codes an update by a pipeline, with the random numbers of this round."""
        request = self.request
        return PipelineCoder(chain, request.seed, request.round, self._sender, scales)

    def _check_finite(
        self,
        key: str,
        arrays: Mapping[str, NDArray],
        reference: Reference,
        moved: Container[str],
    ) -> None:
        """Raise `DivergedUpdate` for an update that has diverged, and forget its residual.

        Tensors in ``moved`` have a finite step.
        """
        for name, before in reference.arrays.items():
            if name not in arrays or name in moved:
                continue
            if not is_finite(arrays[name]) and is_finite(before):
                self._store.keep_memory(key, {}, self.request.run, self.request.round)
                raise DivergedUpdate(
                    f"training made NaN or infinities of {name!r}; nothing is sent"
                )

    def note(self) -> ReplyNote:
        """Return what goes beside the streams of the reply."""
        reports = self._reports
        total = UpdateEnergy.total(report.energy for report in reports)
        is_known = total.tensors > 0  # some records have nothing to compare
        feeds_back = self.request.trains and self.request.settings.feedback_decay is not None
        return ReplyNote(
            is_step=self.is_step,
            had=dict(self._had),
            encode_seconds=sum(report.seconds for report in reports),
            max_error=max((report.max_error for report in reports), default=0.0),
            tensors=sum(report.tensors for report in reports),
            lossy=sum(report.lossy for report in reports),
            energy_fraction=max(total.fraction, 0.0) if is_known else None,
            residual_ratio=total.residual_ratio if is_known and feeds_back else None,
            moved=float(total.step > 0) if is_known else None,
        )


def _of_all(states: Mapping[str, State], key: str) -> dict[str, NDArray]:
    """Return the array of one key by tensor, of those that have it."""
    return {name: state[key] for name, state in states.items() if key in state}


def _in_dtypes_of(reference: Reference, arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
    """Return a reply's floats in the dtypes of the reference model."""
    found = dict(arrays)
    for name, x in arrays.items():
        like = reference.arrays.get(name)
        if like is not None and {x.dtype, like.dtype} <= LOSSY_DTYPES:
            with np.errstate(over="ignore"):
                found[name] = cast(x, like.dtype)
    return found
