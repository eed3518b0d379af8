"""`benchmarks/netem.py`: its arithmetic, its command line, and one real round where root may."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.experiments.link_model import Link

pytestmark = pytest.mark.repository
pytest.importorskip("torch")
netem = pytest.importorskip("benchmarks.netem", reason="needs benchmarks")
from benchmarks import netem_link  # noqa: E402
from benchmarks.netem_report import Cell, Exchange, Way  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def emulation() -> Iterator[None]:
    """A machine on which links can be emulated; what a test leaves behind is an error."""
    try:
        with netem_link.namespaces() as names:
            netem_link.make_line(names, "auto").close()
    except netem_link.Refused as err:
        pytest.skip(str(err))
    before = namespaces()
    yield
    assert namespaces() == before


def namespaces() -> set[str]:
    return {path.name for path in netem_link.NAMES.glob("fedsz-*")}


def exact(link: Link, down: int, up: int, work: float = 0.0) -> Exchange:
    """Return a round as the model of the link has it."""
    ways = link.seconds(down), link.seconds(up)
    return Exchange(
        seconds=sum(ways) + work,
        down_seconds=ways[0],
        up_seconds=ways[1],
        encode_seconds=work,
        decode_seconds=0.0,
        down_bytes=down,
        up_bytes=up,
        raw_bytes=down,
    )


sizes = st.integers(1, 1 << 30)


@given(
    bandwidth=st.floats(1e3, 1e10),
    latency=st.floats(0, 1),
    down=sizes,
    raw=sizes,
    up=sizes,
    work=st.floats(0, 10),
)
def test_rounds_like_the_model_have_its_ratios(
    bandwidth: float, latency: float, down: int, raw: int, up: int, work: float
) -> None:
    link = Link(bandwidth, latency)
    cell = Cell(
        bandwidth=bandwidth,
        latency=latency,
        model="cnn",
        raw=[exact(link, down, raw)] * 3,
        compressed=[exact(link, down, up, work)] * 2,
        socket_seconds=2 * link.seconds(raw),
        late_seconds=0.0,
    )

    for exchanges in (cell.raw, cell.compressed):
        for way in ("down", "up"):
            assert Way.of(cell, exchanges, way).ratio == pytest.approx(1)
    assert cell.speedup == pytest.approx(cell.modelled_speedup)
    assert cell.socket_ratio == pytest.approx(2)


def packet(payload: int, segment: int = 0) -> bytes:
    """Return a TCP packet over IPv4 with its virtio header, as a tun device gives it."""
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


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--bandwidths", "10parsecs"], "'10parsecs' is no bandwidth"),
        (["--latencies", "50"], "'50' is no latency"),
        (["--repeats", "0"], "repeats must be at least 1, got 0"),
        (["--model", "gpt"], "no model 'gpt'; have cnn"),
    ],
)
def test_a_wrong_option_is_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert netem.main(["--model-only", *arguments]) == 2

    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1


def test_without_root_there_is_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert netem.main(["--bandwidths", "1mbps,1gbps", "--latencies", "10ms", "--model", "cnn"]) == 2

    out, err = capsys.readouterr()
    assert "network namespaces need root" in err
    assert [line.split("|")[4].strip() for line in out.splitlines()[2:]] == [
        "raw",
        "compressed",
    ] * 2


def test_the_model_alone_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model-only", "--json", "--bandwidths", "1mbps", "--latencies", "1ms"]

    assert netem.main(arguments) == 0

    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    (raw,), (compressed,) = cell["raw"], cell["compressed"]
    assert raw["raw_bytes"] == 455848 <= raw["up_bytes"]
    assert compressed["up_bytes"] < raw["up_bytes"] / 4
    assert compressed["down_bytes"] < raw["down_bytes"]


def test_a_round_through_namespaces(emulation: None) -> None:
    link = Link(50e6, 0.001)
    plan = netem.Plan(links=[link], model="cnn", repeats=1)

    with netem.lab("auto") as lab:
        cell = lab.measure(link, plan)

    (raw,), (compressed,) = cell.raw, cell.compressed
    assert raw.raw_bytes == 455848 <= raw.up_bytes
    assert compressed.up_bytes < raw.up_bytes / 4
    # Nothing is faster than the link: its frames hold more than gRPC's messages.
    for exchange in (raw, compressed):
        assert exchange.down_seconds >= link.seconds(exchange.down_bytes)
        assert exchange.up_seconds >= link.seconds(exchange.up_bytes)
        assert exchange.work_seconds > 0
    assert cell.socket_seconds >= link.seconds(raw.up_bytes)


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
