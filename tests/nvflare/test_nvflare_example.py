"""The job of examples/nvflare, by NVFlare's own processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest.importorskip("nvflare", reason="NVFlare is not installed here")

pytestmark = [pytest.mark.repository, pytest.mark.slow]

ROUNDS, SITES = 3, 2
LEAST = 0.7  # of the digits, after two rounds


def run(folder: Path, *options: str) -> str:
    """Return what the logs of a job say that has run in a folder."""
    job = [str(ROOT / "examples" / "nvflare" / "job.py"), f"--workspace={folder / 'job'}"]
    told = subprocess.run(
        [sys.executable, *job, f"--sites={SITES}", f"--rounds={ROUNDS}", *options],
        cwd=folder,
        env=os.environ | {"NVFLARE_POC_WORKSPACE": str(folder / "poc")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert not told.returncode, told.stdout[-5000:]
    logs = "".join(path.read_text() for path in folder.rglob("log.txt"))
    assert not list(folder.rglob("custom/fedsz")), "sites have fedsz: a job needs no copy"
    return told.stdout + logs


@pytest.mark.parametrize("options", [(), ("--processes",)], ids=["simulator", "processes"])
def test_the_job_learns_with_a_fraction_of_the_bytes(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    logs = run(tmp_path, *options)

    told = dict(re.findall(r"(fedsz: train, round (?:\d+)): (.*)", logs))
    assert set(told) == {f"fedsz: train, round {number}" for number in range(1, ROUNDS + 1)}
    for line in told.values():
        up, down = re.fullmatch(
            rf"{SITES} replies, up ([\d.]+) kB of 907.1 kB, down ([\d.]+) kB of 907.1 kB", line
        ).groups()  # type: ignore[union-attr]
        assert float(up) < 100
        assert float(down) < 300  # the first model is whole
    (metrics,) = tmp_path.rglob("round_metrics.jsonl")
    last = json.loads(metrics.read_text().splitlines()[-1])
    accuracy = {one["name"]: one["value"] for one in last["aggregated_metrics"]}["accuracy"]
    assert accuracy > LEAST
