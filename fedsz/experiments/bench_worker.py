"""One codec, measured in a process of its own: ``python -m fedsz.experiments.bench_worker``.

So its memory is nobody else's, it has the threads it was promised, and a foreign library that ends
the process ends no more than its own rows.

Standard input carries a `BenchJob` as one line of JSON, then the bytes of its tensors. Standard
output carries the columns of a result table that it fills, also as JSON.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from fedsz import codecs
from fedsz.arrays import DTYPES, NDArray, raw
from fedsz.bounds import ErrorBound
from fedsz.child_process import private_stdout, read_into, write_line
from fedsz.codecs import Codec, LosslessCodec
from fedsz.core.encode import SHARED_BELOW
from fedsz.errors import CodecError, FedszError
from fedsz.experiments.codec_measurement import Item, coder_of, first_pass, loops_for, timed_pass
from fedsz.threads import allow


class BenchJob(msgspec.Struct, frozen=True):
    """What to measure."""

    codec: str  # its name and settings
    bound: str  # of every tensor, as `ErrorBound.of` reads it; "" where the codec takes none
    threads: int  # that the codec may use
    repeats: int  # timed passes, at most
    seconds: float  # that all passes may take together
    # Of each tensor, whose bytes follow: name, place of its dtype in `DTYPES`, shape.
    tensors: list[tuple[str, int, tuple[int, ...]]]


def measured(job: BenchJob, arrays: Sequence[NDArray]) -> dict[str, Any]:
    """Return what a job measures, under the names of a result table's columns.

    Raises:
        FedszError: the codec cannot, or breaks its promise.
    """
    codec = codecs.get(job.codec)
    # Loads the library and starts the process that foreign payloads are decoded in.
    ramp = np.linspace(-1, 1, 4096, dtype=np.float32)
    codec.decode(codec.encode(ramp, 1e-2), ramp.shape)
    if isinstance(codec, LosslessCodec):
        items = blocks(arrays, codec)
    else:
        items = weights(job, arrays, codec)
    if not items:
        raise CodecError("all these tensors are empty or constant")
    first = first_pass(items)
    left = (job.seconds - first.seconds) / max(first.seconds, 1e-9)
    passes = max(min(math.floor(left), job.repeats), 1)
    times = [timed_pass(items, loops_for(first.seconds)) for _ in range(passes)]
    raw_bytes, coded_bytes = sum(item.x.nbytes for item in items), sum(first.nbytes)
    columns = {
        "elements": sum(item.x.size for item in items),
        "raw_bytes": raw_bytes,
        "coded_bytes": coded_bytes,
        "ratio": raw_bytes / coded_bytes if coded_bytes else None,
        "repeats": passes,
        "max_error": first.worst if codec.keeps_bound else None,
        "rmse": first.rmse,
        "peak_bytes": first.peak_bytes,
    }
    for way in ("encode", "decode"):
        seconds = [taken[way] for taken in times]
        columns[f"{way}_seconds"] = statistics.median(seconds)
        columns[f"{way}_seconds_least"] = min(seconds)
        columns[f"{way}_seconds_most"] = max(seconds)
    return columns


def weights(job: BenchJob, arrays: Sequence[NDArray], codec: Codec) -> list[Item]:
    """Return a job's tensors for a lossy codec, without constant ones: `compress` packs those."""
    # The bound of a codec that none steers decides no more than which tensors are constant.
    rule, coder = ErrorBound.of(job.bound or 0.5), coder_of(codec)
    named = zip(job.tensors, arrays, strict=True)
    items = (Item(name, x, rule.absolute(x), coder) for (name, _, _), x in named)
    return [item for item in items if item.bound]


def blocks(arrays: Sequence[NDArray], codec: LosslessCodec) -> list[Item]:
    """Return tensors as `compress` hands them to a lossless codec.

    Large ones one by one, then small ones together with all others of their item size.
    """
    parts, shared = [], defaultdict(list)
    for x in arrays:
        if x.nbytes >= SHARED_BELOW:
            parts.append(x.reshape(-1).view(f"V{x.itemsize}"))
        else:
            shared[x.itemsize].append(raw(x))
    parts += [np.frombuffer(b"".join(small), f"V{size}") for size, small in shared.items()]
    coder = coder_of(codec)
    return [Item("", x, None, coder) for x in parts if x.size]


def main() -> None:
    """Do the job on standard input."""
    with private_stdout() as answer:
        job = msgspec.json.decode(sys.stdin.buffer.readline(), type=BenchJob)
        arrays = [np.empty(shape, DTYPES[dtype]) for _, dtype, shape in job.tensors]
        for x in arrays:
            read_into(sys.stdin.buffer, raw(x))
        try:
            with allow(job.threads):
                columns = measured(job, arrays)
        except (FedszError, MemoryError) as err:
            columns = {"error": str(err) or "not enough memory"}
        write_line(answer, columns)


if __name__ == "__main__":
    main()
