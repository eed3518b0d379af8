from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.fleets import Fleet
    from tests.links import Serve, Spawn

# Read by torch when a test imports it: on a small and busy machine its threads wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start and stop.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The machines that run these are small and busy: how long an example takes says nothing.
settings.register_profile("fedsz", deadline=None)
# HYPOTHESIS_PROFILE=thorough, for an hour to spare.
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fedsz"))

ROOT = Path(__file__).parents[1]  # of the repository; the wheel is tested without it
DATA_DIR = Path(os.environ.get("FEDSZ_TEST_DATA", ROOT.parent / "shared" / "data"))


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
def serve() -> Iterator[Serve]:
    """Starts servers in this process, which end with the test."""
    from tests.links import Server, closing_all

    with closing_all(Server) as start:
        yield start


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts clients in processes of their own, which end with the test."""
    from tests.links import ClientProcess, closing_all

    with closing_all(ClientProcess) as start:
        yield start


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Starts commands of fedsz in a folder, which end with the test."""
    from tests.fleets import Fleet

    fleet = Fleet(tmp_path)
    yield fleet
    fleet.end()
