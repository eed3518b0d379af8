"""Flower's records <-> fedsz streams.

A sealed ArrayRecord holds one Array whose bytes are a stream: Flower moves every Array on its own,
so one costs less than a hundred. A `ConfigRecord` under `KEY` travels with it: on the way to a
client it says how to compress the reply, on the way back what that took.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsz import pipeline
from fedsz.errors import ConfigError, CorruptStream, ModelMismatch
from fedsz.partition import NDArray
from fedsz.pipeline import Report, Settings
from fedsz.stream import DTYPES, Limits, Reader

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

    def cast(self, arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """Return ``arrays`` in the template's dtypes: strategies widen some of them.

        FedAvg makes floats of integers and FedAdam float64 of everything. Integers are rounded.
        """
        return {
            name: cast(x, self.dtypes[name]) if name in self.dtypes else x
            for name, x in arrays.items()
        }


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
    data = b"".join((header.getvalue(), pipeline.raw(x)))
    return Array(x.dtype.name, tuple(x.shape), NUMPY, data)


def to_record(arrays: dict[str, NDArray]) -> ArrayRecord:
    """Return a plain ArrayRecord of ``arrays``, which is emptied on the way to save memory."""
    return ArrayRecord({name: to_array(arrays.pop(name)) for name in list(arrays)})


def from_array(name: str, array: Array) -> NDArray:
    """Return what a plain Flower Array holds.

    Raises:
        ConfigError: it is serialised in a way that is not numpy's.
        CorruptStream: its bytes are not an array.
    """
    if array.stype != NUMPY:
        raise ConfigError(f"array {name!r} is serialised as {array.stype!r}, not {NUMPY!r}")
    try:
        x = array.numpy()
    except (ValueError, EOFError, OSError) as err:
        raise CorruptStream(f"array {name!r} is not a numpy array: {err}") from err
    # numpy's files know no bfloat16: its bytes come back, and the Array's own dtype names them.
    return x.view(_DTYPES_BY_NAME.get(array.dtype, x.dtype)) if x.dtype.kind == "V" else x


def is_sealed(record: ArrayRecord) -> bool:
    """Say whether ``record`` holds a stream rather than arrays."""
    return len(record) == 1 and next(iter(record.values())).stype == STYPE


def seal(arrays: Mapping[str, NDArray], settings: Settings) -> tuple[ArrayRecord, Report]:
    """Return ``arrays`` as a sealed record, and what compressing them took."""
    stream, report = pipeline.compress_measured(arrays, settings)
    return ArrayRecord({KEY: Array("uint8", (len(stream),), STYPE, stream)}), report


def unseal(record: ArrayRecord, template: Template | None = None) -> dict[str, NDArray]:
    """Return the arrays of a sealed or plain record.

    Args:
        record: from anybody; its stream is checked before anything is allocated for it.
        template: what the arrays must look like, if that is known.

    Raises:
        ModelMismatch: they look different.
        CorruptStream: the bytes are no stream, or no arrays.
        CodecUnavailable: a codec's library is not installed here.
    """
    if not is_sealed(record):
        arrays = {name: from_array(name, array) for name, array in record.items()}
        if template:
            template.check({name: x.shape for name, x in arrays.items()})
        return arrays
    stream = next(iter(record.values())).data
    reader = Reader(Limits() if template is None else Limits(decoded_bytes=2 * template.nbytes))
    reader.feed(stream)
    header = reader.check_length()
    if template:
        template.check({tensor.name: tensor.shape for tensor in header.tensors})
    decoded = dict(pipeline.decode(reader))
    return {tensor.name: decoded[tensor.name] for tensor in header.tensors}


def settings_record(settings: Settings) -> ConfigRecord:
    """Return the record that tells a client how to compress its reply."""
    return ConfigRecord(
        {
            "error-bound": str(settings.bound),
            "codec": str(settings.lossy_codec),
            "lossless": str(settings.lossless_codec),
            "threshold": settings.threshold,
            "rule": settings.rule,
        }
    )


def read_settings(record: ConfigRecord) -> Settings:
    """Return the settings that the server sent.

    Raises:
        ConfigError: they are incomplete, or not ones that this release has.
        CodecUnavailable: this machine lacks the codec that the server chose.
    """
    try:
        bound, codec, lossless, threshold, rule = (
            record[key] for key in ("error-bound", "codec", "lossless", "threshold", "rule")
        )
    except KeyError as err:
        raise ConfigError(f"the server sent no {err} to compress by") from None
    return Settings(str(bound), str(codec), str(lossless), int(str(threshold)), str(rule))


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
