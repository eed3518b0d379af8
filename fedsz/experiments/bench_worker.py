"""One codec, measured in a process of its own: ``python -m fedsz.experiments.bench_worker``.

So its memory is nobody else's, it has the threads it was promised, and a foreign library that ends
the process ends no more than its own rows.

Standard input carries a `BenchJob` as one line of JSON, then the bytes of its tensors. Standard
output carries an `Outcome`, also as JSON.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from fedsz import codecs
from fedsz.arrays import DTYPES, NDArray, raw
from fedsz.bounds import ErrorBound
from fedsz.child_process import private_stdout, read_into, write_line
from fedsz.codecs import Codec, LosslessCodec
from fedsz.errors import CodecError, FedszError
from fedsz.experiments.codec_measurement import (
    Item,
    coder_of,
    first_pass,
    loops_for,
    middle,
    timed_pass,
)
from fedsz.update.compress import SHARED_BELOW

SAMPLE: Final = 1 << 20  # bytes that tell how fast a lossless codec is


class JobTensor(msgspec.Struct, frozen=True):
    """A tensor of a job."""

    name: str
    dtype: int  # its place in `fedsz.arrays.DTYPES`
    shape: tuple[int, ...]


class BenchJob(msgspec.Struct, frozen=True):
    """What to measure."""

    codec: str  # its name and settings
    bound: str  # of every tensor, as `ErrorBound.of` reads it; "" where the codec takes none
    threads: int  # that the codec may use
    repeats: int  # timed passes, at most
    seconds: float  # that all passes may take together
    tensors: list[JobTensor]  # whose bytes follow


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, under the names of a result table's columns; an `error` stands alone.

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


def measured(job: BenchJob, arrays: Sequence[NDArray], codec: Codec) -> Outcome:
    """Return what a job measures.

    A lossless codec that is too slow for two passes over everything in ``job.seconds`` is given a
    share from the middle, for which all passes fit.

    Raises:
        FedszError: the codec cannot, or breaks its promise.
    """
    if isinstance(codec, LosslessCodec):
        items = affordable(blocks(arrays, codec), job)
    else:
        items = weights(job, arrays, codec)
    if not items:
        raise CodecError("all these tensors are empty or constant")
    first = first_pass(items)
    left = (job.seconds - first.seconds) / max(first.seconds, 1e-9)
    passes = max(min(math.floor(left), job.repeats), 1)
    times = [timed_pass(items, loops_for(first.seconds)) for _ in range(passes)]
    return Outcome(
        elements=sum(item.x.size for item in items),
        raw_bytes=sum(item.x.nbytes for item in items),
        coded_bytes=sum(first.nbytes),
        encode=[seconds["encode"] for seconds in times],
        decode=[seconds["decode"] for seconds in times],
        max_error=first.worst if codec.keeps_bound else None,
        rmse=first.rmse,
        peak_bytes=first.peak_bytes,
    )


def weights(job: BenchJob, arrays: Sequence[NDArray], codec: Codec) -> list[Item]:
    """Return a job's tensors for a lossy codec, without constant ones.

    Nothing may move in those, and `compress` packs them losslessly.
    """
    # The bound of a codec that none steers decides no more than which tensors are constant.
    rule, coder = ErrorBound.of(job.bound or 0.5), coder_of(codec)
    named = zip(job.tensors, arrays, strict=True)
    items = (Item(tensor.name, x, rule.absolute(x), coder) for tensor, x in named)
    return [item for item in items if item.bound]


def blocks(arrays: Sequence[NDArray], codec: LosslessCodec) -> list[Item]:
    """Return tensors as `compress` hands them to a lossless codec.

    Large ones one by one, then small ones together with all others of their item size.
    """
    parts = [x.reshape(-1).view(f"V{x.itemsize}") for x in arrays if x.nbytes >= SHARED_BELOW]
    shared: dict[int, list[memoryview]] = defaultdict(list)
    for x in arrays:
        if x.nbytes < SHARED_BELOW:
            shared[x.itemsize].append(raw(x))
    parts += [np.frombuffer(b"".join(small), f"V{size}") for size, small in shared.items()]
    coder = coder_of(codec)
    return [Item("", x, None, coder) for x in parts if x.size]


def affordable(items: list[Item], job: BenchJob) -> list[Item]:
    """Return the blocks, or as much from their middle as there is time for."""
    total = sum(item.x.nbytes for item in items)
    if total <= SAMPLE:
        return items
    pace = sum(timed_pass(middle(items, SAMPLE)).values()) / SAMPLE
    if 2 * total * pace <= job.seconds:
        return items
    return middle(items, max(int(job.seconds / pace / (1 + job.repeats)), SAMPLE))


def outcome(job: BenchJob, arrays: Sequence[NDArray]) -> Outcome:
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
    with private_stdout() as answer:
        job = msgspec.json.decode(sys.stdin.buffer.readline(), type=BenchJob)
        arrays = [np.empty(tensor.shape, DTYPES[tensor.dtype]) for tensor in job.tensors]
        for x in arrays:
            read_into(sys.stdin.buffer, raw(x))
        write_line(answer, outcome(job, arrays))


if __name__ == "__main__":
    main()
