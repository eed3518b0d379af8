"""The process behind `fedsz.training.parquet_images`: ``python -m fedsz.training.parquet_worker``.

It takes a file and its two columns. Row numbers on stdin, int64, ask for the images of these rows;
none ask what the file is. It answers in parts (`fedsz.child_process`), the first in JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from fedsz.child_process import private_stdout, write_parts
from fedsz.training.parquet_images import Contents

_BATCH: Final = 256  # encoded images in memory at a time
Ints = npt.NDArray[np.int64]


class ImageFile:
    """An open parquet file with a column of encoded images and one of labels."""

    def __init__(self, path: Path, image_column: str, label_column: str) -> None:
        self._image, self._label = image_column, label_column
        self._file = pq.ParquetFile(path, pre_buffer=False)
        self._schema = self._file.schema_arrow

    def contents(self) -> tuple[Contents, Ints]:
        """Return what the file is, and the labels of all rows, int64 [rows]; none if it has none.

        The memory of the encoded images is not needed for that.
        """
        told = Contents(columns=self._schema.names)
        labels = np.empty(0, dtype=np.int64)
        if not self._file.metadata.num_rows:
            told.unreadable = "it holds no rows"
        elif {self._image, self._label} <= set(told.columns):
            told.num_classes = self._num_classes()
            try:
                labels = self._labels()
            except (TypeError, ValueError) as err:  # pyarrow's own are among these
                told.unlabelled = _first_line(err)
        return told, labels

    def _num_classes(self) -> int | None:
        """Return how many classes the file says there are; None if it does not say."""
        told = json.loads((self._schema.metadata or {}).get(b"huggingface", b"{}"))
        label = told.get("info", {}).get("features", {}).get(self._label, {})
        return len(label["names"]) if "names" in label else None

    def _labels(self) -> Ints:
        kind = self._schema.field(self._image).type
        encoded = kind.field("bytes").type if _is_struct_with_bytes(kind) else kind
        if not (pa.types.is_binary(encoded) or pa.types.is_large_binary(encoded)):
            raise TypeError(f"column {self._image!r} holds {kind}")
        # `read_table` and `to_numpy` would import pandas, for 45 MB.
        column = self._file.read([self._label], use_threads=False).column(0).combine_chunks()
        if column.null_count or not pa.types.is_integer(column.type):
            nulls = f"{column.null_count} nulls"
            raise ValueError(f"column {self._label!r} holds {column.type} with {nulls}")
        return np.asarray(np.from_dlpack(column.cast(pa.int64())), dtype=np.int64)

    def images(self, rows: Ints) -> Iterator[bytes]:
        """Yield the encoded images of ``rows``, which ascend; b"" where the file has none."""
        start = 0
        for batch in self._file.iter_batches(_BATCH, columns=[self._image], use_threads=False):
            low, high = np.searchsorted(rows, (start, start + len(batch)))
            for row in rows[low:high]:
                value = batch.column(0)[int(row) - start].as_py()
                yield (value["bytes"] if isinstance(value, dict) else value) or b""
            start += len(batch)


def _is_struct_with_bytes(kind: Any) -> bool:
    return bool(pa.types.is_struct(kind)) and kind.get_field_index("bytes") >= 0


def _first_line(err: Exception) -> str:
    return str(err).partition("\n")[0] or type(err).__name__


def answer(path: Path, image_column: str, label_column: str, rows: Ints) -> list[bytes]:
    """Return the parts of an answer."""
    try:
        file = ImageFile(path, image_column, label_column)
        if len(rows):
            return [msgspec.json.encode(Contents()), *file.images(rows)]
        told, labels = file.contents()
        return [msgspec.json.encode(told), labels.tobytes()]
    except Exception as err:  # of any kind: a damaged file fails in Arrow, in json or here
        return [msgspec.json.encode(Contents(unreadable=_first_line(err)))]


def main() -> None:
    """Answer one request."""
    path, *columns = sys.argv[1:]
    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own keeps 30 MB that are free
    with private_stdout() as out:
        rows = np.frombuffer(sys.stdin.buffer.read(), np.int64)
        write_parts(out, *answer(Path(path), columns[0], columns[1], rows))


if __name__ == "__main__":
    main()
