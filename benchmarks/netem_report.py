"""What `netem.py` has measured, beside what `fedsz.experiments.link_model.Link` says, as tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from benchmarks.measuring import table
from fedsz.experiments.link_model import Link
from fedsz.formatting import bandwidth


class Exchange(msgspec.Struct, frozen=True):
    """One round between a server and one client that sends back what it got.

    Attributes:
        seconds: the round, from the server's having the model to its having the average.
        down_seconds: from the server's posting the sealed model until the client's app has it.
        up_seconds: from the client's returning the sealed reply until the server has it.
        encode_seconds: the client's compressing.
        decode_seconds: the server's decoding.
        down_bytes, up_bytes: of gRPC messages.
        raw_bytes: of the model's arrays.
    """

    seconds: float
    down_seconds: float
    up_seconds: float
    encode_seconds: float
    decode_seconds: float
    down_bytes: int
    up_bytes: int
    raw_bytes: int

    @property
    def work_seconds(self) -> float:
        """The part of the round in which nothing is under way."""
        return self.seconds - self.down_seconds - self.up_seconds


class Cell(msgspec.Struct, frozen=True):
    """What was measured on one link.

    Attributes:
        bandwidth: bits a second.
        latency: seconds, one way.
        model: whose arrays were exchanged.
        raw, compressed: rounds, in order; none where only the model is told.
        socket_seconds: what as many bytes as a raw upload took through a plain TCP socket.
        late_seconds: by how much the emulated link delivered a packet too late, at worst.
    """

    bandwidth: float
    latency: float
    model: str
    raw: list[Exchange]
    compressed: list[Exchange]
    socket_seconds: float
    late_seconds: float

    @property
    def link(self) -> Link:
        """The link."""
        return Link(self.bandwidth, self.latency)

    def modelled_round(self, exchange: Exchange) -> float:
        """Return the seconds of a round: both ways by the model, and the work as measured."""
        link = self.link
        ways = link.seconds(exchange.down_bytes) + link.seconds(exchange.up_bytes)
        return ways + exchange.work_seconds

    @property
    def socket_ratio(self) -> float:
        """Measured over modelled seconds of the plain socket."""
        return self.socket_seconds / self.link.seconds(self.raw[0].up_bytes)

    @property
    def speedup(self) -> float:
        """How much faster a round is for compression, measured."""
        return median(self.raw, seconds) / median(self.compressed, seconds)

    @property
    def modelled_speedup(self) -> float:
        """How much faster a round is for compression, by the model."""
        raw, compressed = (median(e, self.modelled_round) for e in (self.raw, self.compressed))
        return raw / compressed


class Way(msgspec.Struct, frozen=True):
    """One direction of some rounds, measured and modelled.

    Attributes:
        nbytes: of gRPC messages, median.
        seconds: measured, one for each round.
        modelled: by the model.
    """

    nbytes: int
    seconds: list[float]
    modelled: float

    @classmethod
    def of(cls, cell: Cell, exchanges: Sequence[Exchange], way: str) -> Way:
        """Return the "down" or "up" way."""
        nbytes = round(statistics.median(getattr(e, f"{way}_bytes") for e in exchanges))
        measured = [getattr(e, f"{way}_seconds") for e in exchanges]
        return cls(nbytes, measured, cell.link.seconds(nbytes))

    @property
    def ratio(self) -> float:
        """Measured over modelled seconds, of the medians."""
        return statistics.median(self.seconds) / self.modelled


def seconds(exchange: Exchange) -> float:
    """Return a round's seconds."""
    return exchange.seconds


def median(exchanges: Iterable[Exchange], of: Callable[[Exchange], float]) -> float:
    """Return the median of something of each exchange."""
    return statistics.median(map(of, exchanges))


def spread(values: Sequence[float]) -> str:
    """Return the median, and the least and the greatest where there are several."""
    middle = f"{statistics.median(values):.3f}"
    return f"{middle} ({min(values):.3f}–{max(values):.3f})" if len(values) > 1 else middle


def ways_table(cells: Sequence[Cell]) -> str:
    """Return both ways of every link as a Markdown table."""
    rows = [
        [
            bandwidth(cell.bandwidth),
            f"{cell.latency * 1e3:g} ms",
            name,
            *(
                column
                for way in (Way.of(cell, exchanges, "down"), Way.of(cell, exchanges, "up"))
                for column in (
                    f"{way.nbytes / 1e6:.2f}",
                    spread(way.seconds),
                    f"{way.modelled:.3f}",
                    f"{way.ratio:.2f}",
                )
            ),
            f"{cell.socket_ratio:.2f}" if name == "raw" else "",
        ]
        for cell in cells
        for name, exchanges in (("raw", cell.raw), ("compressed", cell.compressed))
    ]
    return table(
        [
            *("bandwidth", "latency", "sent"),
            *(
                f"{way} {what}"
                for way in ("down", "up")
                for what in ("MB", "s", "model s", "ratio")
            ),
            "TCP ratio",
        ],
        rows,
    )


def rounds_table(cells: Sequence[Cell]) -> str:
    """Return what compression does to the rounds as a Markdown table."""
    return table(
        [
            *("bandwidth", "latency", "model", "raw s", "compressed s", "encode s", "decode s"),
            *("speed-up", "by the model"),
        ],
        [
            [
                bandwidth(cell.bandwidth),
                f"{cell.latency * 1e3:g} ms",
                cell.model,
                spread([e.seconds for e in cell.raw]),
                spread([e.seconds for e in cell.compressed]),
                f"{median(cell.compressed, lambda e: e.encode_seconds):.3f}",
                f"{median(cell.compressed, lambda e: e.decode_seconds):.3f}",
                f"{cell.speedup:.2f}",
                f"{cell.modelled_speedup:.2f}",
            ]
            for cell in cells
        ],
    )


def modelled_table(cells: Sequence[Cell]) -> str:
    """Return the model's times alone, for a machine that cannot emulate links.

    Args:
        cells: with one exchange each, of bytes and of work that were had without a link.
    """
    return table(
        ["bandwidth", "latency", "model", "sent", "down s", "up s", "round s", "speed-up"],
        [
            [
                bandwidth(cell.bandwidth),
                f"{cell.latency * 1e3:g} ms",
                cell.model,
                name,
                f"{cell.link.seconds(exchange.down_bytes):.3f}",
                f"{cell.link.seconds(exchange.up_bytes):.3f}",
                f"{cell.modelled_round(exchange):.3f}",
                f"{cell.modelled_speedup:.2f}" if name == "compressed" else "",
            ]
            for cell in cells
            for name, (exchange,) in (("raw", cell.raw), ("compressed", cell.compressed))
        ],
    )


def as_json(cell: Cell) -> dict[str, Any]:
    """Return a cell and what follows from it."""
    own: dict[str, Any] = msgspec.to_builtins(cell)
    ratios = {
        f"{name}_{way}_ratio": Way.of(cell, exchanges, way).ratio
        for name, exchanges in (("raw", cell.raw), ("compressed", cell.compressed))
        for way in ("down", "up")
    }
    return (
        own
        | ratios
        | {
            "socket_ratio": cell.socket_ratio,
            "speedup": cell.speedup,
            "modelled_speedup": cell.modelled_speedup,
        }
    )
