"""`benchmarks/netem.py`: its arithmetic, its command line, and one real round where root may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fedsz.experiments.link_model import Link

pytestmark = pytest.mark.repository
pytest.importorskip("torch")
pytest.importorskip("benchmarks", reason="needs benchmarks")
from benchmarks import netem, netem_link  # noqa: E402
from benchmarks.netem import Cell, Exchange  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def emulation() -> Iterator[None]:
    """A machine on which links can be emulated; what a test leaves behind is an error."""
    try:
        with netem_link.namespaces() as names, netem_link.Line(names):
            pass
    except netem_link.Refused as err:
        pytest.skip(str(err))
    before = namespaces()
    yield
    assert namespaces() == before


def namespaces() -> set[str]:
    return {path.name for path in netem_link.NAMES.glob("fedsz-*")}


def exact(link: Link, down: int, up: int, work: float) -> Exchange:
    """A round as the model of the link has it."""
    ways = link.seconds(down), link.seconds(up)
    return Exchange(sum(ways) + work, *ways, work, down, up, down)


@pytest.mark.parametrize("bandwidth", [1e3, 1e6, 1e10])
@pytest.mark.parametrize("latency", [0.0, 0.05])
def test_rounds_like_the_model_have_its_ratios(bandwidth: float, latency: float) -> None:
    link = Link(bandwidth, latency)
    raw, compressed = exact(link, 10**6, 10**6, 0.5), exact(link, 10**5, 10**5, 1.0)
    cell = Cell(link, "cnn", [raw] * 3, [compressed] * 2, 2 * link.seconds(10**6))

    measured, modelled = netem.speedups(cell)

    assert measured == pytest.approx(modelled) == pytest.approx(raw.seconds / compressed.seconds)
    ways, _ = netem.shown([cell]).split("\n\n")
    cells = [[x.strip() for x in line.split("|")] for line in ways.splitlines()[2:]]
    assert [(row[7], row[11], row[12]) for row in cells] == [("1.00", "1.00", "2.00"),
                                                             ("1.00", "1.00", "")]  # fmt: skip


def packet(payload: int, segment: int = 0) -> bytes:
    """A TCP packet over IPv4 with its virtio header, as a tun device gives it."""
    gso = 1 if segment else 0
    header = netem_link.VNET_HEADER.pack(1, gso, 54, segment, 20, 16)
    ip, tcp = bytes([0x45]).ljust(20, b"\0"), bytes(12) + bytes([8 << 4]) + bytes(19)
    return header + ip + tcp + bytes(payload)


def test_a_packet_takes_its_frames_bytes() -> None:
    headers = 14 + 20 + 32

    assert netem_link.on_wire(packet(100)) == headers + 100
    assert netem_link.on_wire(packet(1448, 1448)) == headers + 1448
    assert netem_link.on_wire(packet(1449, 1448)) == 2 * headers + 1449
    assert netem_link.on_wire(packet(14480, 1448)) == 10 * (headers + 1448)


def test_a_wrong_option_and_no_root_are_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for arguments, says in (
        (["--bandwidths", "10parsecs"], "'10parsecs' is no bandwidth"),
        (["--latencies", "50"], "'50' is no latency"),
        ([], "network namespaces need root"),
    ):
        monkeypatch.setattr(sys, "argv", ["netem", *arguments])
        assert netem.main() == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert says in err
        assert err.count("\n") == 1


def test_a_round_through_namespaces(
    emulation: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    link = ["--bandwidths", "50mbps", "--latencies", "1ms", "--model", "cnn", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["netem", *link, "--json"])

    assert netem.main() == 0

    (cell,) = json.loads(capsys.readouterr().out)
    (raw,), (compressed,) = ([Exchange(*of) for of in cell[x]] for x in ("raw", "compressed"))
    assert raw.raw_bytes == 455848 <= raw.up_bytes
    assert compressed.up_bytes < raw.up_bytes / 4
    # Nothing is faster than the link: its frames hold more than gRPC's messages.
    modelled = Link(50e6, 0.001)
    for of in (raw, compressed):
        assert of.down_seconds >= modelled.seconds(of.down_bytes)
        assert of.up_seconds >= modelled.seconds(of.up_bytes)
        assert of.seconds > of.down_seconds + of.up_seconds
    assert cell["socket_seconds"] >= modelled.seconds(raw.up_bytes)


def test_leftovers_of_the_killed_are_swept(emulation: None) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    left, alive = f"fedsz-{dead.pid}-s", f"fedsz-{os.getppid()}-c"
    for name in (left, alive):
        netem_link.run("ip", "netns", "add", name)
    try:
        netem_link.sweep()

        assert left not in namespaces()
        assert alive in namespaces()
    finally:
        netem_link.remove(alive)
