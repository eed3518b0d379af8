"""Why a reply does not count."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

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
    WEIGHT = "weight"  # a weight that is not a finite number of at least 0
    NOT_FINITE = "not finite"  # NaN, infinities, or values whose squares are
    NORM = "norm"  # an update that is too large
    QUORUM = "quorum"  # too few others have replied; no fault of its own
    STALE = "stale"  # an update of a model that is too old; no fault of its own


def kind_of(err: FedszError) -> Refusal:
    """Return the kind of an exception that opening a reply has raised."""
    if isinstance(err, RefusedReply):
        return Refusal(err.kind)
    kinds = {CorruptStream: Refusal.DAMAGED, ModelMismatch: Refusal.MODEL}
    kinds[CodecError] = Refusal.CODEC
    return next((kind for cls, kind in kinds.items() if isinstance(err, cls)), Refusal.RECORDS)


# What mods say, and those of legacy apps, that stand before FedSZMod and so see a sealed record.
MISPLACED: Final = (STYPE, "expects exactly one ConfigRecord", "This file contains pickled")


def reason_of(reply: Message) -> str:
    """Return what an error reply says, on one line."""
    reason = one_line(said := str(reply.error.reason))  # Flower's own Grids do not cut it
    if any(text in said for text in MISPLACED) and not said.startswith("fedsz: "):
        return f"{reason}; is FedSZMod() the first of its ClientApp's mods?"
    return reason


def reason(err: FedszError) -> str:
    """Return why a reply was refused, in a line for people; names in it may be the sender's."""
    return one_line(str(err) if isinstance(err, RefusedReply) else f"{type(err).__name__}: {err}")


@contextmanager
def refusing_failures() -> Iterator[None]:
    """Refuse the reply whose check fails in a way that was not foreseen.

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
