"""The process behind `fedsz.codecs.decoder_process`: ``python -m fedsz.codecs.decoder_worker``."""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from typing import Final

import numpy as np

from fedsz import codecs
from fedsz.child_process import private_stdout, read_part, write_parts
from fedsz.codecs import sandbox
from fedsz.codecs.decoder_process import FAILED, OK
from fedsz.codecs.envelope import EnvelopeCodec
from fedsz.errors import CodecUnavailable

WARM_UP: Final = 1000  # elements
SPARE: Final = 256 << 20  # bytes a decoder may take beside ten times its input and output


def open_statm() -> int | None:
    """Return a descriptor of what tells this process's memory; None where the system has none."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return None


def limit_memory(nbytes: int, statm: int | None) -> None:
    """Let this process grow by ``nbytes`` and no more, where the system can say so."""
    if statm is None:
        return
    now = int(os.pread(statm, 100, 0).split()[0]) * resource.getpagesize()
    _soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + nbytes
    resource.setrlimit(
        resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
    )


def load_decoders() -> None:
    """Have each foreign codec decode something: they load their libraries when they first do."""
    for codec in codecs.CODECS:
        if isinstance(codec, EnvelopeCodec) and codec.isolated and not codec.missing():
            x = np.linspace(0, 1, WARM_UP, dtype=np.float32)
            with suppress(CodecUnavailable):
                codec.decompress(codec.compress(x, 1e-3), WARM_UP)


def answer(name: str, n: int, native: bytes, statm: int | None) -> tuple[bytes, bytes]:
    """Return the status and the bytes to send back."""
    try:
        codec = codecs.get(name)
        assert isinstance(codec, EnvelopeCodec)
        limit_memory(SPARE + 10 * (4 * n + len(native)), statm)
        return OK, codec.decompress(native, n).tobytes()
    except Exception as err:
        return FAILED, f"{type(err).__name__}: {err}".encode()


def main() -> None:
    """Serve requests until the pipe closes."""
    requests = sys.stdin.buffer
    with private_stdout() as answers, open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        for output in (1, 2):  # what SZ 2 prints is of no use to anybody
            os.dup2(nowhere.fileno(), output)
        statm = open_statm()
        load_decoders()
        sandbox.enter()  # from here on nothing can be opened or imported
        while True:
            try:
                name, count, native = (bytes(read_part(requests)) for _ in range(3))
            except EOFError:
                return
            size = int.from_bytes(count, "little")
            write_parts(answers, *answer(name.decode(), size, native, statm))


if __name__ == "__main__":
    main()
