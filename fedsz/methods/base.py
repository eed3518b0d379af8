"""What a part of a chain is: settings, an explicit state, and pure functions of arrays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import NDArray, chunks, flat
from fedsz.codecs import _methods, _stream
from fedsz.codecs.spread import energy
from fedsz.errors import CodecError, CorruptStream
from fedsz.spec_strings import check_settings, spelled

if TYPE_CHECKING:
    from fedsz.methods.eigen import Basis

State = Mapping[str, NDArray]  # what a sender keeps, see fedsz.methods.state
Planes = Mapping[str, NDArray]  # what it sends: planes, by their names

VALUES: Final = "values"  # the plane that the next part of a chain codes
DTYPES: Final = (np.dtype(np.float32), np.dtype(np.float64))  # of tensors and values
MOST_ELEMENTS: Final = 1 << 32  # of a tensor whose indices are drawn
MANY: Final = 8  # a receiver has indices of more than one in so many elements as a mask
NOTHING: Final[State] = {}

Words = npt.NDArray[np.uint64]


class Kind(IntEnum):
    """What a plane holds, and so how it is packed; see `fedsz.methods.planes`."""

    VALUES = 0  # of the tensor's dtype, finite
    INDICES = 1  # int64, ascending, below the tensor's number of elements; see `MANY`
    SIGNS = 2  # bool, true for what is below 0
    TRITS = 3  # int8: -1, 0 or 1
    LEVELS = 4  # whole numbers, small ones
    SCALES = 5  # likewise, and no part codes them
    PAYLOAD = 6  # uint8: what a codec of fedsz wrote


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its values.

    Attributes:
        shape: outermost dimension first.
        dtype: float32 or float64.
        name: its key in the state_dict.
    """

    shape: tuple[int, ...]
    dtype: np.dtype = DTYPES[0]
    name: str = ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def values(self, count: int) -> TensorSpec:
        """Return that of ``count`` values which stand for the tensor in the next part."""
        return TensorSpec((count,), self.dtype, f"{self.name}>")


@dataclass(frozen=True)
class Shared:
    """What sender and receiver both know; all but the tensor's spec stands in the stream.

    Attributes:
        spec: of the tensor.
        seed: of the run, 0 to 2^64 - 1; the same for all senders.
        round: likewise.
        sender: 0 to 2^64 - 1; tells senders apart where each draws numbers of its own.
        reference: digest of the model that the tensor is a difference from; empty if of none.
        basis: of the tensor, as earlier broadcasts have shown it; see `fedsz.methods.eigen`.
        scale: what the sender multiplies bounds of kind ``step`` with; receivers need it not.
    """

    spec: TensorSpec
    seed: int = 0
    round: int = 0
    sender: int = 0
    reference: bytes = b""
    basis: Basis | None = None
    scale: float = field(default=0.0, compare=False)

    def of(self, spec: TensorSpec) -> Shared:
        """Return what is known of another tensor."""
        return replace(self, spec=spec)

    def words(self, count: int, start: int = 0, *, own: bool = False) -> Words:
        """Return random words that sender and receiver can both draw, uint64 of shape (count,).

        SplitMix64 (Steele, Lea and Flood 2014) from a key: word i is mix(key + (i + 1) gamma).

        Args:
            count: of words.
            start: number of the first.
            own: whether each sender draws others.
        """
        words: Words = np.empty(count, np.uint64)
        _methods.words(self.key(own=own), start, words)
        return words

    def draws(self) -> np.random.Generator:
        """Return random numbers of this sender alone, for rounding that no receiver repeats."""
        return np.random.Generator(np.random.SFC64(self.key(own=True)))

    def key(self, *, own: bool = False) -> int:
        """Return what `words` are drawn from, 0 to 2^64 - 1."""
        numbers = (self.seed, self.round, self.sender if own else 0, int(own))
        name = self.spec.name.encode("utf-8", "surrogatepass")
        return _stream.xxh3_64(b"".join((*(n.to_bytes(8, "little") for n in numbers), name)))


@dataclass(frozen=True)
class Sparse:
    """A decoded tensor of which all but a few elements are 0; a `fedsz.codecs.base.Opened`.

    Attributes:
        indices: int64, ascending, of shape (k,): positions in C order.
        values: of the tensor's dtype, of shape (k,).
        spec: of the tensor.
    """

    indices: NDArray
    values: NDArray
    spec: TensorSpec

    def dense(self) -> NDArray:
        """Return the tensor with its zeros."""
        x = np.zeros(self.spec.size, self.values.dtype)
        x[self.indices] = self.values
        return x.reshape(self.spec.shape)

    @property
    def energy(self) -> float:
        """The sum of its squares."""
        return energy(self.values)

    def add(self, sums: NDArray, weight: float) -> None:
        """Add ``weight`` times the tensor to ``sums``, at a cost that follows its non-zeros."""
        values = flat(self.values.astype(sums.dtype, copy=False))
        _methods.add_sparse(flat(self.indices), values, weight, sums.reshape(-1))


Decoded = NDArray | Sparse


