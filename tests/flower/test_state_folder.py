"""A client's state on disk: true or absent. And what a server's failure does to its clients."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from msgspec import structs

from fedsz.data_share import Share
from fedsz.errors import ConfigError
from fedsz.flower import GrpcGrid
from fedsz.flower.records import to_array
from fedsz.transport.frames import PROTOCOL, Ack, Hello, pack
from fedsz.transport.link_events import EventKind
from fedsz.transport.node import HELLO, STATE, StateFolder
from fedsz.whole_files import LOCK
from tests.conftest import files_of_at_most
from tests.links import Client, free_port

if TYPE_CHECKING:
    from tests.links import Serve

RUN, NODE = 7, 1 << 62


def state() -> RecordDict:
    record = ArrayRecord({"w": to_array(np.arange(1000, dtype=np.float32))})
    return RecordDict({"fedsz.residual.arrays": record, "own": ConfigRecord({"n": 1})})


def test_a_state_is_read_as_it_was_written_by_the_client_in_the_run(tmp_path: Path) -> None:
    with StateFolder(tmp_path) as folder:
        folder.write(RUN, NODE, state())

    with StateFolder(tmp_path) as folder:
        read = folder.read(RUN, NODE)
        assert folder.read(RUN + 1, NODE) == folder.read(RUN, NODE + 1) == RecordDict()
        folder.clear()
        assert folder.read(RUN, NODE) == RecordDict()

    assert list(read) == list(state())
    assert read["own"] == ConfigRecord({"n": 1})
    assert (read["fedsz.residual.arrays"]["w"].numpy() == np.arange(1000)).all()


def test_a_damaged_state_is_not_used(tmp_path: Path) -> None:
    """tests/training/test_resume.py has more damages to files of the same kind."""
    with StateFolder(tmp_path) as folder:
        folder.write(RUN, NODE, state())
        path = tmp_path / STATE
        path.write_bytes(path.read_bytes()[:-1])

        assert folder.read(RUN, NODE) == RecordDict()


def test_a_state_that_cannot_be_written_leaves_no_older_one(tmp_path: Path) -> None:
    with StateFolder(tmp_path) as folder:
        folder.write(RUN, NODE, state())
        with files_of_at_most(1000):
            folder.write(RUN, NODE, state())

        assert folder.read(RUN, NODE) == RecordDict()
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_two_clients_do_not_share_a_folder(tmp_path: Path) -> None:
    with StateFolder(tmp_path), pytest.raises(ConfigError, match="another client works in"):
        StateFolder(tmp_path)
    StateFolder(tmp_path).write(RUN, NODE, state())


def test_a_full_tmpdir_fails_a_reply_and_not_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = serve()
    server.client("a")
    with files_of_at_most(100_000):
        (reply,) = server.ask(size=100_000)
    (later,) = server.ask(size=100_000)

    assert "the reply of client 'a' could not be stored: File too large" in reply.error.reason
    assert later.has_content()


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (ConfigError("cannot write out/checkpoint: File too large"),) * 2,
        (KeyboardInterrupt(), "it was interrupted"),
        (ValueError("a bug"), "ValueError"),
    ],
    ids=["a full disk", "SIGTERM", "a bug"],
)
def test_a_server_that_fails_is_waited_for_and_tells_why(
    failure: BaseException, why: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsz.transport.grpc_client._POLL_SECONDS", 0.05)
    monkeypatch.setattr("fedsz.transport.grpc_client.FIRST_DELAY", 0.05)

    def fail() -> None:
        client.events.wait(EventKind.JOINED)
        raise failure

    grid = GrpcGrid(port=free_port())
    client = Client(f"127.0.0.1:{grid.port}", "a")
    with pytest.raises(type(failure)), grid:
        fail()

    told = client.events.wait(EventKind.LEFT).detail
    assert told == f"the server stopped before the run had finished: {why}"
    assert client.error is None
    assert client.thread.is_alive()
    client.stop.set()
    assert client.ended() is None


def hello_of(key: bytes, client_id: str = "a") -> Hello:
    return Hello(PROTOCOL, client_id, {}, [], key, wants_share=True)


def test_a_process_says_what_the_one_before_said(tmp_path: Path) -> None:
    first, second = hello_of(b"1" * 16, "drawn"), hello_of(b"2" * 16, "drawn again")
    share = Share(1, 2).as_config()
    with StateFolder(tmp_path) as folder:
        assert folder.resume(first, named=False) == first
        folder.keep(structs.replace(first, node_config=share))
    with StateFolder(tmp_path) as folder:
        assert folder.resume(second, named=False) == structs.replace(first, node_config=share)
        named = folder.resume(hello_of(b"3" * 16, "own"), named=True)
        assert (named.client_id, named.session_key) == ("own", b"1" * 16)
        folder.clear()
        assert folder.resume(second, named=False) == second


@pytest.mark.parametrize("damaged", [b"", b"\xff", pack(hello_of(b"k" * 8)), pack(Ack("m", True))])
def test_a_damaged_hello_is_not_resumed(tmp_path: Path, damaged: bytes) -> None:
    path = tmp_path / HELLO
    path.write_bytes(damaged)
    path.chmod(0o600)
    with StateFolder(tmp_path) as folder:
        assert folder.resume(hello_of(b"k" * 16), named=True) == hello_of(b"k" * 16)


def test_all_files_of_a_client_are_its_owners_alone(tmp_path: Path) -> None:
    with StateFolder(tmp_path) as folder:
        folder.write(RUN, NODE, state())
        folder.resume(hello_of(b"1" * 16), named=False)

    written = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert written.pop(LOCK) is not None  # empty
    assert written == dict.fromkeys((STATE, HELLO), 0o600)
