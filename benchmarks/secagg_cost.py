"""What a secure sum costs a client and the server in a round, on one core.

    python -m benchmarks.secagg_cost [--clients 100] [--tokens 2500000] [--bits 13]

Processor time of each stage, a fifth of the clients dropping out before they send their tokens; how
fast masks are added; and what it takes to make the tokens of an update, with what earlier rounds
left out, and with a share of noise. The sum is compared with a plain one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from benchmarks.measuring import machine
from fedsz.arrays import NDArray
from fedsz.errors import ConfigError
from fedsz.privacy.client import SecureClient
from fedsz.privacy.graph import Assumptions, plan
from fedsz.privacy.quantizer import Learned
from fedsz.privacy.ring import Ring
from fedsz.privacy.ring_noise import NoisedCodec, NoisedPlan
from fedsz.privacy.server import SecureServer, Stage

Result = TypeVar("Result")
_FLOAT = 4  # bytes of a parameter that is not compressed


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Return the processor seconds that something takes, and its result."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def mask_rate(bits: int, tokens: int) -> float:
    """Return how many tokens a second a mask is added to, at the median of nine."""
    ring = Ring(bits)
    total = np.zeros(tokens, ring.dtype)
    took = [timed(lambda: ring.add_mask(total, bytes(32)))[0] for _ in range(9)]
    return tokens / float(np.median(took))


def encode_seconds(bits: int, elements: int, clients: int) -> float:
    """Return what a client takes to make tokens of an update, at the median of five."""
    model, trained, kept = _updates(elements)
    codec = Learned(1024).codec(model, clients, bits)
    took = [timed(lambda: codec.encode(trained, 100, kept))[0] for _ in range(5)]
    return float(np.median(took))


def noised(bits: int, elements: int, clients: int, multiplier: float) -> tuple[float, float]:
    """Return that of an update with its share of noise, and the share of elements at a limit."""
    model, trained, _ = _updates(elements)
    norm = float(np.linalg.norm(trained["w"]))
    members = plan(clients, Assumptions())
    codec = NoisedCodec(NoisedPlan(bits, norm, multiplier), model, members)
    took, encoded = timed(lambda: codec.encode(trained))
    return took, encoded.clipped / elements


def _updates(elements: int) -> tuple[dict[str, NDArray], ...]:
    """A model of zeros, an update of Laplace's law with its heavy tails, and what was left out."""
    rng = np.random.default_rng(0)
    step, left = (rng.laplace(0, 1e-3, elements).astype(np.float32) for _ in range(2))
    return {"w": np.zeros(elements, np.float32)}, {"w": step}, {"w": left / 10}


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=2_500_000)
    parser.add_argument("--bits", type=int, default=13)
    parser.add_argument("--noised-bits", type=int, default=24, help="of sums with noise")
    asked = parser.parse_args()
    print(f"{machine('cryptography')}; {asked.tokens:,} tokens of {asked.bits} bits")
    for bits in sorted({8, asked.bits, 32}):
        rate = mask_rate(bits, asked.tokens)
        print(f"a mask of {bits} bits: {rate / 1e6:.0f} M tokens/s, {_FLOAT * rate / 1e6:.0f} MB/s")
    took = encode_seconds(asked.bits, asked.tokens, asked.clients)
    print(f"tokens of an update: {1e3 * took:.0f} ms, beside the masks below")
    for multiplier in (0.5, 1.0, 4.0):
        try:
            took, limited = noised(asked.noised_bits, asked.tokens, asked.clients, multiplier)
        except ConfigError as err:
            print(err)
            continue
        print(
            f"with noise of {multiplier} norms in {asked.noised_bits} bits: {1e3 * took:.0f} ms;"
            f" {100 * limited:.4f} % of the elements at their limit"
        )

    server = SecureServer(asked.tokens, asked.bits)
    clients = {i: SecureClient(i) for i in range(asked.clients)}
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 1 << asked.bits, asked.tokens, np.uint64).astype(np.uint32)
    sent = server.open(clients)
    while (stage := server.stage) is not Stage.OVER:
        if stage is Stage.INPUTS:
            sent = dict(sorted(sent.items())[asked.clients // 5 :])
        of_client = of_server = 0.0
        up = down = 0
        for i, data in sent.items():
            client = clients[i]
            if stage is Stage.INPUTS:
                took, answer = timed(partial(client.mask, data, tokens))
            else:
                took, answer = timed(partial(client.answer, data))
            of_client += took
            took, _ = timed(partial(server.receive, i, answer))
            of_server += took
            up, down = up + len(answer), down + len(data)
        count = len(sent)
        took, sent = timed(server.advance)
        print(f"{stage.value}: {down / count:,.0f} bytes down, {up / count:,.0f} up", end="; ")
        print(f"client {1e3 * of_client / count:.1f} ms", end=", ")
        print(f"server {1e3 * of_server / count:.2f} ms a client, then {took:.2f} s")
    assert server.total is not None
    plain = tokens.astype(np.uint64) * len(server.total.survivors) % (1 << asked.bits)
    assert (server.total.tokens == plain).all()
    found, gone = server.members.plan, asked.clients - len(server.total.survivors)
    print(
        f"{gone} of {found.clients} dropped out; degree {found.degree}, threshold {found.threshold}"
    )


if __name__ == "__main__":
    main()
