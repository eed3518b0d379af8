"""Flower's records <-> fedsz streams.

A sealed ArrayRecord holds Arrays whose bytes are streams, each of differences from what the one
before it decodes to. Flower moves every Array on its own, so one costs less than a hundred. A
`ConfigRecord` under `KEY` travels with it: on the way to a client it says how to compress the reply
(`fedsz.flower.instructions`), on the way back what that took.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsz.arrays import DTYPE_IDS, DTYPES, NDArray, raw
from fedsz.errors import ConfigError, CorruptStream, ModelMismatch
from fedsz.stream import Limits, Reader
from fedsz.update import decompress as pipeline
from fedsz.update.coded_tensor import Coded
from fedsz.update.compress import Report, compress_measured
from fedsz.update.config import Settings
from fedsz.update.reference import Reference

KEY: Final = "fedsz"
STYPE: Final = "fedsz.v1"
NUMPY: Final = "numpy.ndarray"

_DTYPES_BY_NAME: Final = {dtype.name: dtype for dtype in DTYPES}


@dataclass(frozen=True)
class Template:
    """Names, shapes and dtypes that a model's arrays must have."""

    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, np.dtype]

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray]) -> Template:
        """Return the template that ``arrays`` fit."""
        return cls(
            {name: x.shape for name, x in arrays.items()},
            {name: x.dtype for name, x in arrays.items()},
        )

    @property
    def nbytes(self) -> int:
        """Size of arrays that fit, in bytes."""
        return sum(
            int(np.prod(shape, dtype=np.int64)) * self.dtypes[name].itemsize
            for name, shape in self.shapes.items()
        )

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse arrays with other names or shapes.

        Raises:
            ModelMismatch: naming the first difference, and both shapes.
        """
        for name, shape in self.shapes.items():
            if name not in shapes:
                raise ModelMismatch(f"{name!r} of shape {shape} is missing")
            if shapes[name] != shape:
                raise ModelMismatch(
                    f"{name!r} has shape {shapes[name]} where the model has {shape}"
                )
        for name, shape in shapes.items():
            if name not in self.shapes:
                raise ModelMismatch(f"{name!r} of shape {shape} is not in the model")

    def cast(self, name: str, x: NDArray) -> NDArray:
        """Return an array in the template's dtype: strategies widen some of them.

        FedAvg makes floats of integers and FedAdam float64 of everything. Integers are rounded.
        """
        return cast(x, self.dtypes[name]) if name in self.dtypes else x


def cast(x: NDArray, dtype: np.dtype) -> NDArray:
    """Return ``x`` in ``dtype``, rounded to the nearest where that is an integer or a bool."""
    if x.dtype == dtype:
        return x
    whole = dtype.kind in "iub" and x.dtype.kind == "f"
    return np.asarray((np.rint(x) if whole else x).astype(dtype))


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
        version = np.lib.format.read_magic(source)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(source)
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


def dtype_of(array: Array) -> np.dtype:
    """Return the dtype that a plain Flower Array says it has.

    Raises:
        ConfigError: it is none that streams have.
    """
    try:
        return _DTYPES_BY_NAME[array.dtype]
    except KeyError:
        raise ConfigError(f"an array of dtype {array.dtype!r}, which streams do not have") from None


def template_of(record: ArrayRecord) -> Template:
    """Return the template of a plain record, from what its Arrays say of themselves."""
    return Template(
        {name: tuple(array.shape) for name, array in record.items()},
        {name: dtype_of(array) for name, array in record.items()},
    )


class Arrays(Mapping[str, NDArray]):
    """A plain record as a state_dict whose arrays are made as they are asked for, to save memory.

    Raises, at an array:
        ConfigError: it is serialised in a way that is not numpy's.
        CorruptStream: its bytes are not an array.
    """

    def __init__(self, record: ArrayRecord, template: Template | None = None) -> None:
        self._record = record
        self._template = template

    def __getitem__(self, name: str) -> NDArray:
        x = from_array(name, self._record[name])
        return self._template.cast(name, x) if self._template else x

    def __iter__(self) -> Iterator[str]:
        return iter(self._record)

    def __len__(self) -> int:
        return len(self._record)


def seal(
    arrays: Mapping[str, NDArray], settings: Settings, reference: Reference | None = None
) -> tuple[ArrayRecord, Report]:
    """Return ``arrays`` as a sealed record, and what compressing them took."""
    stream, report = compress_measured(arrays, settings, reference)
    return sealed([stream]), report


class Update:
    """The arrays of a record that somebody sent, sealed or plain; checked, not yet decoded.

    Iterating decodes them one at a time, in no particular order and as often as one likes. All
    that can be checked without decoding has been when this exists: structure, names, shapes,
    checksums.

    Args:
        record: from anybody.
        template: what the arrays must look like, and the dtypes they are returned in.
        references: by their digests, the models that differences may refer to.

    Attributes:
        names: in the sender's order.
        raw_bytes: size of the arrays.
        sent_bytes: size of what was sent.
        seconds: time spent on checking and decoding so far.

    Raises:
        ModelMismatch: names or shapes are not the template's.
        ReferenceMismatch: they are differences from a model that is not at hand.
        CorruptStream: the bytes are no stream.
    """

    def __init__(
        self,
        record: ArrayRecord,
        template: Template | None = None,
        references: Mapping[bytes, Reference] = MappingProxyType({}),
    ) -> None:
        start = time.perf_counter()
        self.sent_bytes = sum(len(array.data) for array in record.values())
        self._record = record
        self._template = template
        self._reader: Reader | None = None
        self._reference: Reference | None = None
        if is_sealed(record):
            if len(record) != 1:
                raise CorruptStream(f"a reply of {len(record)} streams, not one")
            self._reader = reader = self._read()
            header = reader.header
            if header.reference is not None:
                self._reference = references.get(header.reference)
                pipeline.require_reference(header.reference, self._reference)
            self.raw_bytes = header.decoded_bytes
            shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        else:
            self.raw_bytes = self.sent_bytes
            shapes = {name: tuple(array.shape) for name, array in record.items()}
        self.names = list(shapes)
        if template:
            template.check(shapes)
        if self._reader:
            self._reader.check()
        self.seconds = time.perf_counter() - start

    def __iter__(self) -> Iterator[tuple[str, NDArray]]:
        """Yield name and array, each its receiver's own.

        Raises:
            CorruptStream: an array does not decode, or is not what it was said to be.
            CodecUnavailable: a codec's library is not installed here.
        """
        for name, x in self.unpacked():
            if isinstance(x, Coded):
                with self.clock():
                    x = x.decode()
            yield name, x

    def unpacked(self) -> Iterator[tuple[str, NDArray | Coded]]:
        """Do as iterating does, but leave coded what can be decoded one by one; see `clock`."""
        fitted = ((name, self._fitted(name, x)) for name, x in self._sent())
        while True:
            with self.clock():
                item = next(fitted, None)
            if item is None:
                return
            yield item

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Count the time spent inside as time spent on decoding."""
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start

    def arrays(self) -> dict[str, NDArray]:
        """Return all arrays, in the sender's order; raises as iterating does."""
        decoded = dict(self)
        return {name: decoded.pop(name) for name in self.names}

    def _fitted(self, name: str, x: NDArray | Coded) -> NDArray | Coded:
        if self._template is None or x.dtype == self._template.dtypes[name]:
            return x
        return self._template.cast(name, x.decode() if isinstance(x, Coded) else x)

    def _sent(self) -> Iterator[tuple[str, NDArray | Coded]]:
        if self._reader:
            yield from pipeline.unpack(self._reader, self._reference)
            return
        for name, array in self._record.items():
            x = from_array(name, array)
            if x.shape != tuple(array.shape):
                raise CorruptStream(f"array {name!r} has another shape than it says")
            yield name, x

    def _read(self) -> Reader:
        limits = Limits()
        if self._template:
            limits = Limits(decoded_bytes=2 * self._template.nbytes, expansion=0)
        return Reader(next(iter(self._record.values())).data, limits)


def release(content: RecordDict) -> None:
    """Free the arrays of a message that nobody needs any more.

    Flower's records refer to each other in circles, so without this they would stay until the
    garbage collector comes by, and megabytes do not make it come sooner.
    """
    for record in array_records(content).values():
        record.clear()


def report_record(report: Report) -> ConfigRecord:
    """Return the record that tells the server what compressing took."""
    return ConfigRecord({"encode-seconds": report.seconds, "max-error": report.max_error})


def array_records(content: RecordDict) -> dict[str, ArrayRecord]:
    """Return the ArrayRecords of a message's content."""
    return dict(content.array_records)


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
