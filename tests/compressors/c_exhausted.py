"""Decodes a stream where there is no more memory.

    python -m tests.compressors.c_exhausted LIBRARY STREAM

Prints the name of the error that libfedsz returns.
"""

from __future__ import annotations

import ctypes as c
import resource
import sys
from pathlib import Path

import numpy as np

from tests.compressors.c_library import Library, address

PIECES = (1 << 20, 1 << 16, 1 << 13)  # bytes, in this order, until there are none


def main() -> None:
    library, stream = Library(Path(sys.argv[1])), Path(sys.argv[2]).read_bytes()
    libc = c.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = c.c_void_p, [c.c_size_t]
    libc.free.argtypes = [c.c_void_p]
    with library.reader(stream) as (reader, _):
        elements = np.empty(library.info(reader, 0).size, np.uint8)
        arguments = (reader, c.c_size_t(0), None, c.c_void_p(address(elements)))
        arguments = (*arguments, c.c_size_t(elements.size))
        in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use, resource.RLIM_INFINITY))
        taken, error = [], "none"
        for size in PIECES:
            while piece := libc.malloc(size):
                taken.append(piece)
        try:
            library.call("fedsz_reader_decode", *arguments)
        except Exception as err:
            error = type(err).__name__
        for piece in taken:
            libc.free(piece)
    print(error)


if __name__ == "__main__":
    main()
