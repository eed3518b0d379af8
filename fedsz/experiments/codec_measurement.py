"""Codecs measured in this process: every element is checked, then every call is timed.

`fedsz bench` and benchmarks/codecs.py are two uses of this. The first times what `compress` and
`decompress` call, the second the libraries themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from fedsz.arrays import NDArray, raw
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec, LosslessCodec
from fedsz.codecs.envelope import compare
from fedsz.codecs.spread import energy
from fedsz.core.decode import decompress
from fedsz.core.encode import compress
from fedsz.errors import CodecError
from fedsz.system import Memory

SHORTEST: Final = 0.02  # seconds that a clock can be trusted with
MOST_LOOPS: Final = 1000


@dataclass(frozen=True)
class Coder:
    """A codec as it is measured: the calls whose time counts."""

    name: str  # what tables call it
    encode: Callable[[NDArray, float], Any]  # an array and its absolute bound -> a payload
    # A payload, and the array for its shape and dtype -> a new array; of a lossless codec, bytes.
    decode: Callable[[Any, NDArray], Any]
    keeps_bound: bool = True  # else the error is only reported


class Deviation(NamedTuple):
    """How far decoded numbers are from the original."""

    worst: float  # the largest, in units of the bound
    squares: float
    finite: int


@dataclass(frozen=True)
class Item:
    """A tensor, which becomes one payload."""

    name: str
    x: NDArray
    bound: float | None  # absolute, > 0; None where every bit must come back
    coder: Coder

    def encode(self) -> Any:
        """Return the payload."""
        return self.coder.encode(self.x, self.bound or 0.0)

    def decode(self, payload: Any) -> Any:
        """Return what a payload decodes to."""
        return self.coder.decode(payload, self.x)

    def check(self, decoded: Any) -> Deviation:
        """Compare what was decoded with the original, in float64.

        Raises:
            CodecError: the codec broke its promise.
        """
        if self.bound is None:
            was, now = (np.frombuffer(data, np.uint8) for data in (raw(self.x), decoded))
            if not np.array_equal(was, now):
                raise CodecError("what was packed did not come back bit for bit")
            return Deviation(0.0, 0.0, self.x.size)
        if decoded.shape != self.x.shape or decoded.dtype != self.x.dtype:
            raise CodecError(f"{self.name} came back as {decoded.dtype} {decoded.shape}")
        x, y = self.x.reshape(-1), decoded.reshape(-1)
        finite = np.isfinite(x)
        if x[~finite].tobytes() != y[~finite].tobytes():
            raise CodecError(f"a NaN or infinity of {self.name} did not come back")
        lost, largest = compare(x, y, math.inf)
        worst = (math.inf if lost.size else largest) / self.bound
        if self.coder.keeps_bound and worst > 1:
            raise CodecError(f"an element of {self.name} moved by {worst:.6g} times its bound")
        return Deviation(worst, energy(y, x, double=True), int(finite.sum()))


def coder_of(codec: Codec) -> Coder:
    """Return a codec with the calls that `compress` and `decompress` make of it."""
    if isinstance(lossless := codec, LosslessCodec):
        return Coder(
            str(codec),
            lambda x, _bound: lossless.pack(raw(x), x.itemsize),
            lambda payload, x: lossless.unpack(payload, x.nbytes),
        )

    # The codec takes float32; the pipeline converts others, and its stream costs some 60 bytes.
    def encode(x: NDArray, bound: float) -> bytes:
        if x.dtype in codec.dtypes:
            return codec.encode(x, bound)
        return compress({"weight": x}, ErrorBound.abs(bound), codec=codec, threshold=0)

    def decode(payload: bytes, x: NDArray) -> Any:
        if x.dtype in codec.dtypes:
            return codec.decode(payload, x.shape, x.dtype)
        return decompress(payload, as_numpy=True)["weight"]

    return Coder(str(codec), encode, decode, codec.keeps_bound)


class Growth:
    """How much resident memory this process and its children take on top of what they had.

    The peaks of the processes are added up, though they may not have come at the same moment.

    Attributes:
        most: in bytes, in blocks that were `watched`; None where the system does not tell.
    """

    most: int | None = 0

    def __init__(self) -> None:
        self._memory = Memory()
        self._before = self._memory.taken()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take the peaks within the block into account."""
        if not self._memory.forget_peaks():
            self.most = None
        yield
        if self.most is not None:
            self.most = max(self.most, self._memory.peak() - self._before)


class First(NamedTuple):
    """What the first pass over all items tells."""

    seconds: float  # for encoding and decoding
    nbytes: list[int]  # of each payload
    deviations: list[Deviation]  # of each item
    peak_bytes: int | None  # by which memory grew at most; None where the system does not tell

    @property
    def worst(self) -> float:
        """The largest error, in units of its bound."""
        return max(deviation.worst for deviation in self.deviations)

    @property
    def rmse(self) -> float | None:
        """The root mean square of the errors of finite elements; None if there are none."""
        _, squares, counts = zip(*self.deviations, strict=True)
        return math.sqrt(sum(squares) / sum(counts)) if any(counts) else None


def first_pass(items: Iterable[Item]) -> First:
    """Code everything once: it warms up, and the promises are checked before times are taken.

    Raises:
        FedszError: the codec cannot, or breaks its promise.
    """
    growth = Growth()
    seconds, deviations = 0.0, []
    payloads = []  # kept, as in a stream
    for item in items:
        with growth.watched():
            start = time.perf_counter()
            payload = item.encode()
            decoded = item.decode(payload)
            seconds += time.perf_counter() - start
        payloads.append(payload)
        deviations.append(item.check(decoded))
        del decoded
    return First(seconds, [len(payload) for payload in payloads], deviations, growth.most)


def timed_pass(items: Iterable[Item], loops: int = 1) -> dict[str, float]:
    """Return the seconds to "encode" and to "decode" all items, the mean of ``loops``."""
    seconds = {"encode": 0.0, "decode": 0.0}

    def timed(way: str, call: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        for _ in range(loops):
            result = call(*arguments)
        seconds[way] += (time.perf_counter() - start) / loops
        return result  # the last is freed after the clock has been read

    for item in items:
        payload = timed("encode", item.encode)
        timed("decode", item.decode, payload)
    return seconds


def loops_for(seconds: float) -> int:
    """Return how often something that takes so long is repeated, for a clock to be trusted."""
    return min(max(math.ceil(SHORTEST / max(seconds, 1e-9)), 1), MOST_LOOPS)
