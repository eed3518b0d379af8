r"""Whole federations whose updates go through NNCodec, beside those of ``fedsz sweep``.

    python benchmarks/nncodec_rounds.py --python peer/bin/python --data-dir DIR --model cnn \
        --datasets cifar10 --samples 10000 --rounds 8 --learning-rate 0.02 --seeds 3 \
        --partitions iid dirichlet:0.1 --results runs/nncodec.parquet
    fedsz report runs/nncodec.parquet

``nncodec_peer.py`` says how NNCodec's environment is made. Each client's update goes through its
encoder and decoder in a process there (``nncodec_worker.py``), and the server averages what it
decoded. All else is what ``fedsz sweep`` does with the local grid: the same options give the same
initial model, the same shares of the data and the same order of images, so that runs of one seed
are pairs. Rows have the sweep's columns; a run that fails is a row with its error. Runs that the
file holds are not made again.

A way is ``UPDATE[:SETTINGS][@BOUND]``. UPDATE is "weights", "delta", or "delta+ef", NNCodec's error
accumulation: what was not sent is added to the next difference. SETTINGS have NNCodec's names, and
its defaults for federated learning (``nncodec.fl``: QP -26, sparsification, temporal contexts). Its
documentation also trains with QP -18 and sparsity 0.8; its coder of whole models (``nncodec.nn``)
has QP -32, ``use_dq``, ``row_skipping`` and no sparsity. With a BOUND, such as std:1, each tensor
of two dimensions or more has a step of its own, of twice its bound, as ``nncodec_peer.py`` makes
it. Then ``max_error`` is measured; without sparsity and ``use_dq`` it is 1 at most, but for the
rounding of float32.

Through NNCodec go float32 tensors but for scalars, as in its own client. Its bytes are the whole
bitstream, 4 for each step that a BOUND makes, and what does not go through it. ``encode_seconds``
is what the client needs: sparsification, the encoder and, for error feedback and temporal contexts,
its own decoding. The model goes out to the clients without loss.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import itertools
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict, UserConfig
from flwr.clientapp import ClientApp
from nncodec_coding import Peer, Way

from fedsz.control.policy import FIXED
from fedsz.control.record import RoundRecord
from fedsz.errors import CodecError, ConfigError, FedszError
from fedsz.experiments.results import SWEEP, Results
from fedsz.experiments.sweep import rows_of
from fedsz.experiments.sweep_plan import ID_LENGTH, SweepConfig, run_id
from fedsz.experiments.sweep_worker import Finished
from fedsz.flower.mod import FedSZMod
from fedsz.flower.records import to_record, views_of
from fedsz.training.apps import train_share
from fedsz.training.federation import federate, prepare
from fedsz.training.model_state import arrays_of
from fedsz.training.options import RunConfig
from fedsz.transport.local_grid import LocalGrid

# The release's defaults, and its documented run; then its rate axis without the sparsification.
WAYS = (
    "delta+ef",
    "delta",
    "delta+ef:qp=-18,sparsity=0.8",
    "delta+ef:qp=-26,sparsity=0",
    "delta+ef:qp=-22,sparsity=0",
    "delta+ef:qp=-18,sparsity=0",
    "delta+ef:qp=-14,sparsity=0",
    "delta+ef:sparsity=0@std:1",
    "weights:qp=-32,sparsity=0,use_dq=1,row_skipping=1",
)
OPTIONS = (
    "task", "data_dir", "samples", "test_samples", "image_size", "model", "seed", "rounds",
    "clients", "epochs", "batch_size", "learning_rate", "momentum", "device", "lossless",
)  # fmt: skip


def app_of(config: RunConfig, peer: Peer) -> ClientApp:
    """Return the ClientApp of fedsz, whose replies go through NNCodec first."""
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        sent = message.content.array_records["arrays"]
        client = int(str(context.node_config["partition-id"]))
        model, metrics = train_share(
            config,
            sent,
            int(str(message.content.config_records["config"]["server-round"])),
            (client, config.clients),
        )
        after = arrays_of(model)
        content = RecordDict({
            "arrays": to_record(peer.through(client, views_of(sent), after)),
            "metrics": MetricRecord({
                **metrics,
            }),
        })  # fmt: skip
        return Message(content, reply_to=message)

    return app


def run(config: RunConfig, way: Way, python: Path) -> list[RoundRecord]:
    """Return the rounds of one federation, with NNCodec's bytes, seconds and errors."""
    rounds: list[RoundRecord] = []
    with Peer(python, way) as peer:

        def on_round(done: Any) -> None:
            tally = peer.take_tally()
            rounds.append(
                msgspec.structs.replace(
                    done,
                    sent_up=tally.sent,
                    encode_seconds=tally.encode,
                    decode_seconds=tally.decode,
                    max_error=tally.max_error,
                )
            )

        places: list[UserConfig] = [{"partition-id": i} for i in range(config.clients)]
        federate(LocalGrid(app_of(config, peer), places), config, prepare(config), on_round)
    failures = [failure.reason for row in rounds for failure in row.failures]
    if failures:
        raise CodecError(f"{len(failures)} updates were lost, the first because: {failures[0]}")
    return rounds


