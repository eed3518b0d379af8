"""Codecs measured on a state_dict: how small, how fast, how exact, how much memory.

Lossy codecs get the tensors that `compress` would code with loss, one by one, each within its
bound. Lossless ones get all tensors, and those that are never lossy alone. Timed are the calls that
`compress` and `decompress` make: for a foreign codec they include the check of its bound, and the
process that its payloads are decoded in.
"""

from __future__ import annotations

import dataclasses
import hashlib
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from fedsz import codecs as codec_list
from fedsz.arrays import DTYPE_IDS, NDArray, StateDict, as_arrays, raw
from fedsz.bounds import ErrorBound
from fedsz.child_process import Child
from fedsz.errors import CodecUnavailable, ConfigError
from fedsz.experiments.bench_worker import Job, Outcome, Tensor
from fedsz.experiments.environment import DIGEST_LENGTH, cores, environment
from fedsz.experiments.sweep_plan import settings_of, steered
from fedsz.update.config import DEFAULT
from fedsz.update.partition import check_rule, is_lossy

Row = dict[str, Any]

REPEATS: Final = 3
SECONDS: Final = 10.0
LOSSY: Final = "lossy"  # the part of a state_dict that a row is about
LOSSLESS: Final = "lossless part"
EVERYTHING: Final = "everything"


def measure(
    state: StateDict,
    *,
    data: str,
    codecs: Sequence[str],
    bounds: Sequence[ErrorBound],
    repeats: int = REPEATS,
    seconds: float = SECONDS,
    threads: int = 1,
    rule: str = "paper",
    threshold: int = DEFAULT.threshold,
    on_row: Callable[[Row], object] | None = None,
) -> list[Row]:
    """Measure codecs on one state_dict, each in a process of its own.

    Args:
        state: names to torch tensors or numpy arrays.
        data: what rows call it. Lossy codecs have a row of the `LOSSY` tensors for each bound,
            lossless ones a row of the `LOSSLESS` part and one of `EVERYTHING`.
        codecs: names, with settings or without.
        bounds: for the lossy ones.
        repeats: timed passes, after one that warms up and checks every element.
        seconds: for all passes of a row. Slow codecs make fewer, one at least; a lossless codec for
            which that is still too long is given the middle of the data, as `raw_bytes` says.
        threads: that a codec may use, where it does not say so itself; 0 for one on each core.
        rule: which tensors may be lossy; see `fedsz.update.partition.is_lossy`.
        threshold: tensors of up to this many elements never are.
        on_row: told of each row as it comes.

    Returns:
        Rows with the columns of the table "bench" (fedsz.experiments.results). Seconds are medians
        over the passes, with the least and the most. A codec that cannot be had, fails or moves an
        element too far has a row with `error`.

    Raises:
        ConfigError: no such codec, or a state_dict without tensors or with one that streams do not
            take; or an argument out of range.
    """
    check_rule(rule, threshold)
    for what, value, least in (("repeats", repeats, 1), ("seconds", seconds, 0)):
        if not value >= least:
            raise ConfigError(f"{what} must be {least} or more, got {value}")
    if not 0 <= threads <= 1024:
        raise ConfigError(f"threads must lie in 0..1024, got {threads}")
    arrays = as_arrays(state)
    if not any(x.size for x in arrays.values()):
        raise ConfigError(f"{data} holds no tensors to measure")
    lossy = [is_lossy(name, x, rule=rule, threshold=threshold) for name, x in arrays.items()]
    chosen = [_asked(spec, threads or cores()) for spec in codecs]
    shared = {"data": data, "data_digest": digest(arrays), **environment()}
    rows = []
    for asked in chosen:
        for unit in _units(asked, lossy, bounds):
            outcome = _run(asked, unit, arrays, repeats, seconds)
            now = datetime.now(UTC).replace(microsecond=0)
            row = {**_row(asked, unit, outcome), **shared, "time": now}
            rows.append(row)
            if on_row:
                on_row(row)
    return rows


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
    arrays = as_arrays(state)
    rest = (
        x for name, x in arrays.items() if not is_lossy(name, x, rule=rule, threshold=threshold)
    )
    return sum(x.nbytes for x in arrays.values()), sum(x.nbytes for x in rest)


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


