"""Result tables: Parquet files of a fixed schema that no crash can spoil.

A file is written anew, beside itself, and moved into place whenever rows are added: whatever ends
the process, what lies there is whole. docs/experiments.md describes every column.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from fedsz.control.record import VERSION as RECORD_VERSION
from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError, FedszError

TABLE: Final = b"fedsz.table"
VERSION: Final = b"fedsz.version"


@dataclass(frozen=True)
class Table:
    """A kind of result file.

    Attributes:
        name: "sweep", "bench" or "scaling".
        version: of the schema. It is raised when a column goes or changes its meaning.
        columns: name -> type, in the file's order.
        added: those that older files lack.
        older: versions that are read, too: their columns mean what they mean now.
    """

    name: str
    version: int
    columns: Mapping[str, pa.DataType]
    added: tuple[str, ...] = ()
    older: tuple[int, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The Parquet schema, which says which table it is."""
        marks = {TABLE: self.name.encode(), VERSION: str(self.version).encode()}
        return pa.schema(list(self.columns.items()), metadata=marks)


ORIGIN: Final = {
    "fedsz_version": pa.string(),
    "python": pa.string(),
    "torch": pa.string(),
    "machine": pa.string(),
    "cores": pa.int32(),
    "time": pa.timestamp("ms", tz="UTC"),
}

DISTRIBUTION: Final = pa.struct(
    {
        "what": pa.string(),
        "tensor": pa.string(),
        "numbers": pa.int64(),
        "low": pa.float64(),
        "high": pa.float64(),
        "counts": pa.list_(pa.int64()),
        "laws": pa.list_(
            pa.struct(
                {
                    "name": pa.string(),
                    "location": pa.float64(),
                    "scale": pa.float64(),
                    "ks": pa.float64(),
                }
            )
        ),
    }
)


def round_schema() -> dict[str, pa.DataType]:
    """Return the columns of a round: every number of `RoundRecord`, and how many clients failed."""
    kinds = {int: pa.int64(), float: pa.float64(), float | None: pa.float64()}
    columns = {
        name: kinds[kind]
        for name, kind in get_type_hints(RoundRecord).items()
        if kind in kinds and name != "version"
    }
    return {**columns, "failures": pa.int64(), "ratio": pa.float64()}


def round_columns(record: RoundRecord) -> dict[str, Any]:
    """Return what a round's row holds in these columns."""
    columns = {name: getattr(record, name) for name in round_schema()}
    return {**columns, "failures": len(record.failures)}


SWEEP: Final = Table(
    "sweep",
    RECORD_VERSION,
    {
        "run": pa.string(),
        "model": pa.string(),
        "initial": pa.string(),
        "dataset": pa.string(),
        "codec": pa.string(),
        "codec_settings": pa.string(),
        "lossless": pa.string(),
        "error_bound": pa.string(),
        "bound_kind": pa.string(),
        "bound_value": pa.float64(),
        "update": pa.string(),
        "downlink": pa.string(),
        "policy": pa.string(),
        "tolerance": pa.float64(),
        "decay": pa.float64(),
        "threshold": pa.int64(),
        "rule": pa.string(),
        "seed": pa.int64(),
        "grid": pa.string(),
        "clients": pa.int32(),
        "partitioner": pa.string(),
        "alpha": pa.float64(),
        "samples": pa.int64(),
        "test_samples": pa.int64(),
        "image_size": pa.int32(),
        "rounds": pa.int32(),
        "epochs": pa.int32(),
        "batch_size": pa.int32(),
        "learning_rate": pa.float64(),
        "momentum": pa.float64(),
        "device": pa.string(),
        "threads": pa.int32(),
        "dataset_digest": pa.string(),
        **round_schema(),
        "distributions": pa.list_(DISTRIBUTION),
        "error": pa.string(),
        **ORIGIN,
    },
    added=("downlink", "policy", "tolerance", "decay", "wire_up", "wire_down"),
    older=(1,),
)

BENCH: Final = Table(
    "bench",
    1,
    {
        "data": pa.string(),
        "data_digest": pa.string(),
        "codec": pa.string(),
        "codec_settings": pa.string(),
        "lossy": pa.bool_(),
        "error_bound": pa.string(),
        "elements": pa.int64(),
        "raw_bytes": pa.int64(),
        "coded_bytes": pa.int64(),
        "ratio": pa.float64(),
        "encode_seconds": pa.float64(),
        "encode_seconds_least": pa.float64(),
        "encode_seconds_most": pa.float64(),
        "decode_seconds": pa.float64(),
        "decode_seconds_least": pa.float64(),
        "decode_seconds_most": pa.float64(),
        "repeats": pa.int32(),
        "threads": pa.int32(),
        "max_error": pa.float64(),
        "rmse": pa.float64(),
        "peak_bytes": pa.int64(),
        "error": pa.string(),
        **ORIGIN,
    },
)