def id_of(config: RunConfig, way: Way) -> str:
    """Return what names a run in a result file."""
    what = [run_id(config, "local"), *map(str, way.columns.values())]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:ID_LENGTH]


def rows(
    config: RunConfig, way: Way, rounds: list[RoundRecord], error: str = ""
) -> list[dict[str, Any]]:
    """Return a run as rows of a sweep's table: one for each round, or one with its error."""
    columns = {"run": id_of(config, way), **way.columns}
    if way.bound is None:
        columns["max_error"] = None
    made = rows_of(config, SweepConfig(), rounds, Finished(error=error), torch.get_num_threads())
    return [{**row, **columns} for row in made]


def plan(
    base: RunConfig, datasets: Sequence[str], partitions: Sequence[str], seeds: int
) -> Iterator[RunConfig]:
    """Yield the federations to make, all of a seed before those of the next.

    Raises:
        ConfigError: a partition is none.
    """
    for seed, dataset, partition in itertools.product(range(seeds), datasets, partitions):
        partitioner, _, alpha = partition.partition(":")
        try:
            concentration = float(alpha) if alpha else base.alpha
        except ValueError:
            raise ConfigError(f"no partition {partition!r}; have iid, dirichlet:ALPHA") from None
        yield replace(
            base,
            seed=base.seed + seed,
            dataset=dataset,
            partitioner=partitioner,
            alpha=concentration,
        )


def main() -> None:
    """Make the runs, and keep each as soon as it is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", type=Path, default=Path("peer/bin/python"))
    parser.add_argument("--ways", nargs="+", default=WAYS, metavar="WAY", help=" ".join(WAYS))
    parser.add_argument("--datasets", nargs="+", default=["cifar10"], metavar="NAME")
    parser.add_argument("--partitions", nargs="+", default=["iid"], metavar="iid|dirichlet:ALPHA")
    parser.add_argument("--seeds", type=int, default=1, help="from --seed on")
    parser.add_argument("--results", type=Path, default=Path("runs/nncodec.parquet"))
    for field in dataclasses.fields(RunConfig):
        if field.name in OPTIONS:
            parser.add_argument(
                f"--{field.name.replace('_', '-')}",
                type=type(field.default),
                default=field.default,
                help=field.metadata.get("help"),
            )
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    values = {name: getattr(arguments, name) for name in OPTIONS}
    try:
        # What FedSZGrid carries is exact: NNCodec's part is done before it.
        exact = {"policy": FIXED, "codec": "raw", "min_clients": arguments.clients}
        base = RunConfig.of({**values, **exact})
        ways = [Way.of(text) for text in arguments.ways]
        configs = list(plan(base, arguments.datasets, arguments.partitions, arguments.seeds))
    except ConfigError as err:
        parser.error(str(err))
    with Results(arguments.results, SWEEP) as results:
        held = set(results.rows.column("run").to_pylist())
        for config, way in itertools.product(configs, ways):
            if id_of(config, way) in held:
                continue
            alpha = f":{config.alpha:g}" if config.partitioner == "dirichlet" else ""
            bound = f" {way.bound}" if way.bound else ""
            where = f"{config.dataset} {config.partitioner}{alpha} seed {config.seed}"
            print(f"{where}, {way.update} {way.codec}{bound}: ", end="", flush=True)
            start = time.monotonic()
            try:
                rounds = run(config, way, arguments.python)
            except FedszError as err:
                results.add(rows(config, way, [], f"{type(err).__name__}: {err}"))
                print(f"failed: {err}", flush=True)
                continue
            seconds = (time.monotonic() - start) / config.rounds
            results.add(rows(config, way, rounds))
            ratio = sum(row.raw_up for row in rounds) / sum(row.sent_up for row in rounds)
            print(
                f"accuracy {rounds[-1].accuracy:.4f}, ratio {ratio:.1f}, {seconds:.1f} s a round",
                flush=True,
            )


if __name__ == "__main__":
    main()
