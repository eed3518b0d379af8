"""What codes a tensor: a `Chain` of parts, a `Wrapper` around one, or a choice `ByLayer`."""

from __future__ import annotations

import fnmatch
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple

import numpy as np

from fedsz.arrays import NDArray
from fedsz.errors import CodecError, ConfigError, LimitExceeded
from fedsz.methods.base import (
    NOTHING,
    VALUES,
    Decoded,
    Kind,
    Part,
    Planes,
    Shared,
    State,
    TensorSpec,
    dense,
    is_finite,
)
from fedsz.methods.state import branch, within
from fedsz.spec_strings import NO_SETTING, check_settings, setting, spelled

MOST_PARTS: Final = 8  # of a chain, so that no stream asks for more work
MOST_BYTES: Final = 3.0  # times the tensor, that a chain takes to decode it
MOST_WORK: Final = 40.0  # for each element, in the unit of `Part.work`
FREE: Final = 1 << 8  # elements that a tensor counts as there, at least
THEN: Final = ">"  # between the parts of a chain
DIFFERENCE: Final = "difference"


class Coded(NamedTuple):
    """What a transform makes of a tensor.

    Attributes:
        planes: what is sent of it.
        state: after it.
        decoded: what the planes decode to, where a wrapper has had to know.
    """

    planes: Planes
    state: State
    decoded: Decoded | None = None


class Transform(ABC):
    """What codes tensors: a frozen dataclass, whose functions are pure as those of `Part`."""

    @property
    @abstractmethod
    def told(self) -> str:
        """Its text without the settings by which a codec only chooses what it sends."""

    @property
    @abstractmethod
    def biased(self) -> bool:
        """Whether the mean of what is decoded is another than what was encoded."""

    @abstractmethod
    def init(self, spec: TensorSpec) -> State:
        """Return the state before the first round; see `fedsz.methods.state`."""

    @abstractmethod
    def encode(self, x: NDArray, state: State, shared: Shared) -> Coded:
        """Return what is sent of a tensor, and the state after it; see `Part.encode`."""

    @abstractmethod
    def sent(self, spec: TensorSpec) -> Chain | None:
        """Return the chain that receivers decode such a tensor by; None if it is left alone."""

    def of(self, spec: TensorSpec) -> Transform | None:
        """Return what codes such a tensor, if anything: itself, or what it has chosen."""
        return self


