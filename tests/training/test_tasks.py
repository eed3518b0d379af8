"""The tasks of fedsz: images, text and tables learn, in a federation too."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError, DataError
from fedsz.training.federation import prepare
from fedsz.training.options import BUILT_IN, USUAL, RunConfig
from fedsz.training.task import load_task
from fedsz.training.text import LENGTH, SYMBOLS
from tests.fleets import federated, shares

SPEAKERS = {"Anna": "abcd", "Ben": "0123", "Cleo": "wxyz", "Dora": "+-*/"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a play in which everybody says the same all the time."""
    folder = tmp_path_factory.mktemp("library")
    speeches = [f"{name}:\n{20 * letters}" for name, letters in SPEAKERS.items()]
    (folder / "play.txt").write_text("\n\n".join(60 * speeches))
    return folder


def run(config: RunConfig) -> list[RoundRecord]:
    return federated(config, shares(2, **{"data-dir": config.data_dir}))


def text_config(library: Path, **options: Any) -> RunConfig:
    return RunConfig(task="text", dataset="play", data_dir=str(library), **options)


def test_a_task_has_its_usual_data_set_and_model() -> None:
    assert USUAL.keys() == BUILT_IN.keys()
    for task, usual in USUAL.items():
        config = RunConfig(task=task)
        assert (config.dataset, config.model) == usual
    assert RunConfig.of(RunConfig().as_dict()) == RunConfig()


@pytest.mark.parametrize("model", ["gpt", "lstm"])
def test_a_play_is_learned(model: str, library: Path) -> None:
    start, *_, last = run(text_config(library, model=model, rounds=3, learning_rate=0.1))

    assert start.loss == pytest.approx(math.log(SYMBOLS), abs=0.5)
    assert last.loss < 2.5
    assert last.accuracy > 0.25
    assert last.ratio > 4
    assert last.failures == []


@pytest.mark.parametrize("model", ["gpt", "lstm"])
def test_no_character_is_told_by_those_after_it(model: str, library: Path) -> None:
    network = load_task(text_config(library, model=model)).build_model().eval()
    x = torch.randint(SYMBOLS, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    y = x.clone()
    y[:, 40:] = 0

    assert torch.allclose(network(x)[:, :40], network(y)[:, :40], atol=1e-5)
    assert not torch.allclose(network(x)[:, 40:], network(y)[:, 40:], atol=1e-5)


def test_pieces_of_a_text_are_disjoint(library: Path) -> None:
    pieces = [load_task(text_config(library)).load_share(i, 4).x for i in range(4)]
    assert {len(piece) for piece in pieces} == {len(pieces[0])}
    assert torch.equal(torch.cat(pieces), load_task(text_config(library)).load_share(0, 1).x[
        : 4 * len(pieces[0])
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("table", "model"),
    [("breast_cancer", "mlp"), ("digits", "linear")],
)
def test_tables_are_learned(table: str, model: str) -> None:
    options: dict[str, Any] = {"dataset": table, "model": model, "learning_rate": 0.05}
    *_, last = run(RunConfig(task="tabular", rounds=5, batch_size=8, **options))

    assert last.failures == []
    assert last.accuracy > 0.8


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"task": "tabular", "dataset": "titanic"}, ConfigError, "no dataset 'titanic' for tables"),
        ({"task": "tabular", "model": "cnn"}, ConfigError, "no model 'cnn' for tables; have mlp"),
        ({"task": "tabular", "partitioner": "skew"}, ConfigError, "no partitioner 'skew'"),
        ({"task": "tabular", "test_samples": 10_000}, DataError, "has 114 test rows, not 10000"),
        ({"task": "text"}, DataError, "the task text needs --data-dir, a folder with shakespeare"),
        ({"task": "text", "data_dir": "/nowhere"}, DataError, "no shakespeare.txt in /nowhere"),
        ({"task": "text", "dataset": "../secret"}, ConfigError, "no data set '../secret': a name"),
        ({"task": "text", "dataset": "/etc/x"}, ConfigError, "no data set '/etc/x': a name has"),
        ({"task": "text", "model": "cnn"}, ConfigError, "no model 'cnn' for text; have gpt, lstm"),
        ({"task": "text", "partitioner": "dirichlet"}, ConfigError, "no partitioner 'dirichlet'"),
        ({"task": "tabular", "device": "abacus"}, ConfigError, "no device 'abacus' here"),
        ({"device": "cuda:99"}, ConfigError, "no device 'cuda:99' here: "),
        ({"partitioner": "skew"}, ConfigError, "no partitioner 'skew'; have iid, dirichlet"),
        ({"dataset": "cifar10", "data_dir": "/nowhere"}, DataError, "/nowhere"),
        ({"update": "gradients"}, ConfigError, "no update 'gradients'; have weights, delta"),
        ({"initial": "/nowhere.safetensors"}, ConfigError, "cannot read the initial weights"),
    ],
)
def test_what_does_not_exist_is_noticed_before_the_first_round(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        prepare(RunConfig(**options))


def test_a_text_that_is_too_short(tmp_path: Path) -> None:
    (tmp_path / "play.txt").write_text("To be, or not to be.")
    with pytest.raises(DataError, match=r"play.txt is too short: it has 20 characters"):
        prepare(text_config(tmp_path))
