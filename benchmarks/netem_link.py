"""Two network namespaces and a link between them that is as slow as one asks. Linux, root.

A link is emulated in one of two ways:

- `NetemLine`: a veth pair, with the kernel's ``netem`` on both ends;
- `RelayLine`: a tun device in each namespace and a thread here that passes packets from one to the
  other, each when the link would have delivered it. For kernels without ``netem``.

Either way the processes at both ends talk through real sockets and the kernel's real TCP, a packet
takes 8 bytes / bandwidth after the one before it and arrives ``latency`` later, each direction on
its own; nothing is lost, reordered or turned away by a full queue. Bytes are those of Ethernet
frames: headers count, once for each segment of what the kernel hands over in one piece.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
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
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

from fedsz.errors import ConfigError, FedszError
from fedsz.experiments.link_model import Link

T = TypeVar("T")

PREFIX: Final = "fedsz"
SERVER_ADDRESS, CLIENT_ADDRESS = "10.77.0.1", "10.77.0.2"
DEVICE: Final = "line"
QUEUE: Final = 1_000_000  # packets: TCP's own windows end long before that
NAMES: Final = Path("/run/netns")

# From linux/if_tun.h, linux/virtio_net.h and linux/sched.h.
TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
CLONE_NEWNET = 0x40000000
VNET_HEADER = struct.Struct("=BBHHHH")  # flags, gso type, header length, gso size, csum start, -
LARGEST = VNET_HEADER.size + 0xFFFF
ETHERNET: Final = 14  # bytes before each packet on a wire
READ_AT_ONCE: Final = 32  # packets, before it is looked again at what is due


class Refused(FedszError):
    """This machine does not let us emulate a link; in its own words."""


@dataclass(frozen=True)
class Namespaces:
    """The names of the two ends' namespaces."""

    server: str
    client: str

    def __iter__(self) -> Iterator[str]:
        return iter((self.server, self.client))


class Line(Protocol):
    """A link between two namespaces."""

    how: str  # a sentence for people

    def set(self, link: Link) -> None:
        """Be such a link from now on."""

    def lateness(self) -> float:
        """Return by how many seconds the latest packet since the last call was too late."""

    def close(self) -> None:
        """Take the devices away."""


