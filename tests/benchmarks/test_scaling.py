"""Runs on Flower's engine, of which Figure 9 is made."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("benchmarks", reason="needs benchmarks")

from benchmarks.paper.simulation import simulate
from fedsz import extras
from fedsz.errors import FedszError
from fedsz.training.options import RunConfig

needs_ray = pytest.mark.skipif(bool(extras.missing("ray")), reason="Ray is not installed")


@pytest.mark.slow
@needs_ray
def test_the_apps_run_on_flowers_engine_and_nothing_of_it_stays(short_folder: str) -> None:
    config = RunConfig(clients=3, min_clients=3, rounds=2, samples=300, test_samples=100)

    rounds = simulate(config, workers=2, timeout=600)

    assert [row.round for row in rounds] == [0, 1, 2]
    assert [row.replies for row in rounds] == [0, 3, 3]
    assert rounds[-1].accuracy > rounds[0].accuracy
    assert rounds[-1].train_seconds > 0
    assert 0 < rounds[-1].max_error <= 1
    assert not left(short_folder)


@needs_ray
def test_a_simulation_that_fails_or_lasts_is_ended_and_says_why(short_folder: str) -> None:
    with pytest.raises(FedszError, match=r"no data set 'mnist'"):
        simulate(RunConfig(dataset="mnist"), workers=1, timeout=60)
    with pytest.raises(FedszError, match=r"took more than 2 s"):
        simulate(RunConfig(rounds=1000), workers=1, timeout=2)
    assert not left(short_folder)


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A place of this test's own for Ray's sockets, whose names must be short."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield folder


def left(folder: str) -> list[str]:
    """Return the processes that were told of a folder, and what is in it."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    told = [command for command in commands if folder in command]
    return told + [path.name for path in Path(folder).iterdir()]
