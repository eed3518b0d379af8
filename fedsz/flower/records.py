"""Flower's records <-> fedsz streams.

A sealed ArrayRecord holds one Array whose bytes are a stream. Flower moves every Array on its own,
so one costs less than a hundred. Arrays that streams cannot hold (text, objects, other
serialisations) pass through beside it. A `ConfigRecord` under `KEY` travels with it: a request on
the way to a client, a note on the way back (`fedsz.core.protocol`).
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedsz.arrays import (
    DTYPE_IDS,
    DTYPE_NAMES,
    Layout,
    NDArray,
    StateDict,
    as_arrays,
    as_tensor,
    cast,
    chunks,
    is_shape,
    raw,
)
from fedsz.errors import ConfigError, CorruptStream
from fedsz.flower_compat import make_array, make_config, make_content, make_record, records_in

KEY: Final = "fedsz"
STYPE: Final = "fedsz.v1"
TRAIN: Final = "train"  # how the types of messages begin whose replies go into the average
EVALUATE: Final = "evaluate"  # and of those whose replies hold metrics alone
NUMPY: Final = "numpy.ndarray"
_LEGACY: Final = ("fitins.parameters", "evaluateins.parameters")  # keys of its servers' records

# Of a record's arrays by their positions: those that no stream holds, with their names.
Passthrough = Mapping[int, tuple[str, Array]]

SECURE: Final = "fedsz.secure"  # the key of the record of a secure sum, also in the Context
_NOTE: Final = "note"  # the one entry of our ConfigRecord: a message of `fedsz.core.protocol`
_STREAM: Final = f"{KEY}.stream"  # the name of the Array that holds it
_PASSTHROUGH: Final = f"{KEY}.passthrough."  # and the position and the name of an Array
_POSITION: Final = re.compile("[0-9]{1,9}")
_DTYPES_BY_NAME: Final = {name: dtype for dtype, name in DTYPE_NAMES.items()}
_READERS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_HEADERS: Final = 4096  # of arrays, that are remembered
_USUAL_HEADER: Final = 256  # bytes: numpy pads those of up to some ten dimensions to 128


def to_array(x: NDArray, dtype: np.dtype | None = None) -> Array:
    """Return a Flower Array of ``x``, in ``dtype`` if that is another than its own.

    It takes one copy of the bytes, where Flower's own takes two; for other dtypes see
    `fedsz.arrays.cast`.
    """
    dtype = x.dtype if dtype is None else dtype
    if dtype == x.dtype:
        data = b"".join((_header_of(dtype, x.shape), raw(x.reshape(-1))))
    else:
        flat, written = x.reshape(-1), io.BytesIO(_header_of(dtype, x.shape))
        # It grows in place, and getvalue() hands out its buffer.
        written.seek(0, io.SEEK_END)
        for here in chunks(flat.size):
            written.write(raw(cast(flat[here], dtype)))
        data = written.getvalue()
    return make_array(DTYPE_NAMES[dtype], x.shape, NUMPY, data)


# A model's headers are the same in each round, and making one takes as long as coding its tensor.
@lru_cache(maxsize=_HEADERS)
def _header_of(dtype: np.dtype, shape: tuple[int, ...]) -> bytes:
    """Return what a numpy file begins with that holds such an array, of version 1."""
    like, written = np.empty(0, dtype), io.BytesIO()
    plain = like if dtype.isbuiltin == 1 else like.view(f"V{dtype.itemsize}")
    about = np.lib.format.header_data_from_array_1_0(plain) | {"shape": shape}
    np.lib.format.write_array_header_1_0(written, about)
    return written.getvalue()


def to_record(arrays: dict[str, NDArray]) -> ArrayRecord:
    """Return a plain ArrayRecord of ``arrays``, which is emptied on the way to save memory."""
    return make_record({name: to_array(arrays.pop(name)) for name in list(arrays)})


def record_of(state_dict: StateDict) -> ArrayRecord:
    """Return the ArrayRecord of a state_dict, of torch tensors or numpy arrays.

    As ``ArrayRecord(state_dict)``, and for bfloat16 and float8 too, whose bits it carries under the
    dtype's name; `state_dict_of` is its inverse. Flower's own strategies do not add these up:
    `StreamingFedAvg` does.

    Raises:
        ConfigError: a tensor is no dense array, or of a dtype that streams do not have.

    Examples:
        >>> import ml_dtypes, numpy as np
        >>> from fedsz.flower import record_of
        >>> record = record_of({"w": np.ones(3, ml_dtypes.bfloat16)})
        >>> record["w"].dtype
        'bfloat16'
    """
    return to_record(as_arrays(state_dict))


def state_dict_of(record: ArrayRecord, *, as_numpy: bool = False) -> dict[str, Any]:
    """Return the state_dict in an ArrayRecord, in its order; each tensor owns its memory.

    Args:
        record: plain, as apps see it.
        as_numpy: return numpy arrays, by ml_dtypes where numpy lacks the dtype; needs no torch.

    Raises:
        ConfigError: an array is serialised in a way that is not numpy's.
        CorruptStream: the bytes of one are not an array.

    Examples:
        >>> import ml_dtypes, numpy as np
        >>> from fedsz.flower import record_of, state_dict_of
        >>> record = record_of({"w": np.ones(3, ml_dtypes.bfloat16)})
        >>> state_dict_of(record, as_numpy=True)["w"].dtype.name
        'bfloat16'
    """
    arrays = {name: from_array(name, array).copy() for name, array in record.items()}
    return arrays if as_numpy else {name: as_tensor(x) for name, x in arrays.items()}


def from_array(name: str, array: Array) -> NDArray:
    """Return what a plain Flower Array holds, as a read-only view of its bytes.

    It is a copy where they do not lie as an array's should. numpy's own reader allocates whatever
    the header asks for; this one looks first whether the bytes are there.

    Raises:
        ConfigError: it is serialised in a way that is not numpy's.
        CorruptStream: its bytes are not an array of numbers.
    """
    if array.stype != NUMPY:
        raise ConfigError(f"array {name!r} is serialised as {array.stype!r}, not {NUMPY!r}")
    try:
        shape, fortran, dtype, start, size = _header(array.data)
    except Exception as err:  # its parser of literals lets all sorts through
        raise CorruptStream(f"array {name!r} is not a numpy array: {err}") from err
    nbytes = size * dtype.itemsize
    if nbytes < 0 or nbytes != len(array.data) - start:
        raise CorruptStream(f"array {name!r} is not {shape} of {dtype}", offset=start)
    if dtype.kind == "V":
        # numpy's files know no bfloat16: they hold its bytes, and the Array's own dtype names them.
        dtype = _DTYPES_BY_NAME.get(array.dtype, dtype)
    if dtype not in DTYPE_IDS or nbytes != size * dtype.itemsize:
        raise CorruptStream(f"array {name!r} has dtype {dtype}, which streams do not have")
    x = np.frombuffer(array.data, dtype, size, start).reshape(shape, order="F" if fortran else "C")
    return np.require(x, None, ["C", "A"])


def is_sealed(record: ArrayRecord) -> bool:
    """Say whether ``record`` holds a stream, or what passes beside it, rather than arrays."""
    return any(a.stype == STYPE or name.startswith(_PASSTHROUGH) for name, a in record.items())


def sealed(stream: bytes, passthrough: Passthrough = MappingProxyType({})) -> ArrayRecord:
    """Return a stream as a sealed record, and the arrays that pass beside it."""
    array = make_array("uint8", (len(stream),), STYPE, stream)
    beside = {f"{_PASSTHROUGH}{i}.{name}": array for i, (name, array) in passthrough.items()}
    return make_record({_STREAM: array, **beside})


def stream_of(record: ArrayRecord) -> bytes:
    """Return the stream of a sealed record.

    Raises:
        CorruptStream: it has none, or several.
    """
    streams = [array.data for array in record.values() if array.stype == STYPE]
    if len(streams) != 1:
        raise CorruptStream(f"a record of {len(streams)} streams, not one")
    return streams[0]


def passthrough_of(record: ArrayRecord) -> Passthrough:
    """Return the arrays of a record that streams do not hold: by their positions, name and array.

    Raises:
        CorruptStream: an array's name begins as if it had a position, and has none.
    """
    if not is_sealed(record):
        known = layout_of(record).dtypes
        return {i: item for i, item in enumerate(record.items()) if item[0] not in known}
    beside = {}
    for key, array in record.items():
        if key.startswith(_PASSTHROUGH):
            position, _, name = key.removeprefix(_PASSTHROUGH).partition(".")
            if not _POSITION.fullmatch(position):
                raise CorruptStream(f"array {key!r} has no position")
            beside[int(position)] = name, array
    return beside


def with_passthrough(record: ArrayRecord, passthrough: Passthrough) -> ArrayRecord:
    """Return a plain record with the arrays that passed beside its stream, each in its position.

    Raises:
        CorruptStream: one of them has the name of an array that the stream holds.
    """
    if not passthrough:
        return record
    items = list(record.items())
    for position in sorted(passthrough):
        if (name := passthrough[position][0]) in record:
            raise CorruptStream(f"array {name!r} is there twice")
        items.insert(position, passthrough[position])
    return make_record(dict(items))


def bytes_of_arrays(content: RecordDict) -> int:
    """Return the size of a content's Arrays as Flower sends them, with a header each."""
    records = records_in(content, ArrayRecord).values()
    return sum(len(array.data) for record in records for array in record.values())


