"""Lines of JSON are whole though several threads print them."""

from __future__ import annotations

import json
import subprocess
import sys

THREADS, LINES = 8, 100
PRINT = f"""
import sys, threading
from fedsz.cli.output import print_event, print_json
from fedsz.training.events import Client

sys.setswitchinterval(1e-6)
LONG = 5000 * "x"  # two of these fill the buffer of a stream of text

def tell():
    for _ in range({LINES}):
        print_event(Client(LONG, "joined", ""))
        print_json([LONG])

threads = [threading.Thread(target=tell) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_lines_of_several_threads_stay_apart() -> None:
    done = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, check=True)

    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == 2 * THREADS * LINES
