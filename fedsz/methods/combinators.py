"""What codes a tensor: a `Chain` of stages, a `Wrapper` around one, or a choice `ByLayer`."""

from __future__ import annotations

import fnmatch
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Final

from fedsz.arrays import NDArray
from fedsz.errors import CodecError, ConfigError, LimitExceeded
from fedsz.methods.base import (
    NOTHING,
    VALUES,
    Coded,
    Decoded,
    Shared,
    Stage,
    State,
    Symbols,
    TensorSpec,
    dense,
    is_finite,
)
from fedsz.spec_strings import NO_SETTING, check_settings, setting, spelled

MOST_STAGES: Final = 8  # of a chain, so that no stream asks for more work
FREE: Final = 1 << 8  # values that any tensor may have
THEN: Final = ">"  # between the stages of a chain


class Transform(ABC):
    """A way to code tensors: a frozen dataclass, whose functions are pure as those of `Stage`."""

    @property
    @abstractmethod
    def biased(self) -> bool:
        """Whether the mean of the decoded differs from the encoded, and is not sent later."""

    @abstractmethod
    def init(self, spec: TensorSpec) -> State:
        """Return the state before the first round; see `fedsz.methods.state`."""

    @abstractmethod
    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Coded, State]:
        """Return the symbols of a tensor by stages, and the state after it; see `Stage.encode`."""

    @abstractmethod
    def sent(self, spec: TensorSpec) -> Chain | None:
        """Return the chain by which receivers decode such a tensor; None if it is left alone."""

    def of(self, spec: TensorSpec) -> Transform | None:
        """Return the transform of such a tensor, if any: itself, or its choice."""
        return self


@dataclass(frozen=True)
class Chain(Transform):
    """Stages one after another: each codes the values of the one before.

    Without any, it sends a tensor as it is.

    Raises:
        ConfigError: a stage follows one without values, or keeps state and is not the first; or
            there are more than 8.
    """

    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        if len(self.stages) > MOST_STAGES:
            raise ConfigError(f"a chain of {len(self.stages)} stages; have up to {MOST_STAGES}")
        for before, stage in zip(self.stages, self.stages[1:], strict=False):
            if VALUES not in before.symbols:
                exact = ", ".join(before.symbols)
                raise ConfigError(
                    f"{stage} cannot follow {before}, which leaves no values: its symbols ({exact})"
                    " must come back exactly"
                )
            if stage.stateful:
                raise ConfigError(f"{stage} must be the first of its chain: it codes whole tensors")

    def __str__(self) -> str:
        """Return it as users and streams write it."""
        return THEN.join(map(str, self.stages))

    @property
    def biased(self) -> bool:
        return any(stage.biased for stage in self.stages)

    def init(self, spec: TensorSpec) -> State:
        return self.stages[0].init(spec) if self.stages else NOTHING

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Coded, State]:
        coded: list[Symbols] = []
        after = state
        for i, stage in enumerate(self.stages):
            symbols, kept = stage.encode(x, NOTHING if i else state, shared)
            after = after if i else kept
            coded.append(symbols)
            if VALUES in symbols:
                x = symbols[VALUES]
                if not is_finite(x):
                    raise CodecError(f"{stage} makes values that are not finite")
                shared = shared.of(stage.values_spec(symbols, shared.spec))
        return tuple(coded), after

    def decode(self, coded: Coded, shared: Shared) -> Decoded:
        """Return the tensor; see `Stage.decode`."""
        specs = self.specs(coded, shared.spec)
        waiting = list(zip(self.stages, coded, specs, strict=False))
        decoded: Decoded | None = None
        del coded  # while a stage decodes, nothing of those behind it stays but their values
        while waiting:
            stage, symbols, spec = waiting.pop()
            if decoded is not None:
                symbols = {**symbols, VALUES: dense(decoded)}
            del decoded
            decoded = stage.decode(symbols, shared.of(spec))
        assert decoded is not None, "a chain of no stages"
        return decoded

    def specs(self, coded: Coded, spec: TensorSpec) -> list[TensorSpec]:
        """Return the spec of each stage's input, and of the values of the last one, if any.

        Without symbols, those of the longest values there can be.
        """
        specs = [spec]
        for i, stage in enumerate(self.stages):
            if VALUES in stage.symbols:
                specs.append(stage.values_spec(coded[i] if coded else {}, specs[-1]))
        return specs

    def require_affordable(self, spec: TensorSpec) -> None:
        """Raise `LimitExceeded` if a stage may have more values than the tensor has elements.

        A payload of a few bytes can stand for a large tensor, as of any codec; but a sketch of
        many rows may be larger than its tensor, and a sketch of that larger still.
        """
        most = max(made.size for made in self.specs((), spec))
        if most > max(spec.size, FREE):
            raise LimitExceeded(f"{self}: {most} values of {spec.size} elements")

    def sent(self, spec: TensorSpec) -> Chain:
        return self


