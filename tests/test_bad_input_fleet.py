"""Bad input to the real commands: one line on stderr, exit status 2, and nothing left behind."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import fedsz
from tests.certificates import Authority
from tests.fleets import LIMIT, TASK, Fleet, Server, complaints
from tests.test_resume_fleet import clients_of, full
from tests.test_state_folder import changed, of_another_version, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow
RUN = ("--task", TASK, "--rounds", 1, "--min-clients", 1)


def refused(fleet: Fleet, *arguments: Any, prefix: tuple[str, ...] = ()) -> str:
    """Return what a command says that ends with status 2."""
    process = fleet.start(*arguments, prefix=prefix)
    assert process.wait(LIMIT) == 2
    (line,) = complaints(process)
    assert line.startswith("fedsz: ")
    return line.removeprefix("fedsz: ")


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "theirs")


def tls_server(fleet: Fleet, files: tuple[Path, Path], *more: Any) -> Server:
    pair = ("--tls-cert", files[0], "--tls-key", files[1])
    return Server(fleet.start("server", "--port", 0, "--json", *RUN, *pair, *more))


def join(server: Server, ca: Path, *more: Any) -> tuple[Any, ...]:
    address = f"127.0.0.1:{server.port}"
    return "client", "--server", address, "--task", TASK, "--tls-ca", ca, *more


def shown(files: tuple[Path, Path]) -> tuple[Any, ...]:
    return "--tls-cert", files[0], "--tls-key", files[1]


@pytest.mark.parametrize("wrong", ["for another host", "self-signed"])
def test_a_client_ends_at_a_server_with_a_wrong_certificate(
    fleet: Fleet, ours: Authority, theirs: Authority, wrong: str
) -> None:
    files = (theirs.ca, theirs.ca_key)
    if wrong == "for another host":
        files = ours.issue("server", hosts=("192.0.2.1", "example.org"))
    server = tls_server(fleet, files)

    line = refused(fleet, *join(server, ours.ca))

    assert line.startswith(f"no link to 127.0.0.1:{server.port}: UNAVAILABLE: ")


@pytest.mark.parametrize("end", ["server", "client"])
def test_nobody_starts_with_an_expired_certificate(fleet: Fleet, ours: Authority, end: str) -> None:
    files = ours.issue("old", days=(-9, -2))
    place = {"server": ("--port", 0), "client": ("--server", "127.0.0.1:1", "--tls-ca", ours.ca)}

    line = refused(fleet, end, *place[end], "--task", TASK, *shown(files))

    assert line.startswith(f"{files[0]} expired on ")


def test_certificates_of_nobody_and_revoked_ones_are_refused(
    fleet: Fleet, ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    revoked = tmp_path / "revoked"
    revoked.touch()
    more = ("--tls-ca", ours.ca, "--revoked", revoked)
    server = tls_server(fleet, ours.issue("server"), *more)
    stranger, client = shown(theirs.issue("stranger")), shown(ours.issue("pi"))

    line = refused(fleet, *join(server, ours.ca, *stranger, "--max-wait", 1))
    assert "the server asks for a certificate that its --tls-ca has signed" in line
    ours.revoke(client[1], revoked)
    line = refused(fleet, *join(server, ours.ca, *client, "--client-id", "pi"))
    assert line.endswith(" is revoked")
    assert (
        fleet.start(*join(server, ours.ca, *shown(ours.issue("good")), "--client-id", "good")).wait(
            LIMIT
        )
        == 0
    )
    assert server.process.wait(LIMIT) == 0


def test_a_token_that_two_use_at_once_is_the_firsts(fleet: Fleet) -> None:
    for arguments in (("init", "--host", "127.0.0.1"), ("token", "a", "b")):
        assert fleet.start("keys", *arguments).wait(LIMIT) == 0
    files = (Path("keys/server.pem"), Path("keys/server.key"))
    more = ("--tokens", "keys/tokens", "--min-clients", 2, "--rounds", 3)
    server = tls_server(fleet, files, *more)
    start = join(server, Path("keys/ca.pem"), "--token-file")
    first = fleet.start(*start, "keys/clients/a.token")
    server.wait_for(lambda event: event.get("what") == "joined")

    line = refused(fleet, *start, "keys/clients/a.token", "--max-wait", 8)
    assert line.endswith("the client id 'a' is in use")
    assert fleet.start(*start, "keys/clients/b.token").wait(LIMIT) == 0
    assert [first.wait(LIMIT), server.process.wait(LIMIT)] == [0, 0]
    assert [event["replies"] for event in server.rounds()] == [0, 2, 2, 2]


@pytest.mark.parametrize("end", ["server", "client"])
def test_a_key_that_others_can_read_is_refused(fleet: Fleet, ours: Authority, end: str) -> None:
    cert, key = ours.issue("open")
    key.chmod(0o644)
    place = {"server": ("--port", 0), "client": ("--server", "127.0.0.1:1", "--tls-ca", ours.ca)}

    line = refused(fleet, end, *place[end], "--task", TASK, *shown((cert, key)))

    assert line == f"{key} holds a secret and has mode 0644: chmod 600 {key}"


@pytest.fixture
def stopped(fleet: Fleet) -> Path:
    """The folder of a run whose server was killed."""
    more = ("--rounds", 1000, "--min-clients", 2, "--run-dir", "out")
    server = fleet.server(*more)
    clients_of(fleet, server.port)
    server.wait_for(lambda event: event["event"] == "round" and event["round"] == 2)
    server.process.kill()
    server.process.wait(LIMIT)
    return fleet.folder / "out"


def test_a_checkpoint_that_is_not_whole_is_not_resumed(fleet: Fleet, stopped: Path) -> None:
    checkpoint = stopped / "checkpoint"
    whole = checkpoint.read_bytes()
    damages: dict[str, Callable[[bytes], bytes]] = {
        "bytes": shortened,
        "checksum": changed,
        "version 9": of_another_version,
    }
    for says, damage in damages.items():
        checkpoint.write_bytes(damage(whole))
        line = refused(fleet, "server", "--insecure", "--port", 0, "--resume", "out")
        assert line.startswith("cannot resume from out/checkpoint: ")
        assert says in line
    checkpoint.write_bytes(whole)
    other = shutil.copytree(stopped, fleet.folder / "other")
    with (other / "config.toml").open("a") as file:
        file.write("\n")

    line = refused(fleet, "server", "--insecure", "--port", 0, "--resume", "other")
    assert "is of another run than" in line


def test_a_finished_run_is_not_resumed(fleet: Fleet) -> None:
    server = fleet.server("--rounds", 1, "--min-clients", 2, "--run-dir", "out")
    clients_of(fleet, server.port)
    assert server.process.wait(LIMIT) == 0

    line = refused(fleet, "server", "--insecure", "--port", 0, "--resume", "out")

    next_run = "--initial out/model.safetensors starts a new run from its model"
    assert line == f"the run in out has finished: 1 round; {next_run}"


def test_a_server_waits_for_more_clients_than_one_machine_has(fleet: Fleet) -> None:
    server = fleet.server("--min-clients", 1003)

    assert server.wait_for(lambda event: event["event"] == "listening")["min_clients"] == 1003


@pytest.mark.skipif(shutil.which("bash") is None, reason="limits descriptors by bash's ulimit")
def test_too_few_descriptors_for_the_clients_are_told(fleet: Fleet) -> None:
    few = ("bash", "-c", 'ulimit -n 256; exec "$@"', "-")
    arguments = ("--insecure", "--port", 0, "--json", "--task", TASK, "--min-clients", 100)
    server = Server(fleet.start("server", *arguments, prefix=few))
    _ = server.port
    server.process.kill()

    said = server.process.communicate()[1]
    assert "too few file descriptors: enough for 64 connections, --min-clients 100" in said


@pytest.mark.skipif(shutil.which("bash") is None, reason="limits files by bash's ulimit")
def test_a_decompress_that_fails_leaves_no_file(fleet: Fleet) -> None:
    blob = fedsz.compress({"w": np.zeros(100_000, np.float32)})
    (fleet.folder / "model.fsz").write_bytes(blob)
    (fleet.folder / "cut.fsz").write_bytes(blob[:-1])
    before = sorted(path.name for path in fleet.folder.iterdir())
    arguments = ("decompress", "model.fsz", "-o", "model.safetensors")

    line = refused(fleet, *arguments, prefix=full(100))
    assert line == "cannot write model.safetensors: File too large"
    refused(fleet, "decompress", "cut.fsz", "-o", "model.safetensors")
    assert sorted(path.name for path in fleet.folder.iterdir()) == before


def test_fewer_shares_than_clients_are_refused_before_a_port_is_taken(fleet: Fleet) -> None:
    said = refused(fleet, "server", "--insecure", "--min-clients", 3, "--shares", 2)

    assert said.startswith("--shares 2 is less than --min-clients 3")
