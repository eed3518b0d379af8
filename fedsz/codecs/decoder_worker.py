"""The process behind `fedsz.codecs.decoder_process`: ``python -m fedsz.codecs.decoder_worker``."""

from __future__ import annotations

import os
import sys
from typing import Final

from fedsz import codecs
from fedsz.child_process import private_stdout, read_part, write_parts
from fedsz.codecs.decoder_process import FAILED, OK
from fedsz.codecs.envelope import EnvelopeCodec

SPARE: Final = 256 << 20  # bytes a decoder may take beside ten times its input and output


def limit_memory(nbytes: int) -> None:
    """Let this process grow by ``nbytes`` and no more, where the system can say so."""
    try:
        import resource

        with open("/proc/self/statm") as statm:  # noqa: PTH123
            now = int(statm.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return
    _soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = now + nbytes
    resource.setrlimit(
        resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
    )


def answer(name: str, n: int, native: bytes) -> tuple[bytes, bytes]:
    """Return the status and the bytes to send back."""
    try:
        codec = codecs.get(name)
        assert isinstance(codec, EnvelopeCodec)
        limit_memory(SPARE + 10 * (4 * n + len(native)))
        return OK, codec.decompress(native, n).tobytes()
    except Exception as err:
        return FAILED, f"{type(err).__name__}: {err}".encode()


def main() -> None:
    """Serve requests until the pipe closes."""
    requests = sys.stdin.buffer
    with private_stdout() as answers, open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        for output in (1, 2):  # what SZ 2 prints is of no use to anybody
            os.dup2(nowhere.fileno(), output)
        while True:
            try:
                name, count, native = (bytes(read_part(requests)) for _ in range(3))
            except EOFError:
                return
            write_parts(answers, *answer(name.decode(), int.from_bytes(count, "little"), native))


if __name__ == "__main__":
    main()
