"""One codec, measured in a process of its own: ``python -m fedsz.experiments.bench_worker``.

So its memory is nobody else's, it has the threads it was promised, and a foreign library that ends
the process ends no more than its own rows.

Standard input carries a `Job` as one line of JSON, then the bytes of its tensors; standard output
an `Outcome`, also as JSON.
"""

from __future__ import annotations

import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from fedsz import codecs
from fedsz.arrays import DTYPES, NDArray, raw
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec, LosslessCodec
from fedsz.codecs.base import Buffer
from fedsz.errors import CodecError, FedszError
from fedsz.experiments.memory_growth import Memory
from fedsz.update.compress import SHARED_BELOW, compress
from fedsz.update.decompress import decompress

CHUNK: Final = 1 << 17  # elements compared at a time: 1 MB in float64
SAMPLE: Final = 1 << 20  # bytes that tell how fast a lossless codec is
SHORTEST: Final = 0.02  # seconds that a clock can be trusted with
MOST_LOOPS: Final = 1000


class Tensor(msgspec.Struct, frozen=True):
    """A tensor of a job.

    Attributes:
        name: what its state_dict calls it.
        dtype: its place in `fedsz.stream.DTYPES`.
        shape: its shape.
    """

    name: str
    dtype: int
    shape: tuple[int, ...]


class Job(msgspec.Struct, frozen=True):
    """What to measure.

    Attributes:
        codec: its name and settings.
        bound: of every tensor, as `ErrorBound.of` reads it; "" where the codec takes none.
        threads: that the codec may use.
        repeats: timed passes, at most.
        seconds: that all passes may take together.
        tensors: whose bytes follow.
    """

    codec: str
    bound: str
    threads: int
    repeats: int
    seconds: float
    tensors: list[Tensor]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured; an `error` stands alone.

    Attributes:
        elements, raw_bytes: what was coded.
        coded_bytes: what it became.
        encode, decode: seconds of each timed pass.
        max_error: the largest error, as a share of its tensor's bound; 0 where nothing may move,
            None where no bound was kept.
        rmse: root mean square of the errors of finite elements, in the unit of the tensors.
        peak_bytes: by how much the resident memory of this process and of the process that it
            decodes in grew at most; None where the system does not tell.
        error: why there is nothing else.
    """

    elements: int | None = None
    raw_bytes: int | None = None
    coded_bytes: int | None = None
    encode: list[float] = []
    decode: list[float] = []
    max_error: float | None = None
    rmse: float | None = None
    peak_bytes: int | None = None
    error: str | None = None


class Deviation(NamedTuple):
    """How far decoded numbers are from the original."""

    worst: float  # the largest, in units of the bound
    squares: float
    finite: int


class Item(ABC):
    """What becomes one payload."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Its size."""

    @property
    @abstractmethod
    def elements(self) -> int:
        """How many numbers it holds."""

    @abstractmethod
    def encode(self) -> bytes:
        """Return the payload."""

    @abstractmethod
    def decode(self, payload: bytes) -> Any:
        """Return what it decodes to."""

    @abstractmethod
    def check(self, decoded: Any) -> Deviation:
        """Compare it with the original.

        Raises:
            CodecError: the codec broke its promise.
        """


