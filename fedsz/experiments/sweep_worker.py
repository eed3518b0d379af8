"""A process that runs what it is told: ``python -m fedsz.experiments.sweep_worker``.

A line of JSON on stdin is a `Job`; lines on stdout are its `RoundRecord`s and in the end one
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
from safetensors.numpy import load_file

from fedsz.child_process import private_stdout, write_line
from fedsz.codecs import get
from fedsz.control.policy import FIXED
from fedsz.control.record import RoundRecord
from fedsz.core.partition import is_lossy
from fedsz.core.settings import WEIGHTS
from fedsz.errors import FedszError
from fedsz.experiments.error_distribution import Distribution, distribution
from fedsz.training.local_fleet import run_local
from fedsz.training.model_state import arrays_of
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import MODEL

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

    from fedsz.transport.local_grid import LocalGrid

OnRound = Callable[[RoundRecord], None]
Job = tuple[dict[str, Any], str]  # a run to make: options of `RunConfig`; "local" or "grpc"


class Finished(msgspec.Struct, frozen=True, tag_field="event", tag="finished"):
    """A run is over."""

    distributions: list[Distribution] = []  # of the largest lossy tensor, weights and error
    error: str = ""  # why there was no result


def execute(config: RunConfig, grid: str, on_round: OnRound) -> list[Distribution]:
    """Run a federation to its end, tell of each round, and look at what a client would send next.

    Raises:
        FedszError: an option is wrong, or what it takes is not here.
    """
    from fedsz.flower.records import to_record
    from fedsz.training.apps import train_share
    from fedsz.training.federation import federate, prepare

    if grid == "local":
        state = arrays_of(federate(grid_of(config), config, prepare(config), on_round))
    else:
        state = _federated_over_grpc(config, on_round)
    # An average of updates that were decoded lies on the codec's grid, or near it: its error would
    # be that of coding twice. So the first client trains for another round.
    model, _ = train_share(config, to_record(dict(state)), config.rounds + 1, (0, config.clients))
    return distributions(arrays_of(model), config, state)


def largest_lossy(
    state: Mapping[str, np.ndarray], config: RunConfig
) -> tuple[str, np.ndarray] | None:
    """Return the largest tensor that may be lossy, and its name; None if there is none."""
    rule, threshold = config.rule, config.threshold
    lossy = [item for item in state.items() if is_lossy(*item, rule=rule, threshold=threshold)]
    return max(lossy, key=lambda item: item[1].size, default=None)


def distributions(
    state: Mapping[str, np.ndarray], config: RunConfig, reference: Mapping[str, np.ndarray]
) -> list[Distribution]:
    """Return the laws of the largest lossy tensor's weights, and of its error under the codec.

    Steps are from the model ``reference``. The error of a bound that a policy chooses is not known.
    """
    largest = largest_lossy(state, config)
    if largest is None:
        return []
    name, x = largest
    found = [distribution(x, "weights", name)]
    codec, bound = get(config.codec), config.compression.bound
    if not codec.lossy or config.policy != FIXED:
        return found
    sent = x if config.update == WEIGHTS else x - reference[name]
    payload = codec.encode(sent, bound.absolute(sent if bound.kind == "std" else x))
    error = codec.decode(payload, x.shape).astype(np.float64) - sent
    return [*found, distribution(error, "error", name)]


def grid_of(config: RunConfig, app: ClientApp | None = None) -> LocalGrid:
    """Return a grid with the clients of a run in this process, of fedsz's app or another."""
    from fedsz.training.apps import make_client_app
    from fedsz.transport.local_grid import LocalGrid

    place: dict[str, Any] = {"task": config.task, "data-dir": config.data_dir}
    place |= {"device": config.device, "initial": config.initial}
    shares = [{"partition-id": i, "num-partitions": config.clients} for i in range(config.clients)]
    return LocalGrid(app or make_client_app(), [place | share for share in shares])


def _federated_over_grpc(config: RunConfig, on_round: OnRound) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory(prefix="fedsz-") as scratch:
        folder = Path(scratch) / "run"
        run = dataclasses.replace(config, run_dir=str(folder))
        with contextlib.closing(run_local(run)) as events:
            for event in (event for event in events if isinstance(event, RoundRecord)):
                on_round(event)
        return load_file(folder / MODEL)


def main() -> None:
    """Run jobs until stdin ends."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started us
    # Flower and torch may print; what is ours goes to a stdout that nobody else has.
    out = private_stdout()
    jobs: queue.Queue[Job] = queue.Queue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()

    import fedsz.training.apps  # noqa: F401 - what every run needs

    # Each round collects garbage; it need not look through all that torch has brought.
    gc.freeze()
    while True:
        options, grid = jobs.get()
        try:
            finished = Finished(execute(RunConfig.of(options), grid, partial(write_line, out)))
        except Exception as err:
            if not isinstance(err, FedszError):  # a bug, of ours or of a library
                traceback.print_exc()
            finished = Finished(error=f"{type(err).__name__}: {err}")
        write_line(out, finished)


def _read(jobs: queue.Queue[Job]) -> None:
    for line in sys.stdin.buffer:
        jobs.put(msgspec.json.decode(line, type=Job))
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
