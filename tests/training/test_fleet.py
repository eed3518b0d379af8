"""A fleet of real processes over gRPC: the way fedsz is used, and what goes wrong there."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sys
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedsz.system import raise_descriptor_limit
from fedsz.training.local_fleet import STATES
from fedsz.transport.authority import Authority
from fedsz.whole_files import lock_folder
from tests.cli.test_cli import call, refuse
from tests.fleets import LIMIT, PLACE, TASK, Fleet, Server, rounds_in
from tests.links import free_port
from tests.project.test_child_process import gone

pytest.importorskip("torch")
if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("form", [("--json",), ()], ids=["json", "text"])
def test_a_reader_that_goes_away_ends_the_server_quietly(
    fleet: Fleet, form: tuple[str, ...]
) -> None:
    """As ``fedsz server --json | head -1`` does: no traceback, also not of a thread of gRPC."""
    port = free_port()
    place = ("--insecure", "--port", port, "--min-clients", 1, "--rounds", 1000, "--task", TASK)
    server = fleet.start("server", *place, *form)
    assert server.stdout is not None
    assert server.stderr is not None
    server.stdout.readline()
    server.stdout.close()
    client = fleet.client(port, 0, 1)

    assert server.wait(LIMIT) in (1, 130)
    (line,) = filter(None, server.stderr.read().splitlines())
    assert line.startswith("fedsz: warning: plaintext ")
    client.kill()


@pytest.mark.parametrize("lost", ["rounds.jsonl", "checkpoint", ""])
def test_a_server_that_died_at_its_start_begins_again(fleet: Fleet, lost: str) -> None:
    """Between its first files, or before them: one option decides for all who start servers."""
    folder = fleet.folder / "run"
    run = ("--run-dir", folder, "--or-resume", "--min-clients", 1, "--rounds", 2)
    first = fleet.server(*run)
    first.wait_for(lambda event: event["event"] == "listening")
    first.process.kill()
    first.process.wait()
    if lost:
        (folder / lost).unlink(missing_ok=True)
    second = fleet.server(*run)
    client = fleet.client(second.port, 0, 1)

    assert second.process.wait(LIMIT) == client.wait(LIMIT) == 0
    assert [line["round"] for line in rounds_in(folder)] == [0, 1, 2]
    assert "--or-resume needs --run-dir" in refuse("server", "--insecure", "--or-resume")


@pytest.mark.timeout(120)
def test_a_run_from_the_first_client_to_the_saved_model(fleet: Fleet) -> None:
    """The one fleet here that trains with torch."""
    port = free_port()
    # Before there is a server.
    clients = [fleet.client(port, i, 2, task="images") for i in range(2)]
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
    lines = rounds_in(folder)
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


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stop_leaves_no_process_behind(fleet: Fleet, stop: signal.Signals) -> None:
    where = ("--json", "--run-dir", "out")
    run = fleet.start("run", "--task", TASK, "--clients", 1, "--rounds", 10_000, *where)
    assert run.stdout is not None
    for line in run.stdout:
        if json.loads(line).get("round") == 1:
            break
    family = descendants(run.pid)
    assert len(family) >= 2

    run.send_signal(stop)
    run.stdout.close()

    assert run.wait(LIMIT) == (130 if stop != signal.SIGKILL else -signal.SIGKILL)
    deadline = time.monotonic() + 30.0  # of the 60 that clients wait for a server
    while (left := [pid for pid in family if not gone(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    # It can be resumed at once.
    lock_folder(fleet.folder / "out" / STATES / "0", "client").close()


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


def test_a_run_whose_clients_cannot_start_ends_with_their_reason(fleet: Fleet) -> None:
    run = fleet.start("run", "--task", "tests.resume_task:ServersAlone", "--clients", 1)

    assert run.wait(LIMIT) == 2
    (line,) = run.communicate()[1].splitlines()
    assert "no data on this machine" in line


def command_line(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["certificate", "token"])
def test_clients_prove_who_they_are_and_their_secrets_are_shown_nowhere(
    fleet: Fleet, kind: str
) -> None:
    """tests/transport/test_identity.py has who is refused."""
    authority = Authority.create(fleet.folder / "keys")
    cert = authority.certify_server(["127.0.0.1"], 1)
    by_token = kind == "token"
    own, gone = (
        authority.make_token(name) if by_token else authority.certify_client(name, 1)
        for name in ("own", "gone")
    )
    key = cert.with_suffix(".key")
    authority.revoke("gone")
    server = Server(
        fleet.start(
            "-v", "server", "--task", TASK,
            "--port", 0, "--json", "--rounds", 2, "--min-clients", 1, "--run-dir",
            "out", "--tls-cert", cert, "--tls-key", key, "--client-file", authority.clients,
            *(() if by_token else ("--tls-ca", authority.ca)),
        )
    )  # fmt: skip
    join = ("--task", TASK, "--server", f"127.0.0.1:{server.port}")
    files = {
        file: ("--token-file", file)
        if by_token
        else ("--tls-cert", file, "--tls-key", file.with_suffix(".key"))
        for file in (own, gone)
    }
    secured = (*join, "--tls-ca", authority.ca)
    refused = call("client", *secured, *files[gone], "--max-wait", 1)
    assert "is revoked" in refused.stderr
    client = fleet.start("-v", "client", *secured, *files[own])
    server.wait_for(lambda event: event.get("what") == "joined")
    shown = [command_line(process) for process in (server.process, client)]
    shown += client.communicate(timeout=LIMIT)
    assert server.process.wait(LIMIT) == client.returncode == 0
    assert server.process.stderr is not None
    shown += [server.process.stderr.read(), str(server.events)]
    shown += [path.read_bytes().decode("latin-1") for path in (fleet.folder / "out").iterdir()]

    joined = [event["client_id"] for event in server.events if event.get("what") == "joined"]
    assert joined == ["own"]
    secrets = [own.read_text().strip().partition(":")[2]] if by_token else []
    secrets += [
        line
        for file in (key, *(() if by_token else (own.with_suffix(".key"),)))
        for line in file.read_text().splitlines()[1:-1]
    ]
    assert len(secrets) > 2
    for secret in secrets:
        assert not any(secret in text for text in shown)


def has_ended(stranger: socket.socket) -> bool:
    """Say whether a connection has ended, or was refused."""
    try:
        return not stranger.recv(1 << 16)
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.skipif(shutil.which("bash") is None, reason="limits descriptors by bash's ulimit")
def test_strangers_at_all_ports_do_not_end_a_server_with_few_descriptors(fleet: Fleet) -> None:
    pytest.importorskip("uvicorn")
    pytest.importorskip("prometheus_client")
    few = ("bash", "-c", 'ulimit -n 128; exec "$@"', "-")
    ports = [free_port() for _ in range(3)]
    watched = ("--dashboard", ports[1], "--metrics-port", ports[2])
    arguments = (*PLACE, "--port", ports[0], "--json", "--rounds", 2, "--min-clients", 1)
    server = Server(fleet.start("server", *arguments, *watched, prefix=few))
    server.wait_for(lambda event: event["event"] == "listening")
    raise_descriptor_limit()
    over = threading.Event()

    def come_again(port: int) -> None:
        """Have 300 connections that ask nothing; of the web servers, others for those that end."""
        strangers: list[socket.socket] = []
        while not over.wait(0.1):
            for stranger in filter(has_ended, strangers[:] if port != ports[0] else []):
                strangers.remove(stranger)
                stranger.close()
            for _ in range(300 - len(strangers)):
                strangers.append(socket.socket())
                strangers[-1].setblocking(False)
                with suppress(BlockingIOError):
                    strangers[-1].connect(("127.0.0.1", port))
        for stranger in strangers:
            stranger.close()

    with ThreadPoolExecutor(len(ports)) as crowd:
        done = [crowd.submit(come_again, port) for port in ports]
        client = fleet.client(ports[0], 0, 1)
        ended = client.wait(LIMIT)
        over.set()
    assert [each.result() for each in done] == [None] * len(ports)
    assert ended == 0
    assert server.process.wait(LIMIT) == 0
    assert [line["replies"] for line in server.rounds()] == [0, 1, 1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="limits descriptors by bash's ulimit")
def test_a_server_waits_for_more_clients_than_it_has_descriptors_and_says_so(fleet: Fleet) -> None:
    few = ("bash", "-c", 'ulimit -n 256; exec "$@"', "-")
    arguments = (*PLACE, "--port", 0, "--json", "--min-clients", 1003)
    server = Server(fleet.start("server", *arguments, prefix=few))
    listening = server.wait_for(lambda event: event["event"] == "listening")
    server.process.kill()

    assert listening["min_clients"] == 1003
    said = server.process.communicate()[1]
    assert "too few file descriptors: enough for 72 connections, --min-clients 1003" in said
