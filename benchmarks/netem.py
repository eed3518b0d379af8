"""Rounds over emulated links, with and without compression, beside what the link model says.

    python -m benchmarks.netem [--quick] [--bandwidths 1mbps,...] [--latencies 1ms,...]
        [--repeats 3] [--codec uniform] [--error-bound rel:1e-2] [--json]

A server and a client, each a process in a network namespace of its own, exchange a model over gRPC
through a link of the bandwidth (each way) and the latency (one way) asked for: the server runs a
round of federated averaging, the client's app sends the model back. Down is from the server's
posting the packed model until the app has it, up from the app's returning the packed reply until
the server has it. `fedsz.experiments.link_model` calculates both from the bytes of gRPC's messages.
Every link gets a connection of its own; as a measure of TCP without gRPC, so does one upload of as
many bytes through a plain socket.

Needs Linux and root; takes eight minutes, with --quick less than one.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.measuring import machine, table
from benchmarks.netem_link import SERVER_ADDRESS, Line, namespaces, sysctl
from fedsz import formatting, quantities
from fedsz.arrays import as_arrays
from fedsz.errors import FedszError, LinkError
from fedsz.experiments.link_model import Link
from fedsz.flower.grid import FedSZGrid
from fedsz.flower.mod import ClientAppCallable, FedSZMod
from fedsz.flower.records import to_record
from fedsz.flower.strategy import StreamingFedAvg
from fedsz.training import models
from fedsz.transport.grpc_client import run_client
from fedsz.transport.grpc_grid import GrpcGrid

BANDWIDTHS, LATENCIES = "1mbps,10mbps,100mbps,500mbps,1gbps", "1ms,10ms,50ms"
QUICK: Final = {"bandwidths": "10mbps,1gbps", "latencies": "1ms,50ms", "repeats": 1}
RAW: Final = {"codec": "raw", "lossless": "raw"}
PATIENCE: Final = 60.0  # seconds to find each other
TIMEOUT: Final = 300.0  # seconds for a round


class Exchange(NamedTuple):
    """One round between a server and one client that sends the model back.

    Attributes:
        seconds: the round, from the server's having the model to its having the average.
        down_seconds: from the server's posting the sealed model until the client's app has it.
        up_seconds: from the client's returning the sealed reply until the server has it.
        coding_seconds: the client's compressing, and the server's decoding.
        down_bytes, up_bytes: of gRPC messages.
        raw_bytes: of the model's arrays.
    """

    seconds: float
    down_seconds: float
    up_seconds: float
    coding_seconds: float
    down_bytes: int
    up_bytes: int
    raw_bytes: int


class Cell(NamedTuple):
    """The exchanges on one link, and an upload of as many bytes as a raw one by a plain socket."""

    link: Link
    model: str
    raw: list[Exchange]
    compressed: list[Exchange]
    socket_seconds: float


# The two ends


def stamp(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Note when a message has come and when its reply leaves. A mod, to stand first."""
    came = time.monotonic()
    reply = call_next(message, context)
    if reply.has_content():
        reply.content.metric_records["moments"].update({"came": came, "left": time.monotonic()})
    return reply


def echo_app() -> ClientApp:
    """Return an app that sends the arrays back, compressed as the server asks."""
    app = ClientApp(mods=[stamp, FedSZMod()])

    @app.train()
    def echo(message: Message, _: Context) -> Message:
        moments = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": message.content["arrays"], "moments": moments})
        return Message(content, reply_to=message)

    return app


