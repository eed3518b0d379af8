"""How far the memory of this process grows at its peak while it does something."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

Result = TypeVar("Result")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MB = 1 << 20


M_MMAP_THRESHOLD = -3  # of malloc.h


def growth(work: Callable[[], Result]) -> tuple[int, Result]:
    """Return by how many bytes this process grows at its peak, beyond what it has, and the result.

    What `uniform` gives back waits for an array of as many elements, up to 32 MB of it: so measure
    with arrays of a size of their own, or of more than 2^25 elements.
    """
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 17)  # or what tests have freed decides how heaps are cut up
    libc.malloc_trim(0)  # what was freed before would hide what is taken now
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    except OSError as err:
        pytest.skip(f"the peak cannot be reset: {err}")
    before = status("VmRSS")
    result = work()
    return status("VmHWM") - before, result


def status(key: str) -> int:
    """Return a line of /proc/self/status in bytes."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(f"{key}:")[2].split()[0])
