"""What it costs to code a step from a model that both sides hold, beside coding what the step is.

    python benchmarks/update_cost.py [--arrays runs/arrays] [--models cnn resnet50]
        [--bounds 1e-2 std:1 std:3] [--seconds 3]

Coded is what fedsz would code with loss of one client's weights, as benchmarks/arrays.py has
trained them, by `uniform` on one thread. A pass goes over all tensors of a model in three ways:

- the update: x as a difference from the model the client was sent, within a rule;
- the codec alone: an array that holds that difference, within a bound that is given. What the
  update costs beyond this is finding the bound, and the second array that is read;
- the weights: x itself, within the same rule.

Each is encoded, decoded, and, sealed as a client would, averaged by the server: the sum of four
replies and their mean. "Client" is all that a client does to an update or to weights, with what an
earlier round has left out; the codec alone makes a stream of the array that is given. Passes of the
three alternate; times are medians of processor time, which counts no waiting for others, and a
ratio is the median of those of passes side by side. Every error is measured before anything is
timed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import arrays
import numpy as np
from flwr.app import ArrayRecord

from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.codecs.uniform import Uniform
from fedsz.core.coders import CodecCoder
from fedsz.core.encode import compress_measured
from fedsz.core.feedback import UpdateCoder
from fedsz.core.partition import is_lossy
from fedsz.core.reference import Reference
from fedsz.core.settings import DEFAULT, DELTA_EF, WEIGHTS, Settings
from fedsz.core.tensors import CodedTensor, Within, encode_difference, encode_within
from fedsz.flower.mean import Mean
from fedsz.flower.records import sealed
from fedsz.flower.update import Update

BOUNDS = ("1e-2", "std:1", "std:3")
CODEC = Uniform(threads=1)
REPLIES = 4
FEWEST = 5  # passes

WAYS = ("update", "codec", "weights")


@dataclass
class Tensor:
    """A tensor before and after, and the rule for its error."""

    name: str
    base: NDArray
    x: NDArray
    rule: ErrorBound

    def __post_init__(self) -> None:
        self.step = self.x - self.base
        self.bound = self.rule.absolute(self.step if self.rule.kind == "std" else self.x)
        self.coded = {way: self._coded(way) for way in WAYS}
        y = self.coded["update"].decode()
        error = float(np.abs(y.astype(np.float64) - self.x).max())
        assert error <= self.bound, f"{self.name}: an error of {error}, above {self.bound}"

    def encode(self, way: str) -> Within | None:
        """Code it in one of `WAYS`."""
        if way == "update":
            return encode_difference(self.x, self.base, self.rule, CODEC)
        if way == "codec":
            return encode_within(self.step, self.bound, CODEC)
        return encode_within(self.x, self.rule.absolute(self.x), CODEC)

    def _coded(self, way: str) -> CodedTensor:
        within = self.encode(way)
        assert within is not None, f"{self.name} cannot be coded within {self.rule}"
        base = self.base if way == "update" else None
        return CodedTensor(self.x.dtype, self.x.shape, CODEC, within.payload, 0, base)


def tensors_of(model: str, rule: ErrorBound, folder: Path, data_dir: Path | None) -> list[Tensor]:
    """Return what is coded with loss of a model that one client has trained."""
    before = arrays.load(model, "weights", folder, data_dir=data_dir)
    update = arrays.load(model, "update", folder, data_dir=data_dir)
    return [
        Tensor(name, before[name], before[name] + step, rule)
        for name, step in update.items()
        if is_lossy(name, step, rule="paper", threshold=DEFAULT.threshold)
    ]


def seal(
    arrays: dict[str, NDArray], config: Settings, reference: Reference | None = None
) -> ArrayRecord:
    """Return arrays as a client seals them that feeds nothing back."""
    return sealed(compress_measured(arrays, config, reference)[0])


def replies(tensors: list[Tensor], rule: ErrorBound) -> dict[str, Update]:
    """Return what a server gets from a client, in each of `WAYS`."""
    after = {tensor.name: tensor.x for tensor in tensors}
    steps = {tensor.name: tensor.step for tensor in tensors}
    reference = Reference({tensor.name: tensor.base for tensor in tensors})
    own = Settings.of(rule, codec=CODEC)
    given = Settings.of(
        "abs:1", codec=CODEC, factors={tensor.name: tensor.bound for tensor in tensors}
    )
    return {
        "update": Update.open(
            seal(after, own, reference), model=reference.arrays, reference=reference
        ),
        "codec": Update.open(seal(steps, given)),
        "weights": Update.open(seal(after, own)),
    }


def client(tensors: list[Tensor], rule: ErrorBound) -> Callable[[str], None]:
    """Return what a client does in a round, in each of `WAYS`."""
    after = {tensor.name: tensor.x for tensor in tensors}
    steps = {tensor.name: tensor.step for tensor in tensors}
    sent = Reference({tensor.name: tensor.base for tensor in tensors})
    factors = {tensor.name: tensor.bound for tensor in tensors}
    given = Settings.of("abs:1", codec=CODEC, factors=factors)
    rng = np.random.default_rng(0)
    residual = {
        tensor.name: rng.uniform(-tensor.bound, tensor.bound, tensor.x.shape).astype(tensor.x.dtype)
        for tensor in tensors
    }

    def work(way: str) -> None:
        if way == "codec":
            compress_measured(steps, given)
            return
        base, update = (sent, DELTA_EF) if way == "update" else (None, WEIGHTS)
        config = Settings.of(rule, codec=CODEC, update=update)
        coder = UpdateCoder(CodecCoder(config), sent, residual)
        compress_measured(after, config, base, coder=coder)

    return work


def average(reply: Update) -> None:
    """Do what a server does in a round."""
    mean = Mean()
    for weight in range(1, REPLIES + 1):
        terms = reply.terms()
        mean.add(reply.measured(terms), terms, float(weight), 1.0)
    mean.result()


def measure(work: Callable[[str], None], seconds: float) -> dict[str, list[float]]:
    """Return the processor time of each way, pass by pass; one pass before is not counted."""
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    end = time.perf_counter() + seconds
    while len(taken["update"]) <= FEWEST or time.perf_counter() < end:
        for way in WAYS:
            start = time.process_time()
            work(way)
            taken[way].append(time.process_time() - start)
    return {way: times[1:] for way, times in taken.items()}


def cells(taken: dict[str, list[float]], elements: int) -> list[str]:
    """Return the update's time in ns an element, and its ratios to the codec and the weights."""
    update = taken["update"]
    ratios = (
        statistics.median(a / b for a, b in zip(update, taken[way], strict=True))
        for way in ("codec", "weights")
    )
    return [f"{statistics.median(update) / elements * 1e9:.2f}", *(f"{r:.2f}" for r in ratios)]