class Part(ABC):
    """A part of a chain: one module, and one line in `fedsz.methods.METHODS`.

    A frozen dataclass whose fields are its settings. All functions are pure: equal arguments give
    equal results, and no argument is changed.

    Attributes:
        name: what users write.
        summary: what it does, on one line.
        planes: by name, the kinds of what it writes, in the order of the wire. One of kind
            ``VALUES`` is coded by the next part of a chain, or as it is.
        biased: whether the mean of what is decoded is another than what was encoded. Such a part
            belongs into `Feedback`.
        stateful: whether a sender keeps anything from one round to the next.
        leads: whether it must be the first of its chain, since what it knows is of the tensor.
        linear: whether what several senders have sent can be added up before it is decoded:
            decode(a + b) = decode(a) + decode(b), where ``shared`` differs by its sender at most.
        contracts: whether its error is smaller than what it codes. Any other part must stay outside
            `Feedback`, where its error would grow. Biased ones do; few unbiased ones do.
        work: of decoding an element, or a value where there are more. 1 is some 10 ns, as to draw a
            number takes; see `fedsz.methods.combinators.Chain.require_affordable`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    @property
    @abstractmethod
    def planes(self) -> Mapping[str, Kind]: ...

    @property
    def biased(self) -> bool:
        return True

    @property
    def stateful(self) -> bool:
        return type(self).init is not Part.init

    @property
    def leads(self) -> bool:
        return self.stateful

    @property
    def linear(self) -> bool:
        return False

    @property
    def contracts(self) -> bool:
        return self.biased

    @property
    def work(self) -> float:
        return 1.0

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting out of its range."""
        check_settings(self)

    def __str__(self) -> str:
        """Return it as users write it."""
        return spelled(self)

    @property
    def told(self) -> str:
        """What streams say of it: no setting that only senders need."""
        return str(self)

    def init(self, spec: TensorSpec) -> State:
        """Return the state before the first round: arrays by name, none for most parts."""
        return NOTHING

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Planes, State]:
        """Return what is sent of a tensor, and the state after it.

        Args:
            x: as ``shared.spec`` says, finite.
            state: of `init`, or of the round before.
            shared: what the receiver knows, too.
        """
        return self.code(x.reshape(-1), shared), state

    def code(self, x: NDArray, shared: Shared) -> Planes:
        """Do as `encode`, of a flat ``x``, in a part that keeps nothing."""
        raise NotImplementedError(self.name)

    @abstractmethod
    def decode(self, planes: Planes, shared: Shared) -> Decoded:
        """Return the tensor, which is an estimate of what was encoded.

        Args:
            planes: of `encode`, of each kind; or of a linear one, the sum of several.
            shared: as it was there.

        Raises:
            CorruptStream: planes do not fit each other or the tensor.
        """

    def values_spec(self, planes: Planes, spec: TensorSpec) -> TensorSpec:
        """Return the spec of its values plane, by its other planes; only if it has one.

        Without those, that of the longest there can be.
        """
        raise NotImplementedError(type(self).__name__)

    def gain(self, shared: Shared) -> NDArray | float | None:
        """Return g of |decode(v)|^2 = sum of g v^2: a number for each value, or one for all.

        By it the norm of what a linear part sends is known without decoding it. None where there is
        no such g. A part may also return a g of which the sum is never less, and say so.

        Raises:
            CodecError: the tensor has more elements than the part decodes.
        """
        return None


def dense(decoded: Decoded) -> NDArray:
    """Return what was decoded with all its zeros."""
    return decoded.dense() if isinstance(decoded, Sparse) else decoded


def subtract(x: NDArray, decoded: Decoded) -> NDArray:
    """Return x - decoded, in the dtype of ``x`` and at the cost of a copy where that is sparse."""
    if not isinstance(decoded, Sparse):
        return np.asarray(np.subtract(x, decoded))
    left = x.copy()
    left.reshape(-1)[decoded.indices] -= decoded.values
    return left


def is_small(x: NDArray) -> bool:
    """Say whether an array is finite and so is the sum of its squares, in its own dtype.

    No chain makes anything near the largest number of the dtype of such an array. To know it takes
    less time than to ask whether each element is finite.
    """
    flat = x.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(flat, flat)))


def is_finite(x: NDArray) -> bool:
    """Say whether all elements are finite."""
    flat = x.reshape(-1)
    return is_small(flat) or all(np.isfinite(flat[here]).all() for here in chunks(flat.size))


def counted(indices: NDArray) -> int:
    """Return the number of indices, be they a mask or not."""
    return int(np.count_nonzero(indices)) if indices.dtype == np.bool_ else indices.size


def placed(indices: NDArray, values: NDArray, spec: TensorSpec) -> Decoded:
    """Return a tensor that has values at indices, and else 0.

    Args:
        indices: int64 and ascending, or a mask of all elements; then the tensor is dense.
        values: as many, or one for all of them, of shape ().
        spec: of the tensor.
    """
    if indices.dtype != np.bool_:
        return Sparse(indices, flat(np.broadcast_to(values, indices.shape)), spec)
    if values.size == spec.size and values.ndim:
        return values.reshape(spec.shape)
    x = np.zeros(spec.size, values.dtype)
    x[indices] = values
    return x.reshape(spec.shape)


def require_drawable(spec: TensorSpec) -> None:
    """Raise `CodecError` if a tensor has more elements than words can choose among."""
    if spec.size > MOST_ELEMENTS:
        raise CodecError(f"{spec.size} elements; draws are among up to {MOST_ELEMENTS}")


def require_count(what: str, plane: NDArray, count: int) -> None:
    """Raise `CorruptStream` unless a plane has ``count`` elements."""
    if plane.size != count:
        raise CorruptStream(f"{plane.size} {what} where {count} are needed")
