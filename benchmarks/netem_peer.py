"""The two ends of `netem.py`: a server and a client of a federation, each a process.

    python -m benchmarks.netem_peer server|client ADDRESS

``netem.py`` starts them, in a namespace each. A line of JSON on stdin asks for one thing, a line on
stdout answers. Moments are of the monotonic clock, which both processes share.
"""

from __future__ import annotations

import gc
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benchmarks.netem_report import Exchange
from fedsz.errors import LinkError
from fedsz.flower.grid import FedSZGrid
from fedsz.flower.mod import ClientAppCallable, FedSZMod
from fedsz.flower.records import to_record
from fedsz.flower.strategy import StreamingFedAvg
from fedsz.transport.grpc_client import run_client
from fedsz.transport.grpc_grid import GrpcGrid

PATIENCE = 60.0  # seconds to find each other
TIMEOUT = 300.0  # seconds for a round
BLOCK = 1 << 16


def stamp(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Note when a message has come and when its reply leaves. A mod, to stand first."""
    got = time.monotonic()
    reply = call_next(message, context)
    if reply.has_content():
        reply.content.metric_records["moments"].update({"got": got, "left": time.monotonic()})
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
    """A `GrpcGrid` for one client that notes when messages go and replies come.

    Attributes:
        posted, arrived: moments of the last exchange at the server.
        got, left: at the client.
    """

    posted = arrived = got = left = 0.0

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
        self.got, self.left = moments["got"], moments["left"]
        return reply


def exchange(grid: StampedGrid, model: dict[str, Any], settings: dict[str, Any]) -> Exchange:
    """Run one round of federated averaging and return what it took.

    Args:
        grid: with its client.
        model: names to arrays.
        settings: of the `FedSZGrid`.

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
    start, end = moments
    return Exchange(
        seconds=end - start,
        down_seconds=grid.got - grid.posted,
        up_seconds=grid.arrived - grid.left,
        encode_seconds=traffic.encode_seconds,
        decode_seconds=traffic.decode_seconds,
        down_bytes=traffic.wire_down,
        up_bytes=traffic.wire_up,
        raw_bytes=traffic.raw_up,
    )


def serve(address: str, ask: dict[str, Any], tell: Callable[[object], None]) -> None:
    """Run as many rounds as asked for, on a connection of their own."""
    model = arrays_of(ask["model"])
    # `FedSZGrid` collects garbage as it begins to send. Torch's modules would make that 0.1 s in
    # which nothing is sent; that is no matter of the link.
    gc.freeze()
    with StampedGrid(address, 0) as grid:
        tell(grid.port)
        patience = time.monotonic() + PATIENCE
        while not list(grid.get_node_ids()):
            if time.monotonic() > patience:
                raise LinkError(f"no client came in {PATIENCE:.0f} seconds")
            time.sleep(0.01)
        tell([exchange(grid, model, ask["settings"]) for _ in range(ask["rounds"])])


def arrays_of(name: str) -> dict[str, Any]:
    """Return a model's arrays, with the weights it starts from."""
    from fedsz.arrays import as_arrays
    from fedsz.training import models

    return as_arrays(models.build(name, num_classes=10, in_channels=3, seed=0).state_dict())


def drain(address: str, nbytes: int, tell: Callable[[object], None]) -> None:
    """Take ``nbytes`` from a plain socket, and tell when the last had come."""
    with socket.create_server((address, 0)) as listener:
        listener.settimeout(PATIENCE)
        tell(listener.getsockname()[1])
        connection, _ = listener.accept()
    with connection:
        connection.settimeout(TIMEOUT)
        while nbytes > 0:
            data = connection.recv(BLOCK)
            if not data:
                raise LinkError(f"{nbytes} bytes did not come")
            nbytes -= len(data)
    tell(time.monotonic())


def pour(server: tuple[str, int], nbytes: int) -> float:
    """Send ``nbytes`` through a plain socket; return when the first one was."""
    with socket.create_connection(server, PATIENCE) as connection:
        connection.settimeout(TIMEOUT)
        start = time.monotonic()
        connection.sendall(bytes(nbytes))
    return start


def main() -> None:
    """Do what stdin asks for, until it ends."""
    role, address = sys.argv[1:]
    logging.getLogger("flwr").setLevel(logging.ERROR)

    def tell(answer: object) -> None:
        print(msgspec.json.encode(answer).decode(), flush=True)

    for line in sys.stdin:
        ask = msgspec.json.decode(line)
        match role, ask["do"]:
            case "server", "rounds":
                serve(address, ask, tell)
            case "server", "socket":
                drain(address, ask["bytes"], tell)
            case "client", "rounds":
                server = f"{address}:{ask['port']}"
                run_client(echo_app(), server, client_id="netem", max_wait=PATIENCE)
                tell(None)
            case "client", "socket":
                tell(pour((address, ask["port"]), ask["bytes"]))


if __name__ == "__main__":
    main()
