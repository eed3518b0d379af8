"""What commands say while they work: of a client, of a server, in a log and on a terminal."""

from __future__ import annotations

import re
import time
from threading import Thread
from typing import TYPE_CHECKING

import click
import msgspec
import pytest

from fedsz.cli import screen
from fedsz.cli.screen import ClientLines, RunTable, events_shown
from fedsz.control.record import ClientRecord, Failure, RoundRecord, Traffic, count_failures
from fedsz.errors import LinkError
from fedsz.training.events import Client as ClientEvent
from fedsz.training.events import Done, Listening
from fedsz.transport.grpc_client import run_client
from fedsz.transport.link_events import EventKind, LinkEvent
from tests.links import LONG, Client, app, free_port

if TYPE_CHECKING:
    from tests.links import Serve


def test_a_client_says_what_it_does(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    with ClientLines(address) as lines:
        client = Client(address, "pi", show=lines.show)
        client.events.wait(EventKind.WAITING, n=2)
        server = serve(port=port)
        server.clients.append(client)
        client.events.wait(EventKind.JOINED)
        for number in (1, 2):
            assert server.grid.send_and_receive(server.requests(number=number), timeout=LONG)
            client.events.wait(EventKind.SENT, n=number)
        assert server.grid.send_and_receive(server.requests(number=2, kind="query"), timeout=LONG)
        client.events.wait(EventKind.SENT, n=3)
        server.grid.close("that was it")
        assert client.ended() is None

    first, refused, joined, *rounds, query, end = capsys.readouterr().out.splitlines()
    assert first == f"connecting to {address}"
    assert refused.startswith(f"no link to {address}: UNAVAILABLE: Connection refused; next try in")
    assert joined == f"joined {address} as pi"
    assert [line.partition(": ")[0] for line in rounds] == ["round 1", "round 2"]
    done = re.compile(r"round \d: received .+, sent .+; trained and sent in \d+ s")
    assert all(map(done.fullmatch, rounds))
    assert query == "round 2: failed: ValueError: no such thing"
    assert end.startswith("that was it: 2 rounds trained, ")


def test_a_client_that_ends_early_says_so(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    server = serve()
    lines = ClientLines(server.address)

    def show(event: LinkEvent) -> None:
        lines.show(event)
        if event.kind == EventKind.JOINED:
            Thread(target=server.grid.close, kwargs={"failed": True}).start()

    def run() -> None:
        with lines:
            run_client(app, server.address, client_id="pi", on_event=show, max_wait=0.1)

    with pytest.raises(LinkError, match="no link to"):
        run()
    assert capsys.readouterr().out.splitlines()[-1] == "ended early: 0 rounds trained, 0 B sent"


ROUNDS = (
    RoundRecord(round=0, accuracy=0.1),
    RoundRecord(round=1, accuracy=0.5, replies=1, failures=[Failure("b", "gone")]),
    RoundRecord(round=2, accuracy=0.5, replies=1, failures=[Failure("b", "too far", "norm")]),
)


# Of a run of which ten rounds were before this server.
TOTALS = Traffic(replies=9, raw_up=4000, sent_up=500, wire_up=600, raw_down=4000, max_error=0.25)


def test_an_error_that_nobody_has_measured_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """As of secure sums, of which the server sees no error."""
    with RunTable() as table:
        table.show(ROUNDS[1])
        table.show(
            Done("runs/x", 2.0, {}, 12, 60.0, msgspec.structs.replace(TOTALS, max_error=0.0))
        )

    out = capsys.readouterr().out
    assert "8.00x smaller" in out
    assert "largest error" not in out
    assert "0.0000" not in out


def test_a_server_says_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    with RunTable() as table:
        table.show(Listening(8080, "runs/x", min_clients=2))
        table.show(ClientEvent("a", "joined", ""))
        table.show(ClientEvent("b", "joined", ""))
        table.show(ROUNDS[0])
        table.show(ClientEvent("a", "received", ""))
        table.show(ClientEvent("b", "left", "connection lost"))
        table.show(ROUNDS[1])
        table.show(ROUNDS[2])
        failures = count_failures(ROUNDS[1].failures, {"b": {"norm": 1}, "c": {"failed": 3}})
        failures = count_failures(ROUNDS[2].failures, failures)
        table.show(Done("runs/x", 2.0, failures, 12, 60.0, TOTALS))

    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "listening on port 8080, results in runs/x",
        "waiting for clients: 0 of 2",
        "waiting for clients: 1 of 2",
        "testing the model to start from",
    ]
    assert "client b left: connection lost" in lines
    assert "round 1 without b: gone" in lines
    assert lines[-7:] == [
        "accuracy 0.5000 after 12 rounds in 60.0 s",
        "sent up 500 B for 4.0 kB of updates: 8.00x smaller (600 B on the wire)",
        "sent down 0 B for 4.0 kB of models, which clients had",
        "largest error 0.2500 of its bound",
        "rounds without b: 2 norm, 1 failed",
        "rounds without c: 3 failed",
        "results in runs/x",
    ]


@pytest.mark.parametrize("json", [True, False])
def test_a_run_of_no_use_has_an_exit_status(json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    for totals, code in ((Traffic(), 1), (TOTALS, 0)):
        try:
            with events_shown(json=json) as show:
                for record in ROUNDS:
                    show(record)
                show(Done("runs/x", 2.0, {}, 2, 4.0, totals))
            ended = 0
        except click.exceptions.Exit as err:
            ended = err.exit_code
        assert ended == code
        said = "no client sent an update that could be used" in capsys.readouterr().out
        assert said == (code == 1 and not json)


def test_a_round_whose_updates_are_all_zero_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    usual = {"bandwidth": 0.0, "raw_bytes": 9, "sent_bytes": 9}
    usual |= {"encode_seconds": 0.0, "decode_seconds": 0.0}
    told = {}
    with RunTable() as table:
        for number, moved in enumerate([(True, False), (False, False), (False, False)], 1):
            clients = [ClientRecord(node="1", moved=one, **usual) for one in moved]
            table.show(RoundRecord(round=number, replies=2, clients=clients))
            told[number] = "all updates are zero" in capsys.readouterr().out
    assert told == {1: False, 2: True, 3: False}


def test_a_server_that_is_stopped_says_where_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        with RunTable() as table:
            table.show(Listening(8080, "runs/x", min_clients=1))
            table.show(ROUNDS[0])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    (*_, last) = capsys.readouterr().out.splitlines()
    assert last.startswith("stopped in round 1; ")
    assert "--resume runs/x" in last


def test_what_goes_on_is_printed_when_nothing_was_for_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "QUIET_SECONDS", 0.01)
    with RunTable() as table:
        until(capsys, "starting the server\n")
        table.show(Listening(8080, "runs/x", min_clients=1))
        table.show(ClientEvent("a", "joined", ""))
        table.show(ROUNDS[0])
        # What comes from the other side moves no cursor.
        table.show(ClientEvent("a", "failed", "no \x1b[5Anews"))
        assert "client a failed: no news" in until(capsys, "0 of 1 replies, waiting for a\n")


def until(capsys: pytest.CaptureFixture[str], text: str) -> str:
    """Return what is printed until ``text`` is."""
    shown, deadline = "", time.monotonic() + LONG
    while text not in shown:
        assert time.monotonic() < deadline, shown
        time.sleep(0.05)
        shown += capsys.readouterr().out
    return shown