@dataclass(frozen=True)
class Weight(Item):
    """A tensor that a lossy codec codes, within an absolute bound."""

    name: str
    x: NDArray
    bound: float
    codec: Codec

    @property
    def nbytes(self) -> int:  # noqa: D102
        return self.x.nbytes

    @property
    def elements(self) -> int:  # noqa: D102
        return self.x.size

    def encode(self) -> bytes:  # noqa: D102
        if self.x.dtype in self.codec.dtypes:
            return self.codec.encode(self.x, self.bound)
        # The codec takes float32; the pipeline converts, and its stream costs some 60 bytes.
        named = {"weight": self.x}
        return compress(named, ErrorBound.abs(self.bound), codec=self.codec, threshold=0)

    def decode(self, payload: bytes) -> NDArray:  # noqa: D102
        if self.x.dtype in self.codec.dtypes:
            return self.codec.decode_as(payload, self.x.shape, self.x.dtype)
        decoded: NDArray = decompress(payload, as_numpy=True)["weight"]
        return decoded

    def check(self, decoded: NDArray) -> Deviation:  # noqa: D102
        if decoded.shape != self.x.shape or decoded.dtype != self.x.dtype:
            raise CodecError(f"{self.name} came back as {decoded.dtype} {decoded.shape}")
        flat, back = self.x.reshape(-1), decoded.reshape(-1)
        largest, squares, count = 0.0, 0.0, 0
        for start in range(0, flat.size, CHUNK):
            x, y = flat[start : start + CHUNK], back[start : start + CHUNK]
            wide = x.astype(np.float64)
            finite = np.isfinite(wide)
            with np.errstate(invalid="ignore"):
                error = np.abs(wide - y)
            if not finite.all():
                if x[~finite].tobytes() != y[~finite].tobytes():
                    raise CodecError(f"a NaN or infinity of {self.name} did not come back")
                error = error[finite]
            largest = max(largest, float(error.max(initial=0.0)))
            squares += float(error @ error)
            count += error.size
        if self.codec.keeps_bound and not largest <= self.bound:
            times = largest / self.bound
            raise CodecError(f"an element of {self.name} moved by {times:.6g} times its bound")
        return Deviation(largest / self.bound, squares, count)


@dataclass(frozen=True)
class Block(Item):
    """Bytes that a lossless codec packs."""

    data: memoryview
    itemsize: int
    codec: LosslessCodec

    @property
    def nbytes(self) -> int:  # noqa: D102
        return len(self.data)

    @property
    def elements(self) -> int:  # noqa: D102
        return len(self.data) // self.itemsize

    def encode(self) -> bytes:  # noqa: D102
        return self.codec.pack(self.data, self.itemsize)

    def decode(self, payload: bytes) -> Buffer:  # noqa: D102
        return self.codec.unpack(payload, len(self.data))

    def check(self, decoded: Buffer) -> Deviation:  # noqa: D102
        was, now = (np.frombuffer(data, np.uint8) for data in (self.data, decoded))
        if not np.array_equal(was, now):
            raise CodecError("what was packed did not come back bit for bit")
        return Deviation(0.0, 0.0, self.elements)


def weights(job: Job, arrays: Sequence[NDArray], codec: Codec) -> list[Item]:
    """Return a job's tensors for a lossy codec.

    Constant tensors are left out: nothing may move in them, and `compress` packs them losslessly.
    """
    # The bound of a codec that none steers decides no more than which tensors are constant.
    rule = ErrorBound.of(job.bound or 0.5)
    items: list[Item] = []
    for tensor, x in zip(job.tensors, arrays, strict=True):
        bound = rule.absolute(x)
        if bound > 0:
            items.append(Weight(tensor.name, x, bound, codec))
    return items


def blocks(arrays: Sequence[NDArray], codec: LosslessCodec) -> list[Item]:
    """Return a job's tensors as `compress` hands all that is not lossy to a lossless codec.

    Large ones one by one, then small ones together with all others of their item size.
    """
    parts = [(raw(x), x.itemsize) for x in arrays if x.nbytes >= SHARED_BELOW]
    shared: dict[int, list[memoryview]] = {}
    for x in arrays:
        if x.nbytes < SHARED_BELOW:
            shared.setdefault(x.itemsize, []).append(raw(x))
    parts += [(memoryview(b"".join(small)), itemsize) for itemsize, small in shared.items()]
    return [Block(data, itemsize, codec) for data, itemsize in parts if len(data)]


