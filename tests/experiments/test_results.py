"""Result files: whole at every moment, one writer at a time, refused if they are something else."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsz.errors import ConfigError, FedszError
from fedsz.experiments.environment import environment
from fedsz.experiments.results import BENCH, SWEEP, TABLES, Results, read
from tests.conftest import ROOT


def row(**values: Any) -> dict[str, Any]:
    return {"run": "a", "model": "cnn", "round": 0, "accuracy": 0.1, **environment(), **values}


def test_rows_are_there_as_soon_as_they_are_added(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "sweep.parquet"
    with Results(path, SWEEP) as results:
        assert read(path, SWEEP).num_rows == 0
        for i in range(3):
            results.add([row(round=i), row(round=i, error="no")])
            assert read(path, SWEEP).num_rows == 2 * (i + 1)
        results.keep(pa.array([True, False] * 3))
    with Results(path, SWEEP) as results:  # it is gone on with
        assert results.rows.num_rows == 3
        results.add([row(round=3)])

    rows = read(path).to_pylist()
    assert [r["round"] for r in rows] == [0, 1, 2, 3]
    assert rows[0]["fedsz_version"] == environment()["fedsz_version"]
    assert rows[0]["error"] is None
    assert sorted(p.name for p in path.parent.iterdir()) == ["sweep.parquet"]


def test_other_readers_understand_it(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    with Results(tmp_path / "x.parquet", SWEEP) as results:
        results.add([row(), row(round=1)])

    frame = pandas.read_parquet(tmp_path / "x.parquet")

    assert list(frame.columns) == list(SWEEP.columns)
    assert frame["accuracy"].tolist() == [0.1, 0.1]


def test_the_lock_of_a_killed_writer_is_free(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Event()
    writer = spawn.Process(target=_hold, args=(path, ready), daemon=True)
    writer.start()
    assert ready.wait(60)
    with pytest.raises(ConfigError, match="another process"):
        Results(path, SWEEP)
    assert read(path).num_rows == 1  # may anybody
    assert writer.pid
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()

    with Results(path, SWEEP) as results:
        assert results.rows.num_rows == 1


def _hold(path: Path, ready: Any) -> None:
    with Results(path, SWEEP) as results:
        results.add([row()])
        ready.set()
        signal.pause()


def test_results_of_another_schema(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"accuracy": [0.5]}), path)
    with pytest.raises(ConfigError, match=r"holds no result table of fedsz; this takes 'sweep'"):
        Results(path, SWEEP)
    with Results(tmp_path / "bench.parquet", BENCH):
        pass
    with pytest.raises(ConfigError, match="holds table 'bench' of version 1; this takes 'sweep'"):
        Results(tmp_path / "bench.parquet", SWEEP)
    marks = {**SWEEP.schema.metadata, b"fedsz.version": b"99"}
    pq.write_table(SWEEP.schema.with_metadata(marks).empty_table(), path)
    with pytest.raises(ConfigError, match="'sweep' of version 99"):
        Results(path, SWEEP)
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        read(tmp_path / "none.parquet")


def test_a_file_with_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(SWEEP.schema.empty_table().drop_columns(["seed"]), path)

    with pytest.raises(ConfigError, match="of version 1, but with other columns"):
        read(path, SWEEP)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with Results(path, SWEEP) as results:
        results.add([row()])
        before = path.read_bytes()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) - 100, hard))
        try:
            with pytest.raises(FedszError, match=f"cannot write {path}.*it is as it was before"):
                results.add([row(round=1)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, ignored)
        assert path.read_bytes() == before
        results.add([row(round=1)])

    assert [p.name for p in tmp_path.iterdir()] == ["x.parquet"]
    assert read(path).num_rows == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="cannot write"):
        Results(tmp_path / "file" / "x.parquet", SWEEP)


@pytest.mark.repository
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_column_is_documented(table: Any) -> None:
    page = (ROOT / "docs" / "reference" / "result-files.md").read_text("utf-8")

    assert {name for name in table.columns if f"`{name}`" not in page} == set()


def test_a_file_that_is_damaged_or_of_another_kind_is_one_line_and_stays(tmp_path: Path) -> None:
    """Parquet's pages have no checksums: what is read may be no text, or no table of ours."""
    path = tmp_path / "rows.parquet"
    with Results(path, SWEEP) as results:
        results.add([row(run="some run")])
    rows = pq.read_table(path)
    pq.write_table(rows.replace_schema_metadata({b"fedsz.table": b"\xff"}), path)
    damaged = [path.read_bytes()]
    pq.write_table(rows, path, compression="none")
    plain = path.read_bytes()
    damaged += [plain.replace(b"some run", b"some \xff\xfe\xfd")]
    damaged += [plain[:end] for end in range(0, len(plain), 997)]
    damaged += [b"a,b\n1,2\n", b"PAR1" + bytes(100) + b"PAR1"]
    assert all(data != plain for data in damaged)
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=r"rows.parquet") as raised:
            Results(path, SWEEP)
        assert "\n" not in str(raised.value)
        assert path.read_bytes() == data
