"""The process behind `fedsz.codecs.decoder_process`: ``python -m fedsz.codecs.decoder_worker``."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

import numpy as np

from fedsz import codecs
from fedsz.child_process import private_stdout, read_part, write_parts
from fedsz.codecs import sandbox
from fedsz.codecs.decoder_process import FAILED, MOST_WORDS, OK
from fedsz.codecs.envelope import EnvelopeCodec
from fedsz.errors import CodecUnavailable

WARM_UP: Final = 1000  # elements


def load_decoders() -> None:
    """Have each foreign codec decode something: they load their libraries when they first do."""
    for codec in codecs.CODECS:
        if isinstance(codec, EnvelopeCodec) and codec.isolated and not codec.missing():
            x = np.linspace(0, 1, WARM_UP, dtype=np.float32)
            with suppress(CodecUnavailable):
                codec.decompress(codec.compress(x, 1e-3), WARM_UP)


def answer(name: str, n: int, native: bytes) -> tuple[bytes, bytes]:
    """Return the status and the bytes to send back."""
    try:
        codec = codecs.get(name)
        assert isinstance(codec, EnvelopeCodec)
        decoded = codec.decompress(native, n)
        if decoded.size != n:
            return FAILED, f"{decoded.size} elements, not {n}".encode()
        return OK, decoded.astype("<f4", copy=False).tobytes()
    except Exception as err:
        return FAILED, f"{type(err).__name__}: {err}".encode()[:MOST_WORDS]


def main() -> None:
    """Serve requests until the pipe closes."""
    requests = sys.stdin.buffer
    with private_stdout() as answers, open(os.devnull, "wb") as nowhere:  # noqa: PTH123
        for output in (1, 2):  # what SZ 2 prints is of no use to anybody
            os.dup2(nowhere.fileno(), output)
        load_decoders()
        sandbox.enter()  # from here on nothing can be opened or imported
        write_parts(answers, b"")
        while True:
            try:
                name, count, native = (bytes(read_part(requests)) for _ in range(3))
            except EOFError:
                return
            write_parts(answers, *answer(name.decode(), int.from_bytes(count, "little"), native))


if __name__ == "__main__":
    main()
