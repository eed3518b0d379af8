"""Error feedback: what compression left out of one round goes into what is sent in the next.

With x the tensor to send, r the residual and D(C(v)) what v decodes to (Seide et al. 2014,
Karimireddy et al. 2019; for both directions: DoubleSqueeze, Tang et al. 2019):

    v = x + decay^age r;  send C(v);  r = v - D(C(v))

The residual is of what is really decoded, so that it holds every error on the way, the codec's and
the rounding of narrow dtypes too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from fedsz.arrays import NDArray
from fedsz.update.config import CompressionConfig
from fedsz.update.lossy import narrow, wide
from fedsz.update.reference import Reference
from fedsz.update.step import bounds_of_step, energies


class ErrorFeedback(Mapping[str, NDArray]):
    """A state_dict with a sender's residual added, and the residual that sending it leaves.

    A mapping whose arrays are made as they are asked for, in the dtypes of the state_dict.

    Args:
        state: what is to be sent.
        residual: by tensor, what earlier rounds left out; others than of the tensor's own shape are
            of another model, and left alone. Float64 for float64 tensors, float32 for others.
        decay: what a residual is multiplied with for each round of its age, in [0, 1].
        age: in rounds; 1 if it is of the round before.
    """

    def __init__(
        self,
        state: Mapping[str, NDArray],
        residual: Mapping[str, NDArray],
        *,
        decay: float = 1.0,
        age: int = 1,
    ) -> None:
        self._state = state
        self._residual = residual
        self._weight = decay**age

    def __getitem__(self, name: str) -> NDArray:
        x = self._state[name]
        meant = self._meant(name, x)
        return x if meant is None else narrow(meant, x.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def bounds(
        self,
        config: CompressionConfig,
        reference: Reference,
        steps: Mapping[str, tuple[int, float]] | None = None,
    ) -> dict[str, float]:
        """Return the absolute bounds of tensors to be coded as differences from ``reference``.

        ``steps`` are what `energies` returns of the state_dict without its residual, if known.

        Bounds of kind ``std`` and ``step`` are of the step alone. Of the step and the residual,
        they would grow with what they leave out: at 2 standard deviations to twice that, at 3 to
        four times. Where nothing moved they are of the residual. Other bounds are the config's, and
        none are returned.
        """
        if config.bound.kind == "step":
            if steps is None:
                steps = energies(self._state, reference, config)
            bounds = bounds_of_step(steps, config)
            return bounds or bounds_of_step(energies(self, reference, config), config)
        if config.bound.kind != "std":
            return {}
        bounds = {}
        for name in self._residual.keys() & self._state.keys():
            x = self._state[name]
            if self._meant(name, x) is not None:
                with np.errstate(over="ignore", invalid="ignore"):
                    step = np.subtract(x, reference.tensor(name, x), dtype=wide(x.dtype))
                bounds[name] = config.bound_of(name).absolute(step)
        # A tensor that did not move has no bound of its own: the residual's will do.
        return {name: b for name, b in bounds.items() if b > 0}

    def left_out(self, decoded: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """Return the residual, given what was sent as its receiver decodes it.

        Tensors that arrive exactly have none, and neither have those with a NaN or an infinity
        anywhere: the next round starts afresh for them.
        """
        residual = {}
        for name, y in decoded.items():
            if y.dtype.kind in "iubc":
                continue
            x = self._state[name]
            meant = self._meant(name, x)
            with np.errstate(invalid="ignore", over="ignore"):
                r = np.subtract(x if meant is None else meant, y, dtype=wide(y.dtype))
            if r.any() and np.isfinite(r).all():
                residual[name] = r
        return residual

    def _meant(self, name: str, x: NDArray) -> NDArray | None:
        """Return a tensor with its residual, in the residual's dtype; None if it has none."""
        r = self._residual.get(name)
        if r is None or r.shape != x.shape or r.dtype != wide(x.dtype) or not self._weight:
            return None
        meant: NDArray = r * r.dtype.type(self._weight)
        meant += x
        return meant
