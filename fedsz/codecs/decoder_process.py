"""Decode foreign payloads in a process that may die.

SZ 2 calls `exit` or `abort` on bytes it does not understand, and the other compressors were not
written for hostile input either. So their decoders run in one worker process, started on first use
and again after it died, with a limit on its memory and its time. Its death is the caller's
`CorruptStream`; nothing else is harmed.

The pipe carries parts (`fedsz.child_process`): a request is the codec's name, the element count in
8 bytes and the payload; an answer is a status and bytes.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import Final

import numpy as np

from fedsz.child_process import Child, read_part, write_parts
from fedsz.codecs.base import Array
from fedsz.errors import CodecUnavailable, CorruptStream

SECONDS: Final = 30.0  # for any payload, and
BYTES_PER_SECOND: Final = 1 << 20  # the slowest honest decoder: a hundredth of what a Pi does

OK: Final = b"ok"
FAILED: Final = b"failed"


class Worker:
    """One process that decodes, one payload at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Child | None = None
        self._owner = 0

    def decode(self, codec: str, native: bytes, n: int) -> Array:
        """Return the ``n`` elements that the native payload of ``codec`` holds.

        Raises:
            CorruptStream: the decoder refused the payload, died of it, or did not end in time.
            CodecUnavailable: no process can be started.
        """
        with self._lock:
            process = self._started()
            try:
                with process.limited(SECONDS + 4 * n / BYTES_PER_SECOND):
                    write_parts(process.stdin, codec.encode(), n.to_bytes(8, "little"), native)
                    status, data = read_part(process.stdout), read_part(process.stdout)
            except (OSError, EOFError):
                self.stop()
                raise CorruptStream(f"{len(native)} bytes ended the {codec} decoder") from None
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
            process.end()

    def _started(self) -> Child:
        if self._owner != os.getpid():  # a fork must not talk on its parent's pipes
            self._process = None
        if self._process is None or not self._process.is_running:
            self.stop()
            self._owner = os.getpid()
            try:
                self._process = Child("fedsz.codecs.decoder_worker")
            except OSError as err:
                raise CodecUnavailable(f"no process could be started to decode in: {err}") from err
        return self._process


_worker = Worker()
decode = _worker.decode
atexit.register(_worker.stop)
