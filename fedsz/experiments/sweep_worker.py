"""A process for one run of a sweep: ``python -m fedsz.experiments.sweep_worker``.

A line of JSON on stdin is a `Job`; lines on stdout are its `RoundRecord`s, and in the end a text:
why there is no result, or "". The process ends when stdin does, in the middle of the run too: so
it does not outlive the process that started it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fedsz.child_process import private_stdout, write_line
from fedsz.control.record import RoundRecord
from fedsz.errors import FedszError
from fedsz.training.local_fleet import run_local
from fedsz.training.options import RunConfig

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

    from fedsz.transport.local_grid import LocalGrid

OnRound = Callable[[RoundRecord], None]
Job = tuple[dict[str, Any], str]  # options of `RunConfig`; "local" or "grpc"


def execute(config: RunConfig, grid: str, on_round: OnRound) -> None:
    """Run a federation to its end, and tell of each round.

    Raises:
        FedszError: an option is wrong, or a package or a data set is not here.
    """
    from fedsz.training.federation import federate, prepare

    if grid == "local":
        federate(grid_of(config), config, prepare(config), on_round)
        return
    with tempfile.TemporaryDirectory(prefix="fedsz-") as scratch:
        run = dataclasses.replace(config, run_dir=str(Path(scratch) / "run"))
        with contextlib.closing(run_local(run)) as events:
            for event in (event for event in events if isinstance(event, RoundRecord)):
                on_round(event)


def grid_of(config: RunConfig, app: ClientApp | None = None) -> LocalGrid:
    """Return a grid with the clients of a run in this process, of fedsz's app or another."""
    from fedsz.training.apps import make_client_app
    from fedsz.transport.local_grid import LocalGrid

    place: dict[str, Any] = {"task": config.task, "data-dir": config.data_dir}
    place |= {"device": config.device, "initial": config.initial}
    shares = [{"partition-id": i, "num-partitions": config.clients} for i in range(config.clients)]
    return LocalGrid(app or make_client_app(), [place | share for share in shares])


def main() -> None:
    """Run the job on stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    # Flower and torch may print; rounds go to a stdout that nothing else has.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a fleet's processes end
    with private_stdout() as out:
        options, grid = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        error = ""
        try:
            execute(RunConfig.of(options), grid, partial(write_line, out))
        except Exception as err:
            if not isinstance(err, FedszError):  # a bug, of fedsz or of a library
                traceback.print_exc()
            error = f"{type(err).__name__}: {err}"
        write_line(out, error)


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
