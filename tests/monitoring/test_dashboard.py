"""The live page: what it is told, who may ask, and what a damaged folder does to it."""

from __future__ import annotations

import base64
import http.client
import json
import secrets
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from fedsz.errors import ConfigError
from fedsz.monitoring.live_page import Dashboard, served
from fedsz.monitoring.live_round import LiveRound
from fedsz.training.events import Client, Listening, to_json
from fedsz.training.run_folder import CONFIG, ROUNDS
from fedsz.transport.address import Address
from tests.certificates import Authority
from tests.links import LONG
from tests.monitoring.watched_runs import ask, port_of, record, write_run

TOKEN = secrets.token_hex(16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run that is over."""
    return write_run(tmp_path_factory.mktemp("watched") / "run", 1)


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    """Of its page, for this machine alone."""
    with served(Dashboard(folder), "0") as url:
        yield port_of(url)


def run_of(dashboard: Dashboard, after: int = 0) -> Any:
    """What the page asks for."""
    return json.loads(dashboard.run(after))


def test_the_page_has_every_round_and_client(tmp_path: Path) -> None:
    run = run_of(Dashboard(write_run(tmp_path / "run", 12, clients=10)))

    assert run["state"]["finished"]
    assert run["state"]["notices"] == []
    assert [row["round"] for row in run["rounds"]] == list(range(13))
    row, made = run["rounds"][7], record(7, 10)
    for name in ("accuracy", "loss", "sent_up", "raw_down", "energy_fraction", "seconds"):
        assert row[name] == getattr(made, name)
    assert sum(row["refused"].values()) == len(made.failures) == 1
    assert made.decision is not None
    assert row["decision"]["why"] == made.decision.why
    clients, records = run["clients"], [record(number, 10) for number in range(13)]
    assert sorted(client["name"] for client in clients) == [f"pi-{i:04}" for i in range(10)]
    assert sum(x["replies"] for x in clients) == sum(len(one.clients) for one in records)
    assert sum(x["failures"] for x in clients) == sum(len(one.failures) for one in records)
    assert all(client["reason"] and client["bandwidth"] for client in clients)


def test_rounds_reach_the_page_as_they_end(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 2, finished=False)
    with served(Dashboard(folder), "0") as url:

        def asked(after: str) -> Any:
            return json.loads(ask(port_of(url), f"/api/run?after={after}").body)

        assert [len(asked(after)["rounds"]) for after in ("", "0", "-1", "2", "3", "9", "x")] == [
            *(3, 3, 3, 1, 0, 0, 3)
        ]
        assert not asked("3")["state"]["finished"]
        line = to_json(record(3)) + "\n"
        with (folder / ROUNDS).open("a") as file:
            file.write(line[:40])  # half a line is none
            file.flush()
            assert asked("3")["rounds"] == []
            file.write(line[40:])
        assert [row["round"] for row in asked("3")["rounds"]] == [3]
        write_run(folder, 1)
        assert "another run" in asked("4")["state"]["notices"][0]


def test_the_server_tells_what_goes_on(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 0, finished=False)
    dashboard = Dashboard(live=LiveRound())
    assert run_of(dashboard)["state"]["text"] == "starting the server"
    assert run_of(dashboard)["clients"] == []

    for event in (
        Listening(8080, str(folder), 2, rounds=5),
        Client("a", "joined", ""),
        Client("b", "joined", ""),
        record(0),
        Client("a", "received", ""),
    ):
        dashboard.show(event)

    run = run_of(dashboard)
    assert run["state"]["text"] == "round 1 of 5: 1 of 2 replies, waiting for b"
    assert {x["name"]: x["state"] for x in run["clients"]} == {"a": "replied", "b": "training"}


def test_no_path_leads_out_of_the_page_and_nothing_is_changed_from_it(port: int) -> None:
    for path in (
        *("/../config.toml", "/%2e%2e/config.toml", "/config.toml", "/static/dashboard.js"),
        *("/dashboard.py", "/api/run/../../rounds.jsonl", "//etc/passwd", "/rounds.jsonl"),
        "/..%2fmodel.safetensors",
    ):
        assert ask(port, path).status == 404, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
        assert ask(port, "/api/run", method).status == 405
    for path in ("/", "/dashboard.js", "/dashboard.css", "/uplot.css"):
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


def basic(token: str) -> str:
    return f"Basic {base64.b64encode(f'fedsz:{token}'.encode()).decode()}"


def test_other_hosts_need_the_token(guarded: int) -> None:
    for path in ("", "api/run", f"?token={TOKEN}"):
        answer = ask(guarded, f"/{path}")
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Basic realm="fedsz"')
    for value in ("Basic", "Basic \xff", f"Basic {TOKEN}", f"Bearer {TOKEN}", basic(f"{TOKEN}x")):
        assert ask(guarded, "/api/run", Authorization=value).status == 401
    for path in ("/", "/api/run"):
        assert ask(guarded, path, Authorization=basic(TOKEN), Host="pi.example").status == 200


def test_other_hosts_are_spoken_to_by_tls(folder: Path, tmp_path: Path, token: Path) -> None:
    authority = Authority(tmp_path, "ours")
    cert, key = map(str, authority.issue("pi"))
    trusts = ssl.create_default_context(cafile=str(authority.ca))

    with served(Dashboard(folder), "0.0.0.0:0", str(token), (cert, key)) as url:
        assert url.startswith("https://")
        link = http.client.HTTPSConnection("127.0.0.1", port_of(url), timeout=LONG, context=trusts)
        link.request("GET", "/", headers={"Authorization": basic(TOKEN)})
        assert link.getresponse().status == 200
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

    run = run_of(dashboard)
    assert run["rounds"] == run["clients"] == []
    assert not run["state"]["finished"]


def test_damaged_lines_are_left_out_and_named_and_names_are_text(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 3)
    lines = (folder / ROUNDS).read_text().splitlines()
    lines[2] = lines[2][:50]
    lines += ["\x00\xff", '{"event":"done","run_dir":"x","seconds":1}', '{"round":']
    text = "\n".join(lines).replace("pi-0001", "<img src=x onerror=alert(1)>\\u001b[2J")
    (folder / ROUNDS).write_text(text + "\n")

    run = run_of(Dashboard(folder))
    names = {client["name"] for client in run["clients"]}

    assert "<img src=x onerror=alert(1)>\\x1b[2J" in names
    assert [row["round"] for row in run["rounds"]] == [0, 1, 3]
    assert run["state"]["notices"] == [
        f"line {number} of rounds.jsonl is no round, and is left out" for number in (3, 5, 6, 7)
    ]


@pytest.mark.parametrize("config", ["no_such_option = 1\n", "= not TOML", ""])
def test_a_run_whose_options_cannot_be_read_is_shown(tmp_path: Path, config: str) -> None:
    folder = write_run(tmp_path / "run", 3)
    (folder / CONFIG).write_text(config)

    run = run_of(Dashboard(folder))

    assert len(run["rounds"]) == 4
    assert ["options are not shown" in one for one in run["state"]["notices"]] == [True] * bool(
        config
    )
