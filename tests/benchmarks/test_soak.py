"""The benchmarks of load and of faults, with few clients and rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.repository,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]
LIMIT = 600.0  # seconds; far more than it takes on a busy machine


def printed(module: str, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_no_update_is_lost_or_counted_twice_whatever_fails() -> None:
    found = printed("soak", "--rounds", "6", "--clients", "6", "--seed", "2")

    assert found["rounds"] == 6
    assert (found["lost"], found["counted_twice"]) == (0, 0)
    assert found["replayed"] == found["updates"] > 18
    assert found["refused_replies"] > 0
    assert sum(found["faults"].values()) == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [("--clients", "30"), ("--real", "4")])
def test_every_reply_of_many_clients_is_counted(kind: tuple[str, str]) -> None:
    found = printed("load", *kind, "--rounds", "2")

    assert found["replies"] == found["expected"] == found["replayed"] == 2 * int(kind[1])
    assert found["clients_that_failed"] == 0
    assert found["server_peak_MB"] > 0
