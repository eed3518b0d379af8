"""Child processes: they talk, they end with their block, and they leave their last words."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsz.child_process import Child, PartTooLong, read_part, write_parts

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a process that runs some code."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def started(code: str, **options: object) -> Child:
        (tmp_path / "some_code.py").write_text(code)
        return Child("some_code", log=tmp_path / "log", **options)  # type: ignore[arg-type]

    return started


def gone(pid: int) -> bool:
    """Say whether a process has ended, though its parent may not have asked for its status."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except ProcessLookupError:
        return True
    except FileNotFoundError:  # gone meanwhile, or a system without /proc
        return Path("/proc").exists()


def test_lines_both_ways(start: Start) -> None:
    code = (
        "import os, sys\n"
        "for line in sys.stdin: print(line.strip(), os.environ['OMP_NUM_THREADS'], flush=True)"
    )
    with start(code, threads=3) as child:
        child.tell({"a": 1})
        assert next(child.lines()) == b'{"a":1} 3\n'
    assert gone(child.pid)


def test_nothing_is_imported_from_the_current_folder(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("colorsys.py").write_text("print('anybody was here')")

    with start("import colorsys; print(bool(colorsys.rgb_to_hsv))") as child:
        assert list(child.lines()) == [b"True\n"]


def test_a_line_that_is_not_finished_is_not_told(start: Start) -> None:
    with start("print('whole\\nhalf', end='')") as child:
        assert list(child.lines()) == [b"whole\n"]


def test_last_words_and_status(start: Start) -> None:
    with start("import sys; print('one\\ntwo', file=sys.stderr); sys.exit(7)") as child:
        assert child.wait() == 7
        child.tell("anybody?")
        assert child.last_words() == "two"


def test_what_takes_too_long_is_killed(start: Start) -> None:
    with start("import time; time.sleep(600)") as child:
        with child.limited(0.5):
            assert not list(child.lines())
        assert child.timed_out
        assert child.wait() == -9


def test_what_does_not_want_to_end_is_killed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsz.child_process.PATIENCE", 0.2)
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)\n"
        "time.sleep(600)"
    )
    child = start(code)
    next(child.lines())
    child.end(0.0)
    assert child.wait() == -9


def test_a_session_ends_with_its_leader(start: Start) -> None:
    code = (
        "import json, subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(json.dumps(p.pid), flush=True); sys.stdin.read()"
    )
    with start(code, whole_session=True) as child:
        pid = json.loads(next(child.lines()))
        assert not gone(pid)
    deadline = time.monotonic() + 60
    while not gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_parts() -> None:
    pipe = io.BytesIO()
    write_parts(pipe, b"", b"abc", memoryview(b"d"))
    pipe.seek(0)

    assert [bytes(read_part(pipe)) for _ in range(3)] == [b"", b"abc", b"d"]
    with pytest.raises(EOFError):
        read_part(pipe)
    with pytest.raises(PartTooLong, match="a part of 6 bytes; limit 5"):
        read_part(io.BytesIO((6).to_bytes(8, "little") + b"abcdef"), 5)
    with pytest.raises(EOFError):
        read_part(io.BytesIO((5).to_bytes(8, "little") + b"abc"))
