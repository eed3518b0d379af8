"""Scaling: the arithmetic, and a real run on Flower's engine."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")

from benchmarks.paper import scaling
from benchmarks.paper.scaling import Costs, Point, point_of
from benchmarks.paper.simulation import simulate
from fedsz import extras
from fedsz.control.record import Failure, RoundRecord
from fedsz.errors import FedszError
from fedsz.experiments.results import SCALING, Results, read
from fedsz.training.options import RunConfig

COSTS = Costs(
    train=2.0, encode=0.5, decode=0.1, engine=0.2, test=1.0, sent_up=1_000_000, sent_down=4_000_000
)
needs_ray = pytest.mark.skipif(bool(extras.missing("ray")), reason="Ray is not installed")


def round_of(number: int, *, replies: int = 2, seconds: float = 10.0) -> RoundRecord:
    return RoundRecord(
        round=number, accuracy=0.5, loss=1.0, seconds=seconds, replies=replies,
        failures=[] if replies == 2 else [Failure("1", "gone")], raw_up=80, sent_up=20,
        raw_down=80, sent_down=60, wire_up=0, wire_down=0, encode_seconds=1.0,
        decode_seconds=0.4, max_error=1.0, train_seconds=4.0, test_seconds=1.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("clients", "workers", "link", "seconds"),
    [
        (1, 1, {}, 2.5 + 0.3 + 1),
        (4, 4, {}, 2.5 + 4 * 0.3 + 1),
        (4, 1, {}, 4 * 2.5 + 4 * 0.3 + 1),
        (5, 2, {}, 3 * 2.5 + 5 * 0.3 + 1),
        # 5 MB at 10 Mbps, one at a time or all at once
        (8, 8, {"bandwidth": 10e6, "link": "own"}, 2.5 + 8 * 0.3 + 1 + 4),
        (8, 8, {"bandwidth": 10e6, "link": "shared"}, 2.5 + 8 * 0.3 + 1 + 8 * 4),
    ],
)
def test_clients_work_in_turns_and_the_server_takes_one_after_another(
    clients: int, workers: int, link: dict[str, Any], seconds: float
) -> None:
    assert COSTS.seconds(clients, workers, **link) == pytest.approx(seconds)


def test_what_rounds_do_not_explain_is_the_engine() -> None:
    point = point_of(
        "weak", 2, 1, [round_of(i, seconds=s) for i, s in enumerate((9.0, 10.0, 30.0))]
    )

    # 10 s less two turns of 2 + 0.5, two replies of 0.2, and 1 to test: 3.6 for two clients.
    assert point.seconds == 10.0
    assert point.costs.engine == pytest.approx(1.8)
    assert (point.costs.sent_up, point.costs.sent_down) == (10, 30)


def test_a_round_with_a_client_missing_is_no_measurement() -> None:
    with pytest.raises(FedszError, match="not all of 2 clients replied: gone"):
        point_of("weak", 2, 1, [round_of(1), round_of(2, replies=1)])
    with pytest.raises(FedszError, match="no round was made"):
        point_of("weak", 2, 1, [])


def test_a_formula_that_fits_gives_back_what_it_was_made_from(tmp_path: Path) -> None:
    points = [
        Point(kind, workers, clients, 3, COSTS.seconds(clients, workers), COSTS)
        for kind, clients, workers in (("weak", 1, 1), ("weak", 2, 2), ("weak", 8, 2),
                                       ("strong", 8, 1), ("strong", 8, 2))
    ]  # fmt: skip

    rows = scaling.rows(
        points, RunConfig(), samples_per_client=10, bandwidth=math.inf, strong_clients=127
    )
    with Results(tmp_path / "scaling.parquet", SCALING) as results:
        results.add(rows)

    kept = read(tmp_path / "scaling.parquet", SCALING).to_pylist()
    by = {(r["kind"], r["how"], r["link"], r["clients"], r["workers"]): r for r in kept}
    assert by["weak", "calculated", "own", 2, 2]["seconds"] == pytest.approx(
        by["weak", "measured", "none", 2, 2]["seconds"]
    )
    two = by["weak", "measured", "none", 2, 2]
    assert two["efficiency"] == pytest.approx(COSTS.seconds(1, 1) / COSTS.seconds(2, 2))
    assert two["speedup"] == pytest.approx(2 * two["efficiency"])
    assert by["weak", "measured", "none", 8, 2]["speedup"] is None  # four clients take turns
    strong = by["strong", "measured", "none", 8, 2]
    assert strong["speedup"] == pytest.approx(COSTS.seconds(8, 1) / COSTS.seconds(8, 2))
    assert max(r["clients"] for r in kept) == 10_000
    assert by["strong", "calculated", "own", 127, 128]["efficiency"] < 1


@pytest.mark.slow
@needs_ray
def test_the_apps_run_on_flowers_engine_and_nothing_of_it_stays(short_folder: str) -> None:
    config = RunConfig(clients=3, min_clients=3, rounds=2, samples=300, test_samples=100)

    rounds = simulate(config, workers=2, timeout=600)

    assert [row.round for row in rounds] == [0, 1, 2]
    assert [row.replies for row in rounds] == [0, 3, 3]
    assert rounds[-1].accuracy > rounds[0].accuracy
    assert rounds[-1].train_seconds > 0
    assert 0 < rounds[-1].max_error <= 1
    point = point_of("weak", 3, 2, rounds[1:])
    assert point.costs.train > 0
    assert not left(short_folder)


@needs_ray
def test_a_simulation_that_fails_or_lasts_is_ended_and_says_why(short_folder: str) -> None:
    with pytest.raises(FedszError, match=r"no data set 'mnist'"):
        simulate(RunConfig(dataset="mnist"), workers=1, timeout=60)
    with pytest.raises(FedszError, match=r"took more than 2 s"):
        simulate(RunConfig(rounds=1000), workers=1, timeout=2)
    assert not left(short_folder)


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A place of this test's own for Ray's sockets, whose names must be short."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield folder


def left(folder: str) -> list[str]:
    """Return the processes that were told of a folder, and what is in it."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            commands.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    told = [command for command in commands if folder in command]
    return told + [path.name for path in Path(folder).iterdir()]
