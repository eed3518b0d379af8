"""What a model of a gigabyte costs: seconds and memory of streams, of files, and of rounds.

    python -m benchmarks.large_models [--layers N] [--words 151936] [--only float32 bfloat16 lora]
                                      [--json docs/results/large.json]

The tensors have the shapes of Qwen2.5-0.5B and normal weights: all 24 layers in bfloat16, the first
8 in float32, 1 GB each. Each weight moves by a hundredth of the deviation. ``lora`` sends adapters
of rank 16, in float32. Three parts, each in a process of its own:

- library: `compress` and `decompress` within 1e-2 of the range, and within one step of a reference;
- command: `fedsz compress` and `decompress` of a .safetensors file;
- round: the third round of a server and a client on loopback, with the defaults of `FedSZGrid` and
  `StreamingFedAvg`, and a folder of state.

Memory is a process's peak (VmHWM) over what it took before, in sizes of what is sent: of the
library beside its input, of a round with the model of the server and that which the app trains.
Seconds of the processor are beside those of the clock, for machines that do other work. Linux only.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedsz
from benchmarks.measuring import forget_peak, machine, memory, table
from fedsz.arrays import chunks
from fedsz.cli.files import write_state_dict
from fedsz.control.record import RoundRecord
from fedsz.core.reference import Reference
from fedsz.flower import FedSZGrid, FedSZMod, GrpcGrid, StreamingFedAvg, run_client
from fedsz.flower.records import layout_of, to_array, to_record, views_of
from fedsz.stream import Reader
from fedsz.stream.format import Header

BF16: Final = np.dtype(ml_dtypes.bfloat16)
HIDDEN, INNER, KEYS = 896, 4864, 128
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
ROUNDS: Final = 3
COMMANDS: Final = ("compress", "decompress")
STEP: Final = 0.01  # of a weight's standard deviation
TIMEOUT: Final = 3600.0

State = dict[str, np.ndarray]


class Size(NamedTuple):
    """How large a model is, as options of the command."""

    layers: int = 24
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


Row = dict[str, Any]


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
    "float32": (model_shapes, np.dtype(np.float32)),
    "bfloat16": (model_shapes, BF16),
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


def library(what: str, size: Size) -> Iterator[Row]:
    """Yield what a stream of a state_dict takes, and copying it."""
    before, rng = weights(what, size), np.random.default_rng(1)
    state = {name: moved(x, rng) for name, x in before.items()}
    reference, nbytes = Reference(before), bytes_of(state)
    assert reference.digest  # is known in each round
    copies = {name: x.copy() for name, x in state.items()}
    start = time.perf_counter()
    for name, x in state.items():
        np.copyto(copies[name], x)
    copying = time.perf_counter() - start
    del copies
    for bound, base in (("1e-2", None), ("step:1", reference)):
        for threads in (1, 2):
            row: Row = {"part": "library", "what": what, "bytes": nbytes, "bound": bound}
            row |= {"threads": threads, "copy": copying}
            for _ in range(2):  # the first finds memory that the machine has not given out yet
                *encoding, blob = timed(
                    partial(fedsz.compress, state, bound, reference=base, threads=threads)
                )
                *decoding, back = timed(
                    partial(fedsz.decompress, blob, reference=base, as_numpy=True, threads=threads)
                )
            for way, taken in (("encode", encoding), ("decode", decoding)):
                row |= {way: taken[0], f"{way}_cpu": taken[1], f"{way}_memory": taken[2] / nbytes}
            check(state, back, Reader(blob).header)
            yield {**row, "ratio": nbytes / len(blob)}


def timed(work: Callable[[], Any]) -> tuple[float, float, float, Any]:
    """Return seconds of the clock and of the processor, bytes of memory, and the result."""
    forget_peak()
    before, start, used = memory("VmRSS"), time.perf_counter(), time.process_time()
    result = work()
    seconds = time.perf_counter() - start, time.process_time() - used
    return *seconds, 1e6 * (memory("VmHWM") - before), result


def check(state: State, back: State, header: Header) -> None:
    """Assert that a model keeps the bounds that its stream states."""
    for payload in header.payloads:
        for name in (header.tensors[i].name for i in payload.members):
            error = np.abs(back[name].astype(np.float32) - state[name].astype(np.float32)).max()
            assert error <= np.float32(payload.bound or 0) * np.float32(1 + 1e-6), name


def command(what: str, size: Size) -> Iterator[Row]:
    """Yield what the commands take, with their start."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("a.safetensors", "a.fsz", "b.safetensors")]
        write_state_dict(files[0], weights(what, size))
        nbytes = files[0].stat().st_size
        for name, source, target in zip(COMMANDS, files, files[1:], strict=False):
            run = [sys.executable, "-m", "fedsz", name, source, "-o", target, "--threads", "2"]
            start, peak = time.perf_counter(), 0.0
            with subprocess.Popen(run, stdout=subprocess.DEVNULL) as process:
                while process.poll() is None:
                    with suppress(StopIteration, OSError):  # it has just ended
                        peak = max(peak, 1e6 * memory("VmHWM", process.pid))
                    time.sleep(0.005)
            assert not process.returncode
            seconds = time.perf_counter() - start
            row: Row = {"part": "command", "what": what, "bytes": nbytes, "command": name}
            yield {**row, "seconds": seconds, "memory": peak / nbytes}