@dataclass(frozen=True)
class _Asked:
    """A codec as somebody asked for it, and as it is measured."""

    spec: str
    run_as: str
    lossy: bool
    steered: bool
    threads: int
    missing: str | None


@dataclass(frozen=True)
class _Unit:
    """What one row is about: a part, its bound, and which tensors it is."""

    part: str
    bound: ErrorBound | None
    tensors: list[int]


def _asked(spec: str, threads: int) -> _Asked:
    """Look a codec up; one whose library is missing is none the less known."""
    name, missing = spec.partition(":")[0], None
    try:
        codec = codec_list.get(spec)
        spec = str(codec)
    except CodecUnavailable as err:
        codec, missing = next(c for c in codec_list.CODECS if c.name == name), str(err)
    run_as, own = spec, getattr(codec, "threads", None)
    if own == 0 and not missing:
        run_as = str(dataclasses.replace(codec, **{"threads": threads}))  # noqa: PIE804 - of some
    return _Asked(spec, run_as, codec.lossy, steered(spec), own or threads, missing)


def _units(asked: _Asked, lossy: Sequence[bool], bounds: Sequence[ErrorBound]) -> list[_Unit]:
    everything = list(range(len(lossy)))
    if asked.lossy:
        weights = [i for i in everything if lossy[i]]
        return [_Unit(LOSSY, bound, weights) for bound in (bounds if asked.steered else [None])]
    rest = [i for i in everything if not lossy[i]]
    units = [_Unit(LOSSLESS, None, rest)] if rest else []
    return [*units, _Unit(EVERYTHING, None, everything)]


def _run(
    asked: _Asked, unit: _Unit, arrays: Mapping[str, NDArray], repeats: int, seconds: float
) -> Outcome:
    """Measure one row in a process of its own, whatever becomes of that."""
    if asked.missing:
        return Outcome(error=asked.missing)
    if not unit.tensors:
        return Outcome(error="none of these tensors may be lossy")
    named = list(arrays.items())
    chosen = [named[i] for i in unit.tensors]
    tensors = [Tensor(name, DTYPE_IDS[x.dtype], x.shape) for name, x in chosen]
    job = Job(asked.run_as, written(unit.bound), asked.threads, repeats, seconds, tensors)
    module = "fedsz.experiments.bench_worker"
    with (
        tempfile.TemporaryDirectory(prefix="fedsz-") as folder,
        # Libraries that read it when they are loaded use no more threads than they are given.
        Child(module, log=Path(folder) / "log", threads=job.threads) as process,
    ):
        process.tell(job, *(raw(x) for _, x in chosen))
        answer = next(process.lines(), None)
        if answer is not None:
            return msgspec.json.decode(answer, type=Outcome)
        ended = f"the codec's process ended with status {process.wait()}"
        return Outcome(error=": ".join(filter(None, [ended, process.last_words()])))


def _row(asked: _Asked, unit: _Unit, outcome: Outcome) -> Row:
    """Return the columns that an outcome fills."""
    row: Row = {
        "part": unit.part,
        "codec": asked.spec,
        "codec_settings": settings_of(asked.run_as),
        "lossy": asked.lossy,
        "error_bound": written(unit.bound) or None,
        "elements": outcome.elements,
        "raw_bytes": outcome.raw_bytes,
        "coded_bytes": outcome.coded_bytes,
        "ratio": None,
        "repeats": len(outcome.encode) or None,
        "threads": asked.threads,
        "max_error": outcome.max_error,
        "rmse": outcome.rmse,
        "peak_bytes": outcome.peak_bytes,
        "error": outcome.error,
    }
    if outcome.raw_bytes and outcome.coded_bytes:
        row["ratio"] = outcome.raw_bytes / outcome.coded_bytes
    for way, seconds in (("encode", outcome.encode), ("decode", outcome.decode)):
        row[f"{way}_seconds"] = statistics.median(seconds) if seconds else None
        row[f"{way}_seconds_least"] = min(seconds, default=None)
        row[f"{way}_seconds_most"] = max(seconds, default=None)
    return row