def layout_of(record: ArrayRecord) -> Layout:
    """Return the layout of those arrays in a plain record that streams can hold.

    Arrays say it of themselves, but for those of legacy apps, whose bytes do.
    """
    known = {name: seen for name, a in record.items() if (seen := _described(a)) is not None}
    return Layout(
        {name: shape for name, (_, shape) in known.items()},
        {name: dtype for name, (dtype, _) in known.items()},
    )


def _described(array: Array) -> tuple[np.dtype, tuple[int, ...]] | None:
    """Return the dtype and shape of an Array; None if streams cannot hold it."""
    if array.stype != NUMPY:
        return None
    if array.dtype:
        dtype = _DTYPES_BY_NAME.get(array.dtype)
        return None if dtype is None else (dtype, tuple(array.shape))
    try:
        shape, _, dtype, *_ = _header(array.data)
    except Exception:  # its parser of literals lets all sorts through
        return None
    return (dtype, shape) if dtype in DTYPE_IDS else None


_Header = tuple[tuple[int, ...], bool, np.dtype, int, int]


def _header(data: bytes) -> _Header:
    """Return shape, Fortran order, dtype, start and number of the elements of a numpy file.

    Their number is -1 where no array has that shape.
    """
    size = 10 + int.from_bytes(data[8:10], "little")  # of version 1
    usual = size <= _USUAL_HEADER and data[6:8] == b"\x01\x00"
    return _parsed(data[:size]) if usual else _parsed.__wrapped__(data)