def row(model: str, rule: ErrorBound, options: argparse.Namespace) -> str:
    """Measure one model under one rule; return a row of the table."""
    tensors = tensors_of(model, rule, options.arrays, options.data_dir)
    elements = sum(tensor.x.size for tensor in tensors)
    sealed = replies(tensors, rule)

    def encode(way: str) -> None:
        for tensor in tensors:
            tensor.encode(way)

    def decode(way: str) -> None:
        for tensor in tensors:
            tensor.coded[way].decode()

    works = (client(tensors, rule), encode, decode, lambda way: average(sealed[way]))
    measured = (cells(measure(work, options.seconds), elements) for work in works)
    return " | ".join(["", model, str(rule), *(cell for some in measured for cell in some), ""])


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arrays", type=Path, default=arrays.CACHE, help="of benchmarks/arrays.py")
    parser.add_argument("--data-dir", type=Path, help="holds cifar10/; default: from the hub")
    parser.add_argument("--models", nargs="+", choices=arrays.RECIPES, default=[*arrays.RECIPES])
    parser.add_argument("--bounds", nargs="+", default=BOUNDS)
    parser.add_argument("--seconds", type=float, default=3.0, help="for each number, about")
    options = parser.parse_args()
    works = ("client", "encode", "decode", f"average {REPLIES}")
    heads = [f"{work}, {of}" for work in works for of in ("ns", "/ codec", "/ weights")]
    print("| model | bound | " + " | ".join(heads) + " |")
    print("| --- | --- |" + " ---: |" * len(heads))
    for model in options.models:
        for bound in options.bounds:
            print(row(model, ErrorBound.of(bound), options).strip(), flush=True)


if __name__ == "__main__":
    main()
