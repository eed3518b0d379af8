"""The apps in examples/, as their READMEs say."""

from __future__ import annotations

import importlib
import io
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict
from flwr.cli.build import build_fab_from_disk

from fedsz.flower import LocalGrid

pytestmark = [pytest.mark.release, pytest.mark.repository, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(request: pytest.FixtureRequest) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder of an example, on the path, and its pyproject.toml; its modules are forgotten."""
    folder = EXAMPLES / request.param
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    yield folder, project["tool"]["flwr"]["app"]
    sys.path.remove(str(folder))
    (package,) = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for name in set(sys.modules) - before:
        if name.split(".")[0] == package:
            del sys.modules[name]


def run(app: dict[str, Any], nodes: int, **config: Any) -> None:
    """Run an app's two sides in this process, with its own configuration but for ``config``."""
    server, client = (
        getattr(importlib.import_module(place), name)
        for place, name in (value.split(":") for value in app["components"].values())
    )
    settings = app["config"] | {key.replace("_", "-"): value for key, value in config.items()}
    places = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
    grid = LocalGrid(client, places, settings)
    server(grid, Context(grid.run.run_id, 1, {}, RecordDict(), settings))


def accuracies(output: str) -> list[float]:
    return [float(found) for found in re.findall(r"^round \d+: accuracy ([\d.]+)", output, re.M)]


def uploaded(output: str) -> tuple[int, int]:
    """The bytes that were sent up, and those of the arrays."""
    sent, raw = re.findall(r"^up ([\d,]+) of ([\d,]+) bytes", output, re.M)[0]
    return int(sent.replace(",", "")), int(raw.replace(",", ""))


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml"))
)
def test_flower_takes_the_app_as_a_bundle(name: str) -> None:
    bundle = build_fab_from_disk(EXAMPLES / name)

    with zipfile.ZipFile(io.BytesIO(bundle)) as files:
        names = files.namelist()
    assert "pyproject.toml" in names
    assert any(file.endswith("server_app.py") for file in names)
    if name == "pytorch_quickstart":  # what the hub asks for beside
        assert "LICENSE" in names


@pytest.mark.parametrize("example", ["pytorch_quickstart"], indirect=True)
def test_pytorch_on_a_folder_of_images(
    example: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np, image = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for kind, base in (("dark", 0), ("light", 128)):
        (tmp_path / kind).mkdir()
        for i in range(40):
            pixels = rng.integers(base, base + 128, (20, 20), dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / kind / f"{i}.png")

    run(example[1], 2, data_dir=str(tmp_path), num_server_rounds=7, learning_rate=0.01)

    assert accuracies(capsys.readouterr().out)[-1] > 0.9


@pytest.mark.parametrize(
    ("example", "needs", "nodes", "rounds", "least"),
    [
        ("scikit_learn", ["sklearn"], 3, 4, 0.85),
        ("jax_digits", ["jax"], 3, 4, 0.85),
        ("transformers_lora", ["transformers", "peft"], 2, 3, 0.8),
    ],
    indirect=["example"],
)
def test_an_app_learns_from_fewer_bytes(
    example: tuple[Path, dict[str, Any]],
    needs: list[str],
    nodes: int,
    rounds: int,
    least: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in needs:
        pytest.importorskip(package)
    run(example[1], nodes, num_server_rounds=rounds)

    output = capsys.readouterr().out
    assert accuracies(output)[-1] > least
    sent, raw = uploaded(output)
    assert 0 < 4 * sent < raw


@pytest.mark.parametrize("example", ["secure_sum"], indirect=True)
@pytest.mark.parametrize(("bits", "smaller"), [(16, 2), (10, 3)])
def test_an_app_learns_from_updates_that_nobody_sees(
    example: tuple[Path, dict[str, Any]],
    bits: int,
    smaller: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(example[1], 5, bits=bits)

    output = capsys.readouterr().out
    assert accuracies(output)[-1] > 0.9
    sent, raw = uploaded(output)
    assert 0.95 * smaller < raw / sent < 1.1 * smaller
