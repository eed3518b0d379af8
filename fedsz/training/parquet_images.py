"""Encoded images in a parquet file: labels at once, images as they are wanted.

The file is read by a process that ends when it has been read, for pyarrow takes 60 MB, which a
small device needs for training. That process runs this module, with a file and its two columns. Row
numbers on stdin, int64, ask for the images of these rows; none ask what the file is. It answers by
one `Answer` in MessagePack on stdout.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from fedsz.child_process import private_stdout
from fedsz.errors import DataError, first_line

WORKER: Final = "fedsz.training.parquet_images"
_BATCH: Final = 256  # encoded images in memory at a time
Ints = npt.NDArray[np.int64]


class Answer(msgspec.Struct):
    """What a file holds, as far as that shows without its images; or the images of some rows."""

    columns: list[str] = []  # the names of all
    num_classes: int | None = None  # None if the file does not say
    labels: bytes = b""  # of all rows, int64; none if the file lacks one of the columns
    images: list[bytes] = []  # encoded; b"" where the file has none
    trouble: str = ""  # that it holds no labelled images, or cannot be read, and why


class ParquetImages:
    """A file with a column of encoded images and one of labels, as the Hugging Face hub has them.

    Attributes:
        contents: what it holds.
        labels: of all rows, int64 [rows]; none if it lacks one of the columns.

    Raises:
        DataError: the file cannot be read, holds no rows, or its columns are not of images and
            labels, or a label is missing.
    """

    def __init__(self, path: Path, image_column: str, label_column: str) -> None:
        self._path, self._columns = path, (image_column, label_column)
        self.contents = self._ask(np.empty(0, np.int64))
        self.labels = np.frombuffer(self.contents.labels, np.int64)

    def images(self, rows: Ints) -> list[bytes]:
        """Return the encoded images of ``rows``, int64 [N]; b"" where the file has none.

        Raises:
            DataError: they cannot be read.
        """
        order = np.argsort(rows, kind="stable")
        encoded = self._ask(rows[order]).images if len(rows) else []
        return [encoded[place] for place in np.argsort(order)]

    def _ask(self, rows: Ints) -> Answer:
        command = [sys.executable, "-P", "-m", WORKER, str(self._path), *self._columns]
        done = subprocess.run(command, input=rows.tobytes(), stdout=subprocess.PIPE, check=False)
        try:
            answer = msgspec.msgpack.decode(done.stdout, type=Answer)
        except msgspec.DecodeError as err:
            why = f"the process that read it ended with {done.returncode}"
            raise DataError(f"cannot read {self._path}: {why}") from err
        if answer.trouble:
            raise DataError(answer.trouble)
        return answer


def main() -> None:
    """Answer one request."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())  # Arrow's own keeps 30 MB that are free
    with private_stdout() as out:
        rows = np.frombuffer(sys.stdin.buffer.read(), np.int64)
        try:
            answer = _answer(*sys.argv[1:], rows=rows)
        except Exception as err:  # of any kind: a damaged file fails in Arrow, in json or here
            answer = Answer(trouble=f"cannot read {sys.argv[1]}: {first_line(err)}")
        out.write(msgspec.msgpack.encode(answer))


def _answer(path: str, image: str, label: str, *, rows: Ints) -> Answer:
    """Return what a file is and its labels, or the images of ``rows``, which ascend."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, pre_buffer=False)
    if len(rows):
        return Answer(images=list(_images(file, image, rows)))
    if not file.metadata.num_rows:
        raise ValueError("it holds no rows")
    schema = file.schema_arrow
    answer = Answer(columns=schema.names)
    if not {image, label} <= set(answer.columns):
        return answer
    about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    classes = about.get("info", {}).get("features", {}).get(label, {})
    answer.num_classes = len(classes["names"]) if "names" in classes else None
    try:
        answer.labels = _labels(file, image, label).tobytes()
    except (TypeError, ValueError) as err:  # pyarrow's own are among these
        return Answer(trouble=f"{path} holds no labelled images: {first_line(err)}")
    return answer


def _labels(file: Any, image: str, label: str) -> Ints:
    """Return the labels of all rows; the memory of the encoded images is not needed for that."""
    import pyarrow as pa

    kind = file.schema_arrow.field(image).type
    is_struct = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    encoded = kind.field("bytes").type if is_struct else kind
    if not (pa.types.is_binary(encoded) or pa.types.is_large_binary(encoded)):
        raise TypeError(f"column {image!r} holds {kind}")
    # `read_table` and `to_numpy` would import pandas, for 45 MB.
    column = file.read([label], use_threads=False).column(0).combine_chunks()
    if column.null_count or not pa.types.is_integer(column.type):
        raise ValueError(f"column {label!r} holds {column.type} with {column.null_count} nulls")
    return np.asarray(np.from_dlpack(column.cast(pa.int64())), dtype=np.int64)


def _images(file: Any, image: str, rows: Ints) -> Iterator[bytes]:
    start = 0
    for batch in file.iter_batches(_BATCH, columns=[image], use_threads=False):
        low, high = np.searchsorted(rows, (start, start + len(batch)))
        for row in rows[low:high]:
            value = batch.column(0)[int(row) - start].as_py()
            yield (value["bytes"] if isinstance(value, dict) else value) or b""
        start += len(batch)


if __name__ == "__main__":
    main()
