"""A fleet of real processes over gRPC: the way fedsz is used, and what goes wrong there."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import time
import tomllib
from pathlib import Path

import pytest

from fedsz.training.local_fleet import STATES
from fedsz.whole_files import lock_folder
from tests.fleets import HELD, LIMIT, TASK, Fleet, complaints
from tests.links import free_port

pytest.importorskip("torch")
pytestmark = pytest.mark.slow


@pytest.mark.timeout(120)
def test_a_run_from_the_first_client_to_the_saved_model(fleet: Fleet) -> None:
    """The one fleet here that trains with torch."""
    port = free_port()
    clients = [
        fleet.client(port, i, 2, task="images") for i in range(2)
    ]  # before there is a server
    server = fleet.server(
        "--rounds", 3, "--min-clients", 2, "--codec", "zfp", "--error-bound", "1e-3",
        "--run-dir", "out", port=port, task="images",
    )  # fmt: skip

    assert server.process.wait(LIMIT) == 0
    assert [client.wait(LIMIT) for client in clients] == [0, 0]
    for process in (server.process, *clients):  # not even Flower's own log
        assert process.stderr is not None
        (line,) = process.stderr.read().splitlines()
        assert line.startswith("fedsz: warning: plaintext ")

    done = server.wait_for(lambda event: event["event"] == "done")
    assert done["run_dir"] == "out"
    folder = fleet.folder / "out"
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert lines == server.rounds()
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    for line in lines[1:]:
        assert (line["replies"], line["failures"]) == (2, [])
        assert line["raw_up"] > line["sent_up"]
        assert line["ratio"] == line["raw_up"] / line["sent_up"]
        assert line["sent_up"] < line["wire_up"] < 1.02 * line["sent_up"] + 4000
        assert 0 < line["max_error"] <= 1
        assert line["encode_seconds"] > 0
        assert line["decode_seconds"] > 0
    assert lines[3]["accuracy"] > lines[0]["accuracy"]
    config = tomllib.loads((folder / "config.toml").read_text())
    assert (config["codec"], config["error_bound"], config["rounds"]) == ("zfp", 1e-3, 3)
    assert config["clients"] == 2  # `fedsz run --config` repeats it

    from safetensors.torch import load_file

    from fedsz.training.images import build_model
    from fedsz.training.options import RunConfig

    build_model(RunConfig()).load_state_dict(load_file(folder / "model.safetensors"))


MODES = {
    "weights": ("--update", "weights"),
    "delta": (),
    "both ways": ("--update", "delta+ef", "--error-bound", "std:2", "--downlink", "std:1"),
    "auto": ("--policy", "auto"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_killed_client_is_missed_and_may_come_back(fleet: Fleet, mode: tuple[str, ...]) -> None:
    server = fleet.server("--rounds", 8, "--min-clients", 3, "--reconnect-grace", 0.1, *mode)
    clients = [fleet.client(server.port, i, 3, task=HELD) for i in range(3)]
    server.wait_for(lambda event: event["event"] == "round" and event["round"] == 1)
    hold = fleet.folder / "hold"
    hold.touch()  # all of them, so that the run does not end before one is back

    clients[0].kill()
    server.wait_for(lambda event: event.get("what") == "failed")
    clients[0] = fleet.client(server.port, 0, 3, task=HELD)
    server.wait_for(lambda event: [one.get("what") for one in server.events].count("joined") == 4)
    hold.unlink()

    missed = server.wait_for(lambda event: event["event"] == "round" and bool(event["failures"]))
    (failure,) = missed["failures"]
    assert failure["client"].endswith("/0/3")
    assert missed["replies"] == 2
    back = server.wait_for(lambda event: event.get("round", 0) > missed["round"])
    assert (back["replies"], back["failures"]) == (3, [])
    assert server.process.wait(LIMIT) == 0
    assert [client.wait(LIMIT) for client in clients] == [0, 0, 0]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_killed_server_goes_on_where_it_was(fleet: Fleet, mode: tuple[str, ...]) -> None:
    """tests/test_resume.py has the bits of each mode, in process."""
    port, length, hold = free_port(), 8, fleet.folder / "hold"
    rounds = ("--rounds", length, "--min-clients", 2, "--run-dir", "out")
    first = fleet.server(*rounds, *mode, port=port)
    clients = [fleet.client(first.port, i, 2, task=HELD) for i in range(2)]
    first.wait_for(lambda event: event["event"] == "round" and event["round"] == 3)
    hold.touch()  # the run does not end before the server does
    first.process.kill()
    first.process.wait(LIMIT)
    hold.unlink()

    second = fleet.server("--resume", "out", port=port)

    assert second.process.wait(LIMIT) == 0
    assert [client.wait(LIMIT) for client in clients] == [0, 0]
    text = (fleet.folder / "out" / "rounds.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["round"] for line in lines] == list(range(length + 1))
    assert [(line["replies"], line["failures"]) for line in lines[1:]] == [(2, [])] * length
    assert lines[-len(second.rounds()) :] == second.rounds()


def test_a_stopped_server_says_goodbye_to_nobody_and_the_clients_give_up(fleet: Fleet) -> None:
    server = fleet.server("--rounds", 1000, "--min-clients", 1)
    client = fleet.client(server.port, 0, 1, "--max-wait", 2)
    server.wait_for(lambda event: event["event"] == "round" and event["round"] == 1)

    server.process.kill()

    assert client.wait(LIMIT) == 2
    _, err = client.communicate()
    _, line = err.splitlines()  # after the warning
    assert line.startswith("fedsz: ")
    assert f"127.0.0.1:{server.port}" in line


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stop_leaves_no_process_behind(fleet: Fleet, stop: signal.Signals) -> None:
    run = fleet.start(
        "run", "--task", TASK, "--clients", 2, "--rounds", 10_000, "--json", "--run-dir", "out"
    )
    assert run.stdout is not None
    for line in run.stdout:
        if json.loads(line).get("round") == 1:
            break
    family = descendants(run.pid)
    assert len(family) >= 3

    run.send_signal(stop)
    run.stdout.close()

    assert run.wait(LIMIT) == (130 if stop != signal.SIGKILL else -signal.SIGKILL)
    deadline = time.monotonic() + 30.0  # of the 60 that clients wait for a server
    while (left := [pid for pid in family if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    for i in range(2):  # it can be resumed at once
        lock_folder(fleet.folder / "out" / STATES / str(i), "client").close()


def descendants(pid: int) -> list[int]:
    """Return the processes below ``pid``; they have sessions of their own, so by their parents."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found, fresh = [], [pid]
    while fresh:
        fresh = [child for child, parent in parents.items() if parent in fresh]
        found += fresh
    return found


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_port_in_use_is_one_line(fleet: Fleet) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        server = fleet.start("server", "--insecure", "--port", port, "--task", TASK)
        _, err = server.communicate(timeout=LIMIT)

    assert server.returncode == 2
    (line,) = err.splitlines()
    assert f"127.0.0.1:{port}" in line


