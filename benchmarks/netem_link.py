"""Two network namespaces and a link between them that is as slow as one asks. Linux, root.

Each namespace has a tun device. A thread passes packets from one to the other, each when the link
would have delivered it: no kernel module is needed. The processes at both ends talk through real
sockets and the kernel's real TCP. A packet takes 8 bytes / bandwidth after the one before it and
arrives ``latency`` later, each direction on its own. A share of the packets may be lost, drawn from
a fixed seed; nothing is reordered or turned away by a full queue. Bytes are those of Ethernet
frames: headers count, once for each segment of a piece that the kernel hands over.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import re
import select
import shutil
import signal
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self, TypeVar

from fedsz.errors import FedszError
from fedsz.experiments.link_model import Link

T = TypeVar("T")

SERVER_ADDRESS, CLIENT_ADDRESS = "10.77.0.1", "10.77.0.2"
PREFIX, DEVICE = "fedsz", "line"
NAMES: Final = Path("/run/netns")

# From linux/if_tun.h, linux/virtio_net.h and linux/sched.h.
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
CLONE_NEWNET = 0x40000000
VNET_HEADER = struct.Struct("=BBHHHH")  # flags, gso type, header length, gso size, csum start, -
LARGEST = VNET_HEADER.size + 0xFFFF
ETHERNET: Final = 14  # bytes before each packet on a wire
READ_AT_ONCE: Final = 32  # packets, before due ones are looked for again


class Refused(FedszError):
    """This machine does not let us emulate a link; in its own words."""


def run(*command: str) -> str:
    """Run a system command and return its output.

    Raises:
        Refused: it is absent, or fails; with its message.
    """
    path = shutil.which(command[0])
    if path is None:
        raise Refused(f"there is no {command[0]!r} command here")
    done = subprocess.run([path, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        says = done.stderr.strip().partition("\n")[0] or f"ended with {done.returncode}"
        raise Refused(f"{' '.join(command)}: {says}")
    return done.stdout


@contextmanager
def namespaces() -> Iterator[tuple[str, str]]:
    """Make two namespaces, and yield their names; all that runs in them is ended afterwards.

    Raises:
        Refused: we are not root, or the system does not allow it.
    """
    if os.geteuid() != 0:
        raise Refused("network namespaces need root")
    sweep()
    names = f"{PREFIX}-{os.getpid()}-s", f"{PREFIX}-{os.getpid()}-c"
    try:
        for name in names:
            run("ip", "netns", "add", name)
            # Each connection is to learn the path by itself, not from the one before it.
            within(name, lambda: sysctl("tcp_no_metrics_save").write_text("1"))
        yield names
    finally:
        for name in names:
            remove(name)


def sweep() -> None:
    """Remove the namespaces of earlier runs that were killed."""
    for path in NAMES.glob(f"{PREFIX}-*") if NAMES.is_dir() else ():
        owner = re.fullmatch(rf"{PREFIX}-(\d+)-[sc]", path.name)
        if owner and not Path("/proc", owner[1]).exists():
            remove(path.name)


def remove(name: str) -> None:
    """End the processes of a namespace, and remove it; it need not be there."""
    with contextlib.suppress(Refused):
        for pid in run("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)
        run("ip", "netns", "delete", name)


def within(namespace: str, action: Callable[[], T]) -> T:
    """Return the result of ``action`` inside a network namespace."""
    outcome: list[T] = []
    trouble: list[OSError] = []

    def enter() -> None:
        try:
            with (NAMES / namespace).open("rb") as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), CLONE_NEWNET):
                    error = ctypes.get_errno()
                    raise OSError(error, os.strerror(error), namespace)
            outcome.append(action())
        except OSError as err:
            trouble.append(err)

    # A namespace is a thread's own, until the thread ends.
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if trouble:
        raise Refused(f"in namespace {namespace}: {trouble[0]}") from trouble[0]
    return outcome[0]


def sysctl(name: str) -> Path:
    """Return the file of a setting of IPv4."""
    return Path("/proc/sys/net/ipv4", name)


class Line:
    """A link between two namespaces; as a context, it is closed afterwards.

    Args:
        names: of the namespaces.
        link: its bandwidth and latency.
        loss: the share of packets that are lost.

    Attributes:
        late: by how many seconds the latest packet was too late.

    Raises:
        Refused: the kernel has no tun devices.
    """

    def __init__(self, names: tuple[str, str], link: Link, loss: float = 0.0) -> None:
        self._link, self.late = link, 0.0
        server, client = (within(name, lambda: _open_tun(pieces=not loss)) for name in names)
        self._ways = (_Way(server, client, loss), _Way(client, server, loss))
        self._wake, self._waker = os.pipe()
        ends = (SERVER_ADDRESS, CLIENT_ADDRESS)
        for name, own, other in zip(names, ends, reversed(ends), strict=True):
            run("ip", "-n", name, "link", "set", DEVICE, "txqueuelen", "10000")
            run("ip", "-n", name, "address", "add", own, "peer", other, "dev", DEVICE)
            run("ip", "-n", name, "link", "set", DEVICE, "up")
        self._thread = threading.Thread(target=self._relay, name="relay", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._waker)
        self._thread.join()
        for descriptor in (self._wake, *(way.source for way in self._ways)):
            os.close(descriptor)

    def _relay(self) -> None:
        sources = {way.source: way for way in self._ways}
        while True:
            due = min((way.queue[0][0] for way in self._ways if way.queue), default=None)
            timeout = None if due is None else max(0.0, due - time.monotonic())
            readable, _, _ = select.select([self._wake, *sources], [], [], timeout)
            if self._wake in readable:
                return
            for descriptor in readable:
                sources[descriptor].accept(self._link)
            for way in self._ways:
                self.late = max(self.late, way.deliver())


class _Way:
    """One direction: the packets that were sent and have not arrived."""

    def __init__(self, source: int, sink: int, loss: float) -> None:
        self.source, self.sink = source, sink
        self._loss, self._random = loss, random.Random(0)
        self.queue: deque[tuple[float, bytes]] = deque()  # of (when due, packet), in order
        self._free = 0.0  # when the last packet's last bit has left

    def accept(self, link: Link) -> None:
        """Put packets that were sent on the link."""
        for _ in range(READ_AT_ONCE):
            try:
                packet = os.read(self.source, LARGEST)
            except BlockingIOError:
                return
            self._free = max(time.monotonic(), self._free) + 8 * on_wire(packet) / link.bandwidth
            if self._random.random() >= self._loss:
                self.queue.append((self._free + link.latency, packet))

    def deliver(self) -> float:
        """Hand over the packets that are due; return by how many seconds the latest is late."""
        late = 0.0
        now = time.monotonic()
        while self.queue and self.queue[0][0] <= now:
            due, packet = self.queue.popleft()
            os.write(self.sink, packet)
            late = max(late, now - due)
        return late


def on_wire(packet: bytes) -> int:
    """Return the bytes that a packet from a tun device, with its virtio header, takes on a wire.

    The kernel hands over up to 64 KB of TCP in one piece, with one header; on a wire each segment
    has its own.
    """
    gso: int
    segment: int  # its payload, at most
    tcp: int  # where its header begins
    _, gso, _, segment, tcp, _ = VNET_HEADER.unpack_from(packet)
    size = len(packet) - VNET_HEADER.size
    if not gso or not segment:
        return size + ETHERNET
    headers = tcp + 4 * (packet[VNET_HEADER.size + tcp + 12] >> 4)  # TCP's data offset, in words
    segments = -(-(size - headers) // segment)
    return size + (segments - 1) * headers + segments * ETHERNET


def _open_tun(*, pieces: bool) -> int:
    """Open a tun device. With ``pieces`` it gives up to 64 KB at once, which are not to be lost."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, request)
        # Without TSO4 the kernel cuts everything into 1500 bytes first: too many for a fast link.
        fcntl.ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | (TUN_F_TSO4 if pieces else 0))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
