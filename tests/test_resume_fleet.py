"""Real processes that are killed, or whose disk is full, and that go on."""

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
from tests.conftest import ROOT
from tests.fleets import LIMIT, TASK, Fleet, Server, complaints
from tests.links import free_port

pytestmark = pytest.mark.slow
PLACE = ("--insecure", "--task", TASK)


def clients_of(fleet: Fleet, port: int, *more: Any) -> list[Any]:
    return [fleet.client(port, i, 2, "--state-dir", f"client{i}", *more) for i in range(2)]


def rounds_in(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def full(kilobytes: int) -> tuple[str, ...]:
    """Return a prefix of a command that cannot write more than this to a file."""
    return "bash", "-c", f'ulimit -f {kilobytes}; exec "$@"', "-"


@pytest.mark.skipif(shutil.which("bash") is None, reason="limits files by bash's ulimit")
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(fleet: Fleet) -> None:
    server = ("server", *PLACE, "--port", free_port(), "--json")
    rounds = ("--rounds", 4, "--min-clients", 2, "--run-dir", "out")
    first = Server(fleet.start(*server, *rounds, prefix=full(25)))
    clients = clients_of(fleet, first.port, "--max-wait", 100)

    assert first.process.wait(LIMIT) == 2
    (line,) = complaints(first.process)
    assert line.startswith("fedsz: cannot write out/checkpoint: ")
    kept = [line["round"] for line in rounds_in(fleet.folder / "out")]
    assert kept == list(range(len(kept)))
    assert len(kept) < 5
    assert [client.poll() for client in clients] == [None, None]  # they wait

    second = Server(fleet.start(*server, "--resume", "out"))

    assert second.process.wait(LIMIT) == 0
    assert [client.wait(LIMIT) for client in clients] == [0, 0]
    lines = rounds_in(fleet.folder / "out")
    assert [line["round"] for line in lines] == list(range(5))
    assert [line["replies"] for line in lines[1:]] == [2] * 4


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_clients_of_a_server_that_does_not_come_back_end_with_an_error(
    fleet: Fleet, stop: signal.Signals
) -> None:
    server = fleet.server("--rounds", 1000, "--min-clients", 2)
    clients = clients_of(fleet, server.port, "--max-wait", 2)
    server.wait_for(lambda event: event["event"] == "round" and event["round"] == 1)

    server.process.send_signal(stop)

    for client in clients:
        assert client.wait(LIMIT) == 2
        out, err = client.communicate()
        line = err.splitlines()[-1]
        assert "Traceback" not in err
        assert line.startswith(f"fedsz: no link to 127.0.0.1:{server.port} for 2 s")
        assert ("stopped before the run had finished" in out) == (stop == signal.SIGTERM)


def test_a_run_on_one_machine_is_resumed_with_its_clients_states(fleet: Fleet) -> None:
    run = ("run", "--task", TASK, "--clients", 2, "--json", "--deadline-factor", 0)
    whole = Server(fleet.start(*run, "--rounds", 20, "--run-dir", "whole"))
    assert whole.process.wait(LIMIT) == 0
    assert not (fleet.folder / "whole" / "client-states").exists()

    killed = Server(fleet.start(*run, "--rounds", 20, "--run-dir", "out"))
    killed.wait_for(lambda event: event["event"] == "round" and event["round"] == 5)
    killed.process.send_signal(signal.SIGTERM)
    assert killed.process.wait(LIMIT) == 130
    again = Server(fleet.start("run", "--json", "--resume", "out"))
    done = again.wait_for(lambda event: event["event"] == "done")

    assert again.process.wait(LIMIT) == 0
    totals = {"rounds": 20} | {
        name: sum(line[name] for line in rounds_in(fleet.folder / "out"))
        for name in ("replies", "sent_up", "sent_down")
    }
    assert totals.items() <= done["totals"].items()
    models = [(fleet.folder / name / "model.safetensors").read_bytes() for name in ("whole", "out")]
    assert models[0] == models[1]
    assert [line["round"] for line in rounds_in(fleet.folder / "out")] == list(range(21))
    finished = fleet.start("run", "--resume", "out")
    assert finished.wait(LIMIT) == 2
    (line,) = complaints(finished)
    assert line.startswith("fedsz: the run in out has finished: 20 rounds; --initial out/model.s")


def test_a_run_that_is_stopped_ends_its_server_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would go on without those clients that are not connected when a round begins.
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
    out = tmp_path / "out"
    config = RunConfig(task=TASK, clients=2, rounds=1000, deadline_factor=0, run_dir=str(out))
    run = local_fleet.run_local(config)

    _ = next(event for event in run if isinstance(event, RoundRecord) and event.round == 2)
    run.close()

    assert ended == ["server", "client", "client"]
    assert {line["replies"] for line in rounds_in(out) if line["round"]} == {2}


def test_two_servers_do_not_resume_one_folder(fleet: Fleet) -> None:
    first = fleet.server("--rounds", 1000, "--min-clients", 2, "--run-dir", "out")
    _ = first.port

    second = fleet.start("server", "--insecure", "--port", 0, "--resume", "out")

    assert second.wait(LIMIT) == 2
    (line,) = complaints(second)
    assert line == "fedsz: another server works in out"
    first.process.kill()


def test_flags_that_contradict_the_run_are_refused(fleet: Fleet) -> None:
    first = fleet.server("--rounds", 9, "--min-clients", 2, "--run-dir", "out")
    _ = first.port
    first.process.kill()
    first.process.wait(LIMIT)
    for flags, says in {
        ("--rounds", "7"): "--rounds 7 contradicts out/config.toml, which has 9",
        ("--config", "out/config.toml"): "leave out --config",
    }.items():
        second = fleet.start("server", "--resume", "out", *flags)
        assert second.wait(LIMIT) == 2
        assert says in second.communicate()[1]


@pytest.mark.skipif(shutil.which("strace") is None, reason="kills by strace")
@pytest.mark.parametrize(
    ("victim", "at"), [("server", 14), ("server", 37), ("client", 8)], ids=lambda x: str(x)
)
def test_a_kill_at_a_system_call_changes_no_bit(tmp_path: Path, victim: str, at: int) -> None:
    """A sample of what the script does at every call."""
    sweep = pytest.importorskip("benchmarks.kill_sweep", reason="needs benchmarks")
    whole, _ = sweep.run()

    model, kills = sweep.run(sweep.Kill(victim, ",".join(sweep.CALLS["files"]), at))

    assert kills == 1
    assert model == whole
