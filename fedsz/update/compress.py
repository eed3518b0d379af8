"""A state_dict -> a stream: partition, codecs, bitstream."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from fedsz import methods
from fedsz.arrays import DTYPE_IDS, StateDict, as_array, as_arrays, require_state_dict
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec, LosslessCodec
from fedsz.errors import ConfigError
from fedsz.methods import Transform, keeps_state
from fedsz.stream import DIFFERENCE, VALUES, Part, Tensor, write
from fedsz.update.chained import ChainEncoder
from fedsz.update.config import DEFAULT, CompressionConfig
from fedsz.update.lattice import encode_point
from fedsz.update.lossless import Entry, encode_lossless
from fedsz.update.lossy import encode_difference, encode_within
from fedsz.update.partition import is_lossy
from fedsz.update.reference import Reference
from fedsz.update.step import bounds_of_step, energies

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
    """

    raw_bytes: int
    nbytes: int
    seconds: float
    max_error: float
    tensors: int
    lossy: int


def compress(
    state_dict: StateDict,
    error_bound: ErrorBound | float | str = DEFAULT.error_bound,
    *,
    codec: str | Codec = DEFAULT.codec,
    lossless: str | Codec = DEFAULT.lossless,
    threshold: int = DEFAULT.threshold,
    rule: str = DEFAULT.rule,
    reference: Reference | StateDict | None = None,
    chain: str | Transform | None = None,
    seed: int = 0,
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
        rule: which other tensors stay lossless; see `fedsz.update.partition.is_lossy`.
        reference: a state_dict of the same names, dtypes and shapes, which the receiver has too.
            Lossy tensors are then coded as differences from it. Bounds of kind ``std`` and
            ``step`` are of the differences; all others stay bounds of the tensors themselves.
            Lossless tensors are coded as differences of their bits, if that is smaller and the
            codec is not ``"raw"``.
        chain: methods without state, such as ``"topk:k=1%>ternary"``, or what
            `fedsz.methods.parse` returned. It takes the place of bound and codec.
        seed: of the random numbers that methods draw, 0 to 2^64 - 1.

    Returns:
        The stream, as docs/format.md describes it.

    Raises:
        ConfigError: an argument or a tensor that fedsz does not take, or one that the reference
            lacks.
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
    config = CompressionConfig.of(
        error_bound, codec=codec, lossless=lossless, threshold=threshold, rule=rule
    )
    state, base = require_state_dict(state_dict), Reference.of(reference)
    bounds: dict[str, float] = {}
    if config.bound.kind == "step":
        if base is None:
            raise ConfigError(f"error bound {config.error_bound} is of a step: pass its reference=")
        bounds = bounds_of_step(energies(as_arrays(state), base, config), config)
    encoder = None if chain is None else ChainEncoder(_stateless(chain), seed=seed)
    return compress_measured(state, config, base, bounds=bounds, encoder=encoder)[0]


def _stateless(chain: str | Transform) -> Transform:
    """Return a chain that nothing has to be kept of, or raise `ConfigError`."""
    transform = methods.parse(chain) if isinstance(chain, str) else chain
    if keeps_state(transform):
        raise ConfigError(
            f"{transform} keeps state from round to round, and compress() keeps none: FedSZMod does"
        )
    return transform


def compress_measured(
    state_dict: StateDict,
    config: CompressionConfig,
    reference: Reference | None = None,
    *,
    bounds: Mapping[str, float] = MappingProxyType({}),
    steps: Mapping[str, float] = MappingProxyType({}),
    encoder: ChainEncoder | None = None,
) -> tuple[bytes, Report]:
    """Return what `compress` does, and what it measured on the way; raises as `compress` does.

    ``bounds`` are by the names of tensors, absolute, and take the place of the config's. Tensors
    without one stay lossless where the config's is of kind ``step``. Tensors that have one of
    ``steps`` stay so, too; they are small if they are multiples of it, or differ by such. An
    ``encoder`` codes what may be lossy in place of the config's codec.
    """
    start = time.perf_counter()
    codec, lossless = config.lossy_codec, config.lossless_codec
    by_step = config.bound.kind == "step"
    tensors: list[Tensor] = []
    parts: list[Part] = []
    shared: dict[int, list[Entry]] = {}  # item size -> tensors of one payload
    raw_bytes, max_error, lossy = 0, 0.0, 0
    # One by one: a mapping may make its arrays as they are asked for.
    for i, (name, value) in enumerate(state_dict.items()):
        x = as_array(name, value)
        tensors.append(Tensor(name, DTYPE_IDS[x.dtype], x.shape))
        raw_bytes += x.nbytes
        entry = Entry(i, name, x)
        if name in steps and (point := encode_point(entry, steps[name], codec, reference)):
            parts.append(point)
            continue
        may = name not in steps and is_lossy(name, x, rule=config.rule, threshold=config.threshold)
        if may and encoder:
            chained = encoder.encode(entry, reference)
            if chained is not None:
                parts.append(chained)
                lossy += 1
                continue
            may = False
        # Where nothing moved, or beside no reference, a step bounds nothing: it stays lossless.
        if may and (name in bounds or not by_step):
            bound = ErrorBound.abs(bounds[name]) if name in bounds else config.bound_of(name)
            coded = _encode_lossy(entry, codec, bound, reference)
            if coded is not None:
                parts.append(coded[0])
                max_error = max(max_error, coded[1])
                lossy += not isinstance(codec, LosslessCodec)
                continue
        if x.nbytes >= SHARED_BELOW:
            parts.append(encode_lossless([entry], lossless, reference))
        else:
            shared.setdefault(x.itemsize, []).append(entry)
    parts += (encode_lossless(s, lossless, reference) for s in shared.values())
    differs = any(part.transform != VALUES for part in parts)
    digest = reference.digest if reference and differs else None
    stream = write(tensors, parts, digest, encoder.records if encoder else ())
    seconds = time.perf_counter() - start
    return stream, Report(raw_bytes, len(stream), seconds, max_error, len(tensors), lossy)


def _encode_lossy(
    entry: Entry, codec: Codec, error_bound: ErrorBound, reference: Reference | None
) -> tuple[Part, float] | None:
    """Code a tensor that may be lossy, and say how much of its bound the error takes.

    None where that would hardly save anything, or where the bound cannot be kept.
    """
    if isinstance(codec, LosslessCodec):
        return encode_lossless([entry], codec, reference), 0.0
    x = entry.x
    encoded, transform = None, VALUES
    if reference:
        encoded = encode_difference(x, reference.tensor(entry.name, x), error_bound, codec)
        transform = DIFFERENCE
    # A bound by the spread of the differences is none for values: what did not move would be lost.
    if encoded is None and not (reference and error_bound.kind == "std"):
        bound = error_bound.absolute(x)
        encoded = encode_within(x, bound, codec) if bound else None
        transform = VALUES
    if encoded is None or 10 * len(encoded.payload) > 9 * x.nbytes:
        return None
    stated = encoded.bound if codec.keeps_bound else encoded.max_error
    share = encoded.max_error / stated if stated else 0.0
    return Part(codec.wire_id, encoded.payload, stated, (entry.i,), transform), share
