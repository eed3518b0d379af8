"""The model on its way to the clients: packed once a round, and only what they lack of it.

As in a film, there are key frames, which hold the model, and differences from the model before.
Models are points of a lattice (`fedsz.core.grid`), so that a client which has missed rounds is
sent one array of tokens for them all, and one without any model the whole of it, as small as its
points cost. What is on no lattice goes as the chain of differences, or without loss. So all clients
of a round hold the same model, to the bit, by whatever way takes the fewest bytes.

A chain of methods may code the differences in place of a bound. That is EF21 with one sender, whose
shift is the model that clients hold (EF21-P, Gruntkowska et al. 2023): what one round leaves out is
in the next difference.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from types import MappingProxyType
from typing import Any, Final, cast

import numpy as np

from fedsz.arrays import Layout, NDArray
from fedsz.bounds import ErrorBound
from fedsz.codecs.uniform import Uniform
from fedsz.core.broadcast_histories import Histories
from fedsz.core.broadcast_state import BroadcastState, Step
from fedsz.core.chained import ChainEncoder
from fedsz.core.decode import decompress
from fedsz.core.encode import compress_measured
from fedsz.core.feedback import ErrorFeedback
from fedsz.core.grid import Grid, bounds_of, bounds_of_chance, common_grid, place, place_first
from fedsz.core.reference import Reference
from fedsz.core.settings import DELTA, EXACT, Settings
from fedsz.core.staggered import LATTICES, Staggered
from fedsz.methods import History, Transform
from fedsz.shelf import Parked

# A model that nobody holds yet is sent as finely as 8 bits a weight would: who starts from trained
# weights would lose them at the bounds that differences do with.
FIRST_BOUND: Final = str(ErrorBound.rel(2e-3))

# Times the model's size, that streams of earlier rounds may take: who holds an older model is sent
# the whole one.
HISTORY: Final = 2.0

NO_STEP: Final = -1.0  # in a state, of a tensor that is on no lattice

Streams = Sequence[bytes | Parked]


class Broadcast:
    """One model as the clients of a run hold it.

    Args:
        config: how it is packed, within the error of its downlink.
        feedback: whether what one broadcast leaves out goes into the next.
        shared_initial: whether clients may hold the first model from the start.
        trends: whether histories are kept, with a trend, whatever updates are coded by.
        untrained: whether the weights of the first model are chance. They go coarsely then, and
            what that leaves out is forgotten: clients train from what they receive.

    Attributes:
        model: what clients hold that have received the last broadcast; None where that was exact
            and nobody asked for a reference.
        raw_bytes: its size.
        initial: the digest of a first model that clients may hold from the start, or b"".
        steps: a key frame and all differences since.
        feedback: as given. A model to which only differences are added, and which so has what its
            broadcasts have left out, needs none.
        staggered: where its models lie, if other clients' are on other lattices.
        given: the digest of what was last put; b"" where that failed.
        residual: what that is above the model that clients hold, where it is fed back.
    """

    def __init__(
        self,
        config: Settings,
        *,
        feedback: bool = True,
        shared_initial: bool = False,
        trends: bool = False,
        untrained: bool = False,
    ) -> None:
        self.histories = Histories(trends=trends)
        self.staggered: Staggered | None = None
        self.model: Reference | None = None
        self.raw_bytes, self.initial, self.given = 0, b"", b""
        self.feedback = self._feeds_back = feedback
        self._shared_initial, self._untrained = shared_initial, untrained
        self.residual: dict[str, NDArray] = {}
        self.steps: list[Step] = []
        # By a step: what the model is above it, in one stream; by None: the model without loss.
        self._coded: dict[int | None, bytes] = {}
        self._older: tuple[int, Reference] | None = None  # the model of a step, last looked at
        self.steer(config)

    def steer(self, config: Settings) -> None:
        """Pack what is put from now on in another way."""
        # Whatever clients send, a broadcast is of differences, and its bound may be of a step. What
        # has no bound of such a kind stays lossless, and so all does that is on no lattice.
        self._exactly = config.replace(error_bound="step:1", update=DELTA, factors={})
        self._within, self._chain = None, config.downlink_chain
        self.histories.keep(used=config.uses_history)
        if config.downlink == EXACT:
            self._exactly = self._exactly.replace(codec=config.lossless)
        elif self._chain is not None:
            self._within = self._exactly
        else:
            self._within = self._exactly.replace(error_bound=str(config.downlink_bound))

    def apart(self, lattice: int) -> Broadcast:
        """Return this broadcast as it goes on on one of the staggered lattices.

        What it has left out so far it leaves to whoever puts the next model.
        """
        assert self.model is not None
        other = copy(self)
        other.steps, other._coded, other.residual, other.given = [*self.steps], {}, {}, b""
        other.feedback, other.staggered = False, Staggered(lattice, self.model)
        other.histories = self.histories.of_parts(LATTICES)
        return other

    def united(self) -> Broadcast:
        """Return this broadcast as it goes on with one model for all clients."""
        other = copy(self)
        other.steps, other._coded, other.given = [*self.steps], {}, b""
        other.feedback, other.staggered = self._feeds_back, None
        other.histories = self.histories.of_parts(1)
        return other

    def put(
        self,
        model: Reference | Mapping[str, NDArray],
        *,
        reference: bool,
        since: Reference | None = None,
        bounds: Mapping[str, float] | None = None,
        wide: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Take the model that clients are to hold, or as much of it as the bound lets through.

        Args:
            model: the model.
            reference: whether the attribute `model` is needed although the broadcast is exact.
            since: what its step was put onto, if not what clients hold; of the same layout.
            bounds: absolute, by tensor, in place of those that the config means.
            wide: those of tensors on a staggered lattice.
        """
        given = model if isinstance(model, Reference) else Reference(model)
        if self._within is None:
            self.steps, self.residual, self.given = [], {}, b""
            self.model = given if reference else None
            whole, report = compress_measured(given.arrays, self._exactly)
            self._coded, self.raw_bytes = {None: whole}, report.raw_bytes
            return
        if given.digest == self.given:
            return  # sent to be tested and again to be trained, or a round had no replies
        self.given, self._coded, self._older = b"", {}, None
        self.histories.forget_restarts()
        self.raw_bytes = sum(x.nbytes for x in given.arrays.values())
        fits = self.model is not None and self.model.fits(Layout.of(given.arrays))
        before = self.model if fits and self.steps else None
        if self._shared_initial and self.model is None:
            self._begin_shared(given)
        elif self._chain is not None:
            self._add_difference(given, self._chain, before)
        else:
            meant = ErrorFeedback(given.arrays, self.residual if self.feedback else {})
            if before and bounds is None:
                if not since and (since := meant.last_meant(before, self._within)):
                    meant = ErrorFeedback(given.arrays, {})
                bounds = meant.bounds(self._within, since) if since else {}
                bounds = bounds or meant.bounds(self._within, before)
            self._add_step(meant, self._within, before, bounds or {}, wide)
        self.given = given.digest  # only now: what has failed is put again

    def _begin_shared(self, given: Reference) -> None:
        """Begin with a model that clients may hold, of which they know all but the order."""
        placed = place_first(given.arrays, self._exactly)
        self.model = Reference({**given.arrays, **placed.points})
        first = Reference(dict(sorted(self.model.arrays.items())))
        whole, _ = compress_measured(first.arrays, self._exactly, steps=placed.grid)
        ordered, _ = compress_measured(self.model.arrays, self._exactly, first, steps=placed.grid)
        nothing_moved = dict.fromkeys(placed.grid, 0.0)
        self.initial = first.digest
        self.steps = [
            Step(whole, first.digest, placed.grid),
            Step(ordered, self.model.digest, nothing_moved),
        ]

    def _add_step(
        self,
        meant: ErrorFeedback,
        config: Settings,
        before: Reference | None,
        named: Mapping[str, float],
        wide: Mapping[str, float],
    ) -> None:
        chance: Mapping[str, float] = {}
        if before is None:
            config = config.replace(error_bound=FIRST_BOUND)
            if self._untrained and self.model is None:
                named = chance = bounds_of_chance(meant)
        on_lattice = isinstance(config.lossy_codec, Uniform)
        bounds = bounds_of(meant, named, config, before) if on_lattice else {}
        leaves, earlier = self.feedback, [step.grid for step in self.steps]
        if self.staggered is not None and before is not None:
            own = {n: wide.get(n, b) for n, b in bounds.items() if n in earlier[-1]}
            apart, self.staggered = self.staggered.place(meant, own, before)
            rest = {n: b for n, b in bounds.items() if n not in apart.points}
            placed = place(meant, rest, before, earlier, leaves=leaves).beside(apart)
        else:
            placed = place(meant, bounds, before, earlier, leaves=leaves)
        if placed.is_outgrown:  # a key frame, as fine as the difference would have been
            before, named = None, {name: bound for name, bound in bounds.items() if bound}
            placed = place(meant, bounds, leaves=leaves)
        if before is None:
            self.steps = []
        # A view of both, in the order of the model.
        points: Mapping[str, NDArray] = ChainMap(dict(placed.points), cast(Any, meant))
        stream, report = compress_measured(points, config, before, bounds=named, steps=placed.grid)
        if report.lossy:
            decoded = decompress(stream, reference=before, as_numpy=True)
        else:  # points, and what is lossless, decode to themselves
            decoded = dict(points)
        others = {name: y for name, y in decoded.items() if name not in placed.points}
        left = {**placed.left, **meant.left_out(others)} if leaves else {}
        self.residual = {name: left[name] for name in decoded if name in left.keys() - chance}
        if self.staggered is not None and before is None:
            self.staggered = Staggered(self.staggered.lattice, Reference(decoded))
        self._take(stream, Reference(decoded), placed.grid, before)

    def _add_difference(self, given: Reference, chain: Transform, before: Reference | None) -> None:
        """Code what a model differs by from the one that clients hold; the first goes exactly."""
        self.residual = {}
        if before is None:
            self.steps = []
            stream, _ = compress_measured(given.arrays, self._exactly)
            self._take(stream, given, {}, None)
            return
        # Drawn by the model itself, and so drawn again if the round is.
        seed = int.from_bytes(given.digest[:8], "little")
        encoder = ChainEncoder(chain, seed=seed, round=len(self.steps))
        stream, _ = compress_measured(given.arrays, self._exactly, before, encoder=encoder)
        decoded = Reference(decompress(stream, reference=before, as_numpy=True))
        self._take(stream, decoded, {}, before)

    def _take(self, stream: bytes, model: Reference, grid: Grid, before: Reference | None) -> None:
        """Note a step that leads from a model, or from none, to ``model``."""
        self.model = model
        self.histories.step(before, model)
        self.steps.append(Step(stream, model.digest, grid).parked())
        if sum(len(step.stream) for step in self.steps) > HISTORY * self.raw_bytes:
            self._forget(len(self.steps) // 2)

    def _forget(self, count: int) -> None:
        """Make a key frame of the step after the first ``count``, which are forgotten."""
        grid = common_grid(step.grid for step in self.steps[: count + 1])
        stream, _ = compress_measured(self._at(count).arrays, self._exactly, steps=grid)
        self.steps[: count + 1] = [Step(stream, self.steps[count].digest, grid)]
        self._older = None

    def state(self, other: Broadcast | None = None) -> BroadcastState | None:
        """Return what the next broadcast depends on; None if on nothing.

        The anchor that it shares with ``other`` is left out.
        """
        if self.exact or self.model is None:
            return None
        names, digests = list(self.model.arrays), [step.digest for step in self.steps]
        histories, shown = self.histories.state()
        told: dict[str, Any] = {"given": self.given, "initial": self.initial, "digests": digests}
        told |= {"histories": [h.digest for h in histories], **shown}
        anchor: Mapping[str, NDArray] = {}
        if (here := self.staggered) is not None:
            told |= {
                "lattice": here.lattice,
                "spaced": list(here.steps),
                "anchor": here.anchor.digest,
            }
            told |= {"spacing": list(here.steps.values())}
            there = other.staggered if other is not None and other is not self else None
            if there is None or there.anchor.digest != here.anchor.digest:
                anchor = here.anchor.arrays
        grids = [[step.grid.get(name, NO_STEP) for name in names] for step in self.steps]
        return BroadcastState(
            told,
            [bytes(step.stream[:]) for step in self.steps],
            np.array(grids, np.float64),
            self.model.arrays,
            self.residual,
            [history.arrays() for history in histories],
            anchor,
        )

    def restore(self, state: BroadcastState, other: Broadcast | None = None) -> None:
        """Go on from what `state` returned for the same ``other``, also in another process."""
        self.model, told = Reference(state.model), state.told
        self.raw_bytes = sum(x.nbytes for x in self.model.arrays.values())
        self.residual = dict(state.residual)
        self.given, self.initial = told["given"], told["initial"]
        if "lattice" in told:
            there = other.staggered if other is not None else None
            anchor = Reference(state.anchor) if state.anchor or there is None else there.anchor
            spaced = dict(zip(told["spaced"], told["spacing"], strict=True))
            self.staggered, self.feedback = Staggered(told["lattice"], anchor, spaced), False
            self.histories.parts = LATTICES
        digests = told.get("histories", ())  # older checkpoints have none
        shown = zip(state.histories, digests, strict=True)
        found = [History.read(arrays, digest) for arrays, digest in shown]
        self.histories.restore(found, told.get("told"), told.get("restarts", []))
        names, rows = list(self.model.arrays), state.grids.tolist()
        placed = (zip(names, row, strict=True) for row in rows)
        grids = ({name: step for name, step in row if step != NO_STEP} for row in placed)
        steps = zip(state.streams, told["digests"], grids, strict=True)
        self.steps = [Step(*step) for step in steps]

    @property
    def exact(self) -> bool:
        """Whether clients are sent the model without error, and need not keep it."""
        return self._within is None

    def pack_away(self) -> None:
        """Free what can be had again: the model without loss, an older one, what waits on disk."""
        self._coded.pop(None, None)
        self._older = None
        self.steps = [step.parked() for step in self.steps]

    def history(self, held: bytes, seen: bytes) -> History | None:
        """Return what broadcasts have shown to a client once it has received the last one.

        Args:
            held: the digest of the model that it held before, or b"".
            seen: that of the history that it had then, or b"".
        """
        if self.exact or self.model is None:
            return None
        return self.histories.of(held, seen, self.model, self._of_digest)

    def _of_digest(self, digest: bytes) -> Reference | None:
        """Return a model that receivers may hold, None if it is not known any more."""
        place = next((i for i, step in enumerate(self.steps) if step.digest == digest), None)
        return None if place is None else self._at(place)

    def prepare(self, held: Iterable[bytes]) -> None:
        """Code what clients lack that hold these models, from the oldest on: each model once."""
        ages = {step.digest: i for i, step in enumerate(self.steps)}
        count = Counter(digest for digest in held if digest in ages)
        # Who holds the model before has the history of all, but for a few.
        missed = [d for d, _ in count.most_common() if ages[d] < len(self.steps) - 2]
        begun = missed[: self.histories.most_restarts] if self.histories.main is not None else []
        for digest in sorted(count, key=lambda digest: ages[digest]):
            self.streams(digest)
            if digest in begun and self.model is not None:
                self.histories.restarted(digest, self.model, self._of_digest)

    def streams(self, held: bytes) -> Streams:
        """Return what a client needs, in this order, that holds model ``held``, a digest or b""."""
        known = [i for i, step in enumerate(self.steps) if step.digest == held]
        if known and known[-1] >= len(self.steps) - 2:
            return [step.stream for step in self.steps[known[-1] + 1 :]]
        ways: list[Streams] = [[self._since(None)]]
        if self.steps:
            since = self._fewest(known[-1] if known else 0)
            ways.append(since if known else [self.steps[0].stream, *since])
        return min(ways, key=_size)

    def _fewest(self, first: int) -> Streams:
        """Return the streams since step ``first``, or one in their place if that is smaller."""
        chain: Streams = [step.stream for step in self.steps[first + 1 :]]
        return chain if len(chain) < 2 else min([self._since(first)], chain, key=_size)

    def _since(self, first: int | None) -> bytes:
        """Return the model without loss, or what it is above that of step ``first``."""
        if first not in self._coded:
            assert self.model is not None
            steps = self.steps if first is None else self.steps[first + 1 :]
            base = None if first is None else self._at(first)
            grid = common_grid(step.grid for step in steps)
            stream, _ = compress_measured(self.model.arrays, self._exactly, base, steps=grid)
            self._coded[first] = stream
        return self._coded[first]

    def _at(self, place: int) -> Reference:
        """Return the model of a step; those of later ones are near then."""
        first, model = -1, None
        if self._older is not None and self._older[0] <= place:
            first, model = self._older
        for step in self.steps[first + 1 : place + 1]:
            stream = bytes(step.stream[:])
            model = Reference(decompress(stream, reference=model, as_numpy=True))
        assert model is not None
        self._older = place, model
        return model


def _size(streams: Streams) -> int:
    return sum(map(len, streams))
