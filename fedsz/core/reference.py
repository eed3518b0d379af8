"""A model that both sides hold, by which updates are coded as differences, and how far these go.

The step from the model a client was sent to the one it sends back is small: within the same error
bound it takes far fewer bytes. A stream of differences names its reference by a digest, so that
nothing is ever added to the wrong model.

With s_t the step of tensor t (its difference from the reference), n_t its elements and RMS the root
mean square, a bound of kind ``step`` is for tensor t

    b_t = K min(S, 4 RMS(s_t)),    S = RMS of all lossy tensors' steps together

One bound for all tensors spends the fewest bytes on a mean squared error. The minimum keeps tensors
that move by decades less from waiting for rounds until their residual reaches the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from fedsz.arrays import (
    DTYPE_NAMES,
    LOSSY_DTYPES,
    NDArray,
    StateDict,
    as_arrays,
    raw,
    require_state_dict,
)
from fedsz.codecs import _stream
from fedsz.codecs.spread import energy as energy_of
from fedsz.codecs.spread import energy_between
from fedsz.core.partition import is_lossy
from fedsz.core.settings import Settings
from fedsz.errors import ReferenceMismatch
from fedsz.threads import side_by_side

SHOWN: Final = 8  # bytes of a digest in messages
MOST: Final = 4.0  # root mean squares of its own step that bound a tensor
NEAR: Final = 0.5  # times as far from 0 as from the reference model, at most: a step
LOOK: Final = 1 << 16  # elements of a tensor that tell


class Reference:
    """A state_dict, of torch tensors or numpy arrays, that others are coded as differences from.

    It keeps the arrays, not copies: they must not change while it is in use.

    Args:
        state_dict: the model.
        digest: of the model, where it is known; else it is computed when it is first asked for.

    Raises:
        ConfigError: it holds something that streams do not.
    """

    def __init__(self, state_dict: StateDict, digest: bytes | None = None) -> None:
        self.arrays: dict[str, NDArray] = as_arrays(state_dict)
        if digest is not None:
            self.__dict__["digest"] = digest

    @classmethod
    def of(cls, model: Reference | StateDict | None) -> Reference | None:
        """Return a reference to what a caller gave, if anything."""
        if model is None or isinstance(model, Reference):
            return model
        return cls(require_state_dict(model))

    @cached_property
    def digest(self) -> bytes:
        """XXH3 (128 bits) over every tensor's name, dtype, shape and bytes, in order.

        It tells models apart that differ by accident. An attacker who can make two models of equal
        digest could send any model in the first place.
        """
        hashed = _stream.Xxh3()
        for name, x in self.arrays.items():
            head = f"{name}\0{DTYPE_NAMES[x.dtype]}\0{','.join(map(str, x.shape))}\0"
            hashed.update(head.encode("utf-8", "surrogatepass"))
            hashed.update(raw(x))
        return hashed.digest()

    def like(self, name: str, x: NDArray) -> NDArray | None:
        """Return its tensor of a name if that has the dtype and shape of ``x``, else None."""
        return like_in(self.arrays, name, x)

    @property
    def nbytes(self) -> int:
        """Size of all arrays, in bytes."""
        return sum(x.nbytes for x in self.arrays.values())


def like_in(arrays: Mapping[str, NDArray], name: str, like: NDArray) -> NDArray | None:
    """Return the array of a name if it has the dtype and shape of ``like``, else None."""
    found = arrays.get(name)
    fits = found is not None and (found.shape, found.dtype) == (like.shape, like.dtype)
    return found if fits else None


def require_reference(digest: bytes, reference: Reference | None) -> None:
    """Raise `ReferenceMismatch` unless ``reference`` is the model of this digest."""
    if reference is None:
        raise ReferenceMismatch(f"the stream holds differences from model {shown(digest)}: pass it")
    if digest != reference.digest:
        raise ReferenceMismatch(
            f"the stream's differences refer to model {shown(digest)}; this is model"
            f" {shown(reference.digest)}"
        )


def shown(digest: bytes) -> str:
    """Return a digest for people."""
    return digest.hex()[: 2 * SHOWN]


def energies(
    state: Mapping[str, NDArray], reference: Reference, settings: Settings
) -> dict[str, tuple[int, float]]:
    """Return elements and sum of squares of the step of each tensor that may be lossy.

    Tensors that the reference lacks, or whose step is not finite, are left out.
    """

    def squares(item: tuple[str, NDArray]) -> float:
        name, x = item
        base = reference.like(name, x)
        if base is None or not x.size:
            return math.inf
        if not is_lossy(name, x, rule=settings.rule, threshold=settings.threshold):
            return math.inf
        return energy_between(x, base)

    total = sum(x.nbytes for x in state.values())
    found = side_by_side(squares, state.items(), lambda item: item[1].nbytes, total)
    return {
        name: (x.size, energy)
        for (name, x), energy in zip(state.items(), found, strict=True)
        if math.isfinite(energy)
    }


def bounds_of_step(
    energies: Mapping[str, tuple[int, float]], settings: Settings, bound_value: float | None = None
) -> dict[str, float]:
    """Return the absolute bounds that a bound of kind ``step`` stands for, by tensor.

    Args:
        energies: elements and sum of squares of each tensor's step.
        settings: whose factors multiply the bound.
        bound_value: K; by default that of the settings' error bound.

    Returns:
        Bounds above 0; none where nothing moved. A tensor that did not move has K x S.
    """
    value = settings.bound.value if bound_value is None else bound_value
    scales = scales_of_step(energies)
    bounds = {
        name: value * settings.factors.get(name, 1.0) * scale for name, scale in scales.items()
    }
    return {name: bound for name, bound in bounds.items() if 0 < bound < math.inf}


def scales_of_step(energies: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """Return what a bound of kind ``step`` is multiplied with, by tensor: min(S, 4 RMS(s_t))."""
    common = root_mean_square(energies)
    own = {name: math.sqrt(energy / count) for name, (count, energy) in energies.items()}
    return {name: min(common, MOST * rms) if rms else common for name, rms in own.items()}


def root_mean_square(energies: Mapping[str, tuple[int, float]]) -> float:
    """Return that of all elements together; 0 where there are none."""
    count = sum(n for n, _ in energies.values())
    return math.sqrt(sum(energy for _, energy in energies.values()) / count) if count else 0.0


def is_step(trained: Mapping[str, NDArray], reference: Reference) -> bool:
    """Say whether an app has replied with its step in place of a model: what is much nearer to 0.

    Args:
        trained: the reply.
        reference: the model; tensors that it lacks say nothing.
    """
    size = distance = 0.0
    for name, x in trained.items():
        start = reference.like(name, x)
        if start is not None and x.dtype in LOSSY_DTYPES:
            some, of_start = (y.reshape(-1)[:LOOK] for y in (x, start))
            size += energy_of(some)
            distance += energy_between(some, of_start)
    return size < NEAR**2 * distance
