"""A server that is watched: real processes, with the page, metrics and trackers of a run."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from tests.cli.test_cli import call, refuse
from tests.links import free_port
from tests.monitoring.watched_runs import ask, port_of

if TYPE_CHECKING:
    from tests.fleets import Fleet

LONG_RUN = ("--rounds", 100_000)
SERVER = ("server", "--insecure", "--port", 0)
NO_ROUNDS = "rounds must be a whole number from 1 to 1000000, got 0"


def test_a_server_shows_its_run(fleet: Fleet) -> None:
    metrics = free_port()
    server = fleet.server(
        *LONG_RUN, "--dashboard", "127.0.0.1:0", "--metrics-port", metrics, "--min-clients", 1,
        "--track", "tensorboard", "--run-dir", "run",
    )  # fmt: skip
    watched = server.wait_for(lambda event: event.get("what") == "dashboard")
    page = port_of(watched["url"])
    server.wait_for(lambda event: event["event"] == "listening")
    assert ask(metrics, "/readyz").body == b"waiting for clients: 0 of 1\n"
    assert json.loads(ask(page, "/api/run").body)["state"]["text"] == "waiting for clients: 0 of 1"

    fleet.client(server.port, 0, 1)
    told = server.wait_for(lambda event: event["event"] == "round" and event["round"] == 1)
    shown: list[dict[str, Any]] = []
    while len(shown) < 2:
        shown = json.loads(ask(page, "/api/run").body)["rounds"]

    assert shown[1]["loss"] == told["loss"] > 0
    assert told["clients"][0]["client"].endswith("/0/1")


@pytest.mark.parametrize("option", ["--dashboard", "--metrics-port"])
def test_a_port_in_use_ends_the_server_before_it_begins(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        says = refuse(*SERVER, "--run-dir", tmp_path / "run", option, port)

    assert says == f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--track", "tensorbord"), "no tracker 'tensorbord' (did you mean 'tensorboard'"),
        (("--dashboard", "0", "--dashboard-token", "absent"), "cannot read absent: No such file"),
        # A dashboard without a value is on loopback: what follows is none.
        (("--dashboard", "--rounds", 0), NO_ROUNDS),
        (("--rounds", 0, "--dashboard"), NO_ROUNDS),
    ],
)
def test_what_cannot_be_watched_is_one_line(arguments: tuple[object, ...], says: str) -> None:
    assert refuse(*SERVER, *arguments).startswith(says)


def test_a_log_of_json_has_errors_and_warnings() -> None:
    done = call("--log-json", *SERVER, "--rounds", 0)

    assert done.returncode == 2
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["level"] == "error"
    assert line["message"] == NO_ROUNDS
    assert set(line) == {"time", "level", "logger", "message"}