def serve(what: str, size: Size) -> None:
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
        result = strategy.start(grid, to_record(state), num_rounds=ROUNDS, timeout=TIMEOUT)
    assert [record.round for record in told] == list(range(1, ROUNDS + 1)), told
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
    folder = tempfile.TemporaryDirectory()
    app = ClientApp(mods=[FedSZMod(state_dir=folder.name)])
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


def exchange(what: str, size: Size) -> Exchanged:
    """Run a server and a client, and return what that took."""
    this = [sys.executable, "-m", "benchmarks.large_models", *size.options()]
    serving = [*this, "--serve", what]
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = json.loads(server.stdout.readline())["port"]
        training = [*this, "--train", str(port)]
        with subprocess.Popen(training, stdout=subprocess.PIPE, text=True) as client:
            took = json.loads(server.stdout.readline())
            assert client.stdout is not None
            taken = json.loads(client.stdout.readline())["memory"]
    return Exchanged(**took, client_memory=taken / took["size"])


def rounds(what: str, size: Size) -> Iterator[Row]:
    """Yield what the last round takes: it sends differences, and has residuals."""
    took = exchange(what, size)
    yield {
        "part": "round",
        "what": what,
        "bytes": took.size,
        "down": took.size / took.down[-1],
        "up": took.size / took.up[-1],
        "seconds": took.seconds[-1],
        "server_memory": took.server_memory,
        "client_memory": took.client_memory,
    }


PARTS: Final[dict[str, Callable[[str, Size], Iterator[Row]]]] = {
    "library": library,
    "command": command,
    "round": rounds,
}
# By part, its columns: a title, the key of the rows, and how its numbers are written.
COLUMNS: Final = {
    "library": (
        ("bound", "bound", ""),
        ("threads", "threads", ""),
        ("encode, s", "encode", ".2f"),
        ("of the processor", "encode_cpu", ".2f"),
        ("decode, s", "decode", ".2f"),
        ("of the processor", "decode_cpu", ".2f"),
        ("copy, s", "copy", ".2f"),
        ("ratio", "ratio", ".1f"),
        ("encode, models", "encode_memory", ".2f"),
        ("decode, models", "decode_memory", ".2f"),
    ),
    "command": (("command", "command", ""), ("s", "seconds", ".1f"), ("models", "memory", ".2f")),
    "round": (
        ("down", "down", ".1f"),
        ("up", "up", ".1f"),
        ("s", "seconds", ".1f"),
        ("server, models", "server_memory", ".2f"),
        ("client, models", "client_memory", ".2f"),
    ),
}


def tables(rows: Sequence[Row]) -> list[str]:
    """Return a table of each part, as docs/reference/measurements.md has them."""
    found = []
    for part, columns in COLUMNS.items():
        lines = [
            [
                row["what"],
                f"{row['bytes'] / 1e9:.2f}",
                *(f"{row[key]:{form}}" for _, key, form in columns),
            ]
            for row in rows
            if row["part"] == part
        ]
        found.append(table(["model", "GB", *(title for title, _, _ in columns)], lines))
    return found


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, help="24 by default, and 8 in float32")
    parser.add_argument("--words", type=int, default=Size().words)
    parser.add_argument("--only", nargs="+", choices=SENT, default=["float32", "bfloat16"])
    parser.add_argument("--json", type=Path, help="file of rows")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--serve", choices=SENT, help=argparse.SUPPRESS)
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    size = Size(asked.layers or Size().layers, asked.words)
    if asked.serve:
        serve(asked.serve, size)
    elif asked.train:
        train(asked.train)
    elif asked.part:
        for row in PARTS[asked.part](asked.only[0], size):
            print(json.dumps(row), flush=True)
    else:
        rows = list(measured(asked.only, size, of_float32=asked.layers or 8))
        about = {"machine": machine("numpy"), "rows": rows}
        if asked.json:
            asked.json.write_text(json.dumps(about, indent=1) + "\n")
        print(*tables(rows), sep="\n\n")


def measured(models: Sequence[str], size: Size, *, of_float32: int) -> Iterator[Row]:
    """Yield all rows, each part measured in a process of its own."""
    for what in models:
        own = size._replace(layers=of_float32) if what == "float32" else size
        for part in PARTS:
            this = [sys.executable, "-m", "benchmarks.large_models", *own.options()]
            this += ["--only", what, "--part", part]
            run = subprocess.run(this, stdout=subprocess.PIPE, text=True, check=True)
            yield from (json.loads(line) for line in run.stdout.splitlines() if line[:1] == "{")


if __name__ == "__main__":
    main()