class StampedGrid(GrpcGrid):
    """A `GrpcGrid` for one client that notes when messages go and replies come."""

    posted = arrived = came = left = 0.0  # moments of the last exchange

    def stream_replies(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """See `GrpcGrid`."""
        messages = list(messages)
        if messages:  # a strategy sends none to evaluate
            self.posted = time.monotonic()
        return map(self._note, super().stream_replies(messages, timeout=timeout))

    def _note(self, reply: Message) -> Message:
        self.arrived = time.monotonic()
        if reply.has_error():
            raise LinkError(f"no reply: {reply.error.reason}")
        moments: dict[str, Any] = dict(reply.content.metric_records["moments"])
        self.came, self.left = moments["came"], moments["left"]
        return reply


def exchange(grid: StampedGrid, model: dict[str, Any], settings: dict[str, Any]) -> Exchange:
    """Run one round of federated averaging, with these settings of a `FedSZGrid`.

    Raises:
        LinkError: there was no reply.
    """
    moments: list[float] = []
    strategy = StreamingFedAvg(
        fraction_evaluate=0.0, min_train_nodes=1, min_evaluate_nodes=0, min_available_nodes=1
    )
    compressing = FedSZGrid(grid, update="weights", **settings)
    result = strategy.start(
        compressing,
        to_record(dict(model)),
        num_rounds=1,
        timeout=TIMEOUT,
        # Called before the round and after it.
        evaluate_fn=lambda *_: moments.append(time.monotonic()),
    )
    traffic = compressing.take_traffic()
    if len(result.arrays) != len(model):
        raise LinkError(f"the round failed: {traffic.failures}")
    return Exchange(
        seconds=moments[1] - moments[0],
        down_seconds=grid.came - grid.posted,
        up_seconds=grid.arrived - grid.left,
        coding_seconds=traffic.encode_seconds + traffic.decode_seconds,
        down_bytes=traffic.wire_down,
        up_bytes=traffic.wire_up,
        raw_bytes=traffic.raw_up,
    )


def serve(asked: dict[str, Any], answer: Callable[[object], None]) -> None:
    """Be the server: of rounds on a connection of their own, or of a plain socket."""
    if nbytes := asked.get("nbytes", 0):
        with socket.create_server((SERVER_ADDRESS, 0)) as listener:
            answer(listener.getsockname()[1])
            connection, _ = listener.accept()
        with connection:
            while nbytes > 0:
                nbytes -= len(connection.recv(1 << 16)) or sys.exit("the client has gone")
        answer(time.monotonic())
        return
    network = models.build(asked["model"], num_classes=10, in_channels=3, seed=0)
    model = as_arrays(network.state_dict())
    # `FedSZGrid` collects garbage as it begins to send. Torch's modules would make that 0.1 s in
    # which nothing is sent; that is no matter of the link.
    gc.freeze()
    with StampedGrid(SERVER_ADDRESS, 0) as grid:
        answer(grid.port)
        patience = time.monotonic() + PATIENCE
        while not list(grid.get_node_ids()):
            if time.monotonic() > patience:
                raise LinkError(f"no client came in {PATIENCE:.0f} seconds")
            time.sleep(0.01)
        answer([exchange(grid, model, asked["settings"]) for _ in range(asked["rounds"])])


def connect(asked: dict[str, Any], answer: Callable[[object], None]) -> None:
    """Be the client of the same."""
    if nbytes := asked.get("nbytes", 0):
        address = (SERVER_ADDRESS, asked["port"])
        with socket.create_connection(address, PATIENCE) as connection:
            connection.settimeout(TIMEOUT)
            start = time.monotonic()  # of a clock that both processes share
            connection.sendall(bytes(nbytes))
        answer(start)
        return
    server = f"{SERVER_ADDRESS}:{asked['port']}"
    run_client(echo_app(), server, client_id="netem", max_wait=PATIENCE)
    answer(None)


def be_peer(role: str) -> None:
    """Answer lines of JSON on stdin, until it ends."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for line in sys.stdin:
        act = serve if role == "server" else connect
        act(json.loads(line), lambda answer: print(json.dumps(answer), flush=True))


class Peer:
    """A process in a namespace."""

    def __init__(self, role: str, namespace: str) -> None:
        this = [sys.executable, "-m", "benchmarks.netem", "--role", role]
        self._process = subprocess.Popen(
            [shutil.which("ip") or "ip", "netns", "exec", namespace, *this],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is for this process, which ends that one
        )  # fmt: skip

    def ask(self, **what: Any) -> None:
        """Ask for something; `answer` returns it."""
        assert self._process.stdin
        print(json.dumps(what), file=self._process.stdin, flush=True)

    def answer(self) -> Any:
        """Return the next answer.

        Raises:
            FedszError: the process has ended.
        """
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise FedszError(f"a process ended with {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        """Make the process end."""
        self._process.kill()
        self._process.communicate()


# Measuring


def measured(links: Sequence[Link], asked: argparse.Namespace) -> Iterator[Cell]:
    """Yield what the exchanges take on each link.

    Raises:
        FedszError: this machine does not let us, or a process failed.
    """
    with ExitStack() as stack:
        names = stack.enter_context(namespaces())
        line = stack.enter_context(Line(names))
        server, client = map(Peer, ("server", "client"), names)
        stack.callback(server.end)
        stack.callback(client.end)

        def exchanges(model: str, settings: dict[str, str]) -> list[Exchange]:
            server.ask(model=model, settings=settings, rounds=asked.repeats)
            client.ask(port=server.answer())
            found = [Exchange(*of) for of in server.answer()]
            client.answer()
            return found

        for line.link in links:
            # 9 MB would take a minute each way on the slowest link.
            slow = line.link.bandwidth < (100e6 if asked.quick else 10e6)
            model = asked.model or ("cnn" if slow else "mobilenetv2")
            raw = exchanges(model, RAW)
            compressed = exchanges(model, {"codec": asked.codec, "error_bound": asked.error_bound})
            nbytes = raw[0].up_bytes
            server.ask(nbytes=nbytes)
            client.ask(port=server.answer(), nbytes=nbytes)
            yield Cell(line.link, model, raw, compressed, server.answer() - client.answer())
        print(f"latest packet {1e3 * line.late:.1f} ms late", file=sys.stderr)


def median(exchanges: Sequence[Exchange], name: str) -> float:
    """Return the median of something of each exchange."""
    return float(statistics.median(getattr(of, name) for of in exchanges))


def speedups(cell: Cell) -> tuple[float, float]:
    """Return how much faster a round is for compression, measured and by the link model."""

    def modelled(of: Exchange) -> float:
        transfers = cell.link.seconds(of.down_bytes) + cell.link.seconds(of.up_bytes)
        return transfers + of.seconds - of.down_seconds - of.up_seconds

    raw, compressed = (statistics.median(map(modelled, x)) for x in (cell.raw, cell.compressed))
    return median(cell.raw, "seconds") / median(cell.compressed, "seconds"), raw / compressed


def shown(cells: Sequence[Cell]) -> str:
    """Return both ways of every link, and rounds, as Markdown tables."""
    ways, rounds = [], []
    for cell in cells:
        link = [formatting.bandwidth(cell.link.bandwidth), f"{cell.link.latency * 1e3:g} ms"]
        for name, exchanges in (("raw", cell.raw), ("compressed", cell.compressed)):
            row = [*link, name]
            for way in ("down", "up"):
                nbytes = median(exchanges, f"{way}_bytes")
                seconds, modelled = median(exchanges, f"{way}_seconds"), cell.link.seconds(nbytes)
                row += [f"{nbytes / 1e6:.2f}", f"{seconds:.3f}", f"{modelled:.3f}"]
                row.append(f"{seconds / modelled:.2f}")
            of_socket = cell.socket_seconds / cell.link.seconds(cell.raw[0].up_bytes)
            ways.append([*row, f"{of_socket:.2f}" if name == "raw" else ""])
        seconds = [f"{median(x, 'seconds'):.3f}" for x in (cell.raw, cell.compressed)]
        coding = f"{median(cell.compressed, 'coding_seconds'):.3f}"
        rounds.append([*link, cell.model, *seconds, coding, *(f"{x:.2f}" for x in speedups(cell))])
    both = [f"{way} {x}" for way in ("down", "up") for x in ("MB", "s", "model s", "ratio")]
    heads = ["bandwidth", "latency", "model", "raw s", "compressed s", "coding s", "speed-up"]
    tables = (["bandwidth", "latency", "sent", *both, "TCP ratio"], ways)
    return f"{table(*tables, left=3)}\n\n{table([*heads, 'by the model'], rounds, left=3)}"


def main() -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bandwidths", default=BANDWIDTHS)
    parser.add_argument("--latencies", default=LATENCIES, help="one way")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of each kind on each link")
    parser.add_argument("--model", choices=models.MODELS, help="cnn below 10 Mbps, or mobilenetv2")
    parser.add_argument("--codec", default="uniform")
    parser.add_argument("--error-bound", default="rel:1e-2")
    parser.add_argument("--quick", action="store_true", help="four links, a round each")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--role", choices=("server", "client"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.role:
        be_peer(asked.role)
        return 0
    vars(asked).update(QUICK if asked.quick else {})
    try:
        links = [
            Link(quantities.bandwidth(bandwidth), quantities.latency(latency))
            for bandwidth in asked.bandwidths.split(",")
            for latency in asked.latencies.split(",")
        ]
        cells = list(measured(links, asked))
    except FedszError as err:
        print(f"netem: {err}", file=sys.stderr)
        return 2
    if asked.json:
        print(json.dumps([{**cell._asdict(), "link": vars(cell.link)} for cell in cells]))
        return 0
    control = sysctl("tcp_congestion_control").read_text().strip()
    about = f"{machine('grpcio', 'flwr')}; TCP's {control}; {asked.codec} at {asked.error_bound}"
    print(f"{about}; medians of {asked.repeats} rounds.\n\n{shown(cells)}")
    return 0


if __name__ == "__main__":
    # So that an end by `kill` takes the namespaces away as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
