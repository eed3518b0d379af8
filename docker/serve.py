"""Begin a run in a folder, or go on with the one in it: serve.py RUN_DIR OPTION...

An orchestrator starts a server that has crashed by the same command. If the run in the folder has
finished, this says so and ends with exit status 0.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fedsz.training.run_folder import CHECKPOINT, MODEL, ROUNDS


def options_for(folder: Path) -> list[str] | None:
    """Return how `fedsz server` is to take a folder; None if there is nothing left to do."""
    if not (folder / ROUNDS).exists():
        return ["--run-dir", str(folder)]
    if (folder / MODEL).exists() and not (folder / CHECKPOINT).exists():
        return None
    return ["--resume", str(folder)]


if __name__ == "__main__":
    options = options_for(Path(sys.argv[1]))
    if options is None:
        print(f"the run in {sys.argv[1]} has finished; name another folder for another run")
    else:
        command = [sys.executable, "-m", "fedsz", "server", *options, *sys.argv[2:]]
        os.execv(sys.executable, command)  # noqa: S606