@dataclass(frozen=True)
class Chain(Transform):
    """Parts one after another: each codes the values that the one before leaves.

    Without any, it sends a tensor as it is. A part that keeps state or has a basis sees the whole
    tensor, and so is the first.

    Raises:
        ConfigError: a part follows one that leaves no values, or must be the first and is not; or
            there are more than 8.
    """

    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        if len(self.parts) > MOST_PARTS:
            raise ConfigError(f"a chain of {len(self.parts)} parts; have up to {MOST_PARTS}")
        for before, part in zip(self.parts, self.parts[1:], strict=False):
            if VALUES not in before.planes:
                exact = ", ".join(before.planes)
                raise ConfigError(
                    f"{part} cannot follow {before}, which leaves no values: its planes ({exact})"
                    " must come back exactly"
                )
            if part.leads:
                raise ConfigError(f"{part} must be the first of its chain: it knows whole tensors")

    def __str__(self) -> str:
        """Return it as users write it."""
        return THEN.join(map(str, self.parts))

    @property
    def told(self) -> str:
        """What streams say of it."""
        return THEN.join(part.told for part in self.parts)

    @property
    def planes(self) -> Mapping[str, Kind]:
        """Those of all parts, by the places of these; values are what the last part leaves."""
        own = {
            f"{i}.{name}": kind
            for i, part in enumerate(self.parts)
            for name, kind in part.planes.items()
            if name != VALUES
        }
        leaves_values = not self.parts or VALUES in self.parts[-1].planes
        return own | ({VALUES: Kind.VALUES} if leaves_values else {})

    @property
    def biased(self) -> bool:
        return any(part.biased for part in self.parts)

    def split(self) -> tuple[Chain, Chain]:
        """Return its first parts, as far as they are linear and send only values, and the rest.

        Values of several senders can be added up before they are decoded by the first parts.
        """
        adds_up = [part.linear and part.planes.keys() == {VALUES} for part in self.parts]
        end = [*adds_up, False].index(False)
        return Chain(self.parts[:end]), Chain(self.parts[end:])

    def init(self, spec: TensorSpec) -> State:
        return branch(self.parts[0].init(spec), "0") if self.parts else NOTHING

    def encode(self, x: NDArray, state: State, shared: Shared) -> Coded:
        planes: dict[str, NDArray] = {VALUES: x}
        after: State = NOTHING
        spec = shared.spec
        for i, part in enumerate(self.parts):
            own = within(state, str(i))
            sent, kept = part.encode(planes.pop(VALUES), own, shared.of(spec))
            after = {**after, **branch(kept, str(i))}
            planes |= {name if name == VALUES else f"{i}.{name}": sent[name] for name in sent}
            if VALUES in sent:
                if not is_finite(sent[VALUES]):
                    raise CodecError(f"{part} makes values that are not finite")
                spec = part.values_spec(sent, spec)
        return Coded(planes, after)

    def specs(self, planes: Planes, spec: TensorSpec) -> list[TensorSpec]:
        """Return what each part codes of a tensor, and the values that the last one leaves, if any.

        Without planes, those of the longest values there can be.
        """
        specs = [spec]
        for i, part in enumerate(self.parts):
            if VALUES in part.planes:
                specs.append(part.values_spec(_planes_of(i, part, planes), specs[-1]))
        return specs

    def require_affordable(self, spec: TensorSpec) -> None:
        """Raise `LimitExceeded` if it takes too much to decode such a tensor.

        A payload of a few bytes can stand for a large tensor, as of any codec. But parts multiply:
        a sketch may have more values than the tensor has elements, and its rows are decoded one by
        one. In memory at a time are what a part is given, and what it makes of that.
        """
        size, most, work = max(spec.size, FREE), spec.size, 0.0
        specs = self.specs(NOTHING, spec)
        for part, made, given in zip(self.parts, specs, [*specs[1:], specs[-1]], strict=False):
            most = max(most, made.size + given.size)
            work += part.work * max(made.size, given.size)
        if most > MOST_BYTES * size:
            times = f"{most / size:.1f} times its tensor"
            raise LimitExceeded(f"a chain of {times}; limit {MOST_BYTES:g}")
        if work > MOST_WORK * size:
            steps = f"{work / size:.0f} steps an element"
            raise LimitExceeded(f"a chain of {steps}; limit {MOST_WORK:g}")

    def decode(self, planes: Planes, shared: Shared) -> Decoded:
        """Do as `Part.decode`."""
        specs = self.specs(planes, shared.spec)
        decoded: Decoded | None = (
            planes[VALUES].reshape(specs[-1].shape) if VALUES in planes else None
        )
        for i, part in reversed(list(enumerate(self.parts))):
            # Nothing of a part is held while the one before it decodes, but for what it decoded to.
            values = {} if decoded is None else {VALUES: dense(decoded)}
            del decoded
            decoded = part.decode(_planes_of(i, part, planes) | values, shared.of(specs[i]))
            del values
        assert decoded is not None, "planes without values, of no part"
        return decoded

    def sent(self, spec: TensorSpec) -> Chain:
        return self


def _planes_of(place: int, part: Part, planes: Planes) -> dict[str, NDArray]:
    """Return a part's planes among those of its chain, but for its values; none where none are."""
    names = {name: f"{place}.{name}" for name in part.planes if name != VALUES}
    return {name: planes[key] for name, key in names.items()} if planes else {}