SCALING: Final = Table(
    "scaling",
    1,
    {
        "kind": pa.string(),
        "engine": pa.string(),
        "how": pa.string(),
        "link": pa.string(),
        "model": pa.string(),
        "dataset": pa.string(),
        "codec": pa.string(),
        "error_bound": pa.string(),
        "workers": pa.int32(),
        "clients": pa.int32(),
        "rounds": pa.int32(),
        "samples_per_client": pa.int64(),
        "seconds": pa.float64(),
        "speedup": pa.float64(),
        "efficiency": pa.float64(),
        "train_seconds": pa.float64(),
        "encode_seconds": pa.float64(),
        "decode_seconds": pa.float64(),
        "engine_seconds": pa.float64(),
        "test_seconds": pa.float64(),
        "sent_up": pa.int64(),
        "sent_down": pa.int64(),
        "bandwidth": pa.float64(),
        **ORIGIN,
    },
)

TABLES: Final = (SWEEP, BENCH, SCALING)


class Results:
    """A result file that is open for more rows, by one process at a time.

    Args:
        path: the file; it and its folder are made if they are not there.
        table: what it holds.

    Raises:
        ConfigError: it holds something else, another process writes it, or it cannot be written.
    """

    def __init__(self, path: Path, table: Table) -> None:
        self.path = path
        self._schema = table.schema
        self._lock = _locked(path)
        try:
            self.rows = read(path, table) if path.exists() else self._schema.empty_table()
            self._write(self.rows)  # better refused now than after the first run
        except BaseException:
            self.close()
            raise

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows, which hold a value or None for each column they name; others are None.

        Raises:
            FedszError: they cannot be written. The file holds what it held before.
        """
        fresh = pa.Table.from_pylist([dict(row) for row in rows], schema=self._schema)
        rows_now = pa.concat_tables([self.rows, fresh])
        self._write(rows_now)
        self.rows = rows_now

    def keep(self, wanted: pa.Array | pa.ChunkedArray) -> None:
        """Drop the rows for which ``wanted``, a boolean for each, does not hold.

        Raises:
            FedszError: the file cannot be written. It holds what it held before.
        """
        rows = self.rows.filter(wanted)
        self._write(rows)
        self.rows = rows

    def close(self) -> None:
        """Let others write the file."""
        with contextlib.suppress(OSError):
            _lock_path(self.path).unlink()
        self._lock.close()

    def _write(self, rows: pa.Table) -> None:
        part = self.path.with_name(f".{self.path.name}.part")
        try:
            pq.write_table(rows, part, compression="zstd")
            with part.open("rb+") as written:
                os.fsync(written.fileno())
            part.replace(self.path)
        except OSError as err:
            with contextlib.suppress(OSError):
                part.unlink()
            why = os.strerror(err.errno) if err.errno else str(err)
            raise FedszError(f"cannot write {self.path}: {why}; it is as it was before") from err

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read(path: Path, *tables: Table) -> pa.Table:
    """Return the rows of a result file; columns that are younger than it are null.

    Args:
        path: the file.
        tables: what it may be; by default any.

    Raises:
        ConfigError: it cannot be read, is no Parquet file, or holds another table or version.
    """
    try:
        rows = pq.read_table(path)
    except OSError as err:
        why = os.strerror(err.errno or errno.ENOENT)  # pyarrow gives no number to a missing file
        raise ConfigError(f"cannot read {path}: {why}") from err
    except pa.ArrowInvalid as err:
        raise ConfigError(f"{path} is no Parquet file: {str(err).partition(chr(10))[0]}") from err
    wanted = tables or TABLES
    table = table_of(rows)
    if table is None or table not in wanted:
        marks = rows.schema.metadata or {}
        name, version = (marks.get(mark, b"").decode() for mark in (TABLE, VERSION))
        holds = f"table {name!r} of version {version}" if name else "no result table of fedsz"
        if any((t.name, str(t.version)) == (name, version) for t in wanted):
            holds += ", but with other columns"
        want = " or ".join(f"{t.name!r} of version {t.version}" for t in wanted)
        raise ConfigError(f"{path} holds {holds}; this takes {want}")
    return _completed(rows, table)


def table_of(rows: pa.Table) -> Table | None:
    """Return which table these rows are, in this version or an older one; None if they are none."""
    marks = rows.schema.metadata or {}
    for table in TABLES:
        versions = {str(version).encode() for version in (table.version, *table.older)}
        lacking = set(table.columns) - set(rows.column_names) - set(table.added)
        unknown = set(rows.column_names) - set(table.columns)
        named = marks.get(TABLE) == table.name.encode() and marks.get(VERSION) in versions
        if named and not lacking and not unknown:
            return table
    return None


def _completed(rows: pa.Table, table: Table) -> pa.Table:
    """Return rows of an older file with the columns of today, those it lacks null."""
    columns = [
        rows.column(name).cast(kind) if name in rows.column_names else pa.nulls(rows.num_rows, kind)
        for name, kind in table.columns.items()
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _lock_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _locked(path: Path) -> IO[bytes]:
    """Return the open file whose lock is ours for as long as it is open."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = _lock_path(path).open("ab")
        except OSError as err:
            raise ConfigError(f"cannot write {path}: {err.strerror}") from err
        try:
            # The system gives it up when the process ends, however it ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise ConfigError(f"{path} is being written by another process") from None
        # Whoever had it may have removed the file between our opening and our locking it.
        with contextlib.suppress(FileNotFoundError):
            if _lock_path(path).stat().st_ino == os.fstat(lock.fileno()).st_ino:
                return lock
        lock.close()
