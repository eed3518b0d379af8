from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from fedsz import extras

if TYPE_CHECKING:
    from tests.fleets import Fleet
    from tests.links import Serve, Spawn

# Read by torch when a test imports it: on a small and busy machine its threads wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start and stop.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The machines that run these are small and busy: how long an example takes says nothing.
settings.register_profile("fedsz", deadline=None)
settings.register_profile("sample", deadline=None, max_examples=30)
# HYPOTHESIS_PROFILE=thorough, for an hour to spare.
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fedsz"))

SLOW = 300  # seconds until a slow test is ended; the others have those of pyproject.toml

ROOT = Path(__file__).parents[1]  # of the repository; the wheel is tested without it
DATA_DIR = Path(os.environ.get("FEDSZ_TEST_DATA", ROOT.parent / "shared" / "data"))


# After a change of pyproject.toml; make test installs what is new.
if why := extras.missing(*extras.EXTRAS[""]):
    pytest.exit(f"fedsz {why}; in a checkout, make test installs it", returncode=2)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample", type=int, metavar="SEED", help="of tests marked `sampled`, take what SEED draws"
    )
    parser.addoption("--release", action="store_true", help="run tests marked `release`, too")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--sample") is not None and "HYPOTHESIS_PROFILE" not in os.environ:
        settings.load_profile("sample")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--sample")
    if seed is None:
        return None
    return f"sampled by seed {seed}; make test SEED={seed} repeats it, make test-all has every case"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw the samples; begin with the files that take longest, so that workers end together."""
    if not config.getoption("--release"):
        later = {item for item in items if item.get_closest_marker("release")}
        config.hook.pytest_deselected(items=[item for item in items if item in later])
        items[:] = [item for item in items if item not in later]
    seed = config.getoption("--sample")
    if seed is not None:
        left_out = not_drawn(items, seed)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    slow = [item for item in items if item.get_closest_marker("slow")]
    for item in slow:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW))
    first = {item.path for item in slow}
    items.sort(key=lambda item: item.path not in first)


def not_drawn(items: list[pytest.Item], seed: int) -> set[pytest.Item]:
    """Return the items that are in no sample; each process of a run draws the same."""
    cells: dict[tuple[str, ...], list[pytest.Item]] = {}
    counts = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark and not item.get_closest_marker("always"):
            arguments = item.callspec.params if hasattr(item, "callspec") else {}
            each = (repr(arguments[name]) for name in mark.kwargs.get("each", ()))
            cell = (item.nodeid.partition("[")[0], *each)
            cells.setdefault(cell, []).append(item)
            counts[cell] = mark.args[0]
    left_out: set[pytest.Item] = set()
    for cell, members in cells.items():
        draw = random.Random(f"{seed} {members[0].nodeid}")  # noqa: S311 - which run is no secret
        left_out.update(draw.sample(members, max(len(members) - counts[cell], 0)))
    return left_out


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets, each as train.parquet and test.parquet."""
    if not DATA_DIR.is_dir():
        pytest.skip(f"no data sets in {DATA_DIR}")
    return DATA_DIR


class Messages(logging.Handler):
    """Keeps what a logger says, each once: Flower and pytest both change who hears its logger."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def flower_log() -> Iterator[list[str]]:
    """The messages of fedsz in Flower's log, from INFO up, as they come."""
    logger, handler = logging.getLogger("flwr.fedsz"), Messages()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler.messages
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers in this process, which end with the test; clients come back at once."""
    from fedsz.transport import client
    from tests.links import Server, closing_all

    monkeypatch.setattr(client, "FIRST_DELAY", 0.05)
    monkeypatch.setattr(client, "_POLL_SECONDS", 0.05)
    with closing_all(Server) as start:
        yield start


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts clients in processes of their own, which end with the test."""
    from tests.links import ClientProcess, closing_all

    with closing_all(ClientProcess) as start:
        yield start


@contextmanager
def files_of_at_most(nbytes: int) -> Iterator[None]:
    """Let this process write no longer files, as if the disk were full."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Starts commands of fedsz in a folder, which end with the test."""
    from tests.fleets import Fleet

    fleet = Fleet(tmp_path)
    yield fleet
    fleet.end()
