"""Arrays as all of fedsz sees them: the dtypes of streams, and a state_dict's tensors as arrays.

Torch stops here: what else there is sees numpy arrays. It is never imported for its own sake, so a
numpy state_dict needs no torch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fedsz import extras
from fedsz.errors import ConfigError, ModelMismatch

if TYPE_CHECKING:
    import torch

StateDict = Mapping[str, Any]  # of torch tensors or numpy arrays
NDArray = npt.NDArray[Any]
Buffer = bytes | bytearray | memoryview

MAX_NDIM: Final = 64  # numpy's own limit
MAX_SIZE: Final = 1 << 56  # the product of all dimensions but those of 0: below numpy's own limit
CHUNK: Final = 1 << 16  # elements worked on at a time, which a cache holds

# Position is wire id: append, never reorder.
DTYPES: Final = tuple(
    np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        "float32", "float64", "float16", "bfloat16", "bool",
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "complex64", "complex128",
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    )
)  # fmt: skip
DTYPE_IDS: Final = {dtype: i for i, dtype in enumerate(DTYPES)}
DTYPE_NAMES: Final = {dtype: dtype.name for dtype in DTYPES}  # numpy makes one up each time
LOSSY_DTYPES: Final = frozenset(DTYPES[:4])
COMPLEX_DTYPES: Final = frozenset(DTYPES[13:15])  # have no differences of bits

# Dtypes that torch has and numpy has only through ml_dtypes: they cross as unsigned integers.
_CARRIERS: Final = {dtype: dtype.name for dtype in DTYPES if hasattr(ml_dtypes, dtype.name)}


def as_array(name: str, value: Any) -> NDArray:
    """Return one tensor as a C-contiguous little-endian array, without a copy where possible.

    Raises:
        ConfigError: the name is not a string, or the value is neither a dense tensor nor an array,
            or of a dtype or shape that streams do not have.
    """
    if not isinstance(name, str):
        raise ConfigError(f"state_dict keys must be strings, got {name!r}")
    if type(value) is np.ndarray and value.size and value.dtype in DTYPE_IDS:
        return np.ascontiguousarray(value) if value.ndim else value
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        x = _from_torch(name, value)
    elif isinstance(value, np.ndarray | np.generic):
        if isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.memmap):
            # Such as a mask, or a unit, which would be lost.
            kind = type(value).__name__
            what = "pass its elements, as by numpy.asarray, if no more is meant"
            raise ConfigError(f"state_dict[{name!r}] is a {kind}, more than an array: {what}")
        x = np.asarray(value)
    else:
        kind = type(value).__name__
        raise ConfigError(f"state_dict[{name!r}] is a {kind}; have torch tensors and numpy arrays")
    little = x.dtype.newbyteorder("<")
    x = np.asarray(x, x.dtype if x.dtype == little else little, order="C")
    if x.dtype not in DTYPE_IDS:
        raise ConfigError(f"state_dict[{name!r}] has dtype {x.dtype}, which streams do not have")
    if not is_shape(x.shape):
        raise ConfigError(f"state_dict[{name!r}] has shape {x.shape}, which streams do not have")
    return x


def is_shape(shape: Sequence[int]) -> bool:
    """Say whether there are arrays of a shape, in any dtype: numpy counts past dimensions of 0."""
    if len(shape) > MAX_NDIM or min(shape, default=0) < 0:
        return False
    return math.prod(length for length in shape if length) <= MAX_SIZE


def require_state_dict(given: Any) -> StateDict:
    """Return what a caller gave as a state_dict.

    Raises:
        ConfigError: it is no mapping; says what to give instead of a model.
    """
    if isinstance(given, Mapping):
        return given
    kind = type(given).__name__
    if hasattr(given, "state_dict"):
        raise ConfigError(f"a {kind} is not a state_dict: pass model.state_dict(), not model")
    raise ConfigError(f"a state_dict maps names to tensors or arrays, got a {kind}")


def as_arrays(state_dict: StateDict) -> dict[str, NDArray]:
    """Return a state_dict's tensors as arrays; see `as_array`."""
    return {name: as_array(name, value) for name, value in state_dict.items()}


def as_tensor(x: NDArray) -> torch.Tensor:
    """Return a writable array as a torch tensor that shares its memory.

    Raises:
        MissingPackage: torch is not installed here.
    """
    with extras.explained():
        import torch

    carrier = _CARRIERS.get(x.dtype)
    if carrier is None:
        return torch.from_numpy(x)
    bits = torch.from_numpy(x.view(f"u{x.itemsize}"))
    dtype: torch.dtype = getattr(torch, carrier)
    return bits.view(dtype)


def _from_torch(name: str, tensor: torch.Tensor) -> NDArray:
    import torch

    lazy = torch.nn.parameter.is_lazy(tensor)
    if lazy or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise ConfigError(f"state_dict[{name!r}] is not a dense tensor with values")
    # Those that wrap other tensors: masked, nested, distributed.
    if tensor.is_nested or type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        kind = type(tensor).__name__
        raise ConfigError(f"state_dict[{name!r}] is a {kind}, more than one dense tensor")
    dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    dtype_name = str(dense.dtype).removeprefix("torch.")
    try:
        if dtype_name in _CARRIERS.values():
            bits = dense.view(torch.uint16 if dense.itemsize == 2 else torch.uint8)
            return bits.numpy().view(getattr(ml_dtypes, dtype_name))
        array: NDArray = dense.numpy()
    except TypeError:
        raise ConfigError(
            f"state_dict[{name!r}] has dtype {dtype_name}, which streams do not have"
        ) from None
    return array


