"""Real processes that are killed, and that go on."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from fedsz.child_process import Child
from fedsz.control.record import RoundRecord
from fedsz.training import local_fleet
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import CONFIG
from tests.cli.test_cli import call, refuse
from tests.conftest import ROOT
from tests.fleets import HELD, LIMIT, TASK, Fleet, federated, rounds_in, shares
from tests.links import free_port

pytestmark = pytest.mark.slow
BOTH_WAYS = ("--update", "delta+ef", "--error-bound", "std:2", "--downlink", "std:1")


def test_a_killed_client_and_then_a_killed_server_go_on(fleet: Fleet) -> None:
    """tests/training/test_resume.py has the bits of each way to compress, in one process."""
    port, length, hold = free_port(), 30, fleet.folder / "hold"
    options = ("--rounds", length, "--min-clients", 3, "--reconnect-grace", 0.1, *BOTH_WAYS)
    first = fleet.server(*options, "--run-dir", "out", port=port)
    clients = [fleet.client(port, i, 3, task=HELD) for i in range(3)]
    first.wait_for_round(1)
    hold.touch()  # all of them, so that the run does not end before one is back
    clients[0].kill()
    first.wait_for(lambda event: event.get("what") == "failed")
    clients[0] = fleet.client(port, 0, 3, task=HELD)
    first.wait_for(lambda _: [one.get("what") for one in first.events].count("joined") == 4)
    hold.unlink()

    missed = first.wait_for(lambda event: event["event"] == "round" and bool(event["failures"]))
    (failure,) = missed["failures"]
    assert failure["client"].endswith("/0/3")
    assert missed["replies"] == 2
    back = first.wait_for_round(missed["round"] + 1)
    hold.touch()  # nor before the server does
    first.process.kill()
    first.process.wait(LIMIT)
    hold.unlink()
    second = fleet.server("--resume", "out", port=port)

    assert second.process.wait(LIMIT) == 0
    assert [client.wait(LIMIT) for client in clients] == [0, 0, 0]
    lines = rounds_in(fleet.folder / "out")
    assert [line["round"] for line in lines] == list(range(length + 1))
    assert lines[-len(second.rounds()) :] == second.rounds()
    whole = [(line["replies"], line["failures"]) for line in lines[back["round"] :]]
    assert whole == [(3, [])] * len(whole)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_does_not_come_back_ends_its_client_with_an_error(
    fleet: Fleet, stop: signal.Signals
) -> None:
    server = fleet.server("--rounds", 1000, "--min-clients", 1, "--run-dir", "out")
    client = fleet.client(server.port, 0, 1, "--max-wait", 2)
    server.wait_for_round(1)
    folder = fleet.folder / "out"
    resume = ("server", "--insecure", "--port", 0, "--resume", folder)
    assert refuse(*resume) == f"another server works in {folder}"

    server.process.send_signal(stop)

    assert client.wait(LIMIT) == 2
    out, err = client.communicate()
    _, line = err.splitlines()  # after the warning
    assert line.startswith(f"fedsz: no link to 127.0.0.1:{server.port} for 2 s")
    assert ("stopped before the run had finished" in out) == (stop == signal.SIGTERM)
    server.process.wait(LIMIT)
    other = fleet.folder / "other.toml"
    other.write_text("rounds = 7")
    says = f"--rounds 7 contradicts {folder / CONFIG}, which has 1000"
    assert refuse(*resume, "--config", other).startswith(says)


def test_a_run_on_one_machine_is_repeated_stopped_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: dict[int, str] = {}
    ended: list[str] = []

    class Watched(Child):
        def __init__(self, module: str, *arguments: str, **more: Any) -> None:
            super().__init__(module, *arguments, **more)
            kinds[self.pid] = next(word for word in arguments if word in ("server", "client"))

        def end(self, patience: float = 0.0) -> None:
            super().end(patience)
            ended.append(kinds[self.pid])

    monkeypatch.setattr(local_fleet, "Child", Watched)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    whole, out = tmp_path / "whole", tmp_path / "out"
    length: dict[str, Any] = {"clients": 2, "rounds": 20, "deadline_factor": 0.0}
    federated(RunConfig(task=TASK, run_dir=str(whole), **length), shares(2, task=TASK))

    run = local_fleet.run_local(RunConfig.read(whole / CONFIG, run_dir=str(out)))
    _ = next(event for event in run if isinstance(event, RoundRecord) and event.round == 5)
    run.close()
    # In between the server would average what fewer clients send.
    assert ended == ["server", "client", "client"]
    again = call("run", "--json", "--resume", out)

    assert again.returncode == 0, again.stderr
    lines = rounds_in(out)
    assert [line["round"] for line in lines] == list(range(21))
    assert {line["replies"] for line in lines[1:]} == {2}
    names = ("replies", "sent_up", "sent_down")
    totals = {name: sum(line[name] for line in lines) for name in names}
    told = map(json.loads, again.stdout.splitlines())
    done = next(event for event in told if event["event"] == "done")
    assert (done["rounds"], done["totals"]["clients"]) == (20, [])
    assert totals.items() <= done["totals"].items()
    assert not (out / "client-states").exists()
    models = [(folder / "model.safetensors").read_bytes() for folder in (whole, out)]
    assert models[0] == models[1]
    says = refuse("run", "--resume", out)
    assert says.startswith(f"the run in {out} has finished: 20 rounds; --initial {out}/model.s")


@pytest.fixture(scope="module")
def whole() -> bytes:
    """The model of a run that nobody has killed."""
    if shutil.which("strace") is None:
        pytest.skip("kills by strace")
    pytest.importorskip("benchmarks", reason="needs benchmarks")
    from benchmarks import kill_sweep as sweep

    return bytes(sweep.run()[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("victim", "at"), [("server", 14), ("server", 37), ("client", 8)], ids=lambda x: str(x)
)
def test_a_kill_at_a_system_call_changes_no_bit(whole: bytes, victim: str, at: int) -> None:
    """A sample of what the script does at every call."""
    from benchmarks import kill_sweep as sweep

    model, kills = sweep.run(sweep.Kill(victim, ",".join(sweep.CALLS["files"]), at))

    assert kills == 1
    assert model == whole
