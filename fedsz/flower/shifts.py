"""What a server has learnt of each client's steps, where clients send differences from that."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from fedsz.core.reference import Reference
from fedsz.core.shift import Shift, digest_of, shift_after, shifted
from fedsz.errors import FedszError
from fedsz.methods import Transform
from fedsz.shelf import Parked, Shelf
from fedsz.stream import Reader

logger = logging.getLogger(__name__)

MOST_BYTES: Final = 1 << 30
MOST_CLIENTS: Final = 10_000


@dataclass(frozen=True)
class KnownModels(Mapping[bytes, Reference]):
    """By digest, the models that a client's differences may refer to.

    Attributes:
        sent: those that it was sent.
        shifts: by which these may be moved. A moved model is made when it is asked for.
    """

    sent: Mapping[bytes, Reference]
    shifts: Collection[Shift] = ()

    def __getitem__(self, digest: bytes) -> Reference:
        if digest in self.sent:
            return self.sent[digest]
        moved = (shifted(model, shift) for model in self.sent.values() for shift in self.shifts)
        for model in moved:
            if model.digest == digest:
                return model
        raise KeyError(digest)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.sent)

    def __len__(self) -> int:
        return len(self.sent)


@dataclass(frozen=True)
class Answer:
    """What a client has answered, until it is known whether that counts.

    Attributes:
        streams: by the keys of records.
        models: that they may refer to.
        shifts: of the client, by the same keys.
        transform: what codes tensors.
    """

    streams: Mapping[str, bytes | Parked]
    models: KnownModels
    shifts: Mapping[str, Shift]
    transform: Transform


@dataclass
class Shifts:
    """The shift of each client, by the keys of its ArrayRecords.

    A shift moves only by replies that have gone into the model. Clients are told its digest. A
    client that has another, or is told none, starts anew. So a shift may be dropped at any time.

    Attributes:
        most_bytes: of all shifts together. Above, those that have not moved for longest go.
        most_clients: that have one, likewise.
    """

    most_bytes: int = MOST_BYTES
    most_clients: int = MOST_CLIENTS
    _known: dict[int, Mapping[str, Shift]] = field(default_factory=dict)  # last moved at the end
    _digests: dict[int, Mapping[str, bytes]] = field(default_factory=dict)
    _admitted: dict[int, Answer] = field(default_factory=dict)
    _shelf: Shelf = field(default_factory=Shelf)  # with the streams of these

    def of(self, node: int) -> Mapping[str, Shift]:
        """Return what is known of a client, by key."""
        return self._known.get(node, MappingProxyType({}))

    def digests(self, node: int) -> Mapping[str, bytes]:
        """Return the digests of its shifts, by key."""
        return self._digests.get(node, MappingProxyType({}))

    def admitted(
        self,
        node: int,
        streams: Mapping[str, bytes],
        sent: Mapping[bytes, Reference],
        transform: Transform,
    ) -> None:
        """Keep an answer that has passed admission until `counted`, its streams on disk.

        ``sent`` are the models that it may start from.
        """
        shifts = self.of(node)
        parked = {k: self._shelf.put("a reply", stream) or stream for k, stream in streams.items()}
        models = KnownModels(sent, tuple(shifts.values()))
        self._admitted[node] = Answer(parked, models, shifts, transform)

    def counted(self, nodes: Collection[int]) -> None:
        """Move the shifts of clients whose answers have gone into the model."""
        for node in sorted(self._admitted.keys() & set(nodes)):
            try:
                moved = _moved(self._admitted.pop(node))
            except FedszError as err:  # of a strategy that has decoded nothing
                logger.warning("node %d starts its shift anew: %s", node, err)
                moved = {}
            self._put(node, moved)
        self._keep_limits()

    def forget_answers(self) -> None:
        """Forget answers that have not counted by the end of their round."""
        self._admitted, self._shelf = {}, Shelf()

    def state(self) -> dict[int, Mapping[str, Shift]]:
        """Return all shifts, by node and key."""
        return dict(self._known)

    def restore(self, state: Mapping[int, Mapping[str, Shift]]) -> None:
        """Go on from what `state` returned, and from nothing else."""
        self._known, self._digests = {}, {}
        self.forget_answers()
        for node, shifts in state.items():
            self._put(node, shifts)
        self._keep_limits()

    def _put(self, node: int, shifts: Mapping[str, Shift]) -> None:
        self._known.pop(node, None)
        self._digests.pop(node, None)
        if any(shifts.values()):
            self._known[node] = shifts
            self._digests[node] = {key: digest_of(shift) for key, shift in shifts.items()}

    def _keep_limits(self) -> None:
        sizes = {node: _nbytes(shifts) for node, shifts in self._known.items()}
        total = sum(sizes.values())
        dropped = []
        for node, size in sizes.items():
            if total <= self.most_bytes and len(self._known) <= self.most_clients:
                break
            self._put(node, {})
            total -= size
            dropped.append(node)
        if dropped:
            logger.warning(
                "no room for the shifts of %d clients (%d bytes, %d clients): these start anew",
                len(dropped), self.most_bytes, self.most_clients,
            )  # fmt: skip


def _moved(answer: Answer) -> dict[str, Shift]:
    after: dict[str, Shift] = {}
    for key, stored in answer.streams.items():
        stream = bytes(stored[:])
        digest, known = Reader(stream).header.reference, answer.shifts.get(key, {})
        base = answer.models.get(digest) if digest else None
        if digest is None:  # all of it went exactly
            after[key] = known
        elif base is not None:
            before = {} if digest in answer.models.sent else known
            after[key] = shift_after(stream, base, before, answer.transform)
    return after


def _nbytes(shifts: Mapping[str, Shift]) -> int:
    return sum(x.nbytes for shift in shifts.values() for x in shift.values())