def run(*command: str) -> str:
    """Run a system command and return what it prints.

    Raises:
        Refused: it is absent, or fails; with what it said.
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
def namespaces() -> Iterator[Namespaces]:
    """Have two namespaces of our own; they are gone afterwards, with all that runs in them.

    Raises:
        Refused: we are not root, or the system does not want to.
    """
    if os.geteuid() != 0:
        raise Refused("network namespaces need root")
    run("tc", "-V")
    sweep()
    names = Namespaces(f"{PREFIX}-{os.getpid()}-s", f"{PREFIX}-{os.getpid()}-c")
    try:
        for name in names:
            run("ip", "netns", "add", name)
            # Each connection is to learn the path by itself, not from the one before it.
            within(name, lambda: _sysctl("tcp_no_metrics_save").write_text("1"))
        yield names
    finally:
        for name in names:
            remove(name)


def sweep() -> None:
    """Remove what an earlier run left behind when it was killed."""
    for path in NAMES.glob(f"{PREFIX}-*") if NAMES.is_dir() else ():
        owner = re.fullmatch(rf"{PREFIX}-(\d+)-[sc]", path.name)
        if owner and not Path("/proc", owner[1]).exists():
            remove(path.name)


def remove(name: str) -> None:
    """End what runs in a namespace, and remove it; it need not be there."""
    with contextlib.suppress(Refused):
        for pid in run("ip", "netns", "pids", name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)
        run("ip", "netns", "delete", name)


def within(namespace: str, action: Callable[[], T]) -> T:
    """Return what ``action`` returns inside a network namespace."""
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

    # A namespace is a thread's own: this one takes it to its end.
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if trouble:
        raise Refused(f"in namespace {namespace}: {trouble[0]}") from trouble[0]
    return outcome[0]


def congestion_control(names: Namespaces, wanted: str = "") -> str:
    """Return TCP's congestion control in the namespaces, after setting it where one is wanted.

    Raises:
        ConfigError: the kernel does not have it, or does not allow it in namespaces.
    """
    setting = _sysctl("tcp_congestion_control")
    try:
        for name in names if wanted else ():
            within(name, lambda: setting.write_text(wanted))
    except Refused:
        # The kernel may have more, which only the machine's owner can allow in namespaces.
        allowed = _sysctl("tcp_allowed_congestion_control")
        have = ", ".join(allowed.read_text().split())
        raise ConfigError(
            f"no congestion control {wanted!r} in a namespace; {allowed} has {have}"
        ) from None
    return within(names.server, lambda: setting.read_text().strip())


def make_line(names: Namespaces, how: str) -> Line:
    """Return a link between two namespaces: by "netem", by "relay", or "auto", the first to work.

    Raises:
        Refused: it is not to be had here.
    """
    if how == "relay":
        return RelayLine(names)
    try:
        return NetemLine(names)
    except Refused as err:
        if how == "netem":
            raise
        line = RelayLine(names)
        line.how += f"; not netem ({err})"
        return line


class NetemLine:
    """A veth pair with ``netem`` on both ends.

    Raises:
        Refused: the kernel has no such thing.
    """

    how = "netem on a veth pair"

    def __init__(self, names: Namespaces) -> None:
        self._names = names
        run("ip", "link", "add", DEVICE, "netns", names.server, "type", "veth",
            "peer", "name", DEVICE, "netns", names.client)  # fmt: skip
        try:
            self.set(Link(1e9))
            _bring_up(names)
        except Refused:
            self.close()
            raise

    def set(self, link: Link) -> None:
        """See `Line`."""
        for name in self._names:
            run("tc", "-n", name, "qdisc", "replace", "dev", DEVICE, "root", "netem",
                "rate", f"{link.bandwidth:.0f}bit", "delay", f"{link.latency * 1e6:.0f}us",
                "limit", str(QUEUE))  # fmt: skip

    def lateness(self) -> float:
        """Return 0: the kernel does not tell."""
        return 0.0

    def close(self) -> None:
        """See `Line`."""
        run("ip", "-n", self._names.server, "link", "delete", DEVICE)


class RelayLine:
    """A tun device at each end, and a thread that passes packets on when they are due.

    Raises:
        Refused: the kernel has no tun devices.
    """

    how = "a relay between two tun devices"

    def __init__(self, names: Namespaces) -> None:
        self._link = Link(1e9)
        self._late = 0.0
        server, client = (within(name, _open_tun) for name in names)
        self._ways = (_Way(server, client), _Way(client, server))
        self._wake, self._waker = os.pipe()
        for name in names:
            run("ip", "-n", name, "link", "set", DEVICE, "txqueuelen", "10000")
        _bring_up(names)
        self._thread = threading.Thread(target=self._relay, name="relay", daemon=True)
        self._thread.start()

    def set(self, link: Link) -> None:
        """See `Line`."""
        self._link = link

    def lateness(self) -> float:
        """See `Line`."""
        late, self._late = self._late, 0.0
        return late

    def close(self) -> None:
        """See `Line`."""
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
                sources[descriptor].take(self._link)
            for way in self._ways:
                self._late = max(self._late, way.deliver())


class _Way:
    """One direction of a `RelayLine`: what has been sent and has not arrived."""

    def __init__(self, source: int, sink: int) -> None:
        self.source, self.sink = source, sink
        self.queue: deque[tuple[float, bytes]] = deque()  # of (when due, packet), in order
        self._free = 0.0  # when the last packet's last bit has left

    def take(self, link: Link) -> None:
        """Put packets that were sent on the link."""
        for _ in range(READ_AT_ONCE):
            try:
                packet = os.read(self.source, LARGEST)
            except BlockingIOError:
                return
            self._free = max(time.monotonic(), self._free) + 8 * on_wire(packet) / link.bandwidth
            self.queue.append((self._free + link.latency, packet))

    def deliver(self) -> float:
        """Hand over what is due; return by how much the latest of it is late, in seconds."""
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


def _open_tun() -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR)
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, request)
        # Without these the kernel cuts everything into 1500 bytes first: too many for a thread.
        fcntl.ioctl(descriptor, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _bring_up(names: Namespaces) -> None:
    ends = (SERVER_ADDRESS, CLIENT_ADDRESS)
    for name, own, other in zip(names, ends, reversed(ends), strict=True):
        run("ip", "-n", name, "address", "add", own, "peer", other, "dev", DEVICE)
        run("ip", "-n", name, "link", "set", DEVICE, "up")


def _sysctl(name: str) -> Path:
    return Path("/proc/sys/net/ipv4", name)