def middle(items: Sequence[Block], nbytes: int) -> list[Block]:
    """Return the middle ``nbytes`` of what blocks hold, cut between elements."""
    at, end = (sum(item.nbytes for item in items) - nbytes) // 2, 0
    stop = at + nbytes
    cut = []
    for item in items:
        start, end = end, end + item.nbytes
        low, high = (
            (min(max(edge - start, 0), item.nbytes) // item.itemsize * item.itemsize)
            for edge in (at, stop)
        )
        if high > low:
            cut.append(Block(item.data[low:high], item.itemsize, item.codec))
    return cut


class First(NamedTuple):
    """What the first pass over all items tells."""

    seconds: float
    coded_bytes: int
    deviation: Deviation
    peak_bytes: int | None


def first_pass(items: Sequence[Item]) -> First:
    """Code everything once: it warms up, and the promises are checked before times are taken."""
    memory = Memory.now()
    seconds, worst, squares, finite = 0.0, 0.0, 0.0, 0
    payloads = []  # kept, as in a stream
    for item in items:
        memory.mark()
        start = time.perf_counter()
        payload = item.encode()
        decoded = item.decode(payload)
        seconds += time.perf_counter() - start
        memory.look()
        payloads.append(payload)
        deviation = item.check(decoded)
        del decoded
        worst = max(worst, deviation.worst)
        squares += deviation.squares
        finite += deviation.finite
    coded = sum(map(len, payloads))
    return First(seconds, coded, Deviation(worst, squares, finite), memory.growth)


def timed_pass(items: Sequence[Item], loops: int) -> tuple[float, float]:
    """Return the seconds that encoding and decoding all items take, each the mean of loops."""
    encoding = decoding = 0.0
    for _ in range(loops):
        for item in items:
            start = time.perf_counter()
            payload = item.encode()
            between = time.perf_counter()
            decoded = item.decode(payload)
            end = time.perf_counter()
            encoding += between - start
            decoding += end - between
            del payload, decoded  # not before the clock has been read
    return encoding / loops, decoding / loops


def measured(job: Job, arrays: Sequence[NDArray], codec: Codec) -> Outcome:
    """Return what a job measures.

    A lossless codec that is too slow for two passes over everything in ``job.seconds`` is given a
    share from the middle, for which all passes fit.

    Raises:
        FedszError: the codec cannot, or breaks its promise.
    """
    items: Sequence[Item]
    if isinstance(codec, LosslessCodec):
        items = blocks(arrays, codec)
        items = affordable([item for item in items if isinstance(item, Block)], job)
    else:
        items = weights(job, arrays, codec)
    if not items:
        raise CodecError("all these tensors are empty or constant")
    first = first_pass(items)
    left = (job.seconds - first.seconds) / max(first.seconds, 1e-9)
    passes = max(min(math.floor(left), job.repeats), 1)
    loops = min(max(math.ceil(SHORTEST / max(first.seconds, 1e-9)), 1), MOST_LOOPS)
    times = [timed_pass(items, loops) for _ in range(passes)]
    deviation = first.deviation
    return Outcome(
        elements=sum(item.elements for item in items),
        raw_bytes=sum(item.nbytes for item in items),
        coded_bytes=first.coded_bytes,
        encode=[encoding for encoding, _ in times],
        decode=[decoding for _, decoding in times],
        max_error=deviation.worst if codec.keeps_bound else None,
        rmse=math.sqrt(deviation.squares / deviation.finite) if deviation.finite else None,
        peak_bytes=first.peak_bytes,
    )


def affordable(items: list[Block], job: Job) -> list[Block]:
    """Return the blocks, or as much from their middle as there is time for."""
    total = sum(item.nbytes for item in items)
    if total <= SAMPLE:
        return items
    pace = sum(timed_pass(middle(items, SAMPLE), 1)) / SAMPLE
    if 2 * total * pace <= job.seconds:
        return items
    return middle(items, max(int(job.seconds / pace / (1 + job.repeats)), SAMPLE))


def outcome(job: Job, arrays: Sequence[NDArray]) -> Outcome:
    """Return what a job measures, or why it does not."""
    try:
        codec = codecs.get(job.codec)
        if codec.library == "blosc":
            import blosc

            blosc.set_nthreads(job.threads)
        # Loads the library and starts the process that foreign payloads are decoded in.
        ramp = np.linspace(-1, 1, 4096, dtype=np.float32)
        codec.decode(codec.encode(ramp, 1e-2), ramp.shape)
        return measured(job, arrays, codec)
    except (FedszError, MemoryError) as err:
        return Outcome(error=str(err) or "not enough memory")


def main() -> None:
    """Do the job on standard input."""
    # Foreign libraries print to standard output, and the answer must not be mixed with that.
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
        arrays: list[NDArray] = []
        for tensor in job.tensors:
            arrays.append(np.empty(tensor.shape, DTYPES[tensor.dtype]))
            sys.stdin.buffer.readinto(raw(arrays[-1]))  # type: ignore[union-attr]
        answer.write(msgspec.json.encode(outcome(job, arrays)))


if __name__ == "__main__":
    main()
