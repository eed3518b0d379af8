"""A decoder's process can compute and answer, and nothing else."""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys
import tracemalloc
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from fedsz import codecs, system
from fedsz.codecs import decoder_process
from fedsz.codecs.envelope import EnvelopeCodec
from fedsz.errors import CorruptStream

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")

FOREIGN = [c for c in codecs.CODECS if isinstance(c, EnvelopeCodec) and c.isolated]

PROGRAM = """
import ctypes, os, platform, socket, sys
import numpy as np
from fedsz.codecs import sandbox

libc = ctypes.CDLL(None, use_errno=True)
names = "tkill", "tgkill", "rt_tgsigqueueinfo", "prlimit64", "setrlimit"
numbers = {"x86_64": (200, 234, 297, 302, 160), "aarch64": (130, 131, 240, 261, 164)}
number = dict(zip(names, numbers.get(platform.machine(), names)))

def call(name, *arguments):  # as hostile code does, without a library between
    ctypes.set_errno(0)
    libc.syscall(ctypes.c_long(number[name]), *map(ctypes.c_void_p, arguments))
    if ctypes.get_errno():
        raise OSError(ctypes.get_errno(), name)

parent, itself = os.getppid(), os.getpid()
limits = ctypes.create_string_buffer(bytes([255] * 16))  # none
at = ctypes.addressof(limits)
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
    "signal": lambda: os.kill(parent, 0),
    "signal a thread": lambda: call("tkill", parent, 0),
    "signal another's thread": lambda: call("tgkill", parent, parent, 0),
    "signal all": lambda: call("tgkill", 2**32 - 1, itself, 0),
    "send a signal": lambda: call("rt_tgsigqueueinfo", parent, parent, 0, at),
    "lift another's limit": lambda: call("prlimit64", parent, 9, at, None),
    "lift a limit": lambda: call("prlimit64", 0, 9, at, None),
    "lift its limit": lambda: call("prlimit64", itself, 9, at, None),
    "set a limit": lambda: call("setrlimit", 9, at),
}.items():
    try:
        forbidden()
    except PermissionError:
        print("refused")
    else:
        print(name, "was let through")
call("tgkill", itself, itself, 0)  # as `abort` does
print(np.arange(1 << 20).sum())
"""


def test_it_computes_and_no_more() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    *said, total = done.stdout.split("\n")[:-1]
    if total == "none":
        pytest.skip("this kernel has no seccomp filters")

    assert said == ["refused"] * 15
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


@pytest.mark.parametrize(
    "claims",
    [[1 << 31], [1 << 63], [2, 4 * 1000 + 1], [2, 1 << 31], [2, 1 << 63], [6, 1001], [6, 1 << 63]],
)
def test_a_worker_that_lies_of_lengths_is_not_believed(
    claims: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = io.BytesIO(bytes(8))
    answers.seek(0, io.SEEK_END)
    *honest, lie = claims
    for length, status in zip(honest, (b"ok", b"failed"), strict=False):
        answers.write(length.to_bytes(8, "little") + (status if length == 2 else b"failed"))
    answers.write(lie.to_bytes(8, "little") + bytes(5000))
    answers.seek(0)
    ended: list[bool] = []

    class Liar:
        stdin, stdout, is_running, pid = io.BytesIO(), answers, True, os.getpid()
        limited = staticmethod(nullcontext)
        kill, end = staticmethod(lambda: ended.append(True)), staticmethod(lambda: None)

    monkeypatch.setattr(decoder_process, "Child", lambda _module: Liar)
    monkeypatch.setattr(system, "limit_memory", lambda _pid, _nbytes: None)
    worker = decoder_process.Worker()
    tracemalloc.start()
    try:
        with pytest.raises(CorruptStream, match="ended the sz2 decoder"):
            worker.decode("sz2", b"abc", 1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert ended == [True]


def test_a_decoder_takes_no_more_memory_than_it_was_given() -> None:
    worker = decoder_process.Worker()
    x = np.zeros(1000, np.float32)
    try:
        native = codecs.get("zfp").compress(x, 1e-3)  # type: ignore[attr-defined]
        assert worker.decode("zfp", native, x.size).size == x.size
        assert worker._process is not None
        pid = worker._process.pid
        soft, _ = resource.prlimit(pid, resource.RLIMIT_AS)
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        given = decoder_process.SPARE + 10 * (x.nbytes + len(native))
        assert 0 < soft - size <= given
    finally:
        worker.stop()


FORK = """
import os, sys, threading
from fedsz.codecs import decoder_process, get, sz2
import numpy as np

x = np.zeros(1000, np.float32)
native = {name: get(name).compress(x, 1e-3) for name in ("sz2", "zfp")}
worker = decoder_process._worker
if sys.argv[1] == "decoder":
    worker.decode("zfp", native["zfp"], x.size)
    lock, own = worker._lock, worker._process.pid
else:
    lock, own = sz2._lock, None
held, release = threading.Event(), threading.Event()

def hold():
    with lock:
        if sys.argv[1] == "decoder":
            worker._process.stdin.write(b"half a request")  # that nobody has flushed
        held.set()
        release.wait()
        if sys.argv[1] == "decoder":
            worker.stop()

threading.Thread(target=hold).start()
held.wait()
if sys.argv[1] == "sz2":
    threading.Timer(0.2, release.set).start()  # the fork waits for it
if not (pid := os.fork()):
    if own:
        assert worker.decode("zfp", native["zfp"], x.size).size == x.size
        assert worker._process.pid != own
        worker.stop()
    else:
        assert get("sz2").compress(x, 1e-3) and get("sz2").decompress(native["sz2"], x.size).size
    os._exit(7)
status = os.waitpid(pid, 0)[1]
if own:  # the fork has neither ended the parent's process nor written to it
    assert worker._process.is_running
    assert os.waitstatus_to_exitcode(status) == 7
release.set()
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.parametrize("held", ["decoder", "sz2"])
def test_a_fork_while_another_thread_decodes_can_decode(held: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, held],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("7\n", "")
