"""A state_dict -> a stream: partition, codecs, bitstream."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from fedsz import methods
from fedsz.arrays import (
    DTYPE_IDS,
    StateDict,
    as_array,
    as_arrays,
    flat,
    require_state_dict,
)
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec, _methods
from fedsz.codecs.uniform import Uniform
from fedsz.core.coders import CodecCoder, Coded, Coder, PipelineCoder, hardly_saves
from fedsz.core.feedback import RESIDUAL, Update, UpdateEnergy
from fedsz.core.partition import is_lossy
from fedsz.core.reference import Reference, bounds_of_step, energies
from fedsz.core.settings import DEFAULT, Settings
from fedsz.core.tensors import Entry, encode_lossless, narrow
from fedsz.errors import ConfigError
from fedsz.methods import Chain, State
from fedsz.stream import CHAINED, DIFFERENCE, VALUES, Part, Tensor, write
from fedsz.threads import allow, allowed, side_by_side

# Smaller lossless tensors share a payload: a hundred BatchNorm vectors pack better together, and
# a payload of its own costs each of them some 30 bytes.
SHARED_BELOW: Final = 1 << 16  # bytes


@dataclass(frozen=True)
class Report:
    """What compressing one state_dict cost and did.

    Attributes:
        raw_bytes: size of the tensors.
        nbytes: size of the stream.
        seconds: wall time.
        max_error: the largest error, as a share of its tensor's bound (0 to 1).
        tensors, lossy: how many there are, and how many of them are lossy.
        energy: of an update, how much of it arrives.
        states: of an update, by tensor, what is kept for the next round.
    """

    raw_bytes: int
    nbytes: int
    seconds: float
    max_error: float
    tensors: int
    lossy: int
    energy: UpdateEnergy
    states: Mapping[str, State]


def compress(
    state_dict: StateDict,
    error_bound: ErrorBound | float | str = DEFAULT.error_bound,
    *,
    codec: str | Codec = DEFAULT.codec,
    lossless: str | Codec = DEFAULT.lossless,
    threshold: int = DEFAULT.threshold,
    rule: str = DEFAULT.rule,
    reference: Reference | StateDict | None = None,
    chain: str | Chain | None = None,
    seed: int = 0,
    threads: int = 1,
) -> bytes:
    """Return a state_dict as one self-describing stream.

    Args:
        state_dict: names to torch tensors or numpy arrays, of any shape; not changed.
        error_bound: the largest error of an element: a float (of each tensor's value range), or
            an `ErrorBound`.
        codec: for the tensors that may be lossy; a name such as ``"uniform"``, one with settings
            such as ``"zfp:precision=14"``, or what `fedsz.codecs.get` returned. A lossless one
            makes the whole stream lossless.
        lossless: codec for all other tensors.
        threshold: tensors of up to this many elements stay lossless.
        rule: which other tensors stay lossless; see `fedsz.core.partition.is_lossy`.
        reference: a state_dict that the receiver has, too. Each call hashes it; that of a
            `fedsz.core.reference.Reference` is kept. Lossy tensors are then coded as differences
            from it, where it has a tensor of their name, dtype and shape. Bounds of kind ``std``
            and ``step`` are of the differences; all others stay bounds of the tensors themselves.
            Lossless tensors are coded as differences of their bits, if that is smaller and the
            codec is not ``"raw"``.
        chain: methods without state, such as ``"topk:k=1%>ternary"``, or what
            `fedsz.methods.parse` returned. It takes the place of bound and codec.
        seed: of the random numbers that methods draw, 0 to 2^64 - 1.
        threads: that may code tensors at a time, 0 for one on each core. The bytes are the same
            for any number.

    Returns:
        The stream, as docs/format.md describes it.

    Raises:
        ConfigError: an argument or a tensor that fedsz does not take.
        CodecUnavailable: a codec's library is not installed here.

    Examples:
        >>> import fedsz, numpy as np
        >>> weights = np.linspace(0, 1, 10_000, dtype=np.float32)
        >>> blob = fedsz.compress({"fc.weight": weights}, error_bound=1e-2)
        >>> len(blob) < weights.nbytes / 5
        True
        >>> back = fedsz.decompress(blob, as_numpy=True)["fc.weight"]
        >>> bool(np.abs(back - weights).max() <= 1e-2)
        True
    """
    config = Settings.of(
        error_bound, codec=codec, lossless=lossless, threshold=threshold, rule=rule
    )
    state, base = require_state_dict(state_dict), Reference.of(reference)
    bounds: dict[str, float] = {}
    if config.bound.kind == "step":
        if base is None:
            raise ConfigError(f"error bound {config.error_bound} is of a step: pass its reference=")
        with allow(threads):
            bounds = bounds_of_step(energies(as_arrays(state), base, config), config)
    parsed = methods.parse(chain) if isinstance(chain, str) else chain
    if parsed is not None and parsed.keeps_state:
        raise ConfigError(
            f"{parsed} keeps state from round to round, and compress() keeps none: FedSZMod does"
        )
    pipeline = None if parsed is None else PipelineCoder(parsed, seed=seed)
    with allow(threads):
        return compress_measured(state, config, base, bounds=bounds, pipeline=pipeline)[0]


def compress_measured(
    state_dict: StateDict,
    settings: Settings,
    reference: Reference | None = None,
    *,
    bounds: Mapping[str, float] = MappingProxyType({}),
    spacings: Mapping[str, float] = MappingProxyType({}),
    pipeline: PipelineCoder | None = None,
    update: Update | None = None,
) -> tuple[bytes, Report]:
    """Return the stream of `compress`, and what it took.

    Args:
        state_dict: as of `compress`.
        settings: how to compress it.
        reference: tensors that it has are coded as differences from it.
        bounds: absolute, by tensor, in place of those of the settings.
        spacings: tensors that have one stay lossless; they are small if they are multiples of it,
            or differ from the reference by such; see `fedsz.core.grid`.
        pipeline: codes tensors that may be lossy, in place of the settings' codec.
        update: what earlier rounds left, if the state_dict is a client's update.

    Raises:
        ConfigError, CodecUnavailable: as `compress`.
    """
    start = time.perf_counter()
    coder = pipeline or CodecCoder(settings, bounds)
    encoder = _Encoder(settings, reference, spacings, coder, update)
    # One by one: a mapping may make its arrays as they are asked for.
    total = sum(map(_size, enumerate(state_dict.items()))) if allowed() > 1 else 0
    encoded = side_by_side(encoder.encode, enumerate(state_dict.items()), _size, total)
    tensors = [one.tensor for one in encoded]
    parts = [one.part for one in encoded if isinstance(one.part, Part)]
    shared: dict[int, list[Entry]] = {}  # item size -> tensors of one payload
    for one in encoded:
        if isinstance(one.part, Entry):
            shared.setdefault(one.part.x.itemsize, []).append(one.part)
    parts += (encode_lossless(s, settings.lossless_codec) for s in shared.values())
    differs = any(part.transform != VALUES for part in parts)
    digest = reference.digest if reference and differs else None
    is_chained = any(part.transform in CHAINED for part in parts)
    chains = [pipeline.record] if pipeline is not None and is_chained else []
    stream = write(tensors, parts, digest, chains)
    states = {} if update is None else update.waiting()
    states |= {one.tensor.name: one.state for one in encoded}
    return stream, Report(
        raw_bytes=sum(tensor.nbytes for tensor in tensors),
        nbytes=len(stream),
        seconds=time.perf_counter() - start,
        max_error=max((one.error for one in encoded), default=0.0),
        tensors=len(tensors),
        lossy=sum(one.is_lossy for one in encoded),
        energy=UpdateEnergy.total(one.energy for one in encoded),
        states={name: state for name, state in states.items() if state},
    )


def _size(item: tuple[int, tuple[str, Any]]) -> int:
    """Return the bytes of a tensor by its position and name; 0 of what is none, and refused."""
    return getattr(item[1][1], "nbytes", 0)


class _Encoded(NamedTuple):
    """A tensor that is coded.

    Attributes:
        tensor: as the header has it.
        part: its payload; the tensor itself, where it goes into one that others share.
        is_lossy: whether it has been coded with loss.
        error: the largest, as a fraction of its bound.
        energy: how much of it arrives.
        state: what is kept of it for the next round.
    """

    tensor: Tensor
    part: Part | Entry
    is_lossy: bool
    error: float
    energy: UpdateEnergy
    state: State


@dataclass(frozen=True)
class _Encoder:
    """The way of a tensor: its residual is added, it is coded, and what is lost is the new one.

    Attributes are the arguments of `compress_measured`.
    """

    settings: Settings
    reference: Reference | None
    spacings: Mapping[str, float]
    coder: Coder
    update: Update | None

    def encode(self, item: tuple[int, tuple[str, Any]]) -> _Encoded:
        """Return a tensor, by its position and name, and what it took."""
        i, (name, value) = item
        x, update = as_array(name, value), self.update
        state = {} if update is None else update.states.pop(name, {})
        residual = state.pop(RESIDUAL, None)
        target = x if update is None else update.target(x, residual)
        del residual
        base = self.reference.like(name, x) if self.reference else None
        entry = Entry(i, name, narrow(target, x.dtype), base)
        may_lose = name not in self.spacings and is_lossy(
            name, x, rule=self.settings.rule, threshold=self.settings.threshold
        )
        part, error, after = Coded(state=state)
        if may_lose:
            part, error, after = self.coder.encode(entry, x, state)
        elif name in self.spacings:
            part = encode_point(entry, self.spacings[name], self.settings.lossy_codec)
        loses = (
            may_lose and part is not None and (part.bound is not None or part.transform in CHAINED)
        )
        energy = UpdateEnergy()
        if update is not None:
            decoded = self.coder.decode(entry, part) if part is not None and loses else entry.x
            start = update.start.like(name, x)
            if may_lose and start is not None:
                energy = UpdateEnergy.of(x, start, entry.x, decoded)
            if update.weight is not None and start is not None:
                out = None if target is x else target
                after = update.with_residual(after, target, decoded, out)
        if part is None and x.nbytes >= SHARED_BELOW:
            part = encode_lossless([entry], self.settings.lossless_codec)
        tensor = Tensor(name, DTYPE_IDS[x.dtype], x.shape)
        return _Encoded(tensor, part or entry, loses, error, energy, after)


def encode_point(entry: Entry, spacing: float, codec: Codec) -> Part | None:
    """Code a float32 tensor exactly, in multiples of ``spacing``: its own, or of a difference.

    None where that would hardly save anything, or is not exact.
    """
    if not isinstance(codec, Uniform):
        return None
    x, base = entry.x, entry.base
    # Both ways: a broadcast is also undone, to find the models before it.
    if base is not None:
        sides = flat(x), flat(base)
        if not (_methods.comes_back(*sides) and _methods.comes_back(*reversed(sides))):
            return None
    payload = codec.encode_multiples(x, base, spacing)
    if hardly_saves(payload, x):
        return None
    transform = VALUES if base is None else DIFFERENCE
    return Part(codec.wire_id, payload, spacing / 2, (entry.i,), transform)