def raw(x: NDArray) -> memoryview:
    """Return the bytes of a contiguous array without copying, for dtypes of ml_dtypes too."""
    flat: Any = x.reshape(-1).view(np.uint8)
    return memoryview(flat)


def flat(x: NDArray) -> NDArray:
    """Return the elements of ``x`` in order, contiguous and aligned, as C++ wants them.

    Without a copy if they lie like that already.
    """
    x = np.ascontiguousarray(x)
    return (x if x.flags.aligned else x.copy()).reshape(-1)


def octets(x: NDArray) -> npt.NDArray[np.uint8]:
    """Return an array's bytes, in order; without a copy if it is contiguous and aligned."""
    return flat(x).view(np.uint8)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes that a model's arrays must have."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, np.dtype]

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray]) -> Layout:
        """Return that of a state_dict of arrays."""
        return cls(
            {name: x.shape for name, x in arrays.items()},
            {name: x.dtype for name, x in arrays.items()},
        )

    @cached_property
    def nbytes(self) -> int:
        """Size of arrays that fit, in bytes."""
        return sum(
            math.prod(shape) * self.dtypes[name].itemsize for name, shape in self.shapes.items()
        )

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse arrays with other names or shapes.

        Raises:
            ModelMismatch: naming the first difference, and both shapes.
        """
        if shapes == self.shapes:
            return
        for name, shape in self.shapes.items():
            if name not in shapes:
                raise ModelMismatch(f"{name!r} of shape {shape} is missing")
            if shapes[name] != shape and not self._is_bytes(name, shapes[name]):
                raise ModelMismatch(
                    f"{name!r} has shape {shapes[name]} where the model has {shape}"
                )
        for name, shape in shapes.items():
            if name not in self.shapes:
                raise ModelMismatch(f"{name!r} of shape {shape} is not in the model")

    def _is_bytes(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a tensor is bytes of any length, such as the trees of a boosted model."""
        return self.dtypes[name] == np.uint8 and len(self.shapes[name]) == len(shape) == 1

    @property
    def holds_bytes(self) -> bool:
        """Whether a tensor may be longer than the layout says."""
        return any(self._is_bytes(name, shape) for name, shape in self.shapes.items())

    def cast(self, name: str, x: NDArray) -> NDArray:
        """Return an array in the layout's dtype: strategies widen some of them.

        FedAvg makes floats of integers and FedAdam float64 of everything. Integers are rounded.
        """
        return cast(x, self.dtypes[name]) if name in self.dtypes else x


def cast(x: NDArray, dtype: np.dtype) -> NDArray:
    """Return ``x`` in ``dtype``, rounded to the nearest where that is an integer or a bool."""
    if x.dtype == dtype:
        return x
    whole = dtype.kind in "iub" and x.dtype.kind == "f"
    return np.asarray((np.rint(x) if whole else x).astype(dtype))


def saturate(x: NDArray, dtype: np.dtype) -> None:
    """Move what is finite, and beyond the range of ``dtype``, to the end of that range, in place.

    ``x`` is C-contiguous. A cast would make infinities of it, or any number of an integer.
    """
    if dtype.kind in "bc" or (dtype.itemsize >= x.itemsize and dtype.kind not in "iu"):
        return
    about: Any = np.iinfo(dtype) if dtype.kind in "iu" else finfo(dtype)
    low, high = x.dtype.type(about.min), x.dtype.type(about.max)
    if float(high) > int(about.max):  # no float is 2^63 - 1, and the next one is beyond
        high = np.nextafter(high, x.dtype.type(0))
    flat = x.reshape(-1)
    for here in chunks(flat.size):
        part = flat[here]
        np.clip(part, low, high, out=part, where=np.isfinite(part))


def wide(dtype: np.dtype) -> np.dtype:
    """Return the dtype that differences of a floating ``dtype``, and sums, are made in."""
    return dtype if dtype == DTYPES[1] else DTYPES[0]


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which values of ``dtype`` are added up."""
    if dtype.kind == "c" or dtype == np.float64:
        return dtype
    # Counters reach beyond the 24 bits of a float32; weights of 16 bits need its range.
    return np.dtype(np.float64 if dtype.kind in "iub" else np.float32)


@lru_cache
def finfo(dtype: np.dtype) -> Any:
    """Return numpy's `finfo`, for bfloat16 too."""
    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def chunks(size: int, length: int = CHUNK) -> Iterator[slice]:
    """Yield slices of a flat array of ``size`` elements, one after the other.

    Whatever is computed slice by slice has small arrays in between, where it would have large ones.
    """
    for start in range(0, size, length):
        yield slice(start, start + length)


def is_small(x: NDArray) -> bool:
    """Say whether an array is finite and so is the sum of its squares, in its own dtype.

    This takes less time than to ask whether each element is finite.
    """
    flat = x.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(flat, flat)))


def is_finite(x: NDArray) -> bool:
    """Say whether all elements are finite."""
    flat = x.reshape(-1)
    return is_small(flat) or all(np.isfinite(flat[here]).all() for here in chunks(flat.size))


def add_scaled(x: NDArray, weight: float, sums: NDArray) -> None:
    """Add ``weight`` times ``x`` to ``sums``, in their dtype; both are C-contiguous."""
    flat, out = x.reshape(-1), sums.reshape(-1)
    for here in chunks(flat.size):
        out[here] += flat[here].astype(sums.dtype) * sums.dtype.type(weight)
