"""How much memory a process takes that codes large arrays with `uniform`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest


def peak(code: str, *arguments: Any) -> list[int]:
    """What a process prints that measures its own peak."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


MEASURE = """
import re, sys
from pathlib import Path
import numpy as np
import fedsz
from fedsz.codecs.uniform import Uniform

effort, bound, *shape = (float(a) if "." in a or "e" in a else int(a) for a in sys.argv[1:-1])
def peak():  # not ru_maxrss, which begins with that of the process that started this one
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
def weights():
    x, g = np.empty(shape, np.float32), np.random.default_rng(0)
    right = g.standard_normal(x[0].shape, np.float32)
    for row in x:
        g.standard_normal(dtype=np.float32, out=row)
        row *= 0.1
        row += g.standard_normal(dtype=np.float32) * right
    return x
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MB = 1 << 20
LARGE = (1 << 14, 1 << 12)
