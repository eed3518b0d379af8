"""What fedsz's filters save in an NVFlare job, beside NVFlare's own.

    python -m benchmarks.nvflare_rounds docs/results/nvflare.parquet --data-dir DIR [--seeds 3]
    python -m benchmarks.nvflare_rounds docs/results/nvflare.parquet --table

The first makes the rows that the file lacks: the job of examples/nvflare on CIFAR-10, on NVFlare's
simulator, with 4 sites for 10 rounds. The second prints the table of docs/guides/nvflare.md from
them. Bytes are those of the messages' DXOs as NVFlare serialises them, where they leave the last
filter of the server, and where they reach its first. NVFlare's filters need bitsandbytes, and those
of 8 and 4 bits ask for a GPU: they are given the CPU in its place, where bitsandbytes has the same
formats.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import torch
from safetensors.torch import save_file

from benchmarks.measuring import add_missing, rows_of

ROOT: Final = Path(__file__).parents[1]
NONE, FEDSZ = "none", "fedsz"
SHARED: Final = "fedsz, initial model at the sites"
TOLERANT: Final = "fedsz, tolerance=1"
SETTINGS: Final[dict[str, dict[str, Any]]] = {FEDSZ: {}, TOLERANT: {"tolerance": 1.0}}
OWN: Final = ("float16", "blockwise8", "normfloat4", "adaquant")  # as NVFlare names them
WAYS: Final = (NONE, *SETTINGS, SHARED, *OWN)
SITES, ROUNDS, SAMPLES, TEST_SAMPLES = 4, 10, 6000, 5000
COUNTS: Final = "FEDSZ_BENCHMARK_COUNTS"  # in the environment: a folder


def _initial(folder: str) -> str:
    """Return a file of the weights that the example's job begins with."""
    path = Path(folder) / "initial.safetensors"
    weights = torch.load(path.with_suffix(".pt"), weights_only=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path)
    return str(path)


def run(way: str, seed: int, data_dir: str) -> dict[str, Any]:
    """Return the row of one job."""
    from nvflare.recipe import SimEnv

    from benchmarks import nvflare_filters as filters
    from fedsz.nvflare import add_fedsz
    from fedsz.training.options import RunConfig
    from fedsz.training.task import load_task

    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {COUNTS: folder, "PYTHONPATH": str(ROOT)}
        sys.path.insert(0, str(ROOT / "examples" / "nvflare"))
        example = importlib.import_module("job")
        args = example.parse(
            [
                "--dataset=cifar10", f"--data-dir={data_dir}", f"--samples={SAMPLES}",
                "--test-samples=500", f"--seed={seed}", f"--sites={SITES}", f"--rounds={ROUNDS}",
                f"--workspace={folder}", "--name=job",
            ]
        )  # fmt: skip
        recipe = example.make_recipe(args)
        filters.count_arrivals(recipe)
        if way == SHARED:
            add_fedsz(recipe, initial=_initial(folder))
        elif way in SETTINGS:
            add_fedsz(recipe, **SETTINGS[way])
        elif way != NONE:
            filters.add_own(recipe, way)
        filters.count_departures(recipe)
        result = recipe.execute(SimEnv(num_clients=SITES, workspace_root=folder)).get_result()
        saved = next(Path(result).rglob("FL_global_model.pt"))
        config = RunConfig(
            dataset="cifar10", data_dir=data_dir, model="cnn", test_samples=TEST_SAMPLES
        )
        task = load_task(config)
        model = task.build_model()
        model.load_state_dict(torch.load(saved, weights_only=True)["model"])
        score = task.evaluate(model, task.load_test())
        sizes = {
            name: [int(line) for line in (Path(folder) / name).read_text().split()]
            for name in (filters.DOWN, filters.UP)
        }
    return {
        "way": way,
        "seed": seed,
        "accuracy": score.accuracy,
        "loss": score.loss,
        "messages": len(sizes[filters.UP]),
        **{f"{name}_bytes": sum(found) for name, found in sizes.items()},
    }


class Line(NamedTuple):
    """A row of the table, over the seeds that both it and plain jobs have."""

    way: str
    seeds: int
    up: float  # times fewer bytes than the plain jobs
    down: float
    both: float
    points: float  # of the last accuracy above the plain job's, the mean, as a share


HEAD: Final = """\
| filters | seeds | up | down | both | points |
| --- | ---: | ---: | ---: | ---: | ---: |
"""


def lines(rows: list[dict[str, Any]]) -> Iterator[Line]:
    """Yield what each way came to, in the order of `WAYS`."""
    known = {(row["way"], row["seed"]): row for row in rows}
    for way in WAYS[1:]:
        seeds = [s for w, s in known if w == way and (NONE, s) in known]
        if not seeds:
            continue
        pairs = [(known[way, seed], known[NONE, seed]) for seed in seeds]
        up, down = (
            sum(plain[name] for _, plain in pairs) / sum(own[name] for own, _ in pairs)
            for name in ("up_bytes", "down_bytes")
        )
        whole = [
            fmean(row["up_bytes"] + row["down_bytes"] for row in side)
            for side in zip(*pairs, strict=True)
        ]
        points = fmean(own["accuracy"] - plain["accuracy"] for own, plain in pairs)
        yield Line(way, len(seeds), up, down, whole[1] / whole[0], points)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/guides/nvflare.md."""
    return HEAD + "".join(_text(line) for line in lines(rows))


def _text(line: Line) -> str:
    ratios = " | ".join(f"{ratio:.1f}" for ratio in (line.up, line.down, line.both))
    return f"| {line.way} | {line.seeds} | {ratios} | {100 * line.points:+.2f} |\n"


def main() -> None:
    """Make what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        print(table(rows_of(args.rows)), end="")
        return

    def rows(seed: int, way: str) -> list[dict[str, Any]]:
        return [run(way, seed, str(Path(args.data_dir).resolve()))]

    add_missing(args.rows, ("seed", "way"), product(range(args.seeds), WAYS), rows)


if __name__ == "__main__":
    main()
