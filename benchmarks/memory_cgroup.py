"""A group of processes whose memory the kernel limits, where this machine lets us make one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
# The folder of groups, and the files of the limit and of what was taken at most: version 1, 2.
VERSIONS: Final = (
    (ROOT / "memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
    (ROOT, "memory.max", "memory.peak"),
)


class MemoryGroup:
    """A cgroup. Its processes and their children are killed if they take more than its limit."""

    def __init__(self, folder: Path, peak: str) -> None:
        self._folder, self._peak = folder, peak

    def take(self, pid: int) -> None:
        """Put a process into it; the pages that it has already stay where they are counted."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    @property
    def peak(self) -> int:
        """Bytes that it has taken at most, with the files that it has read."""
        return int((self._folder / self._peak).read_text())


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup | None]:
    """Make a group of ``limit`` bytes, and remove it; None where that is not allowed."""
    for parent, limit_file, peak_file in VERSIONS:
        folder = parent / f"fedsz-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / limit_file).exists():
                (folder / limit_file).write_text(str(limit))
                yield MemoryGroup(folder, peak_file)
                return
        finally:
            folder.rmdir()  # its processes have ended
    yield None
