"""The broadcasts of a run: of each model one, or one for each of the staggered lattices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from flwr.app import ConfigRecord

from fedsz.arrays import LOSSY_DTYPES, Layout, NDArray, raw
from fedsz.codecs.spread import energy
from fedsz.codecs.uniform import Uniform
from fedsz.core.broadcast import Broadcast
from fedsz.core.feedback import ErrorFeedback
from fedsz.core.reference import Reference
from fedsz.core.settings import DELTA, Settings
from fedsz.core.staggered import LATTICES, OFF, widening
from fedsz.core.step import bounds_of_step, energies
from fedsz.flower.broadcast_records import by_node, records_of, state_of, values_by_node
from fedsz.flower.records import to_record, views_of

MOST_BYTES: Final = 1 << 28  # of a model: a server holds one of each lattice

# What bounds may be widened to, over the root mean square of a tensor's elements: beyond it clients
# train from models that are not as good. `cnn` lost 2 points by bounds of 0.6 in its second round;
# a GPT that takes off loses a quarter of a point more by 0.3 than by 0.15.
NOISE: Final = 0.22

# How many times as wide they must be, in the geometric mean of all elements, for lattices to part:
# while steps are large, one lattice takes as few bytes.
WORTH: Final = 1.4

LATTICES_OF: Final = "lattices"  # the first part of the names of records that say who is where
PUT: Final = "put"  # likewise, of those that say how models were put
MEANT: Final = "meant"  # and of what was
AT: Final = "@"  # between the first part of a name and the number of a lattice


Models = Mapping[str, Mapping[str, NDArray]]


@dataclass
class _Model:
    """A model, as the broadcasts of all lattices have it.

    Attributes:
        of: the broadcasts by lattice; one until lattices part.
        left: what was left out until then, and goes into the next model.
        tested: the digest of the model that was put last then, to be tested, and trains next.
        last: the digest of what was put last, b"" if nothing was since lattices parted.
        given: the digest of the strategy's model that this was; b"" once lattices have united.
        meant: that model, with what was left out.
        bounds: absolute, by tensor, of the mean of what clients hold.
        most: that those of each client's own may be.
    """

    of: dict[int, Broadcast]
    left: Mapping[str, NDArray] = field(default_factory=dict)
    tested: bytes = b""
    last: bytes = b""
    given: bytes = b""
    meant: Reference | None = None
    bounds: Mapping[str, float] | None = None
    most: Mapping[str, float] = field(default_factory=dict)

    @property
    def parted(self) -> bool:
        return self.of[0].staggered is not None

    def unite(self) -> None:
        """Go on with one model for all clients."""
        self.of = {0: self.of[0].united()}
        self.last, self.bounds, self.most = b"", None, {}

    def part(self) -> None:
        self.left, self.tested = self.of[0].residual, self.of[0].given
        self.of = {lattice: self.of[0].apart(lattice) for lattice in range(LATTICES)}

    def is_worth_parting(
        self, arrays: Mapping[str, NDArray], config: Settings, widened: float
    ) -> bool:
        """Say whether the next model takes fewer bytes on lattices that are so much wider."""
        self._bound(arrays, config)
        gain = size = 0.0
        for name, bound in (self.bounds or {}).items():
            gain += arrays[name].size * math.log2(max(1.0, min(widened, self.most[name] / bound)))
            size += arrays[name].size
        return gain >= size * math.log2(WORTH) > 0

    def _bound(self, arrays: Mapping[str, NDArray], config: Settings) -> None:
        """Note the bounds of a model that goes to those who hold the last one."""
        self.bounds, self.most = None, {}
        if (bound := config.downlink_bound) is not None:
            within = config.replace(error_bound=str(bound), update=DELTA, factors={})
            # Clients' steps are put onto what was meant, not onto what they hold: how far a model
            # is from that has the error of it in it, and bounds of two steps would grow by it.
            last = self.meant or Reference(self.mean())
            if last.fits(Layout.of(arrays)):
                bounds = bounds_of_step(energies(arrays, last, within), within)
                if not bounds:  # nothing moved but what is not lossy
                    held = Reference(self.mean())
                    bounds = bounds_of_step(energies(arrays, held, within), within)
                self.bounds = bounds
                self.most = {name: NOISE * _rms(arrays[name]) for name in bounds}

    def mean(self) -> Mapping[str, NDArray]:
        """Return what clients hold that were sent the last model, on average over lattices."""
        newest = [one for one in self.of.values() if one.given == self.last] or [self.of[0]]
        held = list({id(one.model): one.model.arrays for one in newest if one.model}.values())
        if len(held) < 2:
            return held[0] if held else {}
        first = dict(held[0])
        for name, x in first.items():
            if x.dtype in LOSSY_DTYPES:
                total = np.zeros(x.shape, np.promote_types(x.dtype, np.float32))
                for arrays in held:
                    total += arrays[name]
                first[name] = (total / len(held)).astype(x.dtype)
        return first

    def take(self, given: Reference, config: Settings) -> Reference:
        """Return what is to be put, of the model that a strategy has sent."""
        if given.digest == self.given:
            return self.meant or given
        new, held = given, self.of[0].model
        if self.left:
            # What is left out of a model that clients hold already is above that.
            base = held.arrays if held and given.digest == self.tested else given.arrays
            meant = ErrorFeedback(base, self.left)
            new = Reference({name: meant[name] for name in meant})
        self._bound(new.arrays, config)
        self.given, self.left, self.meant, self.last = given.digest, {}, new, new.digest
        return new

    def united(self, given: Reference) -> tuple[Reference, Reference | None]:
        """Return what is to be put for all, and what its step was put onto if not what they hold.

        It is what was meant if nobody has replied to that: the strategy sends the same model again.
        """
        if self.meant is not None and given.digest == self.given:
            return self.meant, None
        since, self.given, self.meant = self.meant, b"", None
        fits = since is not None and since.fits(Layout.of(given.arrays))
        return given, since if fits else None

    def told(self) -> dict[str, Any]:
        """Return how the last model was put."""
        told: dict[str, Any] = {"last": self.last, "given": self.given}
        if self.bounds:
            told |= {"names": list(self.bounds), "bounds": list(self.bounds.values())}
            told |= {"most": [self.most[name] for name in self.bounds]}
        return told

    def restore(self, told: Mapping[str, Any]) -> None:
        """Go on from what `told` returned."""
        self.last, self.given = told["last"], told["given"]
        if "names" in told:
            self.bounds = dict(zip(told["names"], told["bounds"], strict=True))
            self.most = dict(zip(told["names"], told["most"], strict=True))


class Broadcasts:
    """What the clients of a run hold, by the keys of models.

    Once lattices have parted, what clients train is put onto the model that was meant for all, not
    onto their own. So nothing of their errors gets into the mean, and nothing needs to be fed back.

    Args:
        make: returns a broadcast that has sent nothing.
    """

    def __init__(self, make: Callable[[Settings], Broadcast]) -> None:
        self._make = make
        self._models: dict[str, _Model] = {}
        self._lattices: dict[int, int] = {}  # by node
        self._weights: dict[int, float] = {}  # of their last replies
        self._widened = 1.0

    def __iter__(self) -> Iterator[Broadcast]:
        for model in self._models.values():
            yield from model.of.values()

    def initial(self) -> dict[str, bytes]:
        """Return the digests of models that clients may hold from the start, by key."""
        first = {key: model.of[0].initial for key, model in self._models.items()}
        return {key: digest for key, digest in first.items() if digest}

    def mean(self, key: str) -> Mapping[str, NDArray] | None:
        """Return what clients hold of a model, on average; None where that is not known."""
        model = self._models.get(key)
        return model.mean() if model is not None and model.of[0].model is not None else None

    def weighs(self, node: int, weight: float) -> None:
        """Note what a node's reply counts in the mean."""
        self._weights[node] = float(weight)

    def of_nodes(
        self,
        nodes: Iterable[int],
        models: Models,
        config: Settings,
        *,
        trains: bool,
    ) -> dict[int, list[int]]:
        """Return by lattice the nodes that a model goes to; part lattices first if it is time to.

        Until they unite, a node stays where it is first asked. New ones go where fewest of this
        push are.

        Args:
            nodes: all of this push, in the order of their ids.
            models: that go to them, by key.
            config: of it.
            trains: whether it asks for training.
        """
        asked = list(nodes)
        self._assign(asked, models, config, trains=trains)
        found: dict[int, list[int]] = {}
        for node in asked:
            found.setdefault(self._lattices.get(node, 0), []).append(node)
        return found

    def _assign(self, asked: list[int], models: Models, config: Settings, *, trains: bool) -> None:
        parted = [model for model in self._models.values() if model.parted]
        staggers = (
            config.staggers and config.sends_differences and isinstance(config.lossy_codec, Uniform)
        )
        if parted and not staggers:
            for model in parted:
                model.unite()
            self._lattices = {}
            return
        if not parted:
            # A reply tells by its only key what it starts from; one that is tested tells nothing.
            if not (staggers and trains and len(asked) > 1 and len(self._models) == 1):
                return
            ((key, model),) = self._models.items()
            widened = widening(Counter(i % LATTICES for i in range(len(asked))))
            if not _may_part(model.of[0]) or key not in models:
                return
            if not model.is_worth_parting(models[key], config, widened):
                return
            model.part()
        on = Counter(self._lattices[node] for node in asked if node in self._lattices)
        of_all = Counter(self._lattices.values())
        for node in asked:
            if node not in self._lattices:
                lattice = min(range(LATTICES), key=lambda i: (on[i], of_all[i], i))
                self._lattices[node] = lattice
                on[lattice] += 1
                of_all[lattice] += 1
        if trains:
            # Of servers that push a round's messages one by one, it is of all clients.
            self._widened = self._widening(asked if len(asked) > 1 else list(self._lattices))

    def _widening(self, nodes: list[int]) -> float:
        known = [self._weights[node] for node in nodes if node in self._weights]
        usual = sum(known) / len(known) if any(known) else 1.0
        weights = dict.fromkeys(range(LATTICES), 0.0)
        for node in nodes:
            weights[self._lattices[node]] += self._weights.get(node, usual) if any(known) else 1.0
        return widening(weights)

    def put(
        self,
        key: str,
        lattice: int,
        arrays: Mapping[str, NDArray],
        config: Settings,
        *,
        reference: bool,
    ) -> tuple[Broadcast, Mapping[str, NDArray]]:
        """Put the model that clients on a lattice are to hold.

        Returns:
            Its broadcast, and what clients' steps are to be put onto in place of the model that
            they hold: tensors in which that is another.
        """
        if key not in self._models:
            self._models[key] = _Model({0: self._make(config)})
        model = self._models[key]
        one = model.of[lattice if model.parted else 0]
        one.steer(config)
        if not model.parted:
            whole, since = model.united(Reference(arrays))
            one.put(whole, reference=reference, since=since)
            return one, {}
        meant = model.take(Reference(arrays), config)
        wide = {
            name: max(bound, min(bound * self._widened, model.most.get(name, 0.0)))
            for name, bound in (model.bounds or {}).items()
        }
        one.put(meant, reference=reference, bounds=model.bounds, wide=wide)
        return one, _others(meant.arrays, one)

    def begin_histories(self) -> None:
        """Begin all histories anew with the next step, for all who hold the model now."""
        for one in self:
            one.histories.begin()

    def state(self) -> dict[str, Any]:
        """Return what the next push depends on, as records."""
        records: dict[str, Any] = {}
        if self._lattices or self._weights:
            records[LATTICES_OF] = ConfigRecord({"widened": self._widened})
            records[f"{LATTICES_OF}.nodes"] = by_node(lattices=self._lattices)
            records[f"{LATTICES_OF}.weights"] = by_node(weights=self._weights)
        for key, model in self._models.items():
            if model.parted:
                records[f"{PUT}.{key}"] = ConfigRecord(model.told())
                if model.meant is not None:
                    records[f"{MEANT}.{key}"] = to_record(dict(model.meant.arrays))
            for lattice, one in model.of.items():
                if (state := one.state(model.of[0])) is not None:
                    at = f"{AT}{lattice}" if lattice else ""
                    records |= {f"{name}{at}.{key}": x for name, x in records_of(state).items()}
        return records

    def restore(self, parts: Mapping[str, Mapping[str, Any]], config: Settings) -> None:
        """Go on from records that `state` returned, by the first part of their names, then keys."""
        for lattice in range(LATTICES):
            at = f"{AT}{lattice}" if lattice else ""
            of = {kind.removesuffix(at): x for kind, x in parts.items() if kind.endswith(at)}
            for key in of.get("steps", {}):
                one = self._make(config)
                model = self._models.setdefault(key, _Model({0: one}))
                known = {name: part[key] for name, part in of.items() if key in part}
                one.restore(state_of(known), model.of[0])
                model.of[lattice] = one
        if LATTICES_OF in parts:
            records = parts[LATTICES_OF]
            self._widened = records[""]["widened"]
            self._lattices = values_by_node(records["nodes"], "lattices")
            self._weights = values_by_node(records["weights"], "weights")
        for key, told in parts.get(PUT, {}).items():
            self._models[key].restore(told)
        for key, record in parts.get(MEANT, {}).items():
            self._models[key].meant = Reference(views_of(record))


def _may_part(one: Broadcast) -> bool:
    """Say whether lattices may part: clients hold its model, and it is not too large."""
    return (
        one.model is not None and bool(one.steps) and not one.exact and one.raw_bytes <= MOST_BYTES
    )


def _others(meant: Mapping[str, NDArray], one: Broadcast) -> dict[str, NDArray]:
    """Return the tensors that are meant to be others than what clients of a broadcast hold."""
    held: Mapping[str, NDArray] = one.model.arrays if one.model is not None else {}
    steps = one.staggered.steps if one.staggered is not None else {}

    def differs(name: str, x: NDArray) -> bool:
        on_lattice = steps.get(name, OFF) != OFF
        return on_lattice or raw(x) != raw(held[name])

    floats = (name for name, x in meant.items() if x.dtype in LOSSY_DTYPES and name in held)
    return {name: meant[name] for name in floats if differs(name, meant[name])}


def _rms(x: NDArray) -> float:
    if x.dtype not in LOSSY_DTYPES or not x.size:
        return 0.0
    return math.sqrt(energy(x) / x.size)
