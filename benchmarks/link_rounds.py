"""What a round takes over a link: plain Flower, FedSZ as published, and fedsz.

    python -m benchmarks.link_rounds record STEPS --data-dir DIR   # once: the steps of a training
    python -m benchmarks.link_rounds run STEPS docs/results/links.parquet
    python -m benchmarks.link_rounds table docs/results/links.parquet
    python -m benchmarks.link_rounds draw docs/results/links.parquet docs/round-at-10-mbit.svg

`record` trains ResNet50 (23.5 million parameters) on CIFAR-10. `run` replays its steps in the app
of benchmarks/link_app: a server and a client in network namespaces of their own, with an emulated
link between them (benchmarks/netem_link.py), on the own link and on a SuperLink with a SuperNode.
Seconds are of a round without training. Runs that the file has are not made again. Linux, root; an
hour and a half, most of it plain Flower's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from benchmarks.measuring import add_missing, machine, rows_of
from benchmarks.measuring import table as markdown
from benchmarks.netem_link import SERVER_ADDRESS, Line, namespaces, run
from fedsz.experiments.link_model import Link
from fedsz.palette import COLOURS

APP: Final = Path(__file__).parent / "link_app"
ENGINES: Final = "own link", "SuperLink"
WAYS: Final = "Flower", "FedSZ as published", "fedsz"
PORT: Final = 8080
ROUNDS: Final = 3
STEPS: Final = 20  # of SGD in a round
BATCH: Final = 16
SIDE: Final = 64  # pixels: below, the last feature maps of ResNet50 are 1 x 1
LIMIT: Final = 1800.0  # seconds that a cell may take
NUMBERS: Final = {  # of the table, and what they are divided by
    **{f"{part}seconds": 1 for part in ("", "down_", "client_", "up_")},
    **{f"{part}_bytes": 1e6 for part in ("down", "up")},
}
COLOURED: Final = {  # of the picture: a colour of the palette, and its meaning
    "down_seconds": ("indigo", "model down"),
    "client_seconds": ("red", "client's coding"),
    "up_seconds": ("blue", "update up, and average"),
}


class Cell(NamedTuple):
    """What is measured: ways over one link."""

    engine: str
    way: str
    megabits: float  # a second, each way
    latency_ms: float  # one way
    loss: float  # share of packets


def cells() -> Iterator[Cell]:
    """Yield what `run` measures."""
    for link in ((1000.0, 2.0), (1000.0, 50.0), (100.0, 50.0), (10.0, 50.0)):
        for way in reversed(WAYS):
            yield Cell("own link", way, *link, 0.0)
    for link in ((10.0, 50.0), (100.0, 50.0)):
        for way in reversed(WAYS):
            yield Cell("SuperLink", way, *link, 0.0)
    for link in ((10.0, 200.0), (10.0, 2.0)):
        for way in ("fedsz", "Flower"):
            yield Cell("own link", way, *link, 0.0)
    yield Cell("own link", "fedsz", 1.0, 50.0, 0.0)
    yield Cell("own link", "fedsz", 10.0, 50.0, 0.01)  # plain Flower takes half an hour a round


def record(folder: Path, data_dir: Path) -> None:
    """Train, and write the model, the step of each round, and the seconds of a round."""
    import torch
    from safetensors.torch import save_file

    from fedsz.training import datasets, models

    division = datasets.Division(1, samples=ROUNDS * STEPS * BATCH, seed=0)
    data = datasets.open_shares("cifar10", division, data_dir=data_dir)(0)
    model = models.build("resnet50", num_classes=10, in_channels=3, seed=0)
    grown = torch.nn.Upsample((SIDE, SIDE), mode="bilinear")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    folder.mkdir(parents=True, exist_ok=True)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    save_file(before, folder / "model.safetensors")
    begin = time.process_time()
    for number in range(1, ROUNDS + 1):
        for i in range((number - 1) * STEPS, number * STEPS):
            rows = slice(i * BATCH, (i + 1) * BATCH)
            optimizer.zero_grad()
            images = grown((data.x[rows].float() / 255 - 0.5) / 0.25)
            loss = torch.nn.functional.cross_entropy(model(images), data.y[rows])
            loss.backward()
            optimizer.step()
        after = {name: x.clone() for name, x in model.state_dict().items()}
        steps = {name: x - before[name] for name, x in after.items()}
        save_file(steps, folder / f"step-{number}.safetensors")
        before = after
    seconds = (time.process_time() - begin) / ROUNDS
    (folder / "training.json").write_text(json.dumps({"seconds": seconds, "steps": STEPS}))


@contextmanager
def process(namespace: str, home: Path, steps: Path, *command: str) -> Iterator[subprocess.Popen]:
    """Start a process in a namespace; afterwards it and all that it has started are ended."""
    from tests.flower_engine import environment

    paths = os.pathsep.join((environment(home)["PYTHONPATH"], str(APP)))
    own = {"LINK_STEPS": str(steps), "LINK_RESULT": str(home / "result.json"), "PYTHONPATH": paths}
    own["LINK_STATE"] = str(home / "state")
    with (home / "log").open("a") as log:
        started = subprocess.Popen(
            [shutil.which("ip") or "ip", "netns", "exec", namespace, *command],
            env=environment(home) | own,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield started
    finally:
        with suppress(ProcessLookupError):  # all of them have ended
            os.killpg(started.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                started.wait(20)
            os.killpg(started.pid, signal.SIGKILL)


def measured(steps: Path, *values: Any) -> list[dict[str, Any]]:
    """Return the rows of a cell, one for each round."""
    cell = Cell(*values)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        names = stack.enter_context(namespaces())
        link = Link(1e6 * cell.megabits, cell.latency_ms / 1e3)
        stack.enter_context(Line(names, link, loss=cell.loss))
        server, client = names

        def start(namespace: str, *command: str) -> subprocess.Popen:
            return stack.enter_context(process(namespace, home, steps, *command))

        if cell.engine == "own link":
            this = [sys.executable, "-m", "benchmarks.link_rounds"]
            ends = start(server, *this, "serve", cell.way)
            start(client, *this, "connect")
        else:
            ends = on_superlink(cell, home, start, server, client)
        if ends.wait(LIMIT):
            raise SystemExit(f"{cell}: {(home / 'log').read_text()[-3000:]}")
        rounds = json.loads((home / "result.json").read_text())
    training = json.loads((steps / "training.json").read_text())["seconds"]
    about = {"training_seconds": training, "machine": machine("flwr", "grpcio")}
    return [cell._asdict() | one | about for one in rounds]


def on_superlink(cell: Cell, home: Path, start: Any, server: str, client: str) -> subprocess.Popen:
    """Start Flower's programs, and return `flwr run`."""
    programs, address = Path(sys.executable).parent, f"{SERVER_ADDRESS}:{PORT}"
    run("ip", "-n", server, "link", "set", "lo", "up")
    run("ip", "-n", client, "link", "set", "lo", "up")
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    superlink = [str(programs / "flower-superlink"), "--insecure", "--isolation", "subprocess"]
    start(server, *superlink, "--host", SERVER_ADDRESS, "--port", str(PORT))
    time.sleep(10)  # it has no sign that another namespace sees
    supernode = [str(programs / "flower-supernode"), "--insecure", "--superlink", address]
    start(client, *supernode)
    config = f'way="{cell.way}" rounds={ROUNDS}'
    app = [str(programs / "flwr"), "run", str(APP), "--stream", "--run-config", config]
    return start(server, *app)


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table of the means of the rounds after the first, a line for each cell."""
    lines = []
    for cell in cells():
        found = [r for r in rows if Cell(*(r[key] for key in Cell._fields)) == cell]
        found = [r for r in found if r["round"] > 1]
        if found:
            link = f"{cell.megabits:g} Mbit/s, {cell.latency_ms:g} ms"
            link += f", {cell.loss:.0%} lost" if cell.loss else ""
            mean = {key: fmean(r[key] for r in found) for key in found[0] if key in NUMBERS}
            numbers = [mean[key] / scale for key, scale in NUMBERS.items()]
            lines.append([cell.engine, link, cell.way, *(f"{x:.1f}" for x in numbers)])
    heads = ["engine", "link, each way", "sent by", "round, s", "down, s", "client, s", "up, s"]
    return markdown([*heads, "down, MB", "up, MB"], lines, left=3)


def picture(rows: list[dict[str, Any]]) -> str:
    """Return an SVG with a bar for each way: a round on the own link at 10 Mbit/s and 50 ms."""
    parts, height = [], 40
    for way in WAYS:
        found = [r for r in rows if (r["engine"], r["way"]) == ("own link", way)]
        found = [r for r in found if (r["megabits"], r["latency_ms"], r["loss"]) == (10, 50, 0)]
        seconds = {key: fmean(r[key] for r in found if r["round"] > 1) for key in COLOURED}
        parts.append(f'<text class="ink" x="150" y="{height + 17}" text-anchor="end">{way}</text>')
        x = 160.0
        for key, (colour, _) in COLOURED.items():
            width = 2.4 * seconds[key]
            box = f'x="{x:.1f}" y="{height}" width="{width:.1f}" height="24"'
            parts.append(f'<rect class="{colour}" {box}/>')
            x += width
        total = f"{sum(seconds.values()):.0f} s"
        parts.append(f'<text class="ink" x="{x + 6:.1f}" y="{height + 17}">{total}</text>')
        height += 36
    x = 160
    for colour, meaning in COLOURED.values():
        parts.append(f'<rect class="{colour}" x="{x}" y="{height}" width="12" height="12"/>')
        parts.append(f'<text class="ink" x="{x + 17}" y="{height + 11}">{meaning}</text>')
        x += 30 + 8 * len(meaning)
    title = "A round beside training: ResNet50, 94 MB, 10 Mbit/s, 50 ms each way"
    inks = ["".join(f".{name}{{fill:{pair[i]}}}" for name, pair in COLOURS.items()) for i in (0, 1)]
    style = f"text{{font:14px system-ui,sans-serif}}{inks[0]}"
    style += f"@media(prefers-color-scheme:dark){{{inks[1]}}}"
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height + 24}" role="img">'
    heading = f'<text class="ink" x="16" y="24" font-weight="600">{title}</text>'
    head = (start, f"<title>{title}</title><style>{style}</style>", heading)
    return "\n".join((*head, *parts, "</svg>\n"))


def serve(way: str) -> None:
    """Be the server of the own link."""
    from overlink import server_app

    from fedsz.flower import GrpcGrid

    with GrpcGrid(SERVER_ADDRESS, PORT) as grid:
        found = server_app.run(grid, way, ROUNDS)
    Path(os.environ["LINK_RESULT"]).write_text(json.dumps(found))


def connect() -> None:
    """Be the client of the own link."""
    from overlink import client_app

    from fedsz.flower import run_client

    run_client(client_app.app, f"{SERVER_ADDRESS}:{PORT}", client_id="client")


def main() -> None:
    """Do what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("record", help="train, and write the steps")
    making.add_argument("steps", type=Path)
    making.add_argument("--data-dir", type=Path, required=True)
    running = commands.add_parser("run", help="measure what a file lacks")
    running.add_argument("steps", type=Path)
    running.add_argument("file", type=Path)
    running.add_argument("--most", type=int, help="of the cells, take the first ones")
    commands.add_parser("serve").add_argument("way")
    commands.add_parser("connect")
    commands.add_parser("table").add_argument("file", type=Path)
    drawing = commands.add_parser("draw")
    drawing.add_argument("file", type=Path)
    drawing.add_argument("picture", type=Path)
    asked = parser.parse_args()
    match asked.command:
        case "record":
            record(asked.steps, asked.data_dir)
        case "serve":
            serve(asked.way)
        case "connect":
            connect()
        case "table":
            print(table(rows_of(asked.file)))
        case "draw":
            asked.picture.write_text(picture(rows_of(asked.file)), "utf-8")
        case _:
            wanted = list(cells())[: asked.most]
            steps = asked.steps.resolve()
            add_missing(asked.file, Cell._fields, wanted, lambda *cell: measured(steps, *cell))


if __name__ == "__main__":
    # So that an end by `kill` takes the namespaces away as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
