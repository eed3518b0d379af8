"""The ServerApp and ClientApp of fedsz, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from safetensors.torch import save_file

from fedsz.arrays import as_arrays
from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError, DataError, ModelMismatch
from fedsz.flower import LocalGrid, make_client_app
from fedsz.flower.records import to_record
from fedsz.training.federation import federate, prepare
from fedsz.training.images import build_model
from fedsz.training.model_state import load
from fedsz.training.options import RunConfig


def run(config: RunConfig, nodes: list[dict[str, Any]]) -> list[RoundRecord]:
    rounds: list[RoundRecord] = []
    federate(LocalGrid(make_client_app(), nodes), config, prepare(config), rounds.append)
    return rounds


def shares(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"partition-id": i, "num-partitions": count, **more} for i in range(count)]


def test_digits_are_learned_from_compressed_updates() -> None:
    config = RunConfig(rounds=3, min_clients=2, error_bound=1e-2)

    start, *rounds = run(config, shares(2))

    assert start.accuracy < 0.3
    assert rounds[-1].accuracy > 0.85
    for done in rounds:
        assert done.replies == 2
        assert done.ratio > 4
        assert 0 < done.max_error <= 1


def test_steps_are_learned_from_as_weights_are() -> None:
    weights, delta = (
        run(RunConfig(rounds=3, min_clients=2, update=update), shares(2))
        for update in ("weights", "delta")
    )

    assert delta[-1].accuracy > 0.85
    for one, other in zip(weights[1:], delta[1:], strict=True):
        assert other.replies == 2
        assert other.max_error <= 1
        assert other.ratio > 2 * one.ratio


def test_a_bound_costs_no_accuracy_that_shows() -> None:
    """A bound that is not kept, or a broken average, would show here."""
    raw, lossy = (
        run(RunConfig(rounds=3, min_clients=2, learning_rate=0.003, **options), shares(2))[-1]
        for options in ({"codec": "raw", "lossless": "raw"}, {"error_bound": 1e-3})
    )

    assert raw.ratio == pytest.approx(1, abs=0.01)
    assert lossy.accuracy == pytest.approx(raw.accuracy, abs=0.03)


def test_equal_seeds_give_equal_runs() -> None:
    config = RunConfig(rounds=1, min_clients=2, seed=5)

    first, second = (run(config, shares(2))[-1] for _ in range(2))

    assert (first.accuracy, first.loss) == (second.accuracy, second.loss)


def test_a_run_starts_from_given_weights(tmp_path: Path) -> None:
    trained: list[RoundRecord] = []
    config = RunConfig(rounds=2, min_clients=2)
    model = federate(
        LocalGrid(make_client_app(), shares(2)), config, prepare(config), trained.append
    )
    path = tmp_path / "model.safetensors"
    save_file({name: x.contiguous() for name, x in model.state_dict().items()}, path)

    start, _ = run(RunConfig(rounds=1, min_clients=2, initial=str(path)), shares(2))

    assert (start.accuracy, start.loss) == (trained[-1].accuracy, trained[-1].loss)
    with pytest.raises(ModelMismatch):
        prepare(RunConfig(initial=str(path), dataset="cifar10"))


def test_images_are_scaled_for_clients_and_server() -> None:
    options = {"rounds": 1, "min_clients": 1, "samples": 64, "test_samples": 32}

    (*_, small), (*_, large) = (
        run(RunConfig(image_size=size, **options), shares(1)) for size in (0, 16)
    )

    assert large.loss != small.loss
    assert large.replies == 1
    assert large.train_seconds > 0
    assert large.test_seconds > 0


def test_a_client_with_another_data_set_is_left_out() -> None:
    nodes = [*shares(2)[:1], shares(2, dataset="cifar10")[1]]

    *_, last = run(RunConfig(rounds=1, min_clients=2), nodes)

    assert last.replies == 1
    (reason,) = (failure.reason for failure in last.failures)
    assert "this client has 'cifar10', the server asks for 'digits'" in reason


def test_another_model_is_refused_with_both_shapes() -> None:
    theirs = build_model(RunConfig())
    ours = as_arrays(build_model(RunConfig(dataset="cifar10")).state_dict())

    with pytest.raises(
        ModelMismatch, match=r"has shape \(32, 3, 3, 3\) where the model has \(32, 1, 3, 3\)"
    ):
        load(theirs, to_record(ours))


def test_float64_arrays_from_a_strategy_are_loaded() -> None:
    model = build_model(RunConfig())
    wide = {name: x.astype(np.float64) for name, x in as_arrays(model.state_dict()).items()}

    load(model, to_record(wide))

    assert {str(tensor.dtype) for tensor in model.state_dict().values()} == {"torch.float32"}


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"dataset": "mnist"}, ConfigError, "no data set 'mnist'; have digits"),
        ({"model": "vgg"}, ConfigError, "no model 'vgg'; have cnn"),
        ({"partitioner": "skew"}, ConfigError, "no partitioner 'skew'; have iid, dirichlet"),
        ({"codec": "sz4"}, ConfigError, "no codec 'sz4'"),
        ({"dataset": "cifar10", "data_dir": "/nowhere"}, DataError, "/nowhere"),
        ({"update": "gradients"}, ConfigError, "no update 'gradients'; have weights, delta"),
        ({"device": "cuda:99"}, ConfigError, "no device 'cuda:99' here: "),
        ({"device": "abacus"}, ConfigError, "no device 'abacus' here: "),
        ({"initial": "/nowhere.safetensors"}, ConfigError, "cannot read the initial weights"),
    ],
)
def test_what_does_not_exist_is_noticed_before_the_first_round(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        prepare(RunConfig(**options))
