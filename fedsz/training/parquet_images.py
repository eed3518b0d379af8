"""Encoded images in a parquet file: labels at once, images as they are wanted.

The file is read by a process that ends when it has been read: pyarrow takes 60 MB, which a small
device needs for training.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from fedsz.child_process import Child, parts_of, read_part
from fedsz.errors import DataError

WORKER: Final = "fedsz.training.parquet_worker"
NO_ROWS: Final = np.empty(0, np.int64)
Ints = npt.NDArray[np.int64]


class Contents(msgspec.Struct):
    """What a file holds, as far as that shows without its images."""

    columns: list[str] = []  # the names of all
    num_classes: int | None = None  # None if the file does not say
    unlabelled: str = ""  # why it holds no labelled images
    unreadable: str = ""  # why it cannot be read


class ParquetImages:
    """A file with a column of encoded images and one of labels, as the Hugging Face hub has them.

    Attributes:
        contents: what it holds.

    Raises:
        DataError: the file cannot be read, or holds no rows.
    """

    def __init__(self, path: Path, image_column: str, label_column: str) -> None:
        self._path, self._columns = path, (image_column, label_column)
        self.contents, labels = self._ask(NO_ROWS)
        self._labels = np.frombuffer(b"".join(labels), np.int64)

    def labels(self) -> Ints:
        """Return the labels of all rows, int64 [rows].

        Raises:
            ValueError: the columns are not of images and labels, or a label is missing.
        """
        if self.contents.unlabelled:
            raise ValueError(self.contents.unlabelled)
        return self._labels

    def images(self, rows: Ints) -> list[bytes]:
        """Return the encoded images of ``rows``, int64 [N]; b"" where the file has none.

        Raises:
            DataError: they cannot be read.
        """
        order = np.argsort(rows, kind="stable")
        _, encoded = self._ask(rows[order]) if len(rows) else (None, [])
        if len(encoded) != len(rows):
            raise DataError(f"cannot read {self._path}: the process that read it died")
        return [encoded[place] for place in np.argsort(order)]

    def _ask(self, rows: Ints) -> tuple[Contents, list[bytes]]:
        try:
            with Child(WORKER, str(self._path), *self._columns) as process:
                process.stdin.write(rows.tobytes())
                process.stdin.close()
                told = msgspec.json.decode(read_part(process.stdout), type=Contents)
                parts = [bytes(part) for part in parts_of(process.stdout)]
        except (OSError, EOFError) as err:
            why = str(err) or "the process that read it died"
            raise DataError(f"cannot read {self._path}: {why}") from err
        if told.unreadable:
            raise DataError(f"cannot read {self._path}: {told.unreadable}")
        return told, parts
