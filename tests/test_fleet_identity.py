"""A fleet of real processes whose clients prove who they are, and where their secrets are not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedsz.transport.authority import Authority
from tests.fleets import LIMIT, TASK, Fleet, Server

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.slow


def command_line(process: subprocess.Popen[str]) -> str:
    return Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_secrets_are_neither_in_logs_nor_in_run_folders_nor_in_process_lists(fleet: Fleet) -> None:
    authority = Authority.create(fleet.folder / "keys")
    cert = authority.certify_server(["127.0.0.1"], 1)
    token = authority.make_token("by-token")
    own = authority.certify_client("by-token", 1)
    keys = [path.with_suffix(".key") for path in (cert, own)]
    server = Server(
        fleet.start(
            "-v", "server", "--task", TASK,
            "--port", 0, "--json", "--rounds", 2, "--min-clients", 1, "--run-dir",
            "out", "--tls-cert", cert, "--tls-key", keys[0], "--tls-ca", authority.ca,
            "--tokens", authority.tokens, "--revoked", authority.revoked,
        )
    )  # fmt: skip
    client = fleet.start(
        "-v", "client", "--task", TASK,
        "--server", f"127.0.0.1:{server.port}", "--tls-ca", authority.ca,
        "--tls-cert", own, "--tls-key", keys[1], "--token-file", token, "--client-id", "by-token",
    )  # fmt: skip
    server.wait_for(lambda event: event["event"] == "client" and event["what"] == "joined")
    shown = [command_line(process) for process in (server.process, client)]
    shown += client.communicate(timeout=LIMIT)
    assert server.process.wait(LIMIT) == client.returncode == 0
    assert server.process.stderr is not None
    shown += [server.process.stderr.read(), str(server.events)]
    shown += [path.read_bytes().decode("latin-1") for path in (fleet.folder / "out").iterdir()]

    assert "by-token" in "".join(shown)  # they do say who joined
    secrets = [token.read_text().strip().rpartition(":")[2]]
    secrets += [line for key in keys for line in key.read_text().splitlines()[1:-1]]
    assert len(secrets) > 4
    for secret in secrets:
        assert not any(secret in text for text in shown)


def test_a_client_is_called_as_its_token_says(fleet: Fleet) -> None:
    authority = Authority.create(fleet.folder / "keys")
    cert = authority.certify_server(["127.0.0.1"], 1)
    server = Server(
        fleet.start(
            "server", "--task", TASK, "--port", 0, "--json", "--rounds", 1, "--min-clients", 1,
            "--tls-cert", cert, "--tls-key", cert.with_suffix(".key"),
            "--tokens", authority.tokens,
        )
    )  # fmt: skip
    join = ("client", "--task", TASK, "--server", f"127.0.0.1:{server.port}")
    trusting = (*join, "--tls-ca", authority.ca)
    for arguments, says in (
        (trusting, "takes clients with a token: give --token-file"),
        ((*join, "--insecure"), "the server speaks TLS and this client plaintext"),
        ((*join, "--insecure", "--token-file", "x"), "a token needs TLS"),
    ):
        _, err = (client := fleet.start(*arguments)).communicate(timeout=LIMIT)
        assert client.returncode == 2
        assert says in err.splitlines()[-1]
    client = fleet.start(*trusting, "--token-file", authority.make_token("pi/3"))

    assert [client.wait(LIMIT), server.process.wait(LIMIT)] == [0, 0]
    joined = [event["client_id"] for event in server.events if event.get("what") == "joined"]
    assert joined == ["pi/3"]
