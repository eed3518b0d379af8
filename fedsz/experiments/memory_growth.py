"""How much memory something takes, where the system tells: Linux does.

psutil knows what is resident now, but neither peaks nor how to begin them anew; /proc knows all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self


class Memory:
    """How much resident memory this process and its children take on top of what they had.

    The peaks of the processes are added up, though they may not have come at the same moment.

    Attributes:
        growth: in bytes, between marks and looks; None where the system does not tell.
    """

    def __init__(self, processes: list[Path], before: int | None) -> None:
        self._processes = processes
        self._before = before
        self.growth: int | None = None if before is None else 0

    @classmethod
    def now(cls) -> Self:
        """Begin here."""
        family = [Path("/proc/self")]
        for children in Path("/proc/self/task").glob("*/children"):
            with suppress(OSError):  # of a thread that has just ended
                family += [Path("/proc") / child for child in children.read_text().split()]
        return cls(family, _sum(family, "VmRSS"))

    def mark(self) -> None:
        """Forget the peaks so far."""
        for process in self._processes:
            try:
                (process / "clear_refs").write_text("5")
            except OSError:
                self.growth = None

    def look(self) -> None:
        """Take the peaks since the mark into account."""
        peak = _sum(self._processes, "VmHWM")
        if peak is None or self._before is None or self.growth is None:
            self.growth = None
        else:
            self.growth = max(self.growth, peak - self._before)


def _sum(processes: Sequence[Path], field: str) -> int | None:
    """Return a field of /proc/PID/status, in bytes; None where the system has none."""
    try:
        texts = [(process / "status").read_text() for process in processes]
    except OSError:
        return None
    kilobytes = [re.search(rf"^{field}:\s*(\d+) kB", text, re.MULTILINE) for text in texts]
    return sum(int(found[1]) << 10 for found in kilobytes if found) if all(kilobytes) else None
