"""A client's side of a round: the model that it is sent, and what it makes of it as a stream.

What it keeps from one message to the next is a `Keeper`'s: each system has its own place for that.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np

from fedsz.arrays import NDArray, New, StateDict, as_arrays, new_memory
from fedsz.core.ahead import ALIKE, finer, is_step, less_head_start
from fedsz.core.bound_encoder import UpdateEncoder
from fedsz.core.chained import ChainEncoder
from fedsz.core.decode import arrays_of
from fedsz.core.encode import Report, compress_measured
from fedsz.core.feedback import ErrorFeedback
from fedsz.core.grid import place_first
from fedsz.core.protocol import Instructions
from fedsz.core.reference import Reference, require_reference, shown
from fedsz.core.settings import Settings
from fedsz.core.shift import NO_SHIFT, agreed_shift, shift_after, shifted, with_shift
from fedsz.core.step import Arrival, energies, scales_of_step
from fedsz.errors import DivergedUpdate, ReferenceMismatch
from fedsz.methods import History
from fedsz.methods.combinators import by_step
from fedsz.methods.state import tensor_of
from fedsz.stream import Limits, Reader

logger = logging.getLogger(__name__)

_SHOWN: Final = 5  # tensors that an error names


class Keeper(Protocol):
    """What a client keeps from one message to the next, by the keys of its models."""

    @property
    def sender(self) -> int:
        """A number that tells this client apart from others, 0 to 2^64 - 1."""

    def model(self, key: str) -> Reference | None:
        """Return the model that the client holds, if any."""

    def history(self, key: str) -> History:
        """Return what broadcasts have shown, if anything has been kept."""

    def keep_history(self, key: str, history: History | None) -> None:
        """Keep what broadcasts have shown; None forgets it."""

    def turn(self, key: str, told: Instructions) -> int:
        """Return the turn of the last reply that is known here; -1 of none in this run."""

    def residual(self, key: str, told: Instructions) -> tuple[dict[str, NDArray], int]:
        """Return the residual and its age in turns, at least 1; that of another run is none."""

    def keep_residual(self, key: str, residual: dict[str, NDArray], told: Instructions) -> None:
        """Keep what this turn has left out, which may be emptied on the way."""

    def forget_residual(self, key: str) -> None:
        """Keep nothing of what any turn has left out."""


def initial_point(state: StateDict, config: Settings) -> Reference:
    """Return the model that training starts from as a server's lattice has it.

    Args:
        state: the model, in any order: files do not keep a model's.
        config: what the server has told.
    """
    arrays = as_arrays(state)
    return Reference(dict(sorted({**arrays, **place_first(arrays, config).points}.items())))


def received(
    key: str,
    streams: Sequence[bytes],
    plain: Mapping[str, NDArray],
    told: Instructions,
    keeper: Keeper,
    initial: Callable[[], Reference | None],
    limits: Limits,
    new: New = new_memory,
) -> Reference:
    """Return a model that a client is to hold: whole, or by what it differs from the one held here.

    Args:
        key: of the model; one of ``told.holds``.
        streams: that lead to it, in their order.
        plain: the model itself where it came as it is; else empty.
        told: what the server said beside it.
        keeper: of what is held here.
        initial: returns the model that training starts from, if it is here.
        limits: what a stream may ask for.
        new: makes the memory of arrays, where a codec decodes into such.

    Raises:
        ReferenceMismatch: it differs from a model that is not held here.
        CorruptStream: a stream is damaged, or asks for more than ``limits``.
    """
    before = model = keeper.model(key)
    if model is not None and model.digest == told.holds[key]:
        model.history = _history(key, told, keeper, None, model)
        return model  # it has been here before a crash of the server, which knows of an older one
    if plain:
        model = Reference(plain)  # smaller as it is
    else:
        wanted = Reader(streams[0], limits).header.reference if streams else told.holds[key]
        if wanted and (model is None or model.digest != wanted):
            model = initial()
            if model is not None and model.digest != wanted and not told.replied:
                have, want = shown(model.digest), shown(wanted)
                logger.warning(
                    "the initial model here is %s, the server's %s: it sends it", have, want
                )
    for stream in streams:
        model = Reference(arrays_of(Reader(stream, limits), model, new))
    if model is None:
        raise ReferenceMismatch("the server sent no model, and this client holds none")
    require_reference(told.holds[key], model)
    model.history = _history(key, told, keeper, before, model)
    return model


def _history(
    key: str, told: Instructions, keeper: Keeper, before: Reference | None, now: Reference
) -> History | None:
    """Return what broadcasts have shown on the way to a model, as the server has it; and keep it.

    The server goes on with what it had, or starts anew by this broadcast; None where it has shown
    this client another, or nothing.
    """
    found, wanted = None, told.histories.get(key)
    if wanted is not None:
        kept = keeper.history(key)
        if before is None:
            found = kept if kept.digest == wanted else None
        else:
            digests = before.digest + now.digest
            begun = (History(), History.trending())
            known = (h for h in (kept, *begun) if h.digest_after(digests) == wanted)
            earlier = next(known, None)
            found = earlier.beyond(before, now) if earlier else None
    keeper.keep_history(key, found)
    return found


def coded_update(
    key: str,
    arrays: Mapping[str, NDArray],
    told: Instructions,
    sent: Reference,
    keeper: Keeper,
    *,
    differs: bool = False,
) -> tuple[bytes, Report, Arrival]:
    """Return what a client made of the model that it was sent, as a stream.

    An app may reply with its step in place of a model: that is coded as it is.

    Args:
        key: of the model.
        arrays: after training.
        told: what the server said beside the model.
        sent: the model; it has all of ``arrays``, in the same dtypes and shapes, and says what
            training has begun with.
        keeper: of the residual.
        differs: whether ``arrays`` are differences already, and ``sent`` is zero: then the stream
            refers to no model.

    Raises:
        DivergedUpdate: a tensor that was finite is not any more.
    """
    config, chain, began = told.config, told.config.chain, sent
    keeps_state = config.keeps_state and told.trains
    kept, age = keeper.residual(key, told) if keeps_state else ({}, 1)
    forgets = keeps_state and told.replied and config.bound.kind == "step"
    forgets = forgets and keeper.turn(key, told) < 0
    factors = finer(arrays, config, forgets=forgets)
    if forgets and factors:
        config = _without_memory(key, config)
    if chain is None and not differs and is_step(arrays, sent):
        # As differences from the model they would have its scale, and so would their bounds.
        differs, sent = True, Reference({name: np.zeros_like(x) for name, x in arrays.items()})
    if not differs:
        arrays = less_head_start(arrays, sent)
    waiting = _of_absent(kept, arrays, began, config)
    kept = {name: x for name, x in kept.items() if name not in waiting}
    base, shift = sent if config.sends_differences and not differs else None, NO_SHIFT
    encoder: UpdateEncoder | ChainEncoder
    if chain is None:
        meant = ErrorFeedback(arrays, kept, decay=config.decay, age=age)
        config = config.with_factors(factors)
        encoder = UpdateEncoder(meant, config, sent)
    else:
        shift = agreed_shift(kept, digest := told.shifts.get(key))
        if digest and not shift:
            logger.error("%r starts anew: the server has another shift than is kept here", key)
        base = shifted(sent, shift)
        scales = scales_of_step(energies(arrays, sent, config)) if by_step(chain) else {}
        scales = {name: scale * factors.get(name, 1.0) for name, scale in scales.items()}
        encoder = ChainEncoder(
            chain,
            seed=told.seed,
            round=told.turn,
            sender=keeper.sender,
            kept=kept,
            sent=sent,
            history=sent.history,
            scales=scales,
        )
    stream, report = compress_measured(arrays, config, base, encoder=encoder)
    log_misfits(key, encoder.misfits)
    check_finite(key, arrays, began, keeper, encoder.steps)
    if keeps_state:
        if chain is not None and config.learns_shifts:
            assert base is not None
            shift = shift_after(stream, base, shift, chain)
        left = with_shift(encoder.left, shift) if shift else encoder.left
        weight = 1.0 if chain else config.decay**age
        waits = {
            name: x if weight == 1 else x * x.dtype.type(weight) for name, x in waiting.items()
        }
        keeper.keep_residual(key, left | waits, told)
    elif told.trains:
        keeper.forget_residual(key)
    return stream, report, encoder.arrived


def _without_memory(key: str, config: Settings) -> Settings:
    """Return a config that leaves less to later rounds, of which a client may know nothing."""
    _warn_without_memory(key)
    return config.replace(codec=config.lossy_codec.told)


@cache
def _warn_without_memory(key: str) -> None:
    """Warn once in a process: who keeps nothing would in each round."""
    logger.warning(
        "nothing is here of what the last reply left out of %r: it is sent within %g steps, which"
        " takes more bytes; does anything keep this client's state?",
        key,
        ALIKE,
    )


def _of_absent(
    kept: Mapping[str, NDArray],
    arrays: Mapping[str, NDArray],
    model: Reference,
    config: Settings,
) -> dict[str, NDArray]:
    """Return what has been kept of the model's tensors that are not replied: it goes on waiting."""
    tensors = {name: name if config.chain is None else tensor_of(name) for name in kept}
    return {
        name: kept[name]
        for name, tensor in tensors.items()
        if tensor in model.arrays and tensor not in arrays
    }


def check_finite(
    key: str,
    arrays: Mapping[str, NDArray],
    sent: Reference,
    keeper: Keeper,
    steps: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Raise `DivergedUpdate` for an update that has diverged, and forget its residual.

    Tensors whose step has a finite norm in ``steps`` have not.
    """
    for name, before in sent.arrays.items():
        if name not in arrays or math.isfinite(steps.get(name, math.nan)):
            continue
        if not np.isfinite(arrays[name]).all() and np.isfinite(before).all():
            keeper.forget_residual(key)
            raise DivergedUpdate(f"training made NaN or infinities of {name!r}; nothing is sent")


def log_misfits(key: str, misfits: Mapping[str, str]) -> None:
    """Log an error if something was kept that cannot be used; ``misfits`` say why, by tensor."""
    if misfits:
        named = "; ".join(f"{name}: {why}" for name, why in sorted(misfits.items())[:_SHOWN])
        rest = f"; and {len(misfits) - _SHOWN} more" if len(misfits) > _SHOWN else ""
        logger.error("what %r kept does not fit, and starts anew: %s%s", key, named, rest)
