"""A decoder's process can compute and answer, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedsz import codecs
from fedsz.codecs import decoder_process
from fedsz.codecs.envelope import EnvelopeCodec

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")

FOREIGN = [c for c in codecs.CODECS if isinstance(c, EnvelopeCodec) and c.isolated]

PROGRAM = """
import os, socket, subprocess, sys
import numpy as np
from fedsz.codecs import sandbox

if not sandbox.enter():
    print("none")
    sys.exit()
for name, forbidden in {
    "read a file": lambda: open("/etc/hostname"),
    "write a file": lambda: os.open("/tmp/x", os.O_CREAT | os.O_WRONLY),
    "delete": lambda: os.unlink("/tmp/x"),
    "network": lambda: socket.socket(),
    "fork": lambda: os.fork(),
    "program": lambda: os.execv("/bin/true", ["true"]),
    "signal": lambda: os.kill(os.getppid(), 0),
}.items():
    try:
        forbidden()
    except PermissionError:
        print("refused")
    else:
        print(name, "was let through")
print(np.arange(1 << 20).sum())
"""


def test_it_computes_and_no_more() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    *said, total = done.stdout.split("\n")[:-1]
    if total == "none":
        pytest.skip("this kernel has no seccomp filters")

    assert said == ["refused"] * 7
    assert int(total) == (1 << 20) * ((1 << 20) - 1) // 2


@pytest.mark.parametrize("codec", FOREIGN, ids=lambda codec: codec.name)
def test_foreign_decoders_work_in_it(codec: EnvelopeCodec) -> None:
    if why := codec.missing():
        pytest.skip(why)
    x = np.random.default_rng(0).normal(size=50_000).astype(np.float32)

    y = codec.decode(codec.encode(x, 0.05), x.shape)

    assert np.abs(x - y).max() <= 0.05 or not codec.keeps_bound
    process = decoder_process._worker._process
    assert process is not None
    status = Path(f"/proc/{process.pid}/status").read_text()
    filters = Path("/proc/sys/kernel/seccomp/actions_avail")
    assert not filters.exists() or "Seccomp:\t2" in status
