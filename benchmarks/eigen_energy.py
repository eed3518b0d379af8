"""How the energy of updates piles up on few coefficients in a basis from earlier broadcasts.

    python -m benchmarks.eigen_energy --data-dir DIR [--rounds 20] [--seeds 2]

Trains two tasks of configs/eigen.toml without compression, all clients in each round. Models go
into a `History` as they are broadcast. In the last round, all clients' updates of tensors that have
a basis are sorted by magnitude, natural and in the basis. A row says which share of the energy a
share of the coefficients has, the mean over clients. It writes docs/results/eigen-energy.parquet.
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measuring import machine
from fedsz.arrays import NDArray
from fedsz.core.reference import Reference
from fedsz.methods import History
from fedsz.training.model_state import arrays_of, set_arrays
from fedsz.training.options import RunConfig
from fedsz.training.task import LoadedTask, load_task

ROOT: Final = Path(__file__).parents[1]
OUT: Final = ROOT / "docs" / "results" / "eigen-energy.parquet"
TASKS: Final = ("cnn", "gpt")
SHARES: Final = np.arange(101) / 100  # of the coefficients
OPTIONS: Final = {"models": "model", "datasets": "dataset"}  # of a sweep, and of a run


def config_of(name: str, data_dir: str, seed: int, file: str = "eigen") -> RunConfig:
    """Return the options of a task of configs/eigen.toml, or of another of these files."""
    tables = tomllib.loads((ROOT / "configs" / f"{file}.toml").read_text())["tasks"]
    told = {OPTIONS.get(key, key): value for key, value in tables[name].items()}
    told.pop("seeds", None)  # of a sweep
    kind, _, alpha = told.pop("partitions", "iid").partition(":")
    return RunConfig.of(
        {
            **told,
            "partitioner": kind,
            "alpha": float(alpha or 1),
            "data_dir": data_dir,
            "seed": seed,
        }
    )


def copied(model: Any) -> dict[str, NDArray]:
    """Return a model's arrays, as training will leave them."""
    return {name: x.copy() for name, x in arrays_of(model).items()}


def updates(task: LoadedTask, clients: int, rounds: int) -> tuple[History, list[dict[str, Any]]]:
    """Return what all broadcasts have shown, and the steps of all clients in the last round."""
    model = task.build_model()
    at, history = copied(model), History()
    shares = [task.load_share(i, clients) for i in range(clients)]
    steps: list[dict[str, Any]] = []
    for number in range(1, rounds + 1):
        steps, weights = [], []
        for i, share in enumerate(shares):
            set_arrays(model, at)
            weights.append(task.train(model, share, hash((number, i)) % 2**32).examples)
            steps.append({name: x - at[name] for name, x in copied(model).items()})
        if number < rounds:
            after = {
                name: (x + np.average([step[name] for step in steps], 0, weights)).astype(x.dtype)
                for name, x in at.items()
            }
            history = history.beyond(Reference(at), Reference(after))
            at = after
    return history, steps


def in_both(history: History, step: dict[str, Any]) -> dict[str, NDArray]:
    """Return an update's elements in tensors that have a basis: as they are, and in the basis."""
    bases = {name: history.basis(name, x.shape) for name, x in step.items()}
    known = {name: basis for name, basis in bases.items() if basis}
    return {
        "none": np.concatenate([step[name].reshape(-1) for name in known]),
        "eigen": np.concatenate([b.coefficients(step[name]) for name, b in known.items()]),
    }


def energy_of(x: NDArray) -> NDArray:
    """Return the share of energy that each of `SHARES` of the largest elements has."""
    ordered = np.sort(x.astype(np.float64) ** 2)[::-1]
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    return np.interp(SHARES * x.size, np.arange(total.size), total / total[-1])


def main() -> None:
    """Measure, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    rows = []
    for name in TASKS:
        for seed in range(asked.seeds):
            config = config_of(name, asked.data_dir, seed)
            history, steps = updates(load_task(config), config.clients, asked.rounds)
            found = [in_both(history, step) for step in steps]
            for basis in found[0]:
                energies = np.mean([energy_of(of[basis]) for of in found], 0)
                told = {"task": name, "seed": seed, "rounds": asked.rounds, "basis": basis}
                rows += [
                    {**told, "share": float(share), "energy": float(energy), "machine": machine()}
                    for share, energy in zip(SHARES, energies, strict=True)
                ]
                print(f"{name}, seed {seed}, {basis}: a tenth has {energies[10]:.3f} of the energy")
    pq.write_table(pa.Table.from_pylist(rows), OUT, compression="zstd")


if __name__ == "__main__":
    main()
