"""Result tables: Parquet files of a fixed schema that no crash can spoil.

A file is written anew whenever rows are added: whatever ends the process, what lies there is whole.
docs/reference/result-files.md describes every column.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from fedsz.control.record import VERSION as RECORD_VERSION
from fedsz.control.round_numbers import NUMBERS
from fedsz.errors import ConfigError, FedszError
from fedsz.experiments.scheme import STORED
from fedsz.training.options import RunConfig, options
from fedsz.whole_files import lock_file, write_whole

TABLE: Final = b"fedsz.table"
VERSION: Final = b"fedsz.version"


@dataclass(frozen=True)
class Table:
    """A kind of result file."""

    name: str
    version: int  # of the schema; raised when a column goes or changes its meaning
    columns: Mapping[str, pa.DataType]  # in the file's order

    @property
    def schema(self) -> pa.Schema:
        """The Parquet schema, which says which table it is."""
        marks = {TABLE: self.name.encode(), VERSION: str(self.version).encode()}
        return pa.schema(list(self.columns.items()), metadata=marks)


def _columns(*groups: tuple[pa.DataType, str]) -> dict[str, pa.DataType]:
    """Return name -> type, of groups of names that share a type."""
    return {name: kind for kind, names in groups for name in names.split()}


TEXT, REAL, COUNT, BIG, BOOL = pa.string(), pa.float64(), pa.int32(), pa.int64(), pa.bool_()

ENVIRONMENT: Final = (
    (TEXT, "fedsz_version python torch machine"),
    (COUNT, "cores"),
    (pa.timestamp("ms", tz="UTC"), "time"),
)


def _option_schema() -> dict[str, pa.DataType]:
    kinds, known = get_type_hints(RunConfig), {str: TEXT, float: REAL, bool: BOOL}
    axes = ("task", "model", "dataset", "seed", "policy", "clients_per_round", *STORED)
    return {
        name: known.get(kinds[name]) or (COUNT if about.high < 1 << 31 else BIG)
        for name, about in options().items()
        if about.defines_run or name in axes
    }


# Options of a run that are columns under their own names.
OPTION_COLUMNS: Final = _option_schema()
SWEEP: Final = Table(
    "sweep",
    RECORD_VERSION,
    {
        **_columns(
            (TEXT, "run way more_options initial error_bound bound_kind"),
            (REAL, "bound_value tolerance"), (COUNT, "threads"),
        ),
        **OPTION_COLUMNS,
        **{number.name: {int: BIG, float: REAL}[number.kind] for number in NUMBERS.values()},
        **_columns((TEXT, "error"), *ENVIRONMENT),
    },
)  # fmt: skip

BENCH: Final = Table(
    "bench",
    1,
    _columns(
        (TEXT, "data part data_digest codec codec_settings"), (BOOL, "lossy"),
        (TEXT, "error_bound"), (BIG, "elements raw_bytes coded_bytes"),
        (REAL, "ratio encode_seconds encode_seconds_least encode_seconds_most"),
        (REAL, "decode_seconds decode_seconds_least decode_seconds_most"),
        (COUNT, "repeats threads"), (REAL, "max_error rmse"), (BIG, "peak_bytes"),
        (TEXT, "error"), *ENVIRONMENT,
    ),
)  # fmt: skip

TABLES: Final = (SWEEP, BENCH)


class Results(contextlib.AbstractContextManager["Results"]):
    """A result file that is open for more rows, by one process at a time; made if it is not there.

    Raises:
        ConfigError: it holds something else, another process writes it, or it cannot be written.
    """

    def __init__(self, path: Path, table: Table) -> None:
        self.path = path
        self._schema = table.schema
        taken = f"{path} is being written by another process"
        self._lock = lock_file(path.with_name(f".{path.name}.lock"), taken, of=path)
        try:
            # Better refused now than after the first run.
            self._write(read(path, table) if path.exists() else self._schema.empty_table())
        except BaseException:
            self.close()
            raise

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows; columns that they do not name are null.

        Raises:
            FedszError: they cannot be written. The file holds what it held before.
        """
        fresh = pa.Table.from_pylist([dict(row) for row in rows], schema=self._schema)
        self._write(pa.concat_tables([self.rows, fresh]))

    def keep(self, wanted: pa.Array | pa.ChunkedArray) -> None:
        """Drop the rows for which ``wanted``, a boolean for each, does not hold.

        Raises:
            FedszError: the file cannot be written. It holds what it held before.
        """
        self._write(self.rows.filter(wanted))

    def _write(self, rows: pa.Table) -> None:
        written = pa.BufferOutputStream()
        pq.write_table(rows, written, compression="zstd")
        try:
            write_whole(self.path, [memoryview(written.getvalue())])
        except ConfigError as err:
            raise FedszError(f"{err}; it is as it was before") from err
        self.rows = rows

    def close(self) -> None:
        """Let others write the file."""
        with contextlib.suppress(OSError):  # before others may have it
            Path(self._lock.name).unlink()
        self._lock.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path, *tables: Table) -> pa.Table:
    """Return the rows of a result file, one of ``tables`` (by default any of `TABLES`).

    Raises:
        ConfigError: it cannot be read, is no Parquet file, or holds another table or version.
    """
    try:
        with path.open("rb") as file:  # opened once: a writer may replace it at any moment
            rows = pq.read_table(file)
            rows.validate(full=True)  # such as text that is no UTF-8
            rows.column_names  # noqa: B018 - likewise
    except (OSError, pa.ArrowException, ValueError, LookupError) as err:
        if isinstance(err, OSError) and err.strerror:  # Arrow's own have none
            raise ConfigError(f"cannot read {path}: {err.strerror}") from err
        raise ConfigError(f"{path} is no Parquet file: {str(err).partition(chr(10))[0]}") from err
    wanted = tables or TABLES
    if any(rows.schema.equals(table.schema) for table in wanted if _marks(rows) == _marks(table)):
        return rows
    name, version = _marks(rows)
    holds = f"table {name!r} of version {version}" if name else "no result table of fedsz"
    if any((name, version) == _marks(table) for table in wanted):
        holds += ", but with other columns"
    want = " or ".join(f"{t.name!r} of version {t.version}" for t in wanted)
    raise ConfigError(f"{path} holds {holds}; this takes {want}")


def _marks(of: pa.Table | Table) -> tuple[str, str]:
    """Return the name and the version of a table, "" where a file says none."""
    metadata = of.schema.metadata or {}
    name, version = (
        metadata.get(mark, b"").decode("utf-8", "replace") for mark in (TABLE, VERSION)
    )
    return name, version
