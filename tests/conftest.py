from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

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
