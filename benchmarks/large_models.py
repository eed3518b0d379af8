"""What a model of gigabytes costs: a stream of it, and rounds of it over gRPC in both directions.

    python -m benchmarks.large_models [--layers 28] [--rounds 2] [--only stream model lora]

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
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedsz
from fedsz.control.record import RoundRecord
from fedsz.flower import FedSZGrid, FedSZMod, GrpcGrid, StreamingFedAvg, run_client
from fedsz.flower.records import from_array, to_record

BF16: Final = np.dtype(ml_dtypes.bfloat16)
HIDDEN, INNER, KEYS, WORDS = 1536, 8960, 256, 151_936
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


def model_shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of the whole model."""
    yield "embed_tokens.weight", (WORDS, HIDDEN)
    for i in range(layers):
        for name, shape in PROJECTIONS.items():
            yield f"layers.{i}.{name}.weight", shape
        yield f"layers.{i}.input_layernorm.weight", (HIDDEN,)
        yield f"layers.{i}.post_attention_layernorm.weight", (HIDDEN,)


def lora_shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the adapters of all projections."""
    for i in range(layers):
        for name, (rows, columns) in PROJECTIONS.items():
            yield f"layers.{i}.{name}.lora_A.weight", (RANK, columns)
            yield f"layers.{i}.{name}.lora_B.weight", (rows, RANK)


SENT: Final[dict[str, tuple[Callable[[int], Iterator[tuple[str, tuple[int, ...]]]], np.dtype]]] = {
    "model": (model_shapes, BF16),
    "lora": (lora_shapes, np.dtype(np.float32)),
}


def weights(what: str, layers: int) -> State:
    """Return weights as they are drawn, of a standard deviation of 0.02."""
    shapes, dtype = SENT[what]
    rng = np.random.default_rng(0)
    return {
        name: (rng.standard_normal(shape, np.float32) * np.float32(0.02)).astype(dtype)
        for name, shape in shapes(layers)
    }


def move(state: State, seed: int) -> None:
    """Move each weight of a state, one tensor at a time."""
    rng = np.random.default_rng(seed)
    for x in state.values():
        noise = rng.standard_normal(x.shape, np.float32)
        x[...] = x.astype(np.float32) + noise * np.float32(0.02 * STEP)


def size_of(state: State) -> int:
    """Return the bytes of all tensors."""
    return sum(x.nbytes for x in state.values())


def arrays_of(record: ArrayRecord) -> State:
    """Return a record's arrays, bfloat16 ones too."""
    return {name: from_array(name, array) for name, array in record.items()}


def resident(key: str) -> int:
    """Return a line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))


def stream(layers: int) -> dict[str, float]:
    """Compress and decompress the whole model by the library's defaults."""
    state = weights("model", layers)
    start, held = time.perf_counter(), resident("VmRSS")
    blob = fedsz.compress(state)
    compressed, encoding = time.perf_counter(), resident("VmHWM") - held
    back = fedsz.decompress(blob, as_numpy=True)
    end = time.perf_counter()
    for name, x in state.items():
        error = np.abs(back[name].astype(np.float32) - x.astype(np.float32)).max()
        assert error <= 1e-2 * np.ptp(x.astype(np.float32))
    size = size_of(state)
    return {
        "gigabytes": size / 1e9,
        "ratio": size / len(blob),
        "compress_seconds": compressed - start,
        "decompress_seconds": end - compressed,
        "compress_memory": encoding / size,
    }


def serve(what: str, layers: int, rounds: int) -> None:
    """Be the server: tell the port, then what each round took."""
    state = weights(what, layers)
    size, before = size_of(state), resident("VmRSS") - size_of(state)
    initial = to_record(state)
    del state
    told: list[dict[str, Any]] = []
    with GrpcGrid(port=0) as link:
        print(json.dumps({"port": link.port}), flush=True)
        while not link.get_node_ids():
            threading.Event().wait(0.05)
        start = time.monotonic()

        def keep(record: RoundRecord) -> None:
            if not record.round:
                return  # before any training
            sent = {"up": record.sent_up, "down": record.sent_down, "lossy": record.lossy}
            told.append({"round": record.round, "at": time.monotonic() - start, **sent})

        grid = FedSZGrid(link, on_round=keep)
        strategy = StreamingFedAvg(fraction_evaluate=0, min_train_nodes=1, min_available_nodes=1)
        result = strategy.start(grid, initial, num_rounds=rounds, timeout=TIMEOUT)
        grid.end_round()
    assert [each["round"] for each in told] == list(range(1, rounds + 1)), told
    assert size_of(arrays_of(result.arrays)) == size
    memory = (resident("VmHWM") - before) / size
    print(json.dumps({"size": size, "rounds": told, "memory": memory}), flush=True)


def train(port: int) -> None:
    """Be the client: train as often as asked, then tell the peak memory."""
    app = ClientApp(mods=[FedSZMod()])
    seeds = itertools.count()

    @app.train()
    def step(message: Message, context: Context) -> Message:
        del context
        state = arrays_of(message.content["arrays"])
        move(state, next(seeds))
        content = {"arrays": to_record(state), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    before = resident("VmRSS")
    run_client(app, f"127.0.0.1:{port}", client_id="one")
    print(json.dumps({"memory": resident("VmHWM") - before}), flush=True)


def exchange(what: str, layers: int, rounds: int) -> Iterator[str]:
    """Run both processes, and yield the rows of the table."""
    this = [sys.executable, "-m", "benchmarks.large_models", "--layers", str(layers)]
    serving = [*this, "--rounds", str(rounds), "--serve", what]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        training = [*this, "--train", str(port)]
        with subprocess.Popen(training, stdout=subprocess.PIPE, text=True) as client:
            got = json.loads(server.stdout.readline())
            assert client.stdout is not None
            memory = json.loads(client.stdout.readline())["memory"] / got["size"]
    began = 0.0
    for number, each in enumerate(got["rounds"], 1):
        ratios = [f"{got['size'] / each[way]:.2f}" for way in ("down", "up")]
        seconds, began = each["at"] - began, each["at"]
        of = [what, f"{got['size'] / 1e9:.2f}", str(number)]
        cells = [*of, *ratios, f"{seconds:.0f}", f"{got['memory']:.2f}", f"{memory:.2f}"]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=["stream", *SENT], default=["stream", *SENT])
    parser.add_argument("--serve", choices=SENT, help=argparse.SUPPRESS)
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.layers, options.rounds)
        return
    if options.train:
        train(options.train)
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores\n")
    if "stream" in options.only:
        print(", ".join(f"{name} {value:.2f}" for name, value in stream(options.layers).items()))
    print("| what | GB | round | down | up | seconds | server's memory | client's memory |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for what in SENT:
        if what in options.only:
            for row in exchange(what, options.layers, options.rounds):
                print(row, flush=True)


if __name__ == "__main__":
    main()
