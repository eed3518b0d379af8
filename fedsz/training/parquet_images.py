"""Encoded images in a parquet file: labels at once, images as they are wanted.

A batch of encoded images is in memory at a time, and nothing is copied into a cache: devices have
little room for either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageOps

from fedsz.errors import DataError

_BATCH: Final = 256  # encoded images in memory at a time


class ParquetImages:
    """A file with a column of encoded images and one of labels, as the Hugging Face hub has them.

    Attributes:
        columns: the names of all columns.

    Raises:
        DataError: the file cannot be read, or holds no rows.
    """

    def __init__(self, path: Path, image_column: str, label_column: str) -> None:
        self._path, self._image, self._label = path, image_column, label_column
        try:
            with pq.ParquetFile(self._path) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        except (OSError, pa.ArrowException) as err:
            raise DataError(f"cannot read {path}: {str(err).partition(chr(10))[0]}") from err
        if not rows:
            raise DataError(f"cannot read {path}: it holds no rows")
        self.columns: list[str] = schema.names
        self._schema = schema

    @property
    def num_classes(self) -> int | None:
        """How many classes the file says there are; None if it does not say."""
        told = json.loads((self._schema.metadata or {}).get(b"huggingface", b"{}"))
        label = told.get("info", {}).get("features", {}).get(self._label, {})
        return len(label["names"]) if "names" in label else None

    def labels(self) -> npt.NDArray[np.int64]:
        """Return the labels of all rows, int64 [rows].

        Raises:
            TypeError: the columns are not of images and labels.
            ValueError: a label is missing or no whole number.
        """
        kind = self._schema.field(self._image).type
        encoded = kind.field("bytes").type if _is_struct_with_bytes(kind) else kind
        if not (pa.types.is_binary(encoded) or pa.types.is_large_binary(encoded)):
            raise TypeError(f"column {self._image!r} holds {kind}")
        # `read_table` and `to_numpy` would import pandas, for 45 MB.
        with _frugal_arrow(), pq.ParquetFile(self._path) as file:
            column = file.read([self._label], use_threads=False).column(0).combine_chunks()
        if column.null_count or not pa.types.is_integer(column.type):
            nulls = f"{column.null_count} nulls"
            raise ValueError(f"column {self._label!r} holds {column.type} with {nulls}")
        return np.asarray(np.from_dlpack(column.cast(pa.int64())), dtype=np.int64)

    def images(self, rows: npt.NDArray[np.int64], mode: str) -> Iterator[tuple[int, Image.Image]]:
        """Yield the images of ``rows`` in the order of the file, each after its place in ``rows``.

        ``mode`` is theirs, as PIL names it.

        Raises:
            OSError: one cannot be decoded.
        """
        order = np.argsort(rows, kind="stable")
        wanted, start = rows[order], 0
        with _frugal_arrow(), pq.ParquetFile(self._path, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                end = start + file.metadata.row_group(group).num_rows
                low, high = np.searchsorted(wanted, (start, end))
                if low < high:
                    places = order[low:high]
                    found = self._of_group(file, group, wanted[low:high] - start)
                    for place, encoded in zip(places, found, strict=True):
                        yield int(place), _decoded(encoded, mode)
                start = end

    def _of_group(self, file: Any, group: int, rows: npt.NDArray[np.int64]) -> Iterator[Any]:
        """Yield the encoded images of rows of a row group, which are in ascending order."""
        start = 0
        for batch in file.iter_batches(
            _BATCH, row_groups=[group], columns=[self._image], use_threads=False
        ):
            low, high = np.searchsorted(rows, (start, start + len(batch)))
            yield from (batch.column(0)[int(row) - start].as_py() for row in rows[low:high])
            start += len(batch)


@contextmanager
def _frugal_arrow() -> Iterator[None]:
    """Have Arrow take memory from the system: its own allocator keeps 30 MB that are free."""
    usual = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(usual)


def _is_struct_with_bytes(kind: Any) -> bool:
    return bool(pa.types.is_struct(kind)) and kind.get_field_index("bytes") >= 0


def _decoded(value: Any, mode: str) -> Image.Image:
    encoded = value["bytes"] if isinstance(value, dict) else value
    if encoded is None:
        raise OSError("it holds no bytes")
    image = ImageOps.exif_transpose(Image.open(BytesIO(encoded)))
    return image if image.mode == mode else image.convert(mode)
