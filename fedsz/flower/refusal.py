"""Why a reply does not count, and the norm of an update that may be such a reason."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
from flwr.app import Message

from fedsz.errors import CodecError, CorruptStream, FedszError, ModelMismatch, RefusedReply
from fedsz.flower.records import STYPE
from fedsz.formatting import one_line

logger = logging.getLogger(__name__)


class Refusal(StrEnum):
    """The kinds of reasons for which a round goes on without a client's reply."""

    FAILED = "failed"  # an error reply: the client's own, or nothing came
    DAMAGED = "damaged"  # bytes that do not decode
    MODEL = "model"  # other names, shapes or reference than the model's
    CODEC = "codec"  # one that was not ordered, or is not installed here
    RECORDS = "records"  # other records or metrics than the other replies hold
    METRIC = "metric"  # a metric that is not finite
    WEIGHT = "weight"  # a weight out of range
    NOT_FINITE = "not finite"  # NaN, infinities, or values whose squares are
    NORM = "norm"  # an update that is too large
    QUORUM = "quorum"  # too few others have replied; no fault of its own
    STALE = "stale"  # an update of a model that is too old; no fault of its own
    BENCHED = "benched"  # not asked, because it kept failing


def kind_of(err: FedszError) -> Refusal:
    """Return the kind of an exception that opening a reply has raised."""
    if isinstance(err, RefusedReply):
        return Refusal(err.kind)
    kinds = {CorruptStream: Refusal.DAMAGED, ModelMismatch: Refusal.MODEL}
    kinds[CodecError] = Refusal.CODEC
    return next((kind for cls, kind in kinds.items() if isinstance(err, cls)), Refusal.RECORDS)


# What mods say, and those of legacy apps, that stand before FedSZMod and so see what is sealed.
MISPLACED: Final = (STYPE, "expects exactly one ConfigRecord", "This file contains pickled")


def reason_of(reply: Message) -> str:
    """Return what an error reply says, on one line."""
    reason = one_line(said := str(reply.error.reason))  # Flower's own Grids do not cut it
    if any(text in said for text in MISPLACED) and not said.startswith("fedsz: "):
        return f"{reason}; is FedSZMod() the first of its ClientApp's mods?"
    return reason


def told(err: FedszError) -> str:
    """Return why a reply was refused, in a line for people; what it names may be the sender's."""
    return one_line(str(err) if isinstance(err, RefusedReply) else f"{type(err).__name__}: {err}")


@contextmanager
def refusing_failures() -> Iterator[None]:
    """Refuse the reply whose check fails in a way that nobody has foreseen.

    Such a failure is a bug, and is logged with its place; a client that finds one ends no server.
    `MemoryError` passes: it says nothing of the reply.

    Raises:
        RefusedReply: in place of any exception that is no `FedszError`.
    """
    try:
        yield
    except (FedszError, MemoryError):
        raise
    except Exception as err:
        what = one_line(f"{type(err).__name__}: {err}")
        *_, place = traceback.extract_tb(err.__traceback__)
        logger.error("a check failed in %s, line %s: %s", place.filename, place.lineno, what)
        raise RefusedReply(Refusal.DAMAGED, f"it cannot be checked: {what}") from err


# No fault of a client, or judged by others, who may be wrong: they bench nobody.
OF_ITS_TIME: Final = (Refusal.QUORUM, Refusal.NORM, Refusal.STALE, Refusal.RECORDS)


WHOLE: Final = "iub"  # kinds of dtypes of whole numbers and bools


class Norm(NamedTuple):
    """The Euclidean norms of an update: of its floats, and of its whole numbers and bools.

    Counters move by hundreds where weights move by thousandths, so each have a norm of their own.
    """

    floats: float
    whole: float

    def require_finite(self) -> None:
        """Raise `RefusedReply` if one is not finite."""
        if not (math.isfinite(self.floats) and math.isfinite(self.whole)):
            raise RefusedReply(Refusal.NOT_FINITE, "it holds NaN, infinities or values near them")

    def require_within(self, limit: Norm) -> None:
        """Raise `RefusedReply` if one is above that of ``limit``."""
        for norm, most, what in zip(self, limit, ("", " of its whole numbers"), strict=True):
            if norm > most:
                text = f"the norm{what} of its update is {norm:.4g}; the most is {most:.4g}"
                raise RefusedReply(Refusal.NORM, text)

    @classmethod
    def of(cls, energies: Iterable[tuple[np.dtype, float]]) -> Norm:
        """Return that of an update whose tensors have these dtypes and energies."""
        floats = whole = 0.0
        for dtype, energy in energies:
            if dtype.kind in WHOLE:
                whole += energy
            else:
                floats += energy
        return cls(math.sqrt(floats), math.sqrt(whole))
