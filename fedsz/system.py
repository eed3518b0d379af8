"""What operating systems do each in their own way, in one place.

fedsz runs on Linux. Elsewhere files are compressed and decompressed, with what there is.
What confines a decoder is apart, in `fedsz.codecs.sandbox`.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Final

DESCRIPTORS: Final = 1 << 20  # that a process asks for where there is no limit
_PROC: Final = Path("/proc")


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # neither on macOS nor on Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """Return the processor's name, where the system tells one."""
    for line in _lines("cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def lock(file: IO[bytes]) -> bool:
    """Lock a file until it is closed or the process ends; False if another process has it."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def make_names_durable(folder: Path) -> None:
    """Have the disk hold the names of a folder's files, where folders can be opened for that."""
    with suppress(PermissionError):  # Windows keeps names by itself
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def shares(path: Path) -> bool:
    """Say whether the owner of a file, who runs this process, lets others at it."""
    about = path.stat()
    return about.st_uid == os.getuid() and bool(about.st_mode & (stat.S_IRWXG | stat.S_IRWXO))


def raise_descriptor_limit() -> int:
    """Let this process open as many files as it may, and return how many those are."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS has another limit beside this one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def limit_memory(pid: int, nbytes: int) -> None:
    """Let a process grow by ``nbytes`` from now on and no more, where the system can say so."""
    if not _prlimit():
        return
    import resource

    with suppress(FileNotFoundError, ProcessLookupError):  # it has just died
        pages = int((_PROC / str(pid) / "statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + nbytes
        _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:
            limit = min(limit, hard)
        resource.prlimit(pid, resource.RLIMIT_AS, (limit, hard))


def kill_session(pid: int) -> None:
    """Kill what the process that began a session has started, where the system has sessions."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def interrupt() -> None:
    """Have the main thread handle SIGTERM, whatever it waits for."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def at_fork(
    *,
    in_child: Callable[[], object],
    before: Callable[[], object] | None = None,
    in_parent: Callable[[], object] | None = None,
) -> None:
    """Have these called whenever this process forks, where processes do."""
    if hasattr(os, "register_at_fork"):
        chosen = {"before": before, "after_in_parent": in_parent, "after_in_child": in_child}
        os.register_at_fork(**{when: do for when, do in chosen.items() if do})


class Memory:
    """The memory of this process and of those it has started so far."""

    def __init__(self) -> None:
        self._processes = [_PROC / "self"]
        for children in _PROC.glob("self/task/*/children"):
            with suppress(OSError):  # of a thread that has just ended
                self._processes += [_PROC / child for child in children.read_text().split()]

    def taken(self) -> int:
        """Return the bytes that they have now; 0 where the system does not tell."""
        return self._sum("VmRSS")

    def peak(self) -> int:
        """Return the most that each had since `forget_peaks`, in sum."""
        return self._sum("VmHWM")

    def forget_peaks(self) -> bool:
        """Begin to look for peaks anew; return False where the system cannot."""
        try:
            for process in self._processes:
                (process / "clear_refs").write_text("5")
        except OSError:
            return False
        return True

    def _sum(self, field: str) -> int:
        total = 0
        for process in self._processes:
            with suppress(OSError):
                text = (process / "status").read_text()
                total += sum(map(int, re.findall(rf"^{field}:\s*(\d+) kB", text, re.MULTILINE)))
        return total << 10


def _lines(name: str) -> list[str]:
    """Return the lines of a file of /proc; none where there is no such file."""
    with suppress(OSError):
        return (_PROC / name).read_text("utf-8").splitlines()
    return []


def _prlimit() -> bool:
    """Say whether another process's limits can be set."""
    if not find_spec("resource"):
        return False
    import resource

    return hasattr(resource, "prlimit")
