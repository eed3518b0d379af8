"""The ServerApp and ClientApp of fedsz, in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from fedsz.arrays import as_arrays
from fedsz.control.record import RoundRecord
from fedsz.errors import ModelMismatch
from fedsz.flower.records import to_record
from fedsz.training.federation import prepare
from fedsz.training.images import build_model
from fedsz.training.model_state import load
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import MODEL
from tests.fleets import federated, shares


def run(config: RunConfig) -> list[RoundRecord]:
    return federated(config, shares(2))


def test_digits_are_learned_from_steps_as_from_weights() -> None:
    """A bound that is not kept, or a broken average, would show here."""
    raw, weights, delta = (
        run(RunConfig(rounds=3, learning_rate=0.005, **options))
        for options in (
            {"codec": "raw", "lossless": "raw"},
            {"update": "weights", "error_bound": 1e-3},
            {"update": "delta", "error_bound": 1e-2},
        )
    )

    assert delta[0].accuracy < 0.3
    assert delta[-1].accuracy > 0.85
    assert raw[-1].ratio == pytest.approx(1, abs=0.01)
    for lossy in (weights, delta):
        assert lossy[-1].accuracy == pytest.approx(raw[-1].accuracy, abs=0.03)
    for one, other in zip(weights[1:], delta[1:], strict=True):
        assert (one.replies, other.replies) == (2, 2)
        assert 0 < one.max_error <= 1
        assert 0 < other.max_error <= 1
        assert other.ratio > 2 * one.ratio
        assert other.ratio > 4


def test_equal_seeds_give_equal_runs_which_others_start_from(tmp_path: Path) -> None:
    first, again = (
        run(RunConfig(rounds=1, seed=5, run_dir=str(tmp_path / name))) for name in ("a", "b")
    )
    path = tmp_path / "a" / MODEL

    start, _ = run(RunConfig(rounds=1, initial=str(path)))

    assert (first[-1].accuracy, first[-1].loss) == (again[-1].accuracy, again[-1].loss)
    assert (start.accuracy, start.loss) == (first[-1].accuracy, first[-1].loss)
    with pytest.raises(ModelMismatch):
        prepare(RunConfig(initial=str(path), dataset="cifar10"))


def test_images_are_scaled_for_clients_and_server() -> None:
    options = {"rounds": 1, "samples": 64, "test_samples": 32}

    (*_, small), (*_, large) = (run(RunConfig(image_size=size, **options)) for size in (0, 16))

    assert large.loss != small.loss
    assert large.replies == 2
    assert large.train_seconds > 0
    assert large.test_seconds > 0


def test_a_client_with_another_data_set_is_left_out() -> None:
    nodes = [*shares(2)[:1], shares(2, dataset="cifar10")[1]]

    *_, last = federated(RunConfig(rounds=1, samples=64, test_samples=32), nodes)

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