def test_two_clients_of_one_name_do_not_fight(fleet: Fleet) -> None:
    server = fleet.server("--rounds", 2, "--min-clients", 2)
    first = fleet.client(server.port, 0, 2)
    server.wait_for(lambda event: event["event"] == "client" and event["what"] == "joined")

    second = fleet.client(server.port, 0, 2, "--max-wait", 1)

    assert second.wait(LIMIT) == 2
    _, line = second.communicate()[1].splitlines()  # after the warning
    assert "/0/2' is in use" in line
    other = fleet.client(server.port, 1, 2)
    assert [process.wait(LIMIT) for process in (server.process, first, other)] == [0, 0, 0]


def test_a_client_with_another_task_is_refused_when_it_joins(fleet: Fleet) -> None:
    """tests/test_client_limits.py has what else a client may have been started for."""
    server = fleet.server("--rounds", 1, "--min-clients", 2)
    good = fleet.client(server.port, 0, 2)
    other = fleet.client(server.port, 1, 2, task="images")

    assert other.wait(LIMIT) == 2
    (line,) = complaints(other)
    assert line.endswith(f"this client has task 'images', the server asks for '{TASK}'")
    assert server.rounds() == []  # it waits for one that can take part
    second = fleet.client(server.port, 1, 2)
    assert server.process.wait(LIMIT) == 0
    assert (good.wait(LIMIT), second.wait(LIMIT)) == (0, 0)
    assert server.rounds()[-1]["failures"] == []


def test_a_run_whose_clients_cannot_start_ends_with_their_reason(fleet: Fleet) -> None:
    run = fleet.start("run", "--task", "tests.resume_task:ServersAlone", "--clients", 2)

    assert run.wait(LIMIT) == 2
    (line,) = run.communicate()[1].splitlines()
    assert "no data on this machine" in line


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_client_with_a_quarter_of_4000_images_takes_less_than_400_mb(
    fleet: Fleet, data_dir: Path
) -> None:
    what = ("--dataset", "cifar10", "--data-dir", data_dir)
    server = fleet.server(
        *what, "--samples", 4000, "--test-samples", 100, "--rounds", 2, "--min-clients", 1,
        task="images",
    )  # fmt: skip
    client = fleet.client(server.port, 0, 4, *what, task="images")
    status, peak = Path(f"/proc/{client.pid}/status"), 0
    while client.poll() is None:
        # Less pages of libraries, of which there are 77 or 135 MB, as the kernel caches files.
        found = dict(re.findall(r"(VmHWM|RssFile):\s+(\d+) kB", status.read_text()))
        peak = max(peak, 1024 * (int(found["VmHWM"]) - int(found["RssFile"])) if found else 0)
        time.sleep(0.02)

    assert (client.returncode, server.process.wait(LIMIT)) == (0, 0)
    assert [line["replies"] for line in server.rounds()[1:]] == [1, 1]
    assert 100e6 < peak < 400e6 - 77e6