@lru_cache(maxsize=_HEADERS)
def _parsed(data: bytes) -> _Header:
    source = io.BytesIO(data)
    shape, fortran, dtype = _READERS[np.lib.format.read_magic(source)](source)
    return shape, fortran, dtype, source.tell(), math.prod(shape) if is_shape(shape) else -1


def views_of(record: ArrayRecord, layout: Layout | None = None) -> dict[str, NDArray]:
    """Return those arrays of a plain record that streams can hold, as read-only views of its bytes.

    Those that have another dtype in ``layout`` are copies in that.

    Raises:
        ConfigError: one is serialised in a way that is not numpy's.
        CorruptStream: the bytes of one are not an array.
    """
    views = {
        name: from_array(name, array)
        for name, array in record.items()
        if _described(array) is not None
    }
    return {name: layout.cast(name, x) for name, x in views.items()} if layout else views


def replaced(
    content: RecordDict, arrays: Mapping[str, ArrayRecord], note: bytes | None = None
) -> RecordDict:
    """Return a copy of ``content`` with other ArrayRecords, and a request or a note of ours.

    The messages of a round share one RecordDict, so it is never changed.
    """
    records = {key: arrays.get(key, record) for key, record in content.items() if key != KEY}
    if note is not None:
        records[KEY] = make_config({_NOTE: note})
    return make_content(records)


def note_of(content: RecordDict) -> bytes | None:
    """Return the request or the note in a content, if there is one."""
    record = content.get(KEY)
    note = record.get(_NOTE) if isinstance(record, ConfigRecord) else None
    return note if isinstance(note, bytes) else None


def is_training(messages: Iterable[Message]) -> bool:
    """Say whether the replies to these messages go into an average."""
    return any(message.metadata.message_type.startswith(TRAIN) for message in messages)


def is_round(messages: Sequence[Message]) -> bool:
    """Say whether these messages hold the model for all whose replies are averaged together.

    Legacy servers push a message to each client from a thread of its own.
    """
    if not all(m.metadata.message_type.startswith((TRAIN, EVALUATE)) for m in messages):
        return False
    legacy = any(key in _LEGACY for message in messages for key in message.content)
    has_model = any(records_in(message.content, ArrayRecord) for message in messages)
    return has_model and not (legacy and len(messages) == 1)


def same_arrays(one: RecordDict, other: RecordDict) -> bool:
    """Say whether two contents hold the same arrays, be it in records of their own."""
    if one is other:
        return True
    ours, theirs = records_in(one, ArrayRecord), records_in(other, ArrayRecord)
    return list(ours) == list(theirs) and all(
        list(record) == list(theirs[key])
        and all(array.data == theirs[key][name].data for name, array in record.items())
        for key, record in ours.items()
    )
