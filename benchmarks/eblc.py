"""What a predictor made for gradients gains over coding the same arrays without a prediction.

    python -m benchmarks.eblc --data-dir DIR

The predictor is that of arXiv 2511.05770, as eblc_coding.py has it. Beside it stand `sz3` and
`uniform` alone. Behind the predictor the same two code what it leaves.

"Gradient" is read as the settings published with the paper (apecs-lab/EB-FaLCom) have it: the
difference of a client's weights over a round. It is measured for an epoch of small batches, and for
one step on the whole share, which is a gradient times the learning rate. The updates are exact ones
of a run on CIFAR-10: what is compressed does not change the training. Tensors have "weight" in
their name and more than 1,024 elements. A ratio is of their bytes in a round, over all clients,
and the mean of these from the second round on: the first has nothing to predict from.

"kernels" has their prediction in every convolution. "best" codes each tensor without a prediction
and with each of the two, and keeps the smallest: the most that a choice between them can gain.
The bound is asserted on every tensor.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.eblc_coding import Eblc, Signs
from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec
from fedsz.codecs.sz3 import Sz3
from fedsz.codecs.uniform import Uniform
from fedsz.core.partition import PAPER, is_lossy
from fedsz.core.settings import DEFAULT
from fedsz.training import models
from fedsz.training.datasets import Division, open_shares
from fedsz.training.loop import train
from fedsz.training.model_state import arrays_of, set_arrays
from fedsz.training.options import RunConfig

CLIENTS = 4
BOUNDS = ("rel:1e-2", "rel:3e-2")
Updates = dict[tuple[int, str], NDArray]  # of a round: tensors by client and name


def updates(training: RunConfig, options: argparse.Namespace) -> Iterator[Updates]:
    """Yield what each client's training changes, round by round; the server averages exactly."""
    division = Division(CLIENTS, samples=options.samples, seed=options.seed)
    share_of = open_shares("cifar10", division, data_dir=options.data_dir)
    shares = list(map(share_of, range(CLIENTS)))
    model = models.build("cnn", num_classes=10, in_channels=3, seed=options.seed)
    start = {name: x.copy() for name, x in arrays_of(model).items()}
    for number in range(options.rounds):
        steps = []
        for client, share in enumerate(shares):
            set_arrays(model, start)
            train(model, share, training, options.seed + number * CLIENTS + client)
            steps.append({name: x - start[name] for name, x in arrays_of(model).items()})
        start = {name: x + sum(step[name] for step in steps) / CLIENTS for name, x in start.items()}
        yield {
            (client, name): x
            for client, step in enumerate(steps)
            for name, x in step.items()
            if is_lossy(name, x, rule=PAPER, threshold=DEFAULT.threshold)
        }


def ratio(
    rounds: Sequence[Updates],
    bound: ErrorBound,
    coder: Codec,
    ways: Sequence[Signs],
) -> tuple[float, Counter[Signs]]:
    """Return the mean ratio from the second round on, and how often signs came from where."""
    sides = {of: Eblc(coder, ways) for of in rounds[0]}
    ratios, chosen = [], Counter[Signs]()
    for number, tensors in enumerate(rounds):
        sent = 0
        for of, x in tensors.items():
            payload = sides[of].encode(x, bound)
            error = float(np.abs(sides[of].last - x.astype(np.float64)).max())
            assert error <= bound.absolute(x), f"{of} moved by {error}"
            sent += len(payload)
            if number:
                chosen[Signs(payload[0])] += 1
        ratios.append(sum(x.nbytes for x in tensors.values()) / sent)
    return statistics.mean(ratios[1:]), chosen


TRAININGS = {
    "an epoch of batches of 16": RunConfig(batch_size=16, learning_rate=0.02),
    "one step on the whole share": RunConfig(batch_size=1 << 20, learning_rate=0.1),
}
CODERS = {
    "sz3, with its own prediction": Sz3(algorithm="interp_lorenzo"),
    "sz3": Sz3(),
    "uniform": Uniform(),
}
PREDICTORS = {
    "none": (Signs.UNPREDICTED,),
    "kernels": (Signs.KERNELS,),
    "best": tuple(Signs),
}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, help="holds cifar10/; default: from the hub")
    parser.add_argument("--samples", type=int, default=2400, help="images of all clients")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for where, training in TRAININGS.items():
        rounds = list(updates(training, options))
        for name, coder in CODERS.items():
            for predictor, ways in PREDICTORS.items():
                row = f"{where} | {name} | {predictor}"
                for bound in BOUNDS:
                    mean, chosen = ratio(rounds, ErrorBound.of(bound), coder, ways)
                    counts = " ".join(f"{signs.name.lower()} {n}" for signs, n in chosen.items())
                    row += f" | {bound}: {mean:.2f} ({counts})"
                print(row, flush=True)


if __name__ == "__main__":
    main()
