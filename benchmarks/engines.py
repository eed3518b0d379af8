"""What a round costs on each engine: seconds, processor, memory and bytes of one app.

    python -m benchmarks.engines [--rounds 10] [--clients 3] [--megabytes 0]

The app is tests/engine_app, softmax regression in numpy, by the two lines; nothing is evaluated.
Each engine runs in a process of its own, which waits for all that it starts: SuperLink, SuperNodes,
and the processes that these start for each message. Prints a table. Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.flower.test_engine_contract import on_grid_of_fedsz, on_simulation, on_superlink

PR_SET_CHILD_SUBREAPER: Final = 36
ENGINES: Final = {
    "one process (`LocalGrid`)": "local",
    "own link (`GrpcGrid`, `run_client`)": "link",
    "Flower's simulation": "simulation",
    "SuperLink with SuperNodes": "superlink",
}


def measured(engine: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return what a run came to, and the seconds of the processor of all its processes."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if engine in ("local", "link"):
            result = on_grid_of_fedsz(engine, home, **config)
        elif engine == "simulation":
            result = on_simulation(home, **config)
        else:
            result = on_superlink(home, **config)
    while True:  # processes whose parents have ended
        try:
            os.wait()
        except ChildProcessError:
            break
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return result | {"processor": spent.ru_utime + spent.ru_stime}


def row(name: str, result: dict[str, Any]) -> str:
    """Return a line of the table."""
    rounds = result["rounds"]
    sent = [sum(one[way] for one in rounds) / len(rounds) / 1e3 for way in ("sent_up", "sent_down")]
    cells = [
        f"{statistics.median(result['seconds']):.2f}",
        f"{result['processor'] / len(rounds):.2f}",
        f"{result['peak_mb']:.0f}",
        *(f"{kilobytes:.2f}" for kilobytes in sent),
        f"{100 * result['accuracies'][-1]:.1f} %",
    ]
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Measure each engine, or one, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--megabytes", type=float, default=0.0)
    parser.add_argument("--engine", choices=ENGINES.values(), help="print its result as JSON")
    args = parser.parse_args()
    config = {"rounds": args.rounds, "clients": args.clients, "megabytes": args.megabytes}
    if args.engine:
        print(json.dumps(measured(args.engine, config | {"fraction_evaluate": 0.0})))
        return
    print(
        "| engine | s a round | processor, s a round | server, MB | up, kB | down, kB | accuracy |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, engine in ENGINES.items():
        command = [sys.executable, "-m", "benchmarks.engines", "--engine", engine]
        for option, value in config.items():
            command += [f"--{option}", str(value)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(row(name, json.loads(done.stdout.splitlines()[-1])), flush=True)


if __name__ == "__main__":
    main()