@dataclass(frozen=True)
class Wrapper(Transform):
    """A transform around another; receivers need not know of it."""

    inner: Transform = field(default=Chain(), metadata=NO_SETTING)

    name: ClassVar[str]
    summary: ClassVar[str]

    def __str__(self) -> str:
        """Return it as users write it."""
        return THEN.join(filter(None, (spelled(self), str(self.inner))))

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting out of range."""
        check_settings(self)

    @property
    def biased(self) -> bool:
        return self.inner.biased

    def init(self, spec: TensorSpec) -> State:
        return self.inner.init(spec)

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Coded, State]:
        return self.inner.encode(x, state, shared)

    def sent(self, spec: TensorSpec) -> Chain | None:
        return self.inner.sent(spec)


@dataclass(frozen=True)
class Feedback(Wrapper):
    """The wish for error feedback around a chain, which `fedsz.core.feedback` does.

    It codes as its inner transform does and keeps no residual of its own; see `feedback_of`.

    Attributes:
        inner: what codes the sum of tensor and residual.
        decay: of the residual, for each round, 0 to 1.

    Raises:
        ConfigError: the decay is out of range, or ``inner`` has a stage whose error can be larger
            than its input.
    """

    name = "feedback"
    summary = "error feedback: what the rest leaves out of one round goes into the next"

    decay: float = setting(1.0, 0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_contracting(self.inner)

    @property
    def biased(self) -> bool:
        """False: the error of one round goes into the next."""
        return False


def require_contracting(inner: Transform) -> None:
    """Raise `ConfigError` if error feedback around ``inner`` would grow, or hold a wrapper."""
    for part in parts_of(inner):
        if isinstance(part, Wrapper):
            raise ConfigError(f"{part.name} must stand before feedback, not in it")
        if not part.contracts:
            hint = f": write {part.name}:unbiased=0" if hasattr(part, "unbiased") else ""
            raise ConfigError(f"feedback around {part} grows without end{hint}")


def feedback_of(transform: Transform, spec: TensorSpec) -> Feedback | None:
    """Return the feedback that a tensor's transform asks for; None for none."""
    parts = parts_of(transform.of(spec) or Chain())
    return next((part for part in parts if isinstance(part, Feedback)), None)


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
        return "|".join(f"{t}" if rule == "*" else f"{rule}?{t}" for rule, t in self.choices)

    @property
    def biased(self) -> bool:
        return any(transform.biased for _, transform in self.choices)

    def of(self, spec: TensorSpec) -> Transform | None:
        return next((t for rule, t in self.choices if fits(rule, spec)), None)

    def init(self, spec: TensorSpec) -> State:
        return (self.of(spec) or Chain()).init(spec)

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Coded, State]:
        return (self.of(shared.spec) or Chain()).encode(x, state, shared)

    def sent(self, spec: TensorSpec) -> Chain | None:
        transform = self.of(spec)
        return None if transform is None else transform.sent(spec)


def fits(rule: str, spec: TensorSpec) -> bool:
    """Say whether a tensor keeps a rule of `ByLayer`."""
    if rule in ("matrix", "vector"):
        return (len(spec.shape) >= 2) == (rule == "matrix")
    return fnmatch.fnmatchcase(spec.name, rule)


def parts_of(transform: Transform) -> list[Stage | Wrapper]:
    """Return all wrappers and stages of a transform, outermost first."""
    if isinstance(transform, Chain):
        return list(transform.stages)
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
    """Return the texts of all chains that streams of a transform may name."""
    if isinstance(transform, ByLayer):
        return set().union(*(texts_sent(inner) for _, inner in transform.choices))
    if isinstance(transform, Wrapper):
        return texts_sent(transform.inner)
    return {str(transform)}
