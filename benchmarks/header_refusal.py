"""How long a reader takes to refuse headers that were made to cost much.

    python -m benchmarks.header_refusal [--repeat 5]

Prints for each the length of the stream and the best time of some, in one thread. Exits with 1 if
one takes more than 100 ms for each MB of the stream that was begun.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

from fedsz.errors import CorruptStream
from fedsz.stream import Reader
from tests.hostile_headers import HOSTILE

SECONDS_PER_MB = 0.1


def seconds(blob: bytes) -> tuple[float, str]:
    """Return how long a stream takes to be refused, and why it is."""
    start = time.perf_counter()
    try:
        Reader(blob)
    except CorruptStream as err:
        return time.perf_counter() - start, err.what
    raise SystemExit("a hostile header was not refused")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    slow = []
    print(f"{'header':32} {'MB':>7} {'ms':>7}  refused because")
    for name, make in HOSTILE.items():
        blob = make()
        took, why = min(seconds(blob) for _ in range(repeat))
        print(f"{name:32} {len(blob) / 1e6:7.3f} {1e3 * took:7.1f}  {why[:60]}")
        if took > SECONDS_PER_MB * math.ceil(len(blob) / 1e6):
            slow.append(name)
    if slow:
        sys.exit(f"more than {1e3 * SECONDS_PER_MB:g} ms a MB: {', '.join(slow)}")


if __name__ == "__main__":
    main()
