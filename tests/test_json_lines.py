"""Lines of JSON are whole though several threads print them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

THREADS, LINES = 8, 200
PRINT = f"""
import sys, threading
from fedsz.cli.output import print_event, print_json
from fedsz.training.events import Client

sys.setswitchinterval(1e-6)
LONG = 5000 * "x"  # two of these fill the buffer of a stream of text

def tell():
    for _ in range({LINES}):
        print_event(Client(LONG, "joined", "")) if sys.argv[1] == "events" else print_json([LONG])

threads = [threading.Thread(target=tell) for _ in range({THREADS})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("what", ["events", "values"])
def test_lines_of_several_threads_stay_apart(what: str) -> None:
    done = subprocess.run([sys.executable, "-c", PRINT, what], capture_output=True, check=True)

    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(told) == THREADS * LINES
