"""Weak and strong scaling (FedSZ, Figure 9): measured on Flower's simulation, and by calculation.

Seconds of one round of n clients on w workers, one client at a time each:

    T(n, w) = ceil(n / w) (t_train + t_encode) + n (t_decode + t_engine) + t_test + transfer

A server decodes one reply after another and passes every message through its engine, hence the n.
Over links of B bit/s, S down and S' up per client, the transfer is

    ceil(n / w) 8 (S + S') / B    where each client has a link of its own, and all w send at once
    n 8 (S + S') / B              where they share the server's, which carries one after another

Constants are measured (`costs`). Weak scaling has n = w and compares with n = 1: its efficiency is
T(1, 1) / T(n, n), its speedup n times that. Strong scaling has a fixed n and compares with w = 1:
its speedup is T(n, 1) / T(n, w), its efficiency that over w.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from benchmarks.paper.simulation import simulate
from fedsz.control.record import RoundRecord
from fedsz.errors import FedszError
from fedsz.experiments.environment import stamp
from fedsz.training.options import RunConfig

Row = dict[str, Any]

ENGINE: Final = "flower simulation (ray)"
LINKS: Final = ("own", "shared")
SIZES: Final = (*(1 << k for k in range(14)), 10_000)  # clients that weak scaling is calculated for
WARM_UP: Final = 1  # rounds in which workers start and load what they need


class Costs(msgspec.Struct, frozen=True):
    """What a round is made of: seconds, and bytes on the links."""

    train: float  # of one client
    encode: float  # of one client
    decode: float  # of the server for one reply
    engine: float  # of the server for all else that a client costs it
    test: float  # of the server for testing the average, once
    sent_up: int  # bytes of one client's update
    sent_down: int  # bytes of the model that one client gets

    def seconds(
        self, clients: int, workers: int, *, bandwidth: float = math.inf, link: str = "own"
    ) -> float:
        """Return how long a round takes, by the formula above.

        ``bandwidth`` is of each client's link ("own") or of the server's ("shared"), in bit/s.
        """
        waves = math.ceil(clients / workers)
        transfer = 8 * (self.sent_up + self.sent_down) / bandwidth
        return (
            waves * (self.train + self.encode)
            + clients * (self.decode + self.engine)
            + self.test
            + (waves if link == "own" else clients) * transfer
        )


class Point(msgspec.Struct, frozen=True):
    """The rounds of one setting, a row of the `SCALING` table."""

    kind: str  # "weak" or "strong"
    workers: int
    clients: int
    rounds: int | None  # measured, after `WARM_UP`; None where the seconds are calculated
    seconds: float  # of a round, the median
    costs: Costs  # what it was made of; `engine` is what nothing else explains


def measure(
    config: RunConfig,
    settings: Iterable[tuple[str, int, int]],
    *,
    samples_per_client: int,
    on_point: Callable[[Point], None] = lambda _: None,
) -> list[Point]:
    """Measure rounds of a run on Flower's simulation engine, on this machine.

    Settings are "weak" or "strong", a number of clients, and one of workers: processes that more
    clients take turns in. ``on_point`` is told of each point.

    Raises:
        CodecUnavailable: Ray is not installed here.
        FedszError: a run failed or took too long.
    """
    points = []
    for kind, clients, workers in settings:
        run = dataclasses.replace(
            config, clients=clients, min_clients=clients, samples=clients * samples_per_client,
            rounds=config.rounds + WARM_UP,
        )  # fmt: skip
        rounds = simulate(run, workers=workers)[1 + WARM_UP :]
        points.append(point_of(kind, clients, workers, rounds))
        on_point(points[-1])
    return points


def point_of(kind: str, clients: int, workers: int, rounds: Sequence[RoundRecord]) -> Point:
    """Return what rounds came to, each number the median over them.

    Raises:
        FedszError: a client's reply was missing.
    """
    short = [row for row in rounds if row.replies < clients]
    if short or not rounds:
        why = short[0].failures[0].reason if short and short[0].failures else "no round was made"
        raise FedszError(f"not all of {clients} clients replied: {why}")
    seconds, test, *totals = (
        float(statistics.median(getattr(row, name) for row in rounds))
        for name in ("seconds", "test_seconds", "train_seconds", "encode_seconds",
                     "decode_seconds", "sent_up", "sent_down")
    )  # fmt: skip
    train, encode, decode, sent_up, sent_down = (total / clients for total in totals)
    known = Costs(train, encode, decode, 0.0, test, round(sent_up), round(sent_down))
    engine = max(0.0, seconds - known.seconds(clients, workers)) / clients
    spent = msgspec.structs.replace(known, engine=engine)
    return Point(kind, workers, clients, len(rounds), seconds, spent)


def costs(points: Sequence[Point]) -> Costs:
    """Return the costs that calculations use.

    A client's own come from one worker, which shares the machine with nobody but the server; the
    engine's from the largest run, where what a round costs anyway is shared by most.
    """
    alone = min(points, key=lambda point: (point.workers, -point.clients)).costs
    largest = max(points, key=lambda point: point.clients).costs
    return msgspec.structs.replace(alone, engine=largest.engine, decode=largest.decode)


def rows(
    points: Sequence[Point],
    config: RunConfig,
    *,
    samples_per_client: int,
    bandwidth: float,
    strong_clients: int,
) -> list[Row]:
    """Return rows of the `SCALING` table: what `measure` returned, and what follows from it.

    The calculation has links of ``bandwidth`` bit/s, and ``strong_clients`` for strong scaling.
    """
    spent = costs(points)
    sizes = [("weak", n, n) for n in SIZES]
    sizes += [("strong", strong_clients, w) for w in SIZES if w < 2 * strong_clients]
    found = [_row(point, engine=ENGINE, how="measured", link="none") for point in points]
    of = {"engine": "calculation", "how": "calculated", "bandwidth": bandwidth}
    for link, (kind, clients, workers) in itertools.product(LINKS, sizes):
        seconds = spent.seconds(clients, workers, bandwidth=bandwidth, link=link)
        point = Point(kind, workers, clients, None, seconds, spent)
        found.append(_row(point, link=link, **of))
    same = {name: getattr(config, name) for name in ("model", "dataset", "codec")} | stamp()
    same |= {"error_bound": str(config.error_bound), "samples_per_client": samples_per_client}
    return [{**same, **row, **_gain(row, found)} for row in found]


def _row(point: Point, **more: Any) -> Row:
    columns = msgspec.to_builtins(point)
    for name, cost in columns.pop("costs").items():
        columns[name if name.startswith("sent") else f"{name}_seconds"] = cost
    return {**columns, **more}


def _gain(row: Row, rows: Sequence[Row]) -> Row:
    """Return speedup and efficiency, if there is a row of one worker to compare with."""
    weak, workers = row["kind"] == "weak", row["workers"]
    # Weak scaling is one client a worker; more of them wait for each other.
    if weak and row["clients"] != workers:
        return {}
    alone = {name: row[name] for name in ("kind", "how", "link")}
    alone |= {"workers": 1, "clients": 1 if weak else row["clients"]}
    base = next((other for other in rows if alone.items() <= other.items()), None)
    if base is None:
        return {}
    speedup = base["seconds"] / row["seconds"] * (workers if weak else 1)
    return {"speedup": speedup, "efficiency": speedup / workers}
