"""What a client keeps from one round to the next, in its Context: model, residual, last reply.

A chain of methods has the arrays of `fedsz.methods.state` in place of a residual.

A residual fits one reply, and so does noise that a client adds. So a client that is asked the same
again, by a server that crashed before it could count the reply, answers the same again.

The residual of the turn before is kept as well, until the server has counted the last reply. One
that does not count has taken that residual with it, and left one that belongs to what the server
never added: then the client goes back to it.

Flower's engines carry a Context's state from message to message, also where each message has a
process of its own, and forget it when the run ends: state of another run is never seen.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict

from fedsz.arrays import NDArray
from fedsz.core.client import log_misfits
from fedsz.core.protocol import Instructions
from fedsz.core.reference import Reference
from fedsz.errors import FedszError
from fedsz.flower.records import fields, to_record, views_of
from fedsz.flower_compat import data_of, make_content, make_note, make_record
from fedsz.methods import History
from fedsz.methods.base import is_finite

logger = logging.getLogger(__name__)

_MODEL: Final = "fedsz.model."  # and the key of an ArrayRecord
_DIGEST: Final = "_fedsz_digest"  # of that record, and of what: an attribute of it alone
_RESIDUAL: Final = "fedsz.residual."
_HISTORY: Final = "fedsz.history."
_SEEN: Final = "fedsz.seen."  # the digest of that
_TURN: Final = "fedsz.turn."
_BEFORE: Final = "fedsz.before."  # and the name of an entry: that of the turn before
# What a reply is kept as, with a point and the key of any record: as it was sent; or as it was once
# it had noise, to be masked anew for each secure sum.
SENT: Final = "fedsz.reply"
UNMASKED: Final = "fedsz.unmasked"
_ASKED: Final = "asked."  # before that: the request that it is kept for
_NOISED: Final = "fedsz.noised"
_DOUBTED: Final = "fedsz.doubted"  # is there if residuals may be of another past than the server's
_NOISY: Final = "fedsz.noisy"  # is there if the last reply had noise of its own


_Record = ArrayRecord | ConfigRecord | MetricRecord


class ClientState:
    """A client's state, by the keys of a message's ArrayRecords.

    What cannot be read, because somebody else wrote into the state, or what is of rounds that the
    server does not count, is an error in the log and counts as forgotten.

    Attributes:
        sender: a number that tells this client apart from others, 0 to 2^64 - 1.
    """

    def __init__(self, context: Context) -> None:
        self._state = data_of(context.state)
        self.sender = context.node_id % (1 << 64)

    def model(self, key: str) -> Reference | None:
        """Return the model that the client holds, if any."""
        record = self._state.get(_MODEL + key)
        if not isinstance(record, ArrayRecord) or (arrays := _arrays(record)) is None:
            return None
        model = Reference(arrays)
        digest, of = record.__dict__.get(_DIGEST, (b"", []))
        # An app may have changed the record, or an Array in it.
        if digest and of == _contents(record):
            model.digest = digest
        return model

    def keep_model(self, key: str, record: ArrayRecord | None, digest: bytes = b"") -> None:
        """Keep a model, as a plain record, and its digest in this process; None forgets it."""
        kept = None if record is None else make_record(dict(record))
        if kept is not None:
            kept.__dict__[_DIGEST] = digest, _contents(kept)
        self._put(_MODEL + key, kept)

    def history(self, key: str) -> History:
        """Return what broadcasts have shown, if anything has been kept."""
        record, note = self._state.get(_HISTORY + key), self._state.get(_SEEN + key)
        arrays = _arrays(record) if isinstance(record, ArrayRecord) else None
        digest = note.get("digest") if isinstance(note, ConfigRecord) else None
        if arrays is None or not isinstance(note, ConfigRecord) or not isinstance(digest, bytes):
            return History()
        if note.get("products") != Reference(arrays).digest:
            logger.error("what broadcasts have shown of %r is damaged here, and starts anew", key)
            return History()
        return History.read(arrays, digest)

    def keep_history(self, key: str, history: History | None) -> None:
        """Keep what broadcasts have shown; None forgets it."""
        if history is None:
            self._put(_HISTORY + key, None)
            self._put(_SEEN + key, None)
            return
        arrays = history.arrays()
        # A digest of models does not tell whether the products here are still those of the models.
        told: dict[str, Any] = {"digest": history.digest, "products": Reference(arrays).digest}
        self._put(_HISTORY + key, to_record(arrays))
        self._put(_SEEN + key, ConfigRecord(told))

    def settle(self, told: Instructions) -> None:
        """Keep one residual of each key: that of the last reply that the server has counted.

        A server that asks for a turn again, or an earlier one, does not know of the last reply.
        What was sent with a residual that is given up is not sent again either. A residual that is
        in doubt has to be that of the last reply that the server names.
        """
        doubted = _DOUBTED in self._state
        self._put(_DOUBTED, None)
        for turn in [name for name in self._state if name.startswith(_TURN)]:
            key = turn.removeprefix(_TURN)
            goes_back = self.turn(key, told) > told.last_counted
            if goes_back:
                self.keep_reply(b"", None)
            for name in (_RESIDUAL + key, turn):
                if goes_back:
                    self._move(_BEFORE + name, name)
                else:
                    self._put(_BEFORE + name, None)
            if doubted and self.turn(key, told) != told.counted:
                self.forget_residual(key)

    def doubt_residuals(self) -> None:
        """Take note that another model is held here than the server says.

        It is so if a reply has not reached it: then `settle` can go back. And if the server has
        lost rounds: then residuals are of another past than its own.
        """
        self._put(_DOUBTED, make_note({}))

    def residual_keys(self) -> list[str]:
        """Return the keys of the models that a residual is kept of, as replies call them."""
        return [name.removeprefix(_RESIDUAL) for name in self._state if name.startswith(_RESIDUAL)]

    def residual(self, key: str, told: Instructions) -> tuple[dict[str, NDArray], int]:
        """Return the residual and its age in turns, at least 1; that of another run is none."""
        record, then = self._state.get(_RESIDUAL + key), self.turn(key, told)
        if not isinstance(record, ArrayRecord) or then < 0:
            return {}, 1
        if then > told.last_counted:
            logger.error(
                "%r starts anew: what it kept is of turn %d, and the server counts up to %d",
                key, then, told.last_counted,
            )  # fmt: skip
            return {}, 1
        kept = _arrays(record) or {}
        residual = {name: r for name, r in kept.items() if is_finite(r)}
        log_misfits(key, dict.fromkeys(kept.keys() - residual.keys(), "not finite"))
        return residual, told.turn - then

    def keep_residual(self, key: str, residual: dict[str, NDArray], told: Instructions) -> None:
        """Keep what this turn has left out, which is emptied on the way, and that of the last."""
        for name in (_RESIDUAL + key, _TURN + key):
            self._move(name, _BEFORE + name)
        self._put(_RESIDUAL + key, to_record(residual) or None)
        self._put(_TURN + key, make_note({"turn": told.turn, "run": told.run}))

    def forget_residual(self, key: str) -> None:
        """Keep nothing of what any turn has left out."""
        for name in (_RESIDUAL + key, _TURN + key):
            self._put(name, None)
            self._put(_BEFORE + name, None)

    def turn(self, key: str, told: Instructions) -> int:
        """Return the turn that the residual is of, if any; -1 if there is none of this run."""
        note = self._state.get(_TURN + key)
        if not isinstance(note, ConfigRecord) or note.get("run", b"") != told.run:
            return -1
        then = note.get("turn")
        return then if isinstance(then, int) else -1

    def _move(self, name: str, to: str) -> None:
        record = self._state.pop(name, None)
        self._put(to, record if isinstance(record, ArrayRecord | ConfigRecord) else None)

    def reply(self, asked: bytes, kept_as: str = SENT) -> RecordDict | None:
        """Return the reply that was kept for a request of this digest, if any."""
        note, name = self._state.get(_ASKED + kept_as), kept_as + "."
        if not isinstance(note, ConfigRecord) or note.get("digest") != asked:
            return None
        kept = {k: record for k, record in self._state.items() if k.startswith(name)}
        return make_content({k.removeprefix(name): _own(record) for k, record in kept.items()})

    def keep_reply(self, asked: bytes, reply: RecordDict | None, kept_as: str = SENT) -> None:
        """Keep a reply, over that to another request; None forgets it."""
        for name in [name for name in self._state if name.startswith(kept_as + ".")]:
            del self._state[name]
        self._put(_ASKED + kept_as, make_note({"digest": asked}) if reply else None)
        for key, record in (reply or {}).items():
            self._state[f"{kept_as}.{key}"] = _own(record)

    def has_noised(self, told: Instructions) -> bool:
        """Say whether a share of a sum's noise has been added in this turn, or in a later one."""
        note = self._state.get(_NOISED)
        if not isinstance(note, ConfigRecord) or note.get("run", b"") != told.run:
            return False
        then = note.get("turn")
        return not isinstance(then, int) or then >= told.turn

    def keep_noised(self, told: Instructions) -> None:
        """Keep that a share of a sum's noise has been added in this turn."""
        self._put(_NOISED, ConfigRecord({"turn": told.turn, "run": told.run}))

    def begin_reply(self, *, noised: bool) -> None:
        """Forget what replies without noise have left out, where the next has some.

        That would go along with it as it is, and nobody accounts for it.
        """
        if noised and _NOISY not in self._state:
            self.forget_residuals()
        self._put(_NOISY, make_note({}) if noised else None)

    def forget_residuals(self) -> None:
        """Forget what replies have left out: this state is not of the server's past."""
        for name in [name for name in self._state if name.startswith((_RESIDUAL, _TURN, _BEFORE))]:
            del self._state[name]

    def _put(self, name: str, record: _Record | None) -> None:
        if record is not None:
            self._state[name] = record
        elif name in self._state:
            del self._state[name]


def _own(record: _Record) -> _Record:
    """Return a record of ours: whoever has the other may empty it, or put arrays into it."""
    if not isinstance(record, ArrayRecord):
        return record
    return make_record(dict(record))


def _contents(record: ArrayRecord) -> list[tuple[str, tuple[str, tuple[int, ...], str, bytes]]]:
    """Return all that a record's digest rests on. Bytes that are the same need no look at them."""
    return [(name, fields(array)) for name, array in record.items()]


def _arrays(record: ArrayRecord) -> dict[str, NDArray] | None:
    try:
        return views_of(record)
    except FedszError as err:
        logger.error("what was kept cannot be read: %s", err)
        return None