@dataclass(frozen=True)
class Wrapper(Transform):
    """A transform around another, which a receiver need not know of."""

    inner: Transform = field(default=Chain(), metadata=NO_SETTING)

    name: ClassVar[str]
    summary: ClassVar[str]

    def __str__(self) -> str:
        """Return it as users write it."""
        return THEN.join(filter(None, (spelled(self), str(self.inner))))

    @property
    def told(self) -> str:
        return THEN.join(filter(None, (spelled(self), self.inner.told)))

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting out of range, or what must not be within."""
        check_settings(self)
        if any(isinstance(part, Difference) for part in parts_of(self.inner)):
            raise ConfigError(f"{DIFFERENCE} must stand before all others, once")

    @property
    def biased(self) -> bool:
        """False: what is left out of one round goes into the next."""
        return False

    def init(self, spec: TensorSpec) -> State:
        return branch(self.inner.init(spec))

    def encode(self, x: NDArray, state: State, shared: Shared) -> Coded:
        coded = self.inner.encode(x, within(state), shared)
        return coded._replace(state=branch(coded.state))

    def sent(self, spec: TensorSpec) -> Chain | None:
        return self.inner.sent(spec)


@dataclass(frozen=True)
class Difference(Wrapper):
    """Differences from what was sent before: DIANA (Mishchenko et al. 2019), EF21 (Richtárik 2021).

    With h the shift, which both sides have learnt of a sender, at first 0, and q what x - h decodes
    to, the receiver has h + q, and both go on from h + rate q. With a biased ``inner`` and rate 1
    that is EF21; with an unbiased one of variance w and a rate of at most 1 / (1 + w), DIANA.

    Both keep h beside all other state, and move what x is a difference from by it: so a sender's
    ``encode`` is given x - h. See `fedsz.core.shift`.

    Attributes:
        inner: what codes x - h.
        rate: above 0, at most 1.

    Raises:
        ConfigError: the rate is out of range.
    """

    name = DIFFERENCE
    summary = "differences from what both sides have learnt of a sender: EF21; DIANA"

    rate: float = setting(1.0, 0, 1, above=True)

    def moved(self, shift: NDArray, decoded: NDArray) -> NDArray:
        """Return the shift after a round, from that before and what was decoded."""
        return np.asarray(shift + shift.dtype.type(self.rate) * decoded)


@dataclass(frozen=True)
class ByLayer(Transform):
    """Of several transforms, the first whose rule a tensor keeps; others are left alone.

    Attributes:
        choices: rules and transforms. A rule is ``matrix`` (two dimensions or more), ``vector``
            (fewer), or a pattern of names with stars, such as ``*.bias``; ``*`` fits all.
    """

    choices: tuple[tuple[str, Transform], ...]

    def __str__(self) -> str:
        """Return it as users write it."""
        return _by_rule((rule, str(transform)) for rule, transform in self.choices)

    @property
    def told(self) -> str:
        return _by_rule((rule, transform.told) for rule, transform in self.choices)

    @property
    def biased(self) -> bool:
        return any(transform.biased for _, transform in self.choices)

    def of(self, spec: TensorSpec) -> Transform | None:
        """Return the transform that a tensor has, if any."""
        return next((t for rule, t in self.choices if fits(rule, spec)), None)

    def _of(self, spec: TensorSpec) -> Transform:
        return self.of(spec) or Chain()

    def init(self, spec: TensorSpec) -> State:
        return self._of(spec).init(spec)

    def encode(self, x: NDArray, state: State, shared: Shared) -> Coded:
        return self._of(shared.spec).encode(x, state, shared)

    def sent(self, spec: TensorSpec) -> Chain | None:
        transform = self.of(spec)
        return None if transform is None else transform.sent(spec)


def _by_rule(choices: Iterable[tuple[str, str]]) -> str:
    return "|".join(text if rule == "*" else f"{rule}?{text}" for rule, text in choices)


_SHAPES: Final[dict[str, Callable[[TensorSpec], bool]]] = {
    "matrix": lambda spec: len(spec.shape) >= 2,
    "vector": lambda spec: len(spec.shape) < 2,
}


def fits(rule: str, spec: TensorSpec) -> bool:
    """Say whether a tensor keeps a rule of `ByLayer`."""
    shape = _SHAPES.get(rule)
    return shape(spec) if shape else fnmatch.fnmatchcase(spec.name, rule)


def parts_of(transform: Transform) -> list[Part | Wrapper]:
    """Return all that a transform is combined of, outermost first."""
    if isinstance(transform, Chain):
        return list(transform.parts)
    if isinstance(transform, ByLayer):
        return [part for _, inner in transform.choices for part in parts_of(inner)]
    assert isinstance(transform, Wrapper)
    return [transform, *parts_of(transform.inner)]


def keeps_state(transform: Transform) -> bool:
    """Say whether a sender has anything to keep from one round to the next."""
    return any(isinstance(part, Wrapper) or part.stateful for part in parts_of(transform))


def by_step(transform: Transform) -> bool:
    """Say whether a bound in it is of a sender's whole step."""
    bounds = (getattr(part, "bound", None) for part in parts_of(transform))
    return any(bound is not None and bound.kind == "step" for bound in bounds)


def texts_sent(transform: Transform) -> set[str]:
    """Return what streams may say of the chains that a transform codes tensors by."""
    if isinstance(transform, ByLayer):
        return set().union(*(texts_sent(inner) for _, inner in transform.choices))
    if isinstance(transform, Wrapper):
        return texts_sent(transform.inner)
    assert isinstance(transform, Chain)
    return {transform.told}
