"""Flower's own engines: its simulation, and a SuperLink with SuperNodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs flwr[simulation]")

from tests.flower_engine import ROOT, flwr_run, superlink, supernodes

pytestmark = [pytest.mark.release, pytest.mark.repository, pytest.mark.slow]


def test_superlink_and_supernodes(tmp_path: Path) -> None:
    """The app of examples/pytorch_quickstart, in processes as in a deployment."""
    app = ROOT / "examples" / "pytorch_quickstart"
    with superlink(tmp_path, simulation=False) as address, supernodes(tmp_path, address, count=2):
        output = flwr_run(app, tmp_path, num_server_rounds=2, local_epochs=2)

    assert "round 2: accuracy" in output
    assert "2 results and 0 failures" in output
    assert "up " in output


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("bits", "smaller"), [(16, 1.9), (10, 3)])
def test_secure_sums_in_the_simulation(bits: int, smaller: float, tmp_path: Path) -> None:
    """The app of examples/secure_sum, whose clients are processes that share no memory."""
    pytest.importorskip("sklearn")
    app = ROOT / "examples" / "secure_sum"
    with superlink(tmp_path):
        output = flwr_run(app, tmp_path, nodes=5, bits=bits)

    accuracy = [float(found) for found in re.findall(r"^round \d: accuracy ([\d.]+)", output, re.M)]
    assert accuracy[-1] > 0.9 > accuracy[0]
    assert output.count("5 results and 0 failures") == 5
    ((sent, raw),) = re.findall(r"^up ([\d,]+) of ([\d,]+) bytes", output, re.M)
    assert int(raw.replace(",", "")) > smaller * int(sent.replace(",", ""))
