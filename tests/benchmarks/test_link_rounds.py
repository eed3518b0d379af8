"""Rounds over an emulated link: its bytes, its losses, what is left behind, and a real round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fedsz.experiments.link_model import Link

pytestmark = pytest.mark.repository
pytest.importorskip("flwr")
pytest.importorskip("benchmarks", reason="needs benchmarks")
from benchmarks import link_rounds, netem_link  # noqa: E402
from benchmarks.measuring import rows_of  # noqa: E402
from tests.conftest import ROOT  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINK = Link(1e9)


@pytest.fixture
def emulation() -> Iterator[None]:
    """A machine on which links can be emulated; what a test leaves behind is an error."""
    try:
        with netem_link.namespaces() as names, netem_link.Line(names, LINK):
            pass
    except netem_link.Refused as err:
        pytest.skip(str(err))
    before = namespaces()
    yield
    assert namespaces() == before


def namespaces() -> set[str]:
    return {path.name for path in netem_link.NAMES.glob("fedsz-*")}


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


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """What `link_rounds record` writes, of a small model."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    names = ("model", *(f"step-{i}" for i in range(1, link_rounds.ROUNDS + 1)))
    for name in names:
        x = rng.normal(0, 1e-3 if "step" in name else 0.1, (100, 1000)).astype(np.float32)
        save_file({"w": x}, tmp_path / f"{name}.safetensors")
    (tmp_path / "training.json").write_text(json.dumps({"seconds": 1.0}))
    return tmp_path


def test_rounds_through_namespaces_are_no_faster_than_the_link(
    emulation: None, steps: Path
) -> None:
    link = Link(20e6, 0.01)
    found = {}
    for way in ("Flower", "fedsz"):
        cell = link_rounds.Cell("own link", way, 20.0, 10.0, 0.01)
        found[way] = link_rounds.measured(steps, *cell)

    for way, rounds in found.items():
        assert [one["round"] for one in rounds] == list(range(1, link_rounds.ROUNDS + 1)), way
        for one in rounds:
            assert one["down_seconds"] >= link.seconds(one["down_bytes"])
            assert one["up_seconds"] >= link.seconds(one["up_bytes"])
            parts = one["down_seconds"] + one["client_seconds"] + one["up_seconds"]
            assert one["seconds"] == pytest.approx(parts)
    last = {way: rounds[-1] for way, rounds in found.items()}
    assert last["Flower"]["up_bytes"] == 400_000 > 10 * last["fedsz"]["up_bytes"]
    assert last["Flower"]["seconds"] > 2 * last["fedsz"]["seconds"]


def test_without_root_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(netem_link.Refused, match=r"^network namespaces need root$"):
        netem_link.namespaces().__enter__()


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


def test_the_page_and_the_picture_are_of_the_rows() -> None:
    rows = rows_of(ROOT / "docs" / "results" / "links.parquet")
    page = (ROOT / "docs" / "reference" / "measurements.md").read_text("utf-8")

    assert link_rounds.table(rows) in page
    drawn = (ROOT / "docs" / "round-at-10-mbit.svg").read_text("utf-8")
    assert link_rounds.picture(rows) == drawn
