"""What the gRPC link costs: bytes over the payload, seconds, memory.

    python benchmarks/link.py [--repeats 5] [--json]

A server and a client, each a process, exchange arrays over loopback, uncompressed. Bytes are those
a TCP proxy between the two has counted; the link's own counters stand beside them. Times are taken
without the proxy: down from the call until the ClientApp has the message, up from its return until
the server has the reply.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import socket
import statistics
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from measuring import machine, memory

from fedsz.transport.grpc_client import run_client
from fedsz.transport.grpc_grid import GrpcGrid

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

BOUND = 0.01  # of the payload: what the link may add to it
TIMEOUT = 300.0

# AlexNet for 10 classes: 57 million weights.
ALEXNET = [
    *((64, 3, 11, 11), (64,), (192, 64, 5, 5), (192,), (384, 192, 3, 3), (384,)),
    *((256, 384, 3, 3), (256,), (256, 256, 3, 3), (256,)),
    *((4096, 9216), (4096,), (4096, 4096), (4096,), (10, 4096), (10,)),
]
SMALL = [(1000, 1000)] * 4  # 16 MB


class CountingProxy:
    """Passes TCP on to a port of this machine and counts the bytes each way."""

    def __init__(self, port: int) -> None:
        self.up = self.down = 0
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.create_connection(self._target)
            for ends in ((client, server, "up"), (server, client, "down")):
                threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                setattr(self, way, getattr(self, way) + len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def echo_app() -> ClientApp:
    """Return an app that sends the arrays back, with the moments it got and returned them."""
    app = ClientApp()

    @app.train()
    def echo(message: Message, _: Context) -> Message:
        start = time.monotonic()
        moments = MetricRecord({"start": start, "end": time.monotonic()})
        content = RecordDict({"arrays": message.content["arrays"], "moments": moments})
        return Message(content, reply_to=message)

    return app


def client(port: int, pipe: Connection) -> None:
    """Be the client; tell its peak memory at the end."""
    run_client(echo_app(), f"127.0.0.1:{port}", client_id="bench")
    pipe.send(memory("VmHWM"))


def server(shapes: list[tuple[int, ...]], repeats: int, pipe: Connection) -> None:
    """Be the server; tell its port, then what `repeats` exchanges took, then its peak memory."""
    rng = np.random.default_rng(0)
    arrays = {f"{i}": rng.standard_normal(shape, np.float32) for i, shape in enumerate(shapes)}
    payload = sum(a.nbytes for a in arrays.values())
    content = RecordDict({"arrays": ArrayRecord({k: Array(a) for k, a in arrays.items()})})
    del arrays
    with GrpcGrid(port=0) as grid:
        pipe.send(grid.port)
        while not (nodes := list(grid.get_node_ids())):
            time.sleep(0.01)
        pipe.recv()  # the proxy's counts have been taken
        for _ in range(repeats):
            before, start = grid.counters, time.monotonic()
            request = Message(content, nodes[0], "train")
            (reply,) = grid.send_and_receive([request], timeout=TIMEOUT)
            end, after = time.monotonic(), grid.counters
            assert reply.content["arrays"] == content["arrays"]
            moments = reply.content["moments"]
            pipe.send(
                {
                    "payload": payload,
                    "down_seconds": moments["start"] - start,
                    "up_seconds": end - moments["end"],
                    "down_counted": after.wire_bytes_sent - before.wire_bytes_sent,
                    "up_counted": after.wire_bytes_received - before.wire_bytes_received,
                }
            )
            del reply
            pipe.recv()
        pipe.send(memory("VmHWM"))


def exchange(
    shapes: list[tuple[int, ...]], repeats: int, *, proxied: bool
) -> tuple[list[dict[str, Any]], float, float]:
    """Return what each exchange took, and the peak memory of server and client in MB."""
    spawn = multiprocessing.get_context("spawn")
    pipe, server_pipe = spawn.Pipe()
    client_end, client_pipe = spawn.Pipe()
    serving = spawn.Process(target=server, args=(shapes, repeats, server_pipe), daemon=True)
    serving.start()
    port = pipe.recv()
    proxy = CountingProxy(port) if proxied else None
    target = proxy.port if proxy else port
    training = spawn.Process(target=client, args=(target, client_pipe), daemon=True)
    training.start()
    results = []
    for _ in range(repeats):
        down, up = (proxy.down, proxy.up) if proxy else (0, 0)
        pipe.send("go")
        result = pipe.recv()
        if proxy:
            result |= {"down_wire": proxy.down - down, "up_wire": proxy.up - up}
        results.append(result)
    pipe.send("done")
    peaks = pipe.recv(), client_end.recv()
    serving.join(10)
    training.join(10)
    return results, *peaks


def spread(values: list[float], digits: int) -> str:
    """Return the median, and the least and the greatest."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="exchanges of the large state")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()

    (counted,), *_ = exchange(SMALL, 1, proxied=True)
    timed, server_peak, client_peak = exchange(ALEXNET, options.repeats, proxied=False)
    over = {way: counted[f"{way}_wire"] / counted["payload"] - 1 for way in ("down", "up")}
    if options.json:
        report = {
            "machine": machine("grpcio", "flwr"),
            "bytes": counted,
            "exchanges": timed,
            "server_peak_mb": server_peak,
            "client_peak_mb": client_peak,
        }
        json.dump(report, sys.stdout, indent=2)
        print()
    else:
        print(machine("grpcio", "flwr"))
        print(f"\n{counted['payload'] / 1e6:.1f} MB    payload  on the wire    over  own counters")
        for way in ("down", "up"):
            print(
                f"{way:<6} {counted['payload']:12,} {counted[f'{way}_wire']:12,}"
                f" {over[way]:7.3%} {counted[f'{way}_counted']:13,}"
            )
        size = timed[0]["payload"] / 1e6
        print(f"\n{size:.1f} MB           seconds                   MB/s")
        for way in ("down", "up"):
            seconds = [t[f"{way}_seconds"] for t in timed]
            speeds = [size / s for s in seconds]
            print(f"{way:<6} {spread(seconds, 2):>20} {spread(speeds, 0):>22}")
        print(f"\npeak memory: server {server_peak:.0f} MB, client {client_peak:.0f} MB")
    if max(over.values()) > BOUND:
        sys.exit(f"the link adds more than {BOUND:.0%} to the payload")


if __name__ == "__main__":
    main()
