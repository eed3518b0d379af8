"""Decode foreign payloads in a process that may die.

SZ 2 calls `exit` or `abort` on bytes it does not understand, and the other compressors were not
written for hostile input either. So their decoders run in one worker process, started on first use
and again after it died, with a limit on its memory and its time. Its death is the caller's
`CorruptStream`; nothing else is harmed.

The pipe carries: a request (codec name, element count, payload) and an answer (status, bytes), each
part after its length in 8 bytes, little-endian.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from typing import IO, Final

import numpy as np

from fedsz.codecs.base import Array
from fedsz.errors import CodecUnavailable, CorruptStream

SECONDS: Final = 30.0  # for any payload, and
BYTES_PER_SECOND: Final = 1 << 20  # the slowest honest decoder: a hundredth of what a Pi does

OK: Final = b"ok"
FAILED: Final = b"failed"


def decode(codec: str, native: bytes, n: int) -> Array:
    """Return the ``n`` elements that the native payload of ``codec`` holds.

    Raises:
        CorruptStream: the decoder refused the payload, died of it, or did not end in time.
    """
    return _worker.decode(codec, native, n)


class Worker:
    """One process that decodes, one payload at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def decode(self, codec: str, native: bytes, n: int) -> Array:
        """See `decode` above."""
        with self._lock:
            process = self._started()
            seconds = SECONDS + 4 * n / BYTES_PER_SECOND
            # Killing the worker ends our reads and writes, whichever of them it hung in.
            watchdog = threading.Timer(seconds, process.kill)
            watchdog.daemon = True
            watchdog.start()
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                for part in (codec.encode(), n.to_bytes(8, "little"), native):
                    send(process.stdin, part)
                process.stdin.flush()
                status, data = receive(process.stdout), receive(process.stdout)
            except (OSError, EOFError):
                self.stop()
                raise CorruptStream(f"the {codec} decoder died of {len(native)} bytes") from None
            finally:
                watchdog.cancel()
        if status != OK:
            raise CorruptStream(f"{codec} payload does not decode: {data.decode(errors='replace')}")
        if len(data) != 4 * n:
            raise CorruptStream(f"{codec} payload holds {len(data) // 4} elements, not {n}")
        return np.frombuffer(data, "<f4")

    def stop(self) -> None:
        """End the process, if this one started it."""
        process, self._process = self._process, None
        if process and self._owner == os.getpid():
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    try:
                        pipe.close()
                    except OSError:  # a request that was still buffered
                        continue

    def _started(self) -> subprocess.Popen[bytes]:
        if self._owner != os.getpid():  # a fork must not talk on its parent's pipes
            self._process = None
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._owner = os.getpid()
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "fedsz.codecs.decoder_worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for us to handle; its pipe tells it to end
                )
            except OSError as err:
                raise CodecUnavailable(f"no process could be started to decode in: {err}") from err
        return self._process


def send(pipe: IO[bytes], part: bytes) -> None:
    """Write one part, its length first."""
    pipe.write(len(part).to_bytes(8, "little"))
    pipe.write(part)


def receive(pipe: IO[bytes]) -> bytearray:
    """Read one part.

    Raises:
        EOFError: the other end has gone.
    """
    size = pipe.read(8)
    if len(size) < 8:
        raise EOFError
    data = bytearray(int.from_bytes(size, "little"))
    view, filled = memoryview(data), 0
    while filled < len(data):
        got = pipe.readinto(view[filled:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        filled += got
    return data


_worker = Worker()
atexit.register(_worker.stop)
