"""Run folders of any size, as a server leaves them, for tests of what shows them; and browsers."""

from __future__ import annotations

import http.client
import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fedsz.control.record import ClientRecord, Decision, Failure, RoundRecord
from fedsz.core.settings import Settings
from fedsz.training.events import to_json
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import CHECKPOINT, CONFIG, ROUNDS
from tests.links import LONG

MODEL_BYTES = 1_200_000


def record(number: int, clients: int = 4) -> RoundRecord:
    """A round of a run that learns, with one client in ten left out of each."""
    learned = 1 - math.exp(-number / 80)
    if not number:
        return RoundRecord(round=0, accuracy=0.1, loss=2.3, test_seconds=0.2)
    out = _left_out(number % 10, clients)
    updates = _updates(number % 10, clients)
    failures = [
        Failure(f"pi-{i:04}", "no reply within 30 s", "failed" if i % 3 else "norm") for i in out
    ]
    config = Settings(error_bound=f"step:{1 + learned:g}", downlink="std:0.5")
    return RoundRecord(
        round=number,
        accuracy=0.1 + 0.85 * learned + 0.01 * math.sin(number),
        loss=2.3 * (1 - 0.9 * learned),
        replies=len(updates),
        failures=failures,
        raw_up=MODEL_BYTES * len(updates),
        sent_up=sum(update.sent_bytes for update in updates),
        raw_down=MODEL_BYTES * clients,
        sent_down=60_000 * clients,
        encode_seconds=0.02 * len(updates),
        decode_seconds=0.002 * len(updates),
        train_seconds=1.5 * len(updates),
        test_seconds=0.3,
        seconds=4 + math.sin(number / 7),
        energy_fraction=0.9 - 0.1 * learned,
        residual_ratio=0.3 + 0.2 * learned,
        decision=Decision(config=config, why=f"lag 0.3 rounds, 0.1 points of 0.5 in {number}"),
        clients=updates,
    )


def _left_out(digit: int, clients: int) -> set[int]:
    return {i for i in range(clients) if (i + digit) % 10 == 0}


@lru_cache(maxsize=10)
def _updates(digit: int, clients: int) -> list[ClientRecord]:
    """Those of a round whose number ends in a digit: a million are not made one by one."""
    return [
        ClientRecord(
            node=str(1000 + i),
            client=f"pi-{i:04}",
            bandwidth=1e6 * (1 + i % 50),
            raw_bytes=MODEL_BYTES,
            sent_bytes=40_000 + 13 * i,
            encode_seconds=0.02,
            decode_seconds=0.002,
            energy_fraction=0.9,
            residual_ratio=0.3,
        )
        for i in range(clients)
        if (i + digit) % 10
    ]


def write_run(folder: Path, rounds: int, clients: int = 4, *, finished: bool = True) -> Path:
    """Write the folder of a run: round 0, and so many after it; none at all for -1."""
    config = RunConfig(rounds=max(1, rounds), clients=min(clients, 1000))
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f'{name} = "{getattr(config, name)}"' for name in ("task", "dataset", "model")]
    (folder / CONFIG).write_text("\n".join([*lines, f"rounds = {config.rounds}", ""]))
    with (folder / ROUNDS).open("w") as file:
        for number in range(rounds + 1):
            file.write(to_json(record(number, clients)) + "\n")
    if not finished:
        (folder / CHECKPOINT).write_bytes(b"")
    return folder


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def ask(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    """Ask a web server of this machine."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)
    link.request(method, path, headers=headers)
    answer = link.getresponse()
    told = {name.lower(): value for name, value in answer.getheaders()}
    return Answer(answer.status, told, answer.read())


def port_of(url: str) -> int:
    return int(url.rstrip("/").rpartition(":")[2])
