"""What a process that decodes somebody else's bytes may still ask of Linux: to compute.

A seccomp filter (kernel documentation, "Seccomp BPF") lets some system calls through; any other
fails with EPERM. A decoder that hostile bytes have taken over can then start no program, open no
file, reach no network, signal no other process and lift none of its limits.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from typing import Final

_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_SET_SECCOMP: Final = 22
_SECCOMP_MODE_FILTER: Final = 2
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050000 | errno.EPERM
_KILL: Final = 0x80000000

# Of classic BPF: load a word, jump if equal, return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # in struct seccomp_data

# By machine: the architecture as audit names it; the numbers of these calls:
# read, write, close, lseek, mmap, mprotect, munmap, brk, mremap, madvise, fstat,
# rt_sigaction, rt_sigprocmask, rt_sigreturn, futex, sched_yield, getpid, gettid,
# clock_gettime, gettimeofday, getrandom, exit, exit_group;
# and that of tgkill, by which `abort` ends its own process.
# fmt: off
_MACHINES: Final = {
    "x86_64": (
        0xC000003E,
        (
            0, 1, 3, 8, 9, 10, 11, 12, 25, 28, 5,
            13, 14, 15, 202, 24, 39, 186,
            228, 96, 318, 60, 231,
        ),
        234,
    ),
    "aarch64": (
        0xC00000B7,
        (
            63, 64, 57, 62, 222, 226, 215, 214, 216, 233, 80,
            134, 135, 139, 98, 124, 172, 178,
            113, 169, 278, 93, 94,
        ),
        131,
    ),
}
# fmt: on


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def lacking() -> list[str]:
    """Return what a decoder may do on this system that `enter` would keep it from, in a line."""
    return [] if _is_known() else ["nothing keeps a foreign decoder from files and networks"]


def enter() -> bool:
    """Give up all other system calls, for good; return False where the kernel has no filters.

    The process may end itself by a signal, but send none to others. It cannot change its limits:
    who started it does (`fedsz.codecs.decoder_process`).
    """
    if not _is_known():
        return False
    architecture, calls, tgkill = _MACHINES[platform.machine()]
    instructions = [
        struct.pack("<HBBI", _LOAD, 0, 0, _ARCHITECTURE_AT),
        struct.pack("<HBBI", _JUMP_IF_EQUAL, 1, 0, architecture),
        struct.pack("<HBBI", _RETURN, 0, 0, _KILL),
        struct.pack("<HBBI", _LOAD, 0, 0, _NUMBER_AT),
        # Each jumps over the others, over what asks for the process of a signal, and the refusal.
        *(
            struct.pack("<HBBI", _JUMP_IF_EQUAL, len(calls) - i + 3, 0, call)
            for i, call in enumerate(calls)
        ),
        struct.pack("<HBBI", _JUMP_IF_EQUAL, 0, 2, tgkill),
        # The kernel, too, looks at the lower half of that argument only.
        struct.pack("<HBBI", _LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        struct.pack("<HBBI", _JUMP_IF_EQUAL, 1, 0, os.getpid()),
        struct.pack("<HBBI", _RETURN, 0, 0, _REFUSE),
        struct.pack("<HBBI", _RETURN, 0, 0, _ALLOW),
    ]
    program = _Program(len(instructions), b"".join(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    return not libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)


def _is_known() -> bool:
    return sys.platform == "linux" and platform.machine() in _MACHINES
