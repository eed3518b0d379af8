"""What a model of gigabytes costs: a stream of it, and rounds of it over gRPC in both directions.

    python -m benchmarks.large_models [--layers 28] [--words 151936] [--rounds 2]
                                      [--only stream model lora]

The tensors have the shapes of Qwen2.5-1.5B (28 layers: 3.09 GB in bfloat16) and normal weights. A
server and a client are processes of their own on loopback, with the defaults of `FedSZGrid` and
`StreamingFedAvg`. The client moves each weight by a hundredth of its size. ``lora`` sends adapters
of rank 16 for the same model, in float32. Memory is a process's peak (VmHWM), in sizes of what is
sent, over what it took without it. Linux only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import ml_dtypes
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedsz
from benchmarks.measuring import forget_peak, memory
from fedsz.arrays import chunks
from fedsz.control.record import RoundRecord
from fedsz.flower import FedSZGrid, FedSZMod, GrpcGrid, StreamingFedAvg, run_client
from fedsz.flower.records import layout_of, to_array, to_record, views_of

BF16: Final = np.dtype(ml_dtypes.bfloat16)
HIDDEN, INNER, KEYS = 1536, 8960, 256
PROJECTIONS: Final = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}
RANK: Final = 16
STEP: Final = 0.01  # of a weight's standard deviation
TIMEOUT: Final = 3600.0

State = dict[str, np.ndarray]


class Size(NamedTuple):
    """How large a model is, as options of the command."""

    layers: int = 28
    words: int = 151_936

    def options(self) -> list[str]:
        """Return them for another process."""
        return ["--layers", str(self.layers), "--words", str(self.words)]


class Exchanged(NamedTuple):
    """What rounds took: bytes, seconds, and the peaks of both processes in sizes of the model."""

    size: int
    down: list[int]
    up: list[int]
    seconds: list[float]
    server_memory: float
    client_memory: float


def model_shapes(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of the whole model."""
    yield "embed_tokens.weight", (size.words, HIDDEN)
    for i in range(size.layers):
        for name, shape in PROJECTIONS.items():
            yield f"layers.{i}.{name}.weight", shape
        yield f"layers.{i}.input_layernorm.weight", (HIDDEN,)
        yield f"layers.{i}.post_attention_layernorm.weight", (HIDDEN,)


