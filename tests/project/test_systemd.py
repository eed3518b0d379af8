"""deploy/systemd: units that systemd reads, and that allow what a client does."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedsz.training.options import CLIENT, SERVER, RunConfig, options_of
from tests.conftest import ROOT

if TYPE_CHECKING:
    from tests.fleets import Fleet

pytestmark = pytest.mark.repository

FOLDER = ROOT / "deploy" / "systemd"
SIDES = {"client": CLIENT, "server": SERVER}
PROGRAM = "/opt/fedsz/bin/fedsz"
ANALYZE, STRACE = shutil.which("systemd-analyze"), shutil.which("strace")
MOST_EXPOSED = 15  # tenths of 1.5, of 10

with_systemd = pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze")
sides = pytest.mark.parametrize("side", SIDES)


def analyze(*arguments: object) -> str:
    """Return what systemd-analyze says on stdout and stderr; it must succeed."""
    command = [str(ANALYZE), *map(str, arguments), "--no-pager"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@with_systemd
@sides
def test_a_unit_is_read_without_a_complaint(side: str, tmp_path: Path) -> None:
    unit = tmp_path / f"fedsz-{side}.service"
    text = (FOLDER / unit.name).read_text()
    assert PROGRAM in text
    unit.write_text(text.replace(PROGRAM, "/bin/true"))  # which is installed here

    assert analyze("verify", unit) == ""


@with_systemd
@sides
def test_a_unit_exposes_little(side: str) -> None:
    unit = FOLDER / f"fedsz-{side}.service"

    analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", unit)


@sides
def test_the_environment_has_options_that_exist(side: str) -> None:
    unit, environment = f"fedsz-{side}.service", f"{side}.env"
    text = (FOLDER / unit).read_text() + (FOLDER / environment).read_text()
    given = set(re.findall(r"^(?:Environment=)?FEDSZ_(\w+)=", text, re.MULTILINE))
    known = {field.name.upper() for field in dataclasses.fields(RunConfig)}

    assert f"EnvironmentFile=/etc/fedsz/{environment}" in text
    assert given
    assert given <= {name.upper() for name in options_of(SIDES[side])} & known


def test_the_services_of_both_sides_have_one_sandbox() -> None:
    client, server = (
        (FOLDER / f"fedsz-{side}.service").read_text().partition("CapabilityBoundingSet=")[2]
        for side in SIDES
    )

    assert client == server != ""


def allowed_calls(text: str) -> set[str]:
    """Return the system calls that the filters of a unit leave."""
    calls: set[str] = set()
    for minus, names in re.findall(r"^SystemCallFilter=(~?)(.+)$", text, re.MULTILINE):
        for name in names.split():
            calls = calls - expanded(name) if minus else calls | expanded(name)
    return calls


def expanded(group: str) -> set[str]:
    if not group.startswith("@"):
        return {group}
    lines = [line.strip() for line in analyze("syscall-filter", group).splitlines()]
    names = [line for line in lines if line and not line.startswith("#") and line != group]
    return set().union(*map(expanded, names))


@pytest.mark.slow
@with_systemd
@pytest.mark.skipif(STRACE is None, reason="needs strace")
def test_a_client_makes_no_system_call_that_its_unit_forbids(fleet: Fleet, tmp_path: Path) -> None:
    """A whole run with a state folder, as the unit has it."""
    pytest.importorskip("torch")
    text = (FOLDER / "fedsz-client.service").read_text()
    server = fleet.server("--rounds", 1, "--min-clients", 1, task="images")
    trace = tmp_path / "calls"
    traced = (str(STRACE), "--follow-forks", "--seccomp-bpf", "-qq", "-o", str(trace))
    client = fleet.start(
        *("client", "--insecure", "--server", f"127.0.0.1:{server.port}"),
        *("--partition", "0/1", "--state-dir", tmp_path / "state"),
        prefix=traced,
    )

    assert client.wait() == 0, client.stderr and client.stderr.read()

    made = set(re.findall(r"^\d+ +(\w+)\(", trace.read_text(errors="replace"), re.MULTILINE))
    assert {"openat", "sendmsg", "rename"} <= made
    assert made - allowed_calls(text) == set()
