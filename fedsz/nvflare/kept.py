"""What a client of a job keeps from one task to the next, in memory: models and residuals."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from fedsz.arrays import NDArray
from fedsz.core.protocol import Instructions
from fedsz.core.reference import Reference
from fedsz.methods import History


class _Left(NamedTuple):
    """What a turn has left out."""

    run: bytes
    turn: int
    residual: dict[str, NDArray]


class Kept:
    """A client's `fedsz.core.client.Keeper`, by the names of tasks.

    It keeps the residual of the last turn, and that of the turn before: a reply that does not
    count has taken the latter with it, and then the client goes back to it.

    Args:
        client: its name, from which the number comes that methods draw by.
    """

    def __init__(self, client: str) -> None:
        self.sender = int.from_bytes(hashlib.sha256(client.encode()).digest()[:8], "little")
        self._models: dict[str, Reference] = {}
        self._left: dict[str, list[_Left]] = {}

    @property
    def digests(self) -> dict[str, str]:
        """The models that are here, in hexadecimal."""
        return {key: model.digest.hex() for key, model in self._models.items()}

    def model(self, key: str) -> Reference | None:
        """Return the model that the client holds, if any."""
        return self._models.get(key)

    def keep_model(self, key: str, model: Reference | None) -> None:
        """Keep a model; None forgets it."""
        if model is None:
            self._models.pop(key, None)
        else:
            self._models[key] = model

    def history(self, key: str) -> History:  # noqa: ARG002 - servers of jobs show none
        """Return what broadcasts have shown: nothing."""
        return History()

    def keep_history(self, key: str, history: History | None) -> None:
        """Keep nothing; see `history`."""

    def turn(self, key: str, told: Instructions) -> int:
        """Return the turn of the last reply; -1 of none in this run."""
        return max((one.turn for one in self._left.get(key, ()) if one.run == told.run), default=-1)

    def residual(self, key: str, told: Instructions) -> tuple[dict[str, NDArray], int]:
        """Return that of the last reply that the server has counted, and its age in turns."""
        left = [
            one
            for one in self._left.get(key, ())
            if one.run == told.run and one.turn <= told.last_counted
        ]
        self._left[key] = left[-1:]
        return (left[-1].residual, told.turn - left[-1].turn) if left else ({}, 1)

    def keep_residual(self, key: str, residual: dict[str, NDArray], told: Instructions) -> None:
        """Keep what this turn has left out, beside that of the last reply that counted."""
        self._left.setdefault(key, []).append(_Left(told.run, told.turn, residual))

    def forget_residual(self, key: str) -> None:
        """Keep nothing of what any turn has left out."""
        self._left.pop(key, None)
