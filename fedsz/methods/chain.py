"""What codes a tensor: stages one after another, and wrappers around them on the sender's side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from fedsz.arrays import NDArray, is_finite
from fedsz.errors import CodecError, ConfigError, LimitExceeded
from fedsz.methods.base import (
    NOTHING,
    VALUES,
    Coded,
    Decoded,
    Part,
    Shared,
    Stage,
    State,
    Symbols,
    TensorSpec,
    dense,
)
from fedsz.spec_strings import setting

MOST_STAGES: Final = 8  # of a chain, so that no stream asks for more work
FREE: Final = 1 << 8  # values that any tensor may have
THEN: Final = ">"  # between the parts of a chain


class Wrapper(Part):
    """A part around all behind it that only a sender runs: receivers need not know of it.

    Attributes:
        feeds_back: whether it adds the error of one round to the next. All stages inside must then
            have errors smaller than their input, and it stands last of the wrappers.
    """

    feeds_back: ClassVar[bool] = False

    def check(self, inner: Chain) -> None:
        """Raise `ConfigError` if it makes no sense around ``inner``."""

    def encode(self, inner: Chain, x: NDArray, state: State, shared: Shared) -> tuple[Coded, State]:
        """Return the symbols of a tensor by ``inner``'s stages, and the state after it.

        ``inner`` is all behind it in its chain; other arguments are those of `Stage.encode`. The
        state is that of the whole chain, and goes on to ``inner``.
        """
        return inner.encode(x, state, shared)


@dataclass(frozen=True)
class Feedback(Wrapper):
    """Error feedback around a chain, which `fedsz.core.feedback` does: the residual is kept there.

    Attributes:
        decay: of the residual, for each round, 0 to 1.
    """

    name = "feedback"
    summary = "error feedback: what the rest leaves out of one round goes into the next"
    feeds_back = True

    decay: float = setting(1.0, 0, 1)


@dataclass(frozen=True)
class Chain:
    """Stages one after another: each codes the values of the one before.

    Attributes:
        stages: at least one; receivers decode by these.
        wrappers: around all stages, outermost first.

    Raises:
        ConfigError: the parts make no sense in this order, or there are more than 8 stages.
    """

    stages: tuple[Stage, ...]
    wrappers: tuple[Wrapper, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < len(self.stages) <= MOST_STAGES:
            raise ConfigError(
                f"a chain of {len(self.stages)} stages that compress, such as topk; have 1 to"
                f" {MOST_STAGES}"
            )
        for before, stage in zip(self.stages, self.stages[1:], strict=False):
            if VALUES not in before.symbols:
                exact = ", ".join(before.symbols)
                raise ConfigError(
                    f"{stage} cannot follow {before}, which leaves no values: its symbols ({exact})"
                    " must come back exactly"
                )
            if stage.stateful:
                raise ConfigError(f"{stage} must be the first of its chain: it codes whole tensors")
        if self.wrappers:
            inner = self._inner
            if self.wrappers[0].feeds_back:
                inner.require_contracting()
            self.wrappers[0].check(inner)

    def __str__(self) -> str:
        """Return it as users and streams write it."""
        return THEN.join(map(str, (*self.wrappers, *self.stages)))

    @property
    def biased(self) -> bool:
        """Whether the mean of the decoded differs from the encoded, and is not sent later."""
        feeds_back = any(wrapper.feeds_back for wrapper in self.wrappers)
        return not feeds_back and any(stage.biased for stage in self.stages)

    @property
    def keeps_state(self) -> bool:
        """Whether a sender has anything to keep from one round to the next."""
        return bool(self.wrappers) or self.stages[0].stateful

    @property
    def feedback_decay(self) -> float | None:
        """The decay of its `Feedback`; None without one."""
        return next((part.decay for part in self.wrappers if isinstance(part, Feedback)), None)

    @property
    def by_step(self) -> bool:
        """Whether a bound in it is of a sender's whole step."""
        bounds = (getattr(stage, "bound", None) for stage in self.stages)
        return any(bound is not None and bound.kind == "step" for bound in bounds)

    @property
    def sent(self) -> Chain:
        """The chain that receivers decode by."""
        return Chain(self.stages)

    @property
    def _inner(self) -> Chain:
        """All behind the first wrapper."""
        return replace(self, wrappers=self.wrappers[1:])

    def require_contracting(self) -> None:
        """Raise `ConfigError` if error feedback around it would grow, or hold a wrapper."""
        for wrapper in self.wrappers:
            raise ConfigError(f"{wrapper.name} must stand before feedback, not in it")
        for stage in self.stages:
            if not stage.contracts:
                hint = f": write {stage.name}:unbiased=0" if hasattr(stage, "unbiased") else ""
                raise ConfigError(f"feedback around {stage} grows without end{hint}")

    def init(self, spec: TensorSpec) -> State:
        """Return the state of all parts before the first round."""
        state = dict(self.stages[0].init(spec))
        for wrapper in self.wrappers:
            state.update(wrapper.init(spec))
        return state

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Coded, State]:
        """Return the symbols of a tensor by stages, and the state after it; see `Stage.encode`."""
        if self.wrappers:
            return self.wrappers[0].encode(self._inner, x, state, shared)
        coded: list[Symbols] = []
        for i, stage in enumerate(self.stages):
            if i:
                symbols, _ = stage.encode(x, NOTHING, shared)
            else:
                symbols, state = stage.encode(x, state, shared)
            coded.append(symbols)
            if VALUES in symbols:
                x = symbols[VALUES]
                if not is_finite(x):
                    raise CodecError(f"{stage} makes values that are not finite")
                shared = shared.of(stage.values_spec(symbols, shared.spec))
        return tuple(coded), state

    def decode(self, coded: Coded, shared: Shared) -> Decoded:
        """Return the tensor; see `Stage.decode`."""
        waiting = list(zip(self.stages, coded, self.specs(coded, shared.spec), strict=False))
        decoded: Decoded | None = None
        del coded  # while a stage decodes, nothing of those behind it stays but their values
        while waiting:
            stage, symbols, spec = waiting.pop()
            if decoded is not None:
                symbols = {**symbols, VALUES: dense(decoded)}
            del decoded
            decoded = stage.decode(symbols, shared.of(spec))
        assert decoded is not None
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
