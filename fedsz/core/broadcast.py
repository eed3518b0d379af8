"""The model on its way to the clients: encoded once a round, and only the part that they lack.

As in a film, there are key frames, which hold the reference model, and deltas from the reference
model before. Reference models are points of a grid (`fedsz.core.grid`), the nearest to the server's
own model within the bound of the round. So the rounding of one broadcast is not in the next, the
server needs no memory of it, and a client that has missed rounds is sent one array of integers for
all of them. All clients of a round hold the same reference model, to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Final

import msgspec
import numpy as np

from fedsz.arrays import Layout, NDArray, octets
from fedsz.bounds import ErrorBound
from fedsz.core.decode import arrays_of, differences
from fedsz.core.encode import compress_measured
from fedsz.core.grid import common_spacings, place, place_initial
from fedsz.core.partition import is_lossy
from fedsz.core.reference import Reference, bounds_of_step, energies
from fedsz.core.settings import DELTA, EXACT, Settings
from fedsz.stream import Limits, Reader

# A model that clients do not have yet goes as finely as 8 bits a weight: clients that start from
# trained weights would lose them at the bounds that deltas do with.
KEY_FRAME: Final = ErrorBound.rel(2e-3)

# Deltas that are kept: a client that has missed more rounds is sent a key frame.
MOST_DELTAS: Final = 64
MOST_BYTES: Final = 2.0  # of the model's size, that their streams take together
SPARE_BYTES: Final = 0.5  # likewise, of those that only clients need which are not known yet


class Delta(msgspec.Struct, frozen=True):
    """The way from one reference model to the next.

    Attributes:
        base: digest of the model that it starts from.
        stream: that leads to the next model.
        spacings: of the tensors that are on the grid.
    """

    base: bytes
    stream: bytes
    spacings: dict[str, float]


class BroadcastState(msgspec.Struct, frozen=True):
    """What the next broadcast depends on beside the arrays of two models.

    Attributes:
        digest: of the reference model.
        published: of the server's own model that it stands for.
        initial: of a first model that clients may have from the start, or b"".
        units: by tensor on the grid, the spacing that all its points are multiples of.
        deltas: that led to the reference model, the newest last.
        key_frame: the stream that the reference model began with, if no delta led to it; else b"".
    """

    digest: bytes
    published: bytes
    initial: bytes
    units: dict[str, float]
    deltas: list[Delta]
    key_frame: bytes


class Broadcast:
    """One model as the clients of a run hold it.

    Args:
        shared_initial: whether clients may have the first model from the start.

    Attributes:
        reference: the model that clients hold once they have received the last broadcast.
        exact: whether that is the server's own model, and clients need not keep it.
        initial: the digest of a first model that clients may have from the start, or b"".
    """

    def __init__(self, *, shared_initial: bool = False) -> None:
        self._shared_initial = shared_initial
        self.reference: Reference | None = None
        self.exact = False
        self.initial = b""
        self._model: Mapping[str, NDArray] = {}  # the server's own, that was published last
        self._published = b""  # its digest
        self._settings = Settings()
        self._units: dict[str, float] = {}
        self._deltas: list[Delta] = []
        self._streams: dict[bytes, bytes] = {}  # of this reference model: by base, b"" for none

    def publish(
        self,
        model: Mapping[str, NDArray],
        settings: Settings,
        client_digests: Container[bytes] = frozenset(),
    ) -> Reference:
        """Return the reference model nearest to the server's model, within the downlink's bound.

        The same model again is sent as it was: it is evaluated, and then trained from.

        Args:
            model: the server's own; kept, not copied.
            settings: whose downlink is exact or has a bound. A bound of kind ``step`` is of the
                step from the model that was published before, one of ``std`` likewise.
            client_digests: of the reference models that known clients hold.
        """
        own, exact = Reference(model), settings.downlink_bound is None
        if self.reference is not None and own.digest == self._published and exact == self.exact:
            return self.reference
        self._settings, self._streams = _lossless(settings), {}
        before = self.reference if not (exact or self.exact) else None
        if before is not None and any(before.like(*item) is None for item in model.items()):
            before = None
        if exact:
            self._units, self._deltas, self.reference = {}, [], own
        elif self._shared_initial and self.reference is None:
            self.reference = self._begin_shared(own)
        else:
            self.reference = self._next(own, settings, before)
            self._forget(self.reference.nbytes, client_digests)
        self.exact, self._model, self._published = exact, own.arrays, own.digest
        return self.reference

    def _begin_shared(self, own: Reference) -> Reference:
        """Begin with a model that clients may have, of which they know all but the order."""
        points, self._units = place_initial(own.arrays, self._settings)
        reference = Reference({**own.arrays, **points})
        self.initial = initial_reference(own.arrays, self._settings).digest
        stream, _ = compress_measured(
            reference.arrays,
            self._settings,
            Reference(reference.arrays, self.initial),
            spacings=self._units,
        )
        self._deltas = [Delta(self.initial, stream, self._units)]
        return reference

    def _next(self, own: Reference, settings: Settings, before: Reference | None) -> Reference:
        """Move the reference model towards the server's, or begin with a key frame."""
        bounds = self._bounds(own, settings, before)
        # Of the points that clients hold; those of a key frame are multiples of its units.
        last = self._deltas[-1].spacings if self._deltas else self._units
        # What has not moved has no bound, and stays. What has moved and has none, such as a tensor
        # that is constant or NaN now, goes exactly.
        still = [
            name
            for name in (last.keys() - bounds.keys() if before is not None else ())
            if np.array_equal(octets(own.arrays[name]), octets(self._model[name]))
        ]
        self._model = {}  # frees a model before another one is made
        points, spacings = place(own.arrays, bounds, before, last if before is not None else {})
        if before is not None:
            points |= {name: before.arrays[name] for name in still}
            spacings |= {name: last[name] for name in still}
        model = {**own.arrays, **points}
        rest = {name: bound for name, bound in bounds.items() if name not in points}
        stream, report = compress_measured(
            model, self._settings, before, bounds=rest, spacings=spacings
        )
        if report.lossy:  # tensors off the grid, such as those in half precision
            model = arrays_of(_reader(stream, model), before)
        reference = Reference(model)
        if before is None:
            self._units, self._deltas = spacings, []
            self._streams[b""] = stream
        else:
            self._units = common_spacings([self._units, spacings])
            self._deltas.append(Delta(before.digest, stream, spacings))
        return reference

    def _bounds(
        self, own: Reference, settings: Settings, before: Reference | None
    ) -> dict[str, float]:
        """Return the absolute bounds of the tensors that may be lossy, above 0."""
        bound = settings.downlink_bound
        assert bound is not None
        last = Reference(self._model if before is not None else {})
        if before is not None and bound.kind == "step":
            moved = energies(own.arrays, last, self._settings)
            return bounds_of_step(moved, self._settings, bound.value)
        found = {}
        for name, x in own.arrays.items():
            if not is_lossy(name, x, rule=settings.rule, threshold=settings.threshold):
                continue
            base = last.like(name, x)
            if base is None:
                own_bound = bound.absolute(x) if bound.kind in ("abs", "rel") else math.inf
                found[name] = min(KEY_FRAME.absolute(x), own_bound)
            elif bound.kind == "std":
                with np.errstate(over="ignore", invalid="ignore"):
                    found[name] = bound.absolute(x - base)
            else:
                found[name] = bound.absolute(x)
        return {name: value for name, value in found.items() if value}

    def _forget(self, nbytes: int, client_digests: Container[bytes]) -> None:
        """Keep as many deltas as are worth their memory, and the last one in any case."""
        sizes = [len(delta.stream) for delta in self._deltas]
        while len(self._deltas) > 1:
            is_needed = self._deltas[0].base in client_digests
            most = (MOST_BYTES if is_needed else SPARE_BYTES) * nbytes
            if len(self._deltas) <= MOST_DELTAS and sum(sizes) <= most:
                return
            del self._deltas[0], sizes[0]

    def key_frame(self) -> bytes:
        """Return the stream of the reference model for a client that holds none."""
        assert self.reference is not None
        if b"" not in self._streams:
            self._streams[b""], _ = compress_measured(
                self.reference.arrays, self._settings, spacings=self._units
            )
        return self._streams[b""]

    def since(self, base: bytes) -> bytes | None:
        """Return the stream from an earlier reference model to this one; b"" from this one itself.

        None if the model of digest ``base`` is not known any more.
        """
        assert self.reference is not None
        if base == self.reference.digest:
            return b""
        if base not in self._streams:
            self._encode_since(base)
        return self._streams.get(base)

    def _encode_since(self, base: bytes) -> None:
        """Encode the way from a model, and from each newer one that it passes, newest first."""
        assert self.reference is not None
        lag = next((i for i, d in enumerate(reversed(self._deltas)) if d.base == base), None)
        if lag is None:
            return
        model = {name: self.reference.arrays[name] for name in self._units}
        deltas = self._deltas[len(self._deltas) - lag - 1 :]
        if lag == 0:
            self._streams[base] = deltas[0].stream
            return
        for delta in reversed(deltas):
            moved = dict(differences(_reader(delta.stream, self.reference.arrays), delta.spacings))
            # Of a tensor that went without loss, where its points hardly save anything, the model
            # before is not known.
            model = {name: x - moved[name] for name, x in model.items() if name in moved}
        # Tensors off the grid are not known at that model: they go without loss, and not as
        # differences.
        self._streams[base], _ = compress_measured(
            self.reference.arrays,
            self._settings,
            Reference(model, base),
            spacings=common_spacings(delta.spacings for delta in deltas),
        )

    def state(self) -> tuple[BroadcastState, Mapping[str, NDArray], Mapping[str, NDArray]] | None:
        """Return the state, the reference model and the server's model; None of an exact one."""
        if self.exact or self.reference is None:
            return None
        began = b"" if self._deltas else self._streams.get(b"", b"")
        state = BroadcastState(
            self.reference.digest, self._published, self.initial, self._units, self._deltas, began
        )
        return state, self.reference.arrays, self._model

    def restore(
        self,
        state: BroadcastState,
        reference: Mapping[str, NDArray],
        model: Mapping[str, NDArray],
        settings: Settings,
    ) -> None:
        """Go on from what `state` returned for the last broadcast's settings, in any process."""
        self.reference = Reference(reference, state.digest)
        self._model, self._published, self.initial = model, state.published, state.initial
        self._units, self._deltas = dict(state.units), list(state.deltas)
        self._streams = {b"": state.key_frame} if state.key_frame else {}
        self._settings = _lossless(settings)


def _reader(stream: bytes, model: Mapping[str, NDArray]) -> Reader:
    """Return a reader of a stream that this server has made of a model like this one."""
    return Reader(stream, Limits.of_model(Layout.of(model)))


def _lossless(settings: Settings) -> Settings:
    """Return how a model is sent, whatever clients send: without loss where there is no bound."""
    codec = settings.lossless if settings.downlink == EXACT else "uniform"
    return settings.replace(error_bound="step:1", update=DELTA, codec=codec, factors={})


def initial_reference(model: Mapping[str, NDArray], settings: Settings) -> Reference:
    """Return the model that training starts from as a server's grid has it, ordered by name.

    Args:
        model: in any order: files do not keep a model's.
        settings: with the rule for tensors that may be lossy.
    """
    points, _ = place_initial(model, settings)
    return Reference(dict(sorted({**model, **points}.items())))
