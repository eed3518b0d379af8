"""A process for one run of a sweep: ``python -m fedsz.experiments.sweep_worker``.

A line of JSON on stdin has the options of the run; lines on stdout are its `RoundRecord`s, and in
the end a text: why there is no result, or "". The process ends when stdin does, in the middle of
the run too: so it does not outlive the process that started it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from fedsz.child_process import private_stdout, write_line
from fedsz.errors import FedszError
from fedsz.training.options import RunConfig

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

    from fedsz.transport.local_grid import LocalGrid


def grid_of(config: RunConfig, app: ClientApp | None = None) -> LocalGrid:
    """Return a grid with the clients of a run in this process, of fedsz's app or another."""
    from fedsz.training.apps import make_client_app
    from fedsz.transport.local_grid import LocalGrid

    place: dict[str, Any] = {"task": config.task, "data-dir": config.data_dir}
    place |= {"device": config.device, "initial": config.initial}
    shares = [{"partition-id": i, "num-partitions": config.clients} for i in range(config.clients)]
    return LocalGrid(app or make_client_app(), [place | share for share in shares])


def main() -> None:
    """Run the federation that stdin names."""
    from fedsz.training.federation import federate, prepare

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    # Flower and torch may print; rounds go to a stdout that nothing else has.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that a fleet's processes end
    with private_stdout() as out:
        options = msgspec.json.decode(sys.stdin.buffer.readline(), type=dict[str, Any])
        threading.Thread(target=_end_with_stdin, daemon=True).start()
        error = ""
        try:
            run = RunConfig.of(options)
            federate(grid_of(run), run, prepare(run), partial(write_line, out))
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
