"""Flower's records <-> fedsz streams.

A sealed ArrayRecord holds Arrays whose bytes are streams, each of differences from what the one
before it decodes to. Flower moves every Array on its own, so one costs less than a hundred. A
`ConfigRecord` under `KEY` travels with it: on the way to a client it says how to compress the reply
(`fedsz.flower.instructions`), on the way back what that took.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsz.arrays import DTYPE_IDS, DTYPES, Layout, NDArray, raw
from fedsz.errors import ConfigError, CorruptStream
from fedsz.update.compress import Report, compress_measured
from fedsz.update.config import CompressionConfig
from fedsz.update.reference import Reference

KEY: Final = "fedsz"
STYPE: Final = "fedsz.v1"
NUMPY: Final = "numpy.ndarray"

_DTYPES_BY_NAME: Final = {dtype.name: dtype for dtype in DTYPES}
_READERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def to_array(x: NDArray) -> Array:
    """Return a Flower Array of ``x``, with one copy of its bytes where Flower's own takes two."""
    header = io.BytesIO()
    plain = x if x.dtype.kind != "V" and x.dtype.isbuiltin else x.view(f"V{x.itemsize}")
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(plain))
    data = b"".join((header.getvalue(), raw(x)))
    return Array(x.dtype.name, tuple(x.shape), NUMPY, data)


def to_record(arrays: dict[str, NDArray]) -> ArrayRecord:
    """Return a plain ArrayRecord of ``arrays``, which is emptied on the way to save memory."""
    return ArrayRecord({name: to_array(arrays.pop(name)) for name in list(arrays)})


def from_array(name: str, array: Array) -> NDArray:
    """Return what a plain Flower Array holds, as an array of its own.

    numpy's own reader allocates whatever the header asks for; this one looks first whether the
    bytes are there.

    Raises:
        ConfigError: it is serialised in a way that is not numpy's.
        CorruptStream: its bytes are not an array of numbers.
    """
    if array.stype != NUMPY:
        raise ConfigError(f"array {name!r} is serialised as {array.stype!r}, not {NUMPY!r}")
    source = io.BytesIO(array.data)
    try:
        shape, fortran, dtype = _READERS[np.lib.format.read_magic(source)](source)
    except Exception as err:  # its parser of literals lets all sorts through
        raise CorruptStream(f"array {name!r} is not a numpy array: {err}") from err
    nbytes, start = math.prod(shape) * dtype.itemsize, source.tell()
    if min(shape, default=0) < 0 or nbytes != len(array.data) - start:
        raise CorruptStream(f"array {name!r} is not {shape} of {dtype}", offset=start)
    if dtype.kind == "V":
        # numpy's files know no bfloat16: they hold its bytes, and the Array's own dtype names them.
        dtype = _DTYPES_BY_NAME.get(array.dtype, dtype)
    if dtype not in DTYPE_IDS or nbytes != math.prod(shape) * dtype.itemsize:
        raise CorruptStream(f"array {name!r} has dtype {dtype}, which streams do not have")
    flat = np.frombuffer(array.data, dtype, math.prod(shape), start)
    return flat.reshape(shape, order="F" if fortran else "C").copy()


def is_sealed(record: ArrayRecord) -> bool:
    """Say whether ``record`` holds a stream rather than arrays."""
    return bool(record) and all(array.stype == STYPE for array in record.values())


def sealed(streams: Sequence[bytes]) -> ArrayRecord:
    """Return streams as a sealed record, in their order."""
    return ArrayRecord(
        {f"{KEY}.{i:04}": Array("uint8", (len(s),), STYPE, s) for i, s in enumerate(streams)}
    )


def streams_of(record: ArrayRecord) -> list[bytes]:
    """Return the streams of a sealed record, in the order they are to be decoded in."""
    return [record[name].data for name in sorted(record)]


def layout_of(record: ArrayRecord) -> Layout:
    """Return the layout of a plain record, from what its Arrays say of themselves.

    Raises:
        ConfigError: a dtype is none that streams have.
    """
    shapes = {name: tuple(array.shape) for name, array in record.items()}
    try:
        return Layout(shapes, {name: _DTYPES_BY_NAME[a.dtype] for name, a in record.items()})
    except KeyError as err:
        raise ConfigError(f"an array of dtype {err}, which streams do not have") from None


class Arrays(Mapping[str, NDArray]):
    """A plain record as a state_dict whose arrays are made as they are asked for, to save memory.

    Raises, at an array:
        ConfigError: it is serialised in a way that is not numpy's.
        CorruptStream: its bytes are not an array.
    """

    def __init__(self, record: ArrayRecord, layout: Layout | None = None) -> None:
        self._record = record
        self._layout = layout

    def __getitem__(self, name: str) -> NDArray:
        x = from_array(name, self._record[name])
        return self._layout.cast(name, x) if self._layout else x

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)


def seal(
    arrays: Mapping[str, NDArray],
    config: CompressionConfig,
    reference: Reference | None = None,
    *,
    bounds: Mapping[str, float] = MappingProxyType({}),
) -> tuple[ArrayRecord, Report]:
    """Return ``arrays`` as a sealed record, and what that took; see `compress_measured`."""
    stream, report = compress_measured(arrays, config, reference, bounds=bounds)
    return sealed([stream]), report


def replaced(
    content: RecordDict, arrays: Mapping[str, ArrayRecord], note: ConfigRecord | None
) -> RecordDict:
    """Return a copy of ``content`` with other ArrayRecords and another note of ours.

    The messages of a round share one RecordDict, so nobody may write into it.
    """
    records = {key: arrays.get(key, record) for key, record in content.items() if key != KEY}
    if note is not None:
        records[KEY] = note
    return RecordDict(records)
