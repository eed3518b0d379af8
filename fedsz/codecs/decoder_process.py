"""Decode foreign payloads in a process that may die.

SZ 2 calls `exit` or `abort` on bytes it does not understand, and the other compressors were not
written for hostile input either. So their decoders run in one worker process, started on first use
and again after it died, with a limit on its memory and its time. Its death is the caller's
`CorruptStream`; nothing else is harmed. Hostile bytes may also take it over: so it cannot lift its
limits, which this process sets, and no more is believed of its answers than was asked for.

The pipe carries parts (`fedsz.child_process`). When the worker is ready it sends an empty one. A
request is the codec's name, the element count in 8 bytes and the payload; an answer is a status and
bytes.
"""

from __future__ import annotations

import atexit
import threading
from typing import Final

import numpy as np

from fedsz import system
from fedsz.child_process import Child, PartTooLong, read_part, write_parts
from fedsz.codecs.base import Array
from fedsz.errors import CodecUnavailable, CorruptStream

SECONDS: Final = 30.0  # for any payload, and
BYTES_PER_SECOND: Final = 1 << 20  # the slowest honest decoder: a hundredth of what a Pi does

SPARE: Final = 256 << 20  # bytes a decoder may take beside ten times its input and output

OK: Final = b"ok"
FAILED: Final = b"failed"
MOST_WORDS: Final = 1000  # bytes of a status, or of why a payload does not decode


class Worker:
    """One process that decodes, one payload at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Child | None = None
        self._parents: list[Child] = []  # those of processes that this one is a fork of

    def decode(self, codec: str, native: bytes, n: int) -> Array:
        """Return the ``n`` elements that the native payload of ``codec`` holds.

        Raises:
            CorruptStream: the decoder refused the payload, died of it, or did not end in time.
            CodecUnavailable: no process can be started.
        """
        with self._lock:
            process, is_new = self._started()
            try:
                with process.limited(SECONDS + 4 * n / BYTES_PER_SECOND):
                    if is_new:
                        read_part(process.stdout, 0)
                    system.limit_memory(process.pid, SPARE + 10 * (4 * n + len(native)))
                    write_parts(process.stdin, codec.encode(), n.to_bytes(8, "little"), native)
                    status = read_part(process.stdout, MOST_WORDS)
                    most = 4 * n if status == OK else MOST_WORDS
                    data = read_part(process.stdout, most)
            except (OSError, EOFError, PartTooLong):
                self.stop()
                raise CorruptStream(f"{len(native)} bytes ended the {codec} decoder") from None
        if status != OK:
            raise CorruptStream(f"{codec} payload does not decode: {data.decode(errors='replace')}")
        if len(data) != 4 * n:
            raise CorruptStream(f"{codec} payload holds {len(data) // 4} elements, not {n}")
        return np.frombuffer(data, "<f4")

    def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process:
            process.kill()
            process.end()

    def start_anew(self) -> None:
        """In a fork: neither wait for a thread that is not here, nor talk on the parent's pipes."""
        self._lock = threading.Lock()
        process, self._process = self._process, None
        if process:
            process.disown()
            # Another thread may have been at its buffers: whoever collects them waits for it.
            self._parents.append(process)

    def _started(self) -> tuple[Child, bool]:
        """Return the process, and whether it has only just been started."""
        if self._process and self._process.is_running:
            return self._process, False
        self.stop()
        try:
            self._process = Child("fedsz.codecs.decoder_worker")
        except OSError as err:
            raise CodecUnavailable(f"no process could be started to decode in: {err}") from err
        return self._process, True


_worker = Worker()
decode = _worker.decode
atexit.register(_worker.stop)
system.at_fork(in_child=_worker.start_anew)
