"""What broadcasts have shown to clients: to those of all rounds, and to those that missed some.

Clients that have taken part in all share one history, or one on each of the staggered lattices.
What another has missed starts anew with the difference that it is sent, be that of one round or of
many; it goes on if the client takes part in the next.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Final

from fedsz.core.reference import Reference
from fedsz.methods import History

# Histories of clients that have missed a broadcast, which go on with the next.
MOST_HISTORIES: Final = 4

# And those that begin with one broadcast, for clients that have missed some. Each takes a decoded
# model and its products: a second of a core for 25 million parameters.
MOST_RESTARTS: Final = 16

ModelOf = Callable[[bytes], Reference | None]


class Histories:
    """The histories of one broadcast.

    Args:
        trends: whether they keep a trend.

    Attributes:
        main: that of all steps; None where none are kept.
        parts: in how many parts clients are; these are the histories of one.
    """

    def __init__(self, *, trends: bool) -> None:
        self._trends, self.parts = trends, 1
        self.main: History | None = None
        self._others: dict[bytes, History] = {}  # of clients that missed steps, by their digests
        self._told: dict[bytes, None] = {}  # which of these are told to clients since the last step
        # By the digest of the model that they begin with; None of those that a checkpoint names.
        self._restarts: dict[bytes, History | None] = {}

    def of_parts(self, parts: int) -> Histories:
        """Return these as they go on once clients are in so many parts."""
        other = copy(self)
        other._others, other._told, other._restarts = {}, {}, {}
        other.parts = parts
        return other

    @property
    def most_restarts(self) -> int:
        """How many may begin with one broadcast."""
        return self._share(MOST_RESTARTS)

    def _share(self, most: int) -> int:
        """Return how many of all parts may be of this one: twice as many as on average."""
        return most if self.parts == 1 else max(2 * most // self.parts, 1)

    def keep(self, *, used: bool) -> None:
        """Keep histories from now on if they are ``used``, or have a trend; else forget them."""
        if not (used or self._trends):
            self.main, self._others, self._told = None, {}, {}
        elif self.main is None:
            self.main = self._begun()

    def begin(self) -> None:
        """Begin anew with the next step, for all who hold the model now."""
        if self.main is not None:
            self.main, self._others, self._told = self._begun(), {}, {}

    def step(self, before: Reference | None, model: Reference) -> None:
        """Take in a step from a model, or a model from which all begins anew.

        One of nothing is none: who holds that model already is sent nothing.
        """
        if self.main is None or (before is not None and before.digest == model.digest):
            return
        most = self._share(MOST_HISTORIES)
        go_on = [self._others[digest] for digest in list(self._told)[-most:]]
        others = [history.beyond(before, model) for history in go_on] if before else []
        self._others, self._told = {history.digest: history for history in others}, {}
        self.main = self.main.beyond(before, model) if before else self._begun()

    def forget_restarts(self) -> None:
        """Do so as a new model comes."""
        self._restarts = {}

    def of(self, held: bytes, seen: bytes, model: Reference, model_of: ModelOf) -> History | None:
        """Return what broadcasts have shown to a client once it has received the last one.

        Args:
            held: the digest of the model that it held before, or b"".
            seen: that of the history that it had then, or b"".
            model: the last one.
            model_of: returns an earlier one by its digest.
        """
        if self.main is None or not held:
            return None
        here = held == model.digest
        earlier = History(digest=seen or self._begun().digest)
        wanted = seen if here else earlier.digest_after(held + model.digest)
        known = {h.digest: h for h in (self.main, *self._others.values())}
        found = known.get(wanted)
        if found is None and not here:
            found = self.restarted(held, model, model_of)
        if found is not None and found.digest == self.main.digest:
            return self.main
        if found is not None:
            self._others[found.digest] = found
            self._told[found.digest] = None
        return found

    def restarted(self, held: bytes, model: Reference, model_of: ModelOf) -> History | None:
        """Return a history that begins with the difference from a model.

        None if that is not known any more, or others have taken all the time that there is.
        """
        if (found := self._restarts.get(held)) is not None:
            return found
        full = held not in self._restarts and len(self._restarts) >= self.most_restarts
        if full or (before := model_of(held)) is None:
            return None
        self._restarts[held] = found = self._begun().beyond(before, model)
        return found

    def state(self) -> tuple[list[History], dict[str, list[bytes]]]:
        """Return them all, that of all steps first; which are told, and what others begin with."""
        known = [self.main, *self._others.values()] if self.main is not None else []
        return known, {"told": [*self._told], "restarts": [*self._restarts]}

    def restore(self, found: list[History], told: list[bytes] | None, begun: list[bytes]) -> None:
        """Go on from what `state` returned; older checkpoints do not say what is told."""
        self._restarts = dict.fromkeys(begun)
        if found:
            self.main, *others = found
            self._others = {history.digest: history for history in others}
            self._told = dict.fromkeys(self._others if told is None else told)

    def _begun(self) -> History:
        return History.trending() if self._trends else History()
