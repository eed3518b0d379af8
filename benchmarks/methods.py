"""How fast methods code a tensor and are added to sums, and how small they make it.

    taskset -c 0 python -m benchmarks.methods --elements 25000000

Each chain codes one tensor of Laplace-distributed values on one thread, and is decoded and added to
sums of float32. Seconds are the processor's, which count no waiting for others, and the least of
some repetitions. They leave out what `sz2` decodes in a process of its own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fedsz.contrib.threshold import Estimate
from fedsz.methods import Shared, TensorSpec, parse
from fedsz.methods.base import Sparse
from fedsz.methods.symbols import read, write

CHAINS = (
    "uniform@1e-2", "sz2@1e-2", "uniform@std:1",
    "topk:k=1%", "topk:k=1%>ternary", "topk:k=64,chunk=4096>centroids", "rtopk", "sbc",
    *(f"threshold:k=1%,by={by}" for by in Estimate), "randk:k=1%", "randk:k=1%,block=1",
    "sign", "ternary:threshold=0.5", "qsgd", "qsgd:bits=2,bucket=0,norm=max", "natural",
    "uveqfed", "uveqfed:lattice=hexagonal", "centroids", "rotate>sign", "sketch",
    "powersgd", "atomo",
)  # fmt: skip


COLUMNS = 1000  # of the matrix that all of them code


def timed(repeat: int, work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least processor seconds that ``work`` took, and what it returned at last."""
    seconds, result = [], None
    for _ in range(repeat):
        start = time.process_time()
        result = work()
        seconds.append(time.process_time() - start)
    return min(seconds), result


def row(text: str, x: np.ndarray, repeat: int) -> str:
    """Return what a chain takes to code a tensor, to decode it and to add it."""
    spec, chain = TensorSpec(x.shape), parse(text)
    state, shared = chain.init(spec), Shared(spec)
    encode, payload = timed(repeat, lambda: write(chain, chain.encode(x, state, shared)[0]))
    decode, decoded = timed(repeat, lambda: chain.decode(read(chain, payload, spec), shared))
    sums = np.zeros(x.shape, np.float32)
    if isinstance(decoded, Sparse):
        add, _ = timed(repeat, lambda: decoded.add(sums, 0.5))
    else:
        add, _ = timed(repeat, lambda: np.add(sums, decoded * np.float32(0.5), out=sums))
    rates = (f"{x.nbytes / 1e6 / seconds:12,.0f}" for seconds in (encode, decode, add))
    return f"{text:34}{x.nbytes / len(payload):10.1f}{''.join(rates)}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chains", nargs="*", default=CHAINS, metavar="CHAIN")
    parser.add_argument("--elements", type=int, default=25_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    rows = -(-options.elements // COLUMNS)
    x = np.random.default_rng(0).laplace(size=(rows, COLUMNS)).astype(np.float32)
    print(f"{'chain':34}{'ratio':>10}{'encode':>12}{'decode':>12}{'add':>12}  MB/s of float32")
    for text in options.chains:
        print(row(text, x, options.repeat), flush=True)


if __name__ == "__main__":
    main()
