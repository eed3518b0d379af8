"""Draw what is measured, from the rows that are checked in: ``python docs/draw_results.py``.

It writes docs/accuracy-bytes.svg and docs/round-time.svg, both of `cnn` on CIFAR-10 with four
clients and equal shares; and docs/client-keeps.svg from a round of an app of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg
from fedsz.palette import COLOURS

DOCS: Final = Path(__file__).parent
TASK: Final = {"model": "cnn", "dataset": "cifar10", "partitioner": "iid"}
WAYS: Final[Mapping[str, dict[str, Any]]] = {
    "uncompressed": {"codec": "raw", "policy": "fixed"},
    "FedSZ as published": {"codec": "sz2", "error_bound": "rel:0.01"},
    "fedsz, default": {"policy": "auto"},
}
PAINT: Final = dict(zip(WAYS, ("ink", "red", "blue"), strict=True))
LINK: Final = 1e6  # bits a second
SHAPE: Final = 512, 512  # of the model of the app, one tensor
# What is drawn of a client, and the options of its server's Grid.
KEEPERS: Final[Mapping[str, dict[str, Any]]] = {
    "weights, delta, terngrad": {"update": "delta"},
    "delta, --downlink std:1": {"update": "delta", "downlink": "std:1"},
    "delta+ef, feedback&gt;...": {"update": "delta+ef"},
    "auto, the default": {},
    "dgc&gt;topk": {"update": "dgc>topk"},
    "ecx&gt;topk": {"update": "ecx>topk"},
}
# What a client's state holds by the start of its names, the colour of it, and what it is.
KEPT: Final = (
    ("fedsz.reference.", "indigo", "reference model"),
    ("fedsz.memory.", "blue", "residual, and state of methods"),
    ("fedsz.reply.", "red", "last reply"),
)


class Way(NamedTuple):
    """What a way came to: means over seeds, and medians over rounds and clients."""

    accuracies: list[float]  # by round, from 0
    megabytes: list[float]  # by round, up and down, of all clients
    up: float  # bytes of a client in a round
    down: float
    train: float  # seconds
    code: float  # seconds to encode and decode


@cache
def rows_of(file: str) -> list[dict[str, Any]]:
    """Return the rows of a file of docs/results."""
    rows: list[dict[str, Any]] = pq.read_table(DOCS / "results" / f"{file}.parquet").to_pylist()
    return rows


@cache
def ways() -> dict[str, Way]:
    """Return the ways by name, from the rows."""
    rows = [row for row in rows_of("updates") if TASK.items() <= row.items()]
    return {name: way([x for x in rows if of.items() <= x.items()]) for name, of in WAYS.items()}


def way(rows: Sequence[Mapping[str, Any]]) -> Way:
    """Return what the runs of a way came to, a row for each round of each run."""
    by_round = [[x for x in rows if x["round"] == n] for n in range(rows[0]["rounds"] + 1)]
    plain = "raw" if rows[0]["codec"] == "raw" else "sent"
    spent = [
        fmean(x[f"{plain}_up"] + x[f"{plain}_down"] for x in of) if n else 0.0
        for n, of in enumerate(by_round)
    ]
    trained = [x for x in rows if x["round"]]
    return Way(
        [100 * fmean(x["accuracy"] for x in of) for of in by_round],
        [total / 1e6 for total in accumulate(spent)],
        median(x[f"{plain}_up"] / x["replies"] for x in trained),
        median(x[f"{plain}_down"] / x["replies"] for x in trained),
        median(x["train_seconds"] / x["replies"] for x in trained),
        median((x["encode_seconds"] + x["decode_seconds"]) / x["replies"] for x in trained),
    )


def style() -> str:
    """Return colours by class, which follow the reader's light or dark mode."""
    modes = []
    for i, page in enumerate(("#fff", "#1e2129")):
        inks = "".join(
            f".{name}{{fill:{pair[i]}}}path.{name}{{fill:none;stroke:{pair[i]}}}"
            for name, pair in COLOURS.items()
        )
        modes.append(f".page{{fill:{page}}}{inks}")
    light, dark = modes
    font = "svg{font:14px system-ui,sans-serif}"
    return f"{font}{light}@media(prefers-color-scheme:dark){{{dark}}}"


def svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    """Return a whole picture with its title; sizes are in pixels."""
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
            ' aria-labelledby="title">',
            f'<title id="title">{title}</title>',
            f"<style>{style()}</style>",
            f'<rect class="page" width="{width}" height="{height}" rx="6"/>',
            label(16, 26, title, "ink", weight=600),
            *parts,
            "</svg>\n",
        )
    )


def label(
    x: float, y: float, text: str, paint: str = "soft", anchor: str = "start", weight: int = 400
) -> str:
    """Return a text; ``paint`` is the name of a colour."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{paint}" text-anchor="{anchor}"'
        f' font-weight="{weight}">{text}</text>'
    )


class Plot:
    """A plot of percent over something, of which equal distances are equal ratios.

    Args:
        span: the least and the most of what is across.
        percents: the least and the most of what is up.

    Attributes:
        parts: what has been drawn.
    """

    top, bottom, left, right = 76, 340, 56, 580

    def __init__(self, span: tuple[float, float], percents: tuple[float, float]) -> None:
        self._least, self._most = map(math.log, span)
        self.lowest, self._best = percents
        self.parts: list[str] = []

    def across(self, x: float) -> float:
        """Return where something stands from left to right."""
        share = (math.log(x) - self._least) / (self._most - self._least)
        return self.left + share * (self.right - self.left)

    def down(self, percent: float) -> float:
        """Return where it stands from top to bottom."""
        share = (percent - self.lowest) / (self._best - self.lowest)
        return self.bottom - share * (self.bottom - self.top)

    def rules(self, percents: Iterable[int], marks: Mapping[float, str], caption: str) -> None:
        """Draw what readers measure by."""
        for percent in percents:
            y = self.down(percent)
            self.parts.append(f'<path class="rule" d="M{self.left} {y:.1f}H{self.right}"/>')
            self.parts.append(label(self.left - 8, y + 5, f"{percent} %", anchor="end"))
        for mark, text in marks.items():
            x = self.across(mark)
            self.parts.append(f'<path class="rule" d="M{x:.1f} {self.top}V{self.bottom}"/>')
            self.parts.append(label(x, self.bottom + 20, text, anchor="middle"))
        middle = (self.left + self.right) / 2
        self.parts.append(label(middle, self.bottom + 42, caption, anchor="middle"))

    def line(self, values: Iterable[tuple[float, float]], paint: str) -> list[tuple[float, float]]:
        """Draw a line, and return its points."""
        points = [(self.across(x), self.down(y)) for x, y in values if y >= self.lowest]
        joined = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        self.parts.append(f'<path class="{paint}" stroke-width="2.5" d="M{joined}"/>')
        return points


def accuracy_over_bytes() -> str:
    """Return accuracy over bytes, a line for each way."""
    best = max(max(of.accuracies) for of in ways().values()) + 2
    plot = Plot((0.04, 60), (20, best))
    marks = {x: f"{x:g} MB" for x in (0.1, 1, 10)}
    plot.rules(range(20, int(best), 10), marks, "bytes up and down, ten rounds, four clients")
    for name, of in ways().items():
        spent = zip(of.megabytes[1:], of.accuracies[1:], strict=True)
        points = plot.line(spent, paint := PAINT[name])
        plot.parts += [
            f'<circle class="{paint}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points
        ]
        x, y = points[-1]
        side, anchor = (x + 10, "start") if name == "uncompressed" else (x + 6, "end")
        plot.parts.append(label(side, y - 26, name, paint, anchor, 600))
        plot.parts.append(label(side, y - 10, f"{of.megabytes[-1]:.1f} MB", paint, anchor))
    return svg("Accuracy over bytes: cnn on CIFAR-10", 680, 396, plot.parts)


class Bar(NamedTuple):
    """A bar: its name, its parts by colour, and what stands behind it."""

    name: str
    parts: Mapping[str, float]
    total: str


def bars(title: str, found: Sequence[Bar], legend: Mapping[str, str], left: int) -> str:
    """Return bars below each other; ``legend`` has what each colour means."""
    width, top, step, parts = 600, 46, 44, []
    scale = (width - left - 90) / max(sum(bar.parts.values()) for bar in found)
    for i, bar in enumerate(found):
        x, y = float(left), top + i * step
        parts.append(label(left - 10, y + 19, bar.name, "ink", "end"))
        for paint, size in bar.parts.items():
            wide = size * scale
            box = f'x="{x:.1f}" y="{y}" width="{wide:.1f}" height="28"'
            parts.append(f'<rect class="{paint}" {box}/>')
            x += wide
        parts.append(label(x + 8, y + 19, bar.total, "ink"))
    x, y = 16.0, top + len(found) * step + 18
    for paint, means in legend.items():
        parts.append(f'<rect class="{paint}" x="{x:.1f}" y="{y - 12}" width="14" height="14"/>')
        parts.append(label(x + 20, y, means))
        x += 40 + 7 * len(means)
    return svg(title, width, y + 18, parts)


def time_of_a_round() -> str:
    """Return where the time of a round goes on a slow link, a bar for each way."""
    train = ways()["uncompressed"].train  # the same work: only the machine's other load differs
    found = []
    for name, of in ways().items():
        seconds = {
            "indigo": 8 * of.down / LINK,
            "gold": train,
            "red": 0.0 if name == "uncompressed" else of.code,
            "blue": 8 * of.up / LINK,
        }
        found.append(Bar(name, seconds, f"{sum(seconds.values()):.1f} s"))
    legend = {"indigo": "model down", "gold": "training", "red": "coding", "blue": "update up"}
    return bars("A round at 1 Mbit/s: cnn, 0.46 MB", found, legend, 160)


def kept(options: Mapping[str, Any]) -> dict[str, float]:
    """Return what a client keeps after three rounds, in sizes of the model, by colour."""
    contexts: list[Context] = []
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        contexts.append(context)
        (x,) = message.content.array_records["arrays"].to_numpy_ndarrays()
        step = np.random.default_rng(len(contexts)).normal(size=x.shape).astype(np.float32)
        arrays, metrics = ArrayRecord([x + step]), MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    first = ArrayRecord([np.zeros(SHAPE, np.float32)])
    strategy = StreamingFedAvg(fraction_evaluate=0.0, min_available_nodes=1, min_train_nodes=1)
    grid = FedSZGrid(LocalGrid(app, [{}]), **options)
    strategy.start(grid, first, num_rounds=3)
    found = {paint: 0.0 for _, paint, _ in KEPT}
    for name, record in contexts[-1].state.array_records.items():
        (paint,) = (paint for start, paint, _ in KEPT if name.startswith(start))
        found[paint] += sum(len(array.data) for array in record.values()) / (4 * math.prod(SHAPE))
    return found


def what_a_client_keeps() -> str:
    """Return what a client keeps between rounds, a bar for each choice of the server's."""
    found = []
    for name, options in KEEPERS.items():
        sizes = kept(options)
        total = sum(sizes.values())
        found.append(Bar(name, sizes, f"{total:.1f} models" if total else "nothing"))
    return bars("What a client keeps between rounds", found, {p: m for _, p, m in KEPT}, 200)


PICTURES: Final[Mapping[str, Callable[[], str]]] = {
    "accuracy-bytes.svg": accuracy_over_bytes,
    "round-time.svg": time_of_a_round,
    "client-keeps.svg": what_a_client_keeps,
}

if __name__ == "__main__":
    for file, draw in PICTURES.items():
        (DOCS / file).write_text(draw(), "utf-8")
