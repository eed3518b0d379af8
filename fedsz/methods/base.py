"""What a stage of a chain is: settings, an explicit state, and pure functions of arrays."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from fedsz.arrays import NDArray, flat
from fedsz.codecs import _methods, _stream
from fedsz.codecs.spread import energy
from fedsz.errors import CodecError, ConfigError, CorruptStream
from fedsz.spec_strings import check_settings, spelled

# Of a sender and a tensor, from one round to the next: arrays, whose names begin with their
# method's and a dot, and have no slash.
State = Mapping[str, NDArray]
Symbols = Mapping[str, NDArray]  # of a stage, by their names
Coded = tuple[Symbols, ...]  # a tensor on the wire: the symbols of each stage of a chain

VALUES: Final = "values"  # the symbols that the next stage of a chain codes
DTYPES: Final = (np.dtype(np.float32), np.dtype(np.float64))  # of tensors and values
MOST_ELEMENTS: Final = 1 << 32  # of a tensor whose indices are drawn
NOTHING: Final[State] = {}

Words = npt.NDArray[np.uint64]


class Kind(Enum):
    """The type of symbols, which says how they are packed; see `fedsz.methods.symbols`."""

    VALUES = auto()  # of the tensor's dtype, finite
    INDICES = auto()  # int64, ascending, below the tensor's number of elements
    LEVELS = auto()  # whole numbers, at most 2^22 in magnitude
    PAYLOAD = auto()  # uint8: bytes of a codec of fedsz


@dataclass(frozen=True)
class Count:
    """A number of elements, such as ``64``, or a share of a tensor's, such as ``1%``.

    Raises:
        ConfigError: it is neither, not above 0, or a share above all.
    """

    text: str

    def __post_init__(self) -> None:
        try:
            number = self._number
        except ValueError:
            number = math.nan
        if not (0 < number <= 100 if self._is_share else number >= 1 and number.is_integer()):
            raise ConfigError(
                f"must be a number of elements or a share such as 1%, got {self.text!r}"
            )

    def of(self, size: int) -> int:
        """Return how many of ``size`` elements that is: all at most, and one at least."""
        wanted = round(self._number / 100 * size) if self._is_share else int(self._number)
        return min(size, max(wanted, 1))

    def times(self, factor: float) -> Count:
        """Return ``factor`` times as many, all at most."""
        number = factor * self._number
        return Count(f"{min(number, 100):.15g}%" if self._is_share else f"{max(round(number), 1)}")

    def __str__(self) -> str:
        """Return it as users write it."""
        return self.text

    @property
    def _number(self) -> float:
        return float(self.text.removesuffix("%"))

    @property
    def _is_share(self) -> bool:
        return self.text.endswith("%")


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
        """Return that of ``count`` values which stand for the tensor in the next stage."""
        return TensorSpec((count,), self.dtype, f"{self.name}>")


@dataclass(frozen=True)
class Shared:
    """What sender and receiver both know; all but the tensor's spec stands in the stream.

    Attributes:
        spec: of the tensor.
        seed: of the run, 0 to 2^64 - 1; the same for all senders.
        round: likewise.
        sender: 0 to 2^64 - 1; tells senders apart where each draws numbers of its own.
        scale: factor of bounds of kind ``step``, in the unit of the tensor; senders alone use it.
    """

    spec: TensorSpec
    seed: int = 0
    round: int = 0
    sender: int = 0
    scale: float = field(default=0.0, compare=False)

    def of(self, spec: TensorSpec) -> Shared:
        """Return the same for another tensor."""
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
        """Return the key of `words`, 0 to 2^64 - 1."""
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
    """A part of a chain: a frozen dataclass whose fields are its settings.

    All functions are pure: equal arguments give equal results, and no argument is changed.

    Attributes:
        name: what users write.
        summary: what it does, on one line.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting out of its range."""
        check_settings(self)

    def __str__(self) -> str:
        """Return it as users write it."""
        return spelled(self)

    def init(self, spec: TensorSpec) -> State:
        """Return the state before the first round: arrays by name, none for most parts."""
        return NOTHING


class Stage(Part):
    """A part that codes a tensor, or the values of the stage before.

    Attributes:
        symbols: the kinds of its symbols by name, in the order of the wire. Those named `VALUES`
            are coded by the next stage of a chain, or packed as they are.
        biased: whether the mean of the decoded differs from the encoded. Such a stage needs
            `Feedback`.
        stateful: whether a sender keeps anything from one round to the next. Such a stage sees the
            whole tensor, so it is the first of its chain.
        contracts: whether its error is smaller than its input. Any other stage must stay outside
            `Feedback`, where its error would grow. Biased ones do; few unbiased ones do.
    """

    @property
    @abstractmethod
    def symbols(self) -> Mapping[str, Kind]: ...

    @property
    def biased(self) -> bool:
        return True

    @property
    def stateful(self) -> bool:
        return type(self).init is not Part.init

    @property
    def contracts(self) -> bool:
        return self.biased

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Symbols, State]:
        """Return the symbols of a tensor, and the state after it.

        Args:
            x: of the shape and dtype of ``shared.spec``, finite.
            state: of `init`, or of the round before.
            shared: what the receiver knows, too.
        """
        return self.code(x.reshape(-1), shared), state

    def code(self, x: NDArray, shared: Shared) -> Symbols:
        """Do as `encode`, of a flat ``x``, in a stage without state."""
        raise NotImplementedError(self.name)

    @abstractmethod
    def decode(self, symbols: Symbols, shared: Shared) -> Decoded:
        """Return the tensor, an estimate of the encoded one.

        Args:
            symbols: of `encode`, of each kind.
            shared: that of the encoder, but for ``scale``.

        Raises:
            CorruptStream: symbols do not fit each other or the tensor.
        """

    def values_spec(self, symbols: Symbols, spec: TensorSpec) -> TensorSpec:
        """Return the spec of its values, given its other symbols; only if it has values.

        Without symbols, that of the longest values there can be.
        """
        return spec.values(spec.size)


def dense(decoded: Decoded) -> NDArray:
    """Return a decoded tensor with all its zeros."""
    return decoded.dense() if isinstance(decoded, Sparse) else decoded


def require_drawable(spec: TensorSpec) -> None:
    """Raise `CodecError` if a tensor has more elements than words can choose among."""
    if spec.size > MOST_ELEMENTS:
        raise CodecError(f"{spec.size} elements; draws are among up to {MOST_ELEMENTS}")


def require_count(what: str, symbols: NDArray, count: int) -> None:
    """Raise `CorruptStream` unless there are ``count`` symbols."""
    if symbols.size != count:
        raise CorruptStream(f"{symbols.size} {what} where {count} are needed")
