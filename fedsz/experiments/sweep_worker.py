"""A process that runs what it is told: ``python -m fedsz.experiments.sweep_worker``.

A line of JSON on stdin is a `SweepJob`; lines on stdout are its `RoundRecord`s and in the end one
`Finished`. The process ends when stdin does, in the middle of a run too: so it does not outlive
whoever started it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import queue
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fedsz.arrays import as_arrays
from fedsz.child_process import private_stdout, write_line
from fedsz.codecs import get
from fedsz.control.record import RoundRecord
from fedsz.control.rule import FIXED
from fedsz.errors import FedszError
from fedsz.experiments.error_distribution import Distribution, distribution
from fedsz.training.options import RunConfig
from fedsz.update.config import WEIGHTS
from fedsz.update.partition import is_lossy

if TYPE_CHECKING:
    from flwr.app import UserConfig

OnRound = Callable[[RoundRecord], None]


class SweepJob(msgspec.Struct, frozen=True):
    """A run to make."""

    options: dict[str, Any]  # of `RunConfig`
    grid: str  # "local" or "grpc"


class Finished(msgspec.Struct, frozen=True, tag_field="event", tag="finished"):
    """A run is over."""

    distributions: list[Distribution] = []  # of the largest lossy tensor, weights and error
    error: str = ""  # why there was no result


def execute(config: RunConfig, grid: str, on_round: OnRound) -> list[Distribution]:
    """Run a federation to its end, tell of each round, and look at what a client would send next.

    Raises:
        FedszError: an option is wrong, or what it takes is not here.
    """
    federate = _federate_here if grid == "local" else _federate_over_grpc
    state = federate(config, on_round)
    return distributions(_trained_once_more(state, config), config, state)


def distributions(
    state: Mapping[str, np.ndarray],
    config: RunConfig,
    reference: Mapping[str, np.ndarray] | None = None,
) -> list[Distribution]:
    """Return the laws of the largest lossy tensor's weights, and of its error under the codec.

    Args:
        state: what would be sent.
        config: how.
        reference: the model that steps are from. Without it the error of a step is not known;
            that of a bound which a policy chooses never is.
    """
    settings = config.compression
    lossy = {
        name: x
        for name, x in state.items()
        if is_lossy(name, x, rule=settings.rule, threshold=settings.threshold)
    }
    if not lossy:
        return []
    name, x = max(lossy.items(), key=lambda item: item[1].size)
    found = [distribution(x, "weights", name)]
    codec, bound = get(config.codec), settings.bound
    if not codec.lossy or config.policy != FIXED:
        return found
    sent = x
    if config.update != WEIGHTS:
        if reference is None:
            return found
        sent = x - reference[name]
    payload = codec.encode(sent, bound.absolute(sent if bound.kind == "std" else x))
    error = codec.decode(payload, x.shape).astype(np.float64) - sent
    return [*found, distribution(error, "error", name)]


def _trained_once_more(state: Mapping[str, np.ndarray], config: RunConfig) -> dict[str, np.ndarray]:
    """Return the weights of the first client after another round of its own.

    An average of updates that were decoded lies on the codec's grid, or near it: its error would be
    that of coding twice.
    """
    from fedsz.flower.records import to_record
    from fedsz.training.client_round import train_share

    model, _ = train_share(
        config,
        to_record(dict(state)),
        config.rounds + 1,
        (0, config.clients),
        data_dir=config.data_dir,
        device=config.device,
    )
    return as_arrays(model.state_dict())


def _federate_here(config: RunConfig, on_round: OnRound) -> dict[str, np.ndarray]:
    """Run a federation in this process and return its model."""
    from fedsz.training.apps import make_client_app
    from fedsz.training.federation import federate, prepare
    from fedsz.transport.local_grid import LocalGrid

    place: UserConfig = {
        "num-partitions": config.clients,
        "data-dir": config.data_dir,
        "device": config.device,
    }
    places = [{**place, "partition-id": i} for i in range(config.clients)]
    problem = prepare(config)
    model = federate(LocalGrid(make_client_app(), places), config, problem, on_round)
    return as_arrays(model.state_dict())


def _federate_over_grpc(config: RunConfig, on_round: OnRound) -> dict[str, np.ndarray]:
    """Run a federation of one process each and return its model."""
    from safetensors.numpy import load_file

    from fedsz.training.local_fleet import run_local
    from fedsz.training.run_folder import MODEL

    with tempfile.TemporaryDirectory(prefix="fedsz-") as scratch:
        folder = Path(scratch) / "run"
        config = dataclasses.replace(config, run_dir=str(folder))
        with contextlib.closing(run_local(config)) as events:
            for event in events:
                if isinstance(event, RoundRecord):
                    on_round(event)
        return load_file(folder / MODEL)


def main() -> None:
    """Run jobs until stdin ends."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    # Flower and torch may print; what is ours goes to a stdout that nobody else has.
    out = private_stdout()
    jobs: queue.Queue[SweepJob] = queue.Queue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()

    import fedsz.training.apps
    import fedsz.training.loop  # noqa: F401 - what every run needs

    # Each round collects garbage; it need not look through all that torch has brought.
    gc.freeze()
    while True:
        job = jobs.get()
        try:
            found = execute(RunConfig.of(job.options), job.grid, partial(write_line, out))
            finished = Finished(found)
        except Exception as err:
            if not isinstance(err, FedszError):  # a bug, of ours or of a library
                traceback.print_exc()
            finished = Finished(error=f"{type(err).__name__}: {err}")
        write_line(out, finished)


def _read(jobs: queue.Queue[SweepJob]) -> None:
    decoder = msgspec.json.Decoder(SweepJob)
    for line in sys.stdin.buffer:
        jobs.put(decoder.decode(line))
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
