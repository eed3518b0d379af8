"""Metrics: what Prometheus is told, and whether a server is alive and ready."""

from __future__ import annotations

import contextlib
import json
import math
import re
import socket
from collections.abc import Iterator

import msgspec
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from fedsz.control.record import RoundRecord
from fedsz.monitoring import web_server
from fedsz.monitoring.metrics import Metrics
from fedsz.monitoring.tracking import measured
from fedsz.monitoring.web_server import WebServer
from fedsz.training.events import Client, Done, Listening
from fedsz.transport.address import Address
from tests.conftest import ROOT
from tests.links import LONG
from tests.monitoring.watched_runs import ask, record


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def port(metrics: Metrics) -> Iterator[int]:
    with WebServer(metrics.app(), Address("127.0.0.1", 0)) as server:
        yield server.address.port


def samples(port: int) -> dict[str, float]:
    """Each metric by its name, with the value of its label."""
    from prometheus_client import parser

    families = parser.text_string_to_metric_families(ask(port, "/metrics").body.decode())
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


def play(metrics: Metrics, rounds: int) -> None:
    metrics.show(Listening(8080, "runs/x", 2, rounds=rounds))
    for name in ("a", "b", "c"):
        metrics.show(Client(name, "joined", ""))
    metrics.show(Client("c", "left", ""))
    for number in range(rounds + 1):
        metrics.show(record(number, 10))


def test_metrics_are_those_of_the_records(metrics: Metrics, port: int) -> None:
    before = samples(port)
    assert before["fedsz_accuracy_ratio"] != before["fedsz_accuracy_ratio"]  # NaN: not measured
    assert before["fedsz_rounds_total"] == 0
    play(metrics, 5)

    told, records = samples(port), [record(number, 10) for number in range(6)]
    assert told["fedsz_round"] == told["fedsz_rounds_total"] == 5
    assert told["fedsz_clients"] == 2
    assert told["fedsz_accuracy_ratio"] == records[-1].accuracy
    assert told["fedsz_loss"] == records[-1].loss
    assert told["fedsz_energy_ratio"] == records[-1].energy_fraction
    for way in ("up", "down"):
        for kind in ("sent", "raw"):
            total = sum(getattr(one, f"{kind}_{way}") for one in records)
            assert told[f"fedsz_{kind}_bytes_total {way}"] == total > 0
    failures = [failure.kind for one in records for failure in one.failures]
    for kind in set(failures):
        assert told[f"fedsz_failures_total {kind}"] == failures.count(kind)
    for number in range(100):  # names of clients make no metrics
        metrics.show(Client(f"stranger-{number}", "joined", ""))
        metrics.show(Client(f"stranger-{number}", "failed", "no reply"))
    assert samples(port).keys() == told.keys()
    assert samples(port)["fedsz_clients"] == 102


def test_an_error_that_nobody_measured_is_none(metrics: Metrics, port: int) -> None:
    """Of secure sums, and of runs without bounds: no round has one."""
    name = "fedsz_max_error_ratio"
    for number, error in ((0, 0.0), (1, 0.0), (2, 0.25), (3, 0.0)):
        metrics.show(msgspec.structs.replace(record(number, 10), max_error=error))
        told = samples(port)
        assert told["fedsz_round"] == number
        assert math.isnan(told[name]) if number < 2 else told[name] == 0.25
    assert measured(RoundRecord(round=1, max_error=0.25))["max_error"] == 0.25
    assert "max_error" not in measured(RoundRecord(round=1, replies=3))


def test_a_server_is_ready_while_it_serves_clients(metrics: Metrics, port: int) -> None:
    assert ask(port, "/healthz").status == 200
    for event, status, text in (
        (None, 503, b"starting the server\n"),
        (Listening(8080, "runs/x", 2), 200, b"waiting for clients: 0 of 2\n"),
        (Done("runs/x", 1.0), 503, b"sending the clients home\n"),
    ):
        if event is not None:
            metrics.show(event)
        answer = ask(port, "/readyz")
        assert (answer.status, answer.body) == (status, text)
    assert ask(port, "/healthz").status == 200


def test_more_connections_than_there_is_room_for_are_closed(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_server, "connections_for_web", lambda: 3)
    with contextlib.ExitStack() as stack:
        links = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), LONG))
            for _ in range(4)
        ]
        assert links[-1].recv(1) == b""
        links[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert links[0].recv(100).startswith(b"HTTP/1.1 200")
    monkeypatch.undo()
    assert ask(port, "/healthz").status == 200


@pytest.mark.repository
def test_the_dashboard_asks_for_metrics_that_there_are(metrics: Metrics, port: int) -> None:
    play(metrics, 3)
    board = json.loads((ROOT / "docs" / "grafana.json").read_text("utf-8"))
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    told = {name.partition(" ")[0] for name in samples(port)}

    assert asked
    for expression in asked:
        names = set(re.findall(r"\bfedsz_\w+", expression))
        assert names, expression
        assert names <= told, expression
