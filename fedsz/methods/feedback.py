"""`feedback`, `ecx` and `dgc`: what is left out of one round goes into the next."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedsz.arrays import NDArray
from fedsz.codecs.base import Residual
from fedsz.codecs.spread import energy
from fedsz.errors import ConfigError
from fedsz.methods.base import Shared, Sparse, State, TensorSpec, subtract
from fedsz.methods.combinators import Coded, Wrapper, parts_of
from fedsz.spec_strings import setting

RESIDUAL, ROUND = "residual", "round"
BEFORE, OWED, MOMENTUM = "before", "owed", "momentum"


@dataclass(frozen=True)
class Feedback(Wrapper):
    """Error feedback (Seide et al. 2014; Karimireddy et al. 2019): what was left out goes again.

    With x the tensor, r the residual and n the rounds since it was left:

        v = x + decay^n r;  send v;  r = v - decoded(v)

    The residual is of all that is decoded, the codec's error included.

    Attributes:
        inner: what codes v.
        decay: of the residual, for each round, 0 to 1.

    Raises:
        ConfigError: the decay is out of range, or ``inner`` has a part whose error can be larger
            than what it codes.
    """

    name = "feedback"
    summary = "error feedback: what the rest leaves out of one round goes into the next"

    decay: float = setting(1.0, 0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in parts_of(self.inner):
            if isinstance(part, Wrapper):
                raise ConfigError(f"{part.name} must stand before feedback, not in it")
            if not part.contracts:
                hint = f": write {part.name}:unbiased=0" if hasattr(part, "unbiased") else ""
                raise ConfigError(f"feedback around {part} grows without end{hint}")

    def init(self, spec: TensorSpec) -> State:
        nothing = np.zeros(spec.shape, spec.dtype)
        return {RESIDUAL: nothing, ROUND: np.zeros(1, np.int64), **super().init(spec)}

    def encode(self, x: NDArray, state: State, shared: Shared) -> Coded:
        age = max(shared.round - int(state[ROUND][0]), 1)
        v = Residual(state[RESIDUAL], self.decay**age).added_to(x)
        planes, kept, _ = super().encode(v, state, shared)
        chain = self.sent(shared.spec)
        assert chain is not None
        decoded = chain.decode(planes, shared)
        left = {RESIDUAL: subtract(v, decoded), ROUND: np.array([shared.round])}
        return Coded(planes, {**left, **kept}, decoded)


@dataclass(frozen=True)
class Ecx(Feedback):
    """ErrorCompensatedX (Tang et al. 2021): the next error is foreseen from the last two.

    With x the tensor, d the error of the last round and d' of the round before it, and e what is
    owed, n rounds old:

        e = (1 - smooth) e + smooth (2 d - d');  v = x + decay^n e;  send v;  d = v - decoded(v)

    Without decay, nothing is lost or sent twice. With a smoothing of 0.5, e is d and this is
    `Feedback`, whatever the decay; below, it is a low-pass filter. Above, the error of an element
    that waits grows faster than linearly, and with most parts it never ends: the source's own
    2 d - d', a smoothing of 1, is refused.

    Attributes:
        inner: what codes v.
        decay: of what is owed, for each round, 0 to 1.
        smooth: weight of the last two errors, above 0 and up to 0.5.

    Raises:
        ConfigError: a setting is out of range, or ``inner`` is none that `Feedback` takes.
    """

    name = "ecx"
    summary = "error feedback that extrapolates from the errors of the last two rounds"

    smooth: float = setting(0.2, 0, 0.5, above=True)

    def init(self, spec: TensorSpec) -> State:
        nothing = np.zeros(spec.shape, spec.dtype)
        return {**super().init(spec), BEFORE: nothing, OWED: nothing}

    def encode(self, x: NDArray, state: State, shared: Shared) -> Coded:
        kind, last = x.dtype.type, state[RESIDUAL]
        ahead = 2 * last - state[BEFORE]
        owed = kind(1 - self.smooth) * state[OWED] + kind(self.smooth) * ahead
        # Its `Feedback` adds what is owed, decayed by its age, and leaves the error of this round.
        coded = super().encode(x, {**state, RESIDUAL: owed}, shared)
        return coded._replace(state={**coded.state, BEFORE: last, OWED: owed})


@dataclass(frozen=True)
class Dgc(Feedback):
    """Deep gradient compression (Lin et al. 2018); its warm-up is a setting of `TopK`.

    With x the tensor, u the momentum and r the residual, n rounds old:

        u = momentum u + clipped(x);  v = u + decay^n r;  send v;  r = v - decoded(v)

    Then u becomes 0 where anything has been decoded (factor masking).

    Attributes:
        inner: what codes v.
        decay: of the residual, for each round, 0 to 1.
        momentum: of earlier rounds, 0 to below 1; a step that never changes is sent
            1 / (1 - momentum) times.
        clip: the largest l2 norm of a tensor, in its unit; larger ones are scaled down. 0 for none.

    Raises:
        ConfigError: a setting is out of range, or ``inner`` is none that `Feedback` takes.
    """

    name = "dgc"
    summary = "error feedback of a momentum, which ends where it is sent"

    momentum: float = setting(0.9, 0, 1, below=True)
    clip: float = setting(0.0, 0)

    def init(self, spec: TensorSpec) -> State:
        return {**super().init(spec), MOMENTUM: np.zeros(spec.shape, spec.dtype)}

    def encode(self, x: NDArray, state: State, shared: Shared) -> Coded:
        u = state[MOMENTUM] * x.dtype.type(self.momentum) + self._clipped(x)
        coded = super().encode(u, state, shared)
        decoded = coded.decoded
        assert decoded is not None
        if isinstance(decoded, Sparse):
            u.reshape(-1)[decoded.indices] = 0
        else:
            u[decoded != 0] = 0
        return coded._replace(state={**coded.state, MOMENTUM: u})

    def _clipped(self, x: NDArray) -> NDArray:
        norm = math.sqrt(energy(x))
        if not self.clip or norm <= self.clip:
            return x
        return np.asarray(x * x.dtype.type(self.clip / norm))
