"""Codecs measured on a state_dict: how small, how fast, how exact, how much memory.

Lossy codecs get the tensors that `compress` would code with loss, one by one, each within its
bound. Lossless ones get all tensors, and those that are never lossy alone. Timed are the calls that
`compress` and `decompress` make: for a foreign codec they include the check of its bound, and the
process that its payloads are decoded in.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from fedsz.arrays import DTYPE_IDS, NDArray, StateDict, as_arrays, raw
from fedsz.bounds import ErrorBound
from fedsz.child_process import Child
from fedsz.codecs import Codec, parse
from fedsz.core.partition import check_rule, is_lossy
from fedsz.core.settings import DEFAULT
from fedsz.errors import ConfigError
from fedsz.experiments.bench_worker import BenchJob
from fedsz.experiments.environment import DIGEST_LENGTH, stamp
from fedsz.experiments.sweep_plan import settings_of
from fedsz.threads import allow, allowed

Row = dict[str, Any]

LOSSY: Final = "lossy"  # the part of a state_dict that a row is about
LOSSLESS: Final = "lossless part"
EVERYTHING: Final = "everything"
# The columns of `fedsz.experiments.results.BENCH` that a codec's process fills; else None.
MEASURED: Final = (
    *("elements", "raw_bytes", "coded_bytes", "ratio"),
    *("encode_seconds", "encode_seconds_least", "encode_seconds_most"),
    *("decode_seconds", "decode_seconds_least", "decode_seconds_most"),
    *("repeats", "max_error", "rmse", "peak_bytes", "error"),
)


def measure(
    state: StateDict,
    *,
    data: str,
    codecs: Sequence[str],
    bounds: Sequence[ErrorBound],
    repeats: int = 3,
    seconds: float = 10.0,
    threads: int = 1,
    rule: str = "paper",
    threshold: int = DEFAULT.threshold,
    on_row: Callable[[Row], object] | None = None,
) -> list[Row]:
    """Measure codecs on one state_dict, each in a process of its own.

    Args:
        state: names to torch tensors or numpy arrays.
        data: what rows call it.
        codecs: names, with settings or without.
        bounds: for the lossy ones.
        repeats: timed passes, after one that warms up and checks every element.
        seconds: for all passes of a row. Slow codecs make fewer, one at least.
        threads: that a codec may use; 0 for one on each core.
        rule: which tensors may be lossy; see `fedsz.core.partition.is_lossy`.
        threshold: tensors of up to this many elements never are.
        on_row: told of each row as it comes.

    Returns:
        Rows of `fedsz.experiments.results.BENCH`: lossy codecs have one of the `LOSSY` tensors for
        each bound, others one of the `LOSSLESS` part and one of `EVERYTHING`. A codec that cannot
        be had, fails or moves an element too far has a row with `error`.

    Raises:
        ConfigError: no such codec, or a state_dict without tensors or with one that streams do not
            take; or an argument out of range.
    """
    check_rule(rule, threshold)
    for what, value, least in (("repeats", repeats, 1), ("seconds", seconds, 0)):
        if not value >= least:
            raise ConfigError(f"{what} must be {least} or more, got {value}")
    with allow(threads):
        used = allowed()
    arrays = as_arrays(state)
    if not any(x.size for x in arrays.values()):
        raise ConfigError(f"{data} holds no tensors to measure")
    weights = {n for n, x in arrays.items() if is_lossy(n, x, rule=rule, threshold=threshold)}
    shared = {"data": data, "data_digest": digest(arrays)}
    rows: list[Row] = []
    for codec in [parse(spec) for spec in codecs]:
        for part, names, bound in _parts(codec, arrays, weights, bounds):
            tensors = [(n, DTYPE_IDS[arrays[n].dtype], arrays[n].shape) for n in names]
            job = BenchJob(str(codec), written(bound), used, repeats, seconds, tensors)
            measured = _run(job, codec, [arrays[name] for name in names])
            rows.append({**_labels(job, codec, part), **measured, **shared, **stamp()})
            if on_row:
                on_row(rows[-1])
    return rows


def _labels(job: BenchJob, codec: Codec, part: str) -> Row:
    """Return a row that says what is measured, and has no measurements yet."""
    return {
        "part": part,
        "codec": str(codec),
        "codec_settings": settings_of(str(codec)),
        "lossy": codec.lossy,
        "error_bound": job.bound or None,
        "threads": job.threads,
        **dict.fromkeys(MEASURED),
    }


def initial_weights(model: str, seed: int = 0) -> tuple[str, StateDict]:
    """Return a model for 10 classes of colour images before any training, and what to call it.

    Raises:
        ConfigError: no such model.
    """
    from fedsz.training import models

    state = models.build(model, num_classes=10, in_channels=3, seed=seed).state_dict()
    return f"{model}, initial weights", state


def sizes(state: StateDict, *, rule: str, threshold: int) -> tuple[int, int]:
    """Return the bytes of a state_dict, and of those tensors that are never lossy."""
    arrays = as_arrays(state).items()
    rest = (x for n, x in arrays if not is_lossy(n, x, rule=rule, threshold=threshold))
    return sum(x.nbytes for _, x in arrays), sum(x.nbytes for x in rest)


def digest(arrays: Mapping[str, NDArray]) -> str:
    """Return what tells one state_dict from another: the start of a SHA-256."""
    whole = hashlib.sha256()
    for name, x in arrays.items():
        whole.update(f"{name} {x.dtype} {x.shape} ".encode())
        whole.update(raw(x))
    return whole.hexdigest()[:DIGEST_LENGTH]


def written(bound: ErrorBound | None) -> str:
    """Return a bound as a result table has it, ``rel:0.01``; nothing for None."""
    return f"{bound.kind}:{bound.value!r}" if bound else ""


def _parts(
    codec: Codec, arrays: Iterable[str], weights: Collection[str], bounds: Sequence[ErrorBound]
) -> Iterator[tuple[str, list[str], ErrorBound | None]]:
    """Yield what each row is about: a part, the names of its tensors, and their bound."""
    if codec.lossy:
        for bound in bounds if codec.keeps_bound else [None]:
            yield LOSSY, [name for name in arrays if name in weights], bound
        return
    if rest := [name for name in arrays if name not in weights]:
        yield LOSSLESS, rest, None
    yield EVERYTHING, list(arrays), None


def _run(job: BenchJob, codec: Codec, arrays: Sequence[NDArray]) -> Row:
    """Measure one row in a process of its own, whatever becomes of that."""
    if error := codec.missing() or ("" if arrays else "none of these tensors may be lossy"):
        return {"error": error}
    module = "fedsz.experiments.bench_worker"
    with (
        tempfile.TemporaryDirectory(prefix="fedsz-") as folder,
        # Libraries that read it when they are loaded use no more threads than they are given.
        Child(module, log=Path(folder) / "log", threads=job.threads) as process,
    ):
        process.tell(job, *map(raw, arrays))
        for answer in process.lines():
            return msgspec.json.decode(answer, type=Row)
        ended = f"the codec's process ended with status {process.wait()}"
        return {"error": ": ".join(filter(None, [ended, process.last_words()]))}
