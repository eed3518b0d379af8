"""The live page: what it is told, who may ask, and what a damaged folder does to it."""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from fedsz.errors import ConfigError
from fedsz.monitoring import live_page
from fedsz.monitoring.live_page import Dashboard, served
from fedsz.monitoring.live_round import LiveRound
from fedsz.training.events import Client, Listening, Receiving, to_json
from fedsz.training.run_folder import CONFIG, ROUNDS
from fedsz.transport.address import Address
from tests.certificates import Authority
from tests.links import LONG
from tests.watched_runs import ask, port_of, record, write_run

TOKEN = secrets.token_hex(16)
Serve = Callable[[Dashboard], int]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "PAUSE_SECONDS", 0.05)


@pytest.fixture
def pages() -> Iterator[Serve]:
    """Serves dashboards until the test ends."""
    with ExitStack() as stack:
        yield lambda dashboard: port_of(stack.enter_context(served(dashboard, "0")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that is over."""
    return write_run(tmp_path_factory.mktemp("watched") / "run", 1)


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    """Of its page, for this machine alone."""
    with served(Dashboard(folder), "0") as url:
        yield port_of(url)


def run_of(dashboard: Dashboard) -> dict[str, Any]:
    """What the page begins with."""
    told: dict[str, Any] = json.loads(dashboard.run())
    return told


def told_of(port: int, after: str = "") -> Iterator[dict[str, Any]]:
    """Server-sent events, as they come."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
    link.request("GET", f"/api/events?after={after}")
    answer, event = link.getresponse(), {}
    while line := answer.readline().decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        event[name] = value
        if name == "data":
            yield {**event, "data": json.loads(value)}
            event = {}
            answer.readline()


def test_the_page_is_told_every_round_and_client(tmp_path: Path, pages: Serve) -> None:
    dashboard = Dashboard(write_run(tmp_path / "run", 12, clients=10))
    run = run_of(dashboard)
    port = pages(dashboard)

    assert json.loads(ask(port, "/api/run").body) == run
    assert run["state"]["finished"]
    assert run["state"]["notices"] == []
    assert [row["round"] for row in run["rounds"]] == list(range(13))
    row, made = run["rounds"][7], record(7, 10)
    for name in (
        "accuracy",
        "loss",
        "sent_up",
        "raw_down",
        "energy_fraction",
        "residual_ratio",
        "seconds",
    ):
        assert row[name] == getattr(made, name)
    assert sum(row["refused"].values()) == len(made.failures) == 1
    assert made.decision is not None
    assert row["decision"]["why"] == made.decision.why
    clients = json.loads(ask(port, "/api/clients").body)
    assert sorted(client["name"] for client in clients) == [f"pi-{i:04}" for i in range(10)]
    assert sum(client["replies"] for client in clients) == sum(
        len(record(number, 10).clients) for number in range(13)
    )
    assert all(client["failures"] and client["bandwidth"] for client in clients)


def test_rounds_reach_the_page_as_they_end_until_the_run_is_another(
    tmp_path: Path, pages: Serve
) -> None:
    folder = write_run(tmp_path / "run", 2, finished=False)
    dashboard = Dashboard(folder)
    news = told_of(pages(dashboard), after="0-3")
    first = next(news)
    assert first["data"]["rounds"] == []
    assert not first["data"]["state"]["finished"]

    line = to_json(record(3)) + "\n"
    with (folder / ROUNDS).open("a") as file:
        file.write(line[:40])  # half a line is none
        file.flush()
        file.write(line[40:])
    second = next(news)
    assert second["id"] == "0-4"
    assert [row["round"] for row in second["data"]["rounds"]] == [3]

    write_run(folder, 1)
    assert next(news)["event"] == "reset"
    assert run_of(dashboard)["state"]["generation"] == 1


def test_the_server_tells_what_goes_on(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 0, finished=False)
    dashboard = Dashboard(live=LiveRound())
    assert json.loads(dashboard.run())["state"]["text"] == "starting the server"
    assert json.loads(dashboard.clients()) == []

    for event in (
        Listening(8080, str(folder), 2, rounds=5),
        Client("a", "joined", ""),
        Client("b", "joined", ""),
        record(0),
        Client("a", "received", ""),
        Receiving("b", 37, 100),
    ):
        dashboard.show(event)

    state = run_of(dashboard)["state"]
    assert state["text"] == "round 1 of 5: 1 of 2 replies, waiting for b (1 uploading 37 %)"
    states = {client["name"]: client["state"] for client in json.loads(dashboard.clients())}
    assert states == {"a": "replied", "b": "uploading 37 %"}


def test_no_path_leads_out_of_the_page_and_nothing_is_changed_from_it(port: int) -> None:
    for path in (
        *("/../config.toml", "/%2e%2e/config.toml", "/config.toml", "/static/dashboard.js"),
        *("/dashboard.py", "/api/run/../../rounds.jsonl", "//etc/passwd", "/rounds.jsonl"),
        "/..%2fmodel.safetensors",
    ):
        assert ask(port, path).status == 404, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert ask(port, "/api/run", method).status == 405
    for path in ("/", "/dashboard.js", "/charts.js", "/dashboard.css", "/uplot.css"):
        answer = ask(port, path)
        assert answer.status == 200
        assert b"https://" not in answer.body  # it needs nothing of another host
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_without_a_token_only_this_machine_is_answered(port: int, folder: Path) -> None:
    for host in ("example.org", "example.org:8265", "192.0.2.1", "", "[", "a@b"):
        assert ask(port, "/api/run", Host=host).status == 403
    for here in ("localhost", f"127.0.0.1:{port}", "[::1]:80"):
        assert ask(port, "/api/run", Host=here).status == 200
    with (
        pytest.raises(ConfigError, match="needs --dashboard-token"),
        served(Dashboard(folder), "0.0.0.0:0"),
    ):
        pass


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def guarded(folder: Path, token: Path) -> Iterator[int]:
    """Of a page for others."""
    with served(Dashboard(folder), "0.0.0.0:0", str(token)) as url:
        yield port_of(url)


def test_other_hosts_need_the_token(guarded: int) -> None:
    wrong = ("?token=wrong", f"?token={TOKEN}x", "?token=%ff", "", "api/run", "api/events")
    for path in wrong:
        assert ask(guarded, f"/{path}").status == 401
    for value in ("Bearer", "Bearer wrong", f"Basic {TOKEN}", "Bearer \xff"):
        assert ask(guarded, "/api/run", Authorization=value).status == 401
    for value in ("fedsz-dashboard=wrong", "fedsz-dashboard", "=;;=", 'fedsz-dashboard="'):
        assert ask(guarded, "/api/run", Cookie=value).status == 401
    assert ask(guarded, "/api/run", Authorization=f"Bearer {TOKEN}").status == 200
    welcome = ask(guarded, f"/?token={TOKEN}")
    assert (welcome.status, welcome.headers["location"]) == (303, "/")
    cookie = welcome.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
    assert ask(guarded, "/", Cookie=cookie.partition(";")[0], Host="pi.example").status == 200


def test_other_hosts_are_spoken_to_by_tls(folder: Path, tmp_path: Path, token: Path) -> None:
    authority = Authority(tmp_path, "ours")
    cert, key = map(str, authority.issue("pi"))
    trusts = ssl.create_default_context(cafile=str(authority.ca))

    with served(Dashboard(folder), "0.0.0.0:0", str(token), (cert, key)) as url:
        assert url.startswith("https://")
        link = http.client.HTTPSConnection("127.0.0.1", port_of(url), timeout=LONG, context=trusts)
        link.request("GET", f"/?token={TOKEN}")
        answer = link.getresponse()
        assert answer.status == 303
        assert "; Secure" in str(answer.getheader("set-cookie"))
        link.close()
    none = (str(token), str(token))
    with (
        pytest.raises(ConfigError, match="token: "),
        served(Dashboard(folder), "0.0.0.0:0", str(token), none),
    ):
        pass


@pytest.mark.parametrize(("text", "mode"), [("short", 0o600), ("a" * 20, 0o644), ("ä" * 20, 0o600)])
def test_a_token_is_a_secret(folder: Path, token: Path, text: str, mode: int) -> None:
    token.write_text(text)
    token.chmod(mode)

    with (
        pytest.raises(ConfigError, match=r"holds (no token|a secret)"),
        served(Dashboard(folder), "0", str(token)),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("", ("127.0.0.1", 1)), ("9000", ("127.0.0.1", 9000)), ("pi", ("pi", 1)),
        ("pi:9000", ("pi", 9000)), ("[::1]:9000", ("::1", 9000)), ("[::]", ("::", 1)),
        (":9000", ("127.0.0.1", 9000)), ("pi:", ("pi", 1)),
        ("pi:x", None), ("pi:65536", None), ("99999", None), ("pi:-1", None),
    ],
)  # fmt: skip
def test_an_address_is_a_host_a_port_or_both(text: str, address: tuple[str, int] | None) -> None:
    if address:
        assert Address.parse(text, 1) == address
    else:
        with pytest.raises(ConfigError, match="an address is HOST:PORT"):
            Address.parse(text, 1)


def test_a_run_without_rounds_has_a_page_and_no_run_has_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        Dashboard(tmp_path)
    dashboard = Dashboard(write_run(tmp_path / "run", -1))

    run = json.loads(dashboard.run())
    assert run["rounds"] == []
    assert not run["state"]["finished"]
    assert json.loads(dashboard.clients()) == []


def test_damaged_lines_are_left_out_and_named_and_names_are_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 3)
    lines = (folder / ROUNDS).read_text().splitlines()
    lines[2] = lines[2][:50]
    lines += ["\x00\xff", '{"event":"done","run_dir":"x","seconds":1}', '{"round":']
    text = "\n".join(lines).replace("pi-0001", "<img src=x onerror=alert(1)>\\u001b[2J")
    (folder / ROUNDS).write_text(text + "\n")

    dashboard = Dashboard(folder)
    run = run_of(dashboard)
    names = {client["name"] for client in json.loads(dashboard.clients())}

    assert "<img src=x onerror=alert(1)>\\x1b[2J" in names
    assert [row["round"] for row in run["rounds"]] == [0, 1, 3]
    assert run["state"]["notices"] == [
        f"line {number} of rounds.jsonl is no round, and is left out" for number in (3, 5, 6, 7)
    ]


@pytest.mark.parametrize("config", ["no_such_option = 1\n", "= not TOML", ""])
def test_a_run_of_another_release_is_shown_as_far_as_it_is_known(
    tmp_path: Path, config: str
) -> None:
    folder = write_run(tmp_path / "run", 3)
    (folder / CONFIG).write_text(config)
    newer = (folder / ROUNDS).read_text().replace('"version":1', '"version":2,"what_is_new":1')
    (folder / ROUNDS).write_text(newer)

    run = run_of(Dashboard(folder))

    told = " ".join(run["state"]["notices"])
    assert "rounds are of version 2, and this release knows 1" in told
    assert ("options are not shown" in told) == bool(config)
