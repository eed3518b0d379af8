"""Every strategy and kind of app of Flower, plain beside wrapped in fedsz's two lines.

    python -m benchmarks.flower_matrix docs/results/flower_matrix.json [--rounds 6] [--seeds 3]
    python -m benchmarks.flower_matrix docs/results/flower_matrix.json --table

The first makes the rows, one for each case and seed; the second prints the table of docs/flower.md
from them. The cases are those of tests/flower/flower_cases.py: five clients with a share of
scikit-learn's digits, a network of 108,210 parameters, and 600 images held out.
"""

from __future__ import annotations

import argparse
import logging
import platform
from collections.abc import Iterable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

import msgspec

from tests.flower.flower_cases import CASES
from tests.flower.flower_runs import Case, Outcome
from tests.flower.flower_simulation import SIMULATED, simulated


class Side(msgspec.Struct):
    """What one run came to: accuracy in [0, 1], mean cross-entropy in nats, bytes of arrays."""

    accuracy: float
    loss: float
    up: int
    down: int
    errors: int


class Row(msgspec.Struct):
    """A case with one seed, plain and wrapped."""

    case: str
    engine: str
    passes: str
    seed: int
    rounds: int
    plain: Side
    wrapped: Side


class Rows(msgspec.Struct):
    """All rows, and what they were made with."""

    commit: str
    flower: str
    python: str
    rows: list[Row]


def side(outcome: Outcome) -> Side:
    """Return what the table has of an outcome."""
    errors = len(outcome.errors) + len(outcome.traffic.failures)
    return Side(outcome.accuracy, outcome.loss, outcome.up, outcome.down, errors)


def row(case: Case, seed: int, rounds: int) -> Row:
    """Run a case in one process, plain and wrapped."""
    plain, wrapped = (
        case.run(wrapped=wrapped, rounds=rounds, seed=seed) for wrapped in (False, True)
    )
    return Row(case.name, "LocalGrid", case.passes, seed, rounds, side(plain), side(wrapped))


def simulated_row(case: Case, rounds: int) -> Row:
    """Run a case in Flower's simulation, plain and wrapped."""
    plain, wrapped = (simulated(case, wrapped=wrapped, rounds=rounds) for wrapped in (False, True))
    return Row(case.name, "simulation", case.passes, 0, rounds, side(plain), side(wrapped))


HEAD = """\
| app or strategy | accuracy | wrapped | up | down | both |
| --- | ---: | ---: | ---: | ---: | ---: |
"""


def table(rows: Iterable[Row]) -> str:
    """Return the table of docs/flower.md: means over seeds, times fewer bytes.

    Apps of which it has the same numbers share a row.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for found in rows:
        groups.setdefault((found.case, found.engine), []).append(found)
    names: dict[str, list[str]] = {}
    for (name, engine), group in groups.items():
        named = name if engine == "LocalGrid" else f"{name} ({engine})"
        names.setdefault(_cells(group), []).append(named)
    return HEAD + "".join(f"| {'; '.join(of)} | {cells} |\n" for cells, of in names.items())


def _cells(rows: list[Row]) -> str:
    plain, wrapped = [row.plain for row in rows], [row.wrapped for row in rows]
    cells = [
        *(f"{100 * fmean(side.accuracy for side in sides):.1f} %" for sides in (plain, wrapped)),
        *(
            _ratio(sum(map(size, plain)), sum(map(size, wrapped)))
            for size in (lambda s: s.up, lambda s: s.down, lambda s: s.up + s.down)
        ),
    ]
    return " | ".join(cells)


def _ratio(plain: int, wrapped: int) -> str:
    """Return how many times fewer bytes there are; a dash where no array crosses at all."""
    return f"{plain / wrapped:.1f}×" if wrapped else "–"


def main() -> None:
    """Make the rows, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="JSON file of the rows")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--commit", default="", help="of fedsz, to be noted beside the rows")
    parser.add_argument("--table", action="store_true", help="print the table, run nothing")
    options = parser.parse_args()
    if not options.table:
        logging.disable(logging.WARNING)
        seeds = range(options.seeds)
        found = Rows(options.commit, version("flwr"), platform.python_version(), [])
        jobs = [partial(row, case, seed, options.rounds) for case in CASES for seed in seeds]
        jobs += [partial(simulated_row, case, options.rounds) for case in SIMULATED]
        for job in jobs:
            found.rows.append(job())
            options.rows.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
            print(table(found.rows[-1:]).splitlines()[-1], flush=True)
    print(table(msgspec.json.decode(options.rows.read_bytes(), type=Rows).rows), end="")


if __name__ == "__main__":
    main()
