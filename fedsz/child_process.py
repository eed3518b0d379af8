"""Processes that this one starts, talks to and ends.

Each is a module of fedsz with a session of its own: Ctrl-C reaches the parent alone, which ends its
children. They talk in lines of JSON, or in parts whose length stands before them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import IO, TYPE_CHECKING, Final, Self

from fedsz import system

if TYPE_CHECKING:  # at run time `import fedsz` would pay for what few of its users need
    from pathlib import Path

    from fedsz.arrays import Buffer

PATIENCE: Final = 5.0  # seconds that a process gets to end by itself
LENGTH: Final = 8  # bytes of a part's length, little-endian


class PartTooLong(ValueError):
    """A part that says it is longer than what it answers can be."""


class Child:
    """A process that runs ``python -m module``, with pipes to its stdin and from its stdout.

    As a context it has ended when the block has; see `end`. It imports nothing from the current
    folder, where anybody's ``numpy.py`` may lie (Python's ``-P``).

    Attributes:
        pid: its number, and that of its session.
        stdin, stdout: the pipes.
        timed_out: whether it was killed by `limited`.

    Args:
        module: what it runs.
        arguments: of its command line.
        log: the file that its stderr is appended to; None for the stderr of this process.
        threads: that numerical libraries may use in it; None for what the environment says.
        environment: variables beside those of this process.
        whole_session: whether everything that it has started ends with it.

    Raises:
        OSError: no process can be started.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        log: Path | None = None,
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
        whole_session: bool = False,
    ) -> None:
        import subprocess

        variables = {**os.environ, **(environment or {})}
        if threads is not None:
            variables["OMP_NUM_THREADS"] = str(threads)
        self._log, self._whole_session = log, whole_session
        with log.open("ab") if log else nullcontext() as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=variables,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.pid, self.timed_out = self._process.pid, False
        self.stdin: IO[bytes] = self._process.stdin
        self.stdout: IO[bytes] = self._process.stdout

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    def tell(self, message: object, *blobs: Buffer) -> None:
        """Write a line of JSON, and bytes after it; nothing if the process has ended."""
        with suppress(BrokenPipeError):
            write_line(self.stdin, message)
            for blob in blobs:
                self.stdin.write(blob)
            self.stdin.flush()

    def lines(self) -> Iterator[bytes]:
        """Yield what it writes, line by line, until it ends; not a line that it did not finish."""
        with suppress(ValueError):  # another thread has ended it, and closed the pipe
            for line in self.stdout:
                if line.endswith(b"\n"):
                    yield line

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Kill it if the block takes longer; reads from it and writes to it then fail."""
        import threading

        watchdog = threading.Timer(seconds, self._time_out)
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()

    def wait(self, seconds: float | None = None) -> int | None:
        """Return its exit status, negative for a signal; None if it runs on after ``seconds``."""
        import subprocess

        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._process.kill()

    def end(self, patience: float = PATIENCE) -> None:
        """Make it end: close its stdin, wait ``patience`` seconds, terminate it, then kill it."""
        with suppress(OSError):  # what was still buffered
            self.stdin.close()
        if self.wait(patience) is None:
            self.terminate()
            if self.wait(PATIENCE) is None:
                self.kill()
                self.wait()
        if self._whole_session:
            system.kill_session(self.pid)
        self.stdout.close()

    def disown(self) -> None:
        """In a fork of the process that started it: let go of its pipes, and leave it alone.

        What is buffered of a request goes nowhere, even when this object is collected.
        """
        self._process.returncode = 0  # so that nobody here waits for it, or kills it
        nowhere = os.open(os.devnull, os.O_RDWR)
        for pipe in (self.stdin, self.stdout):
            if not pipe.closed:
                os.dup2(nowhere, pipe.fileno(), inheritable=False)
        os.close(nowhere)

    def last_words(self) -> str:
        """Return the last line of its log; "" if there is none."""
        text = self._log.read_text("utf-8", errors="replace") if self._log else ""
        return next(reversed(text.strip().splitlines()), "")

    def _time_out(self) -> None:
        self.timed_out = True
        self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(PATIENCE if kind is None else 0.0)


def private_stdout() -> IO[bytes]:
    """Return the stdout of this process; from now on what libraries print goes to its stderr."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def write_line(pipe: IO[bytes], message: object) -> None:
    """Write a message as one line of JSON, at once."""
    import msgspec

    pipe.write(msgspec.json.encode(message) + b"\n")
    pipe.flush()


def write_parts(pipe: IO[bytes], *parts: Buffer) -> None:
    """Write parts, each after its length, at once."""
    for part in parts:
        pipe.write(len(part).to_bytes(LENGTH, "little"))
        pipe.write(part)
    pipe.flush()


def read_part(pipe: IO[bytes], most: int = sys.maxsize) -> bytearray:
    """Read one part, of up to ``most`` bytes.

    Raises:
        EOFError: the other end has gone.
        PartTooLong: it says that more bytes follow; none of them is read or made room for.
    """
    said = pipe.read(LENGTH)
    if len(said) < LENGTH:
        raise EOFError
    length = int.from_bytes(said, "little")
    if length > most:
        raise PartTooLong(f"a part of {length} bytes; limit {most}")
    part = bytearray(length)
    read_into(pipe, memoryview(part))
    return part


def read_into(pipe: IO[bytes], view: memoryview) -> None:
    """Fill a view of bytes; raise `EOFError` if the other end has gone."""
    while view:
        count = pipe.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        view = view[count:]