def lora_shapes(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the adapters of all projections."""
    for i in range(size.layers):
        for name, (rows, columns) in PROJECTIONS.items():
            yield f"layers.{i}.{name}.lora_A.weight", (RANK, columns)
            yield f"layers.{i}.{name}.lora_B.weight", (rows, RANK)


SENT: Final[dict[str, tuple[Callable[[Size], Iterator[tuple[str, tuple[int, ...]]]], np.dtype]]] = {
    "model": (model_shapes, BF16),
    "lora": (lora_shapes, np.dtype(np.float32)),
}


def weights(what: str, size: Size) -> State:
    """Return weights as they are drawn, of a standard deviation of 0.02."""
    shapes, dtype = SENT[what]
    rng = np.random.default_rng(0)
    return {
        name: (rng.standard_normal(shape, np.float32) * np.float32(0.02)).astype(dtype)
        for name, shape in shapes(size)
    }


def moved(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a tensor each weight of which has moved, made slice by slice to save memory."""
    y = np.empty_like(x)
    start, out = x.reshape(-1), y.reshape(-1)
    for here in chunks(x.size):
        noise = rng.standard_normal(start[here].size, np.float32)
        out[here] = start[here].astype(np.float32) + noise * np.float32(0.02 * STEP)
    return y


def bytes_of(state: State) -> int:
    """Return the bytes of all tensors."""
    return sum(x.nbytes for x in state.values())


def stream(what: str, size: Size) -> dict[str, float]:
    """Compress and decompress a state_dict by the library's defaults."""
    state = weights(what, size)
    forget_peak()
    start, held = time.perf_counter(), 1e6 * memory("VmRSS")
    blob = fedsz.compress(state)
    compressed, encoding = time.perf_counter(), 1e6 * memory("VmHWM") - held
    back = fedsz.decompress(blob, as_numpy=True)
    end = time.perf_counter()
    for name, x in state.items():
        error = np.abs(back[name].astype(np.float32) - x.astype(np.float32)).max()
        assert error <= 1e-2 * np.ptp(x.astype(np.float32))
    nbytes = bytes_of(state)
    return {
        "gigabytes": nbytes / 1e9,
        "ratio": nbytes / len(blob),
        "compress_seconds": compressed - start,
        "decompress_seconds": end - compressed,
        "compress_memory": encoding / nbytes,
    }


def serve(what: str, size: Size, rounds: int) -> None:
    """Be the server: tell the port, then what the rounds took."""
    state = weights(what, size)
    nbytes, before = bytes_of(state), 1e6 * memory("VmRSS") - bytes_of(state)
    forget_peak()
    told: list[RoundRecord] = []
    ends: list[float] = []
    with GrpcGrid(port=0) as link:
        print(json.dumps({"port": link.port}), flush=True)
        while not link.get_node_ids():
            threading.Event().wait(0.05)
        start = time.monotonic()

        def keep(record: RoundRecord) -> None:
            if record.round:  # others are before any training
                told.append(record)
                ends.append(time.monotonic() - start)

        grid = FedSZGrid(link, on_round=keep)
        strategy = StreamingFedAvg(fraction_evaluate=0, min_train_nodes=1, min_available_nodes=1)
        result = strategy.start(grid, to_record(state), num_rounds=rounds, timeout=TIMEOUT)
    assert [record.round for record in told] == list(range(1, rounds + 1)), told
    assert layout_of(result.arrays).nbytes == nbytes
    took = {
        "size": nbytes,
        "down": [record.sent_down for record in told],
        "up": [record.sent_up for record in told],
        "seconds": np.diff(ends, prepend=0.0).tolist(),
        "server_memory": (1e6 * memory("VmHWM") - before) / nbytes,
    }
    print(json.dumps(took), flush=True)


def train(port: int) -> None:
    """Be the client: train as often as asked, then tell the peak memory."""
    app = ClientApp(mods=[FedSZMod()])
    seeds = itertools.count()

    @app.train()
    def step(message: Message, context: Context) -> Message:
        del context
        rng, given = np.random.default_rng(next(seeds)), views_of(message.content["arrays"])
        trained = ArrayRecord({name: to_array(moved(x, rng)) for name, x in given.items()})
        content = {"arrays": trained, "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    before = 1e6 * memory("VmRSS")
    run_client(app, f"127.0.0.1:{port}", client_id="one")
    print(json.dumps({"memory": 1e6 * memory("VmHWM") - before}), flush=True)


def exchange(what: str, size: Size, rounds: int) -> Exchanged:
    """Run a server and a client, and return what that took."""
    this = [sys.executable, "-m", "benchmarks.large_models", *size.options()]
    serving = [*this, "--rounds", str(rounds), "--serve", what]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        training = [*this, "--train", str(port)]
        with subprocess.Popen(training, stdout=subprocess.PIPE, text=True) as client:
            took = json.loads(server.stdout.readline())
            assert client.stdout is not None
            taken = json.loads(client.stdout.readline())["memory"]
    return Exchanged(**took, client_memory=taken / took["size"])


def rows_of(what: str, took: Exchanged) -> Iterator[str]:
    """Yield the rows of a table, one a round."""
    rounds = zip(took.down, took.up, took.seconds, strict=True)
    for number, (down, up, seconds) in enumerate(rounds, 1):
        cells = [what, f"{took.size / 1e9:.2f}", str(number)]
        cells += [f"{took.size / down:.2f}", f"{took.size / up:.2f}", f"{seconds:.0f}"]
        cells += [f"{took.server_memory:.2f}", f"{took.client_memory:.2f}"]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=Size().layers)
    parser.add_argument("--words", type=int, default=Size().words)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=["stream", *SENT], default=["stream", *SENT])
    parser.add_argument("--serve", choices=SENT, help=argparse.SUPPRESS)
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = Size(options.layers, options.words)
    if options.serve:
        serve(options.serve, size, options.rounds)
        return
    if options.train:
        train(options.train)
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores\n")
    for what in SENT if "stream" in options.only else ():
        told = [f"{name} {value:.2f}" for name, value in stream(what, size).items()]
        print(f"{what}: {', '.join(told)}")
    print("| what | GB | round | down | up | seconds | server's memory | client's memory |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for what in SENT:
        if what in options.only:
            for row in rows_of(what, exchange(what, size, options.rounds)):
                print(row, flush=True)


if __name__ == "__main__":
    main()
