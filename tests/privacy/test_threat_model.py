"""docs/threat-model.md: its figures are so, its tests exist, and what a thief of a disk finds."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsz import extras
from fedsz.flower import FedSZMod, PrivateFedAvg, SecureSum
from fedsz.flower.records import SECURE
from fedsz.privacy.client import SecureClient
from fedsz.privacy.graph import Assumptions, plan
from fedsz.privacy.keys import combine, split
from fedsz.transport.records_file import read_records
from tests.conftest import ROOT
from tests.federation import Arrays, Federation, Visit, training

CLIENTS = 10
MODEL = {"w": np.zeros((40, 50), np.float32)}
private = pytest.mark.skipif(
    bool(extras.missing("dp_accounting")), reason="dp-accounting is not installed"
)


def page() -> str:
    return (ROOT / "docs" / "threat-model.md").read_text("utf-8")


def app_of(step: Callable[[int, np.ndarray], tuple[np.ndarray, float]], **mod: Any) -> ClientApp:
    def train(at: Visit, model: Arrays) -> tuple[Arrays, dict[str, Any]]:
        moved, weight = step(at.client, model["w"])
        return {"w": model["w"] + moved}, {"num-examples": weight}

    return training(train, [FedSZMod(**mod)])


def run(
    app: ClientApp, strategy: Any = FedAvg, rounds: int = 2, start: Arrays = MODEL, **grid: Any
) -> list[np.ndarray]:
    """Return the model before each round, and the last one."""
    ours = Federation(app, CLIENTS, strategy or FedAvg, start, downlink="exact", **grid)
    ours.run(rounds)
    return [model["w"] for model in ours.models]


def pull(norm: float, weight: float, strategy: Any = None, **grid: Any) -> float:
    """Return how far one client of ten moves the model a round, in typical norms.

    The others move by 1 along another axis.
    """

    def step(i: int, w: np.ndarray) -> tuple[np.ndarray, float]:
        moved = np.zeros_like(w)
        moved[0, 1 if i == 0 else 0] = norm if i == 0 else 1
        return moved, weight if i == 0 else 10.0

    before, after = run(app_of(step), strategy, 1, error_bound="abs:1e-6", **grid)[-2:]
    return float((after - before)[0, 1])


@pytest.mark.parametrize(
    ("who", "options"),
    [
        ("no rules", {}),
        ('`rules="fleet"`', {"rules": "fleet"}),
    ],
)
def test_how_far_one_client_of_ten_pulls_the_mean(who: str, options: dict[str, Any]) -> None:
    honest = pull(1, 10.0, **options)
    far = pull(1e6, 10.0, **options)
    heavy = pull(1e6, 1e12, **options)

    assert f"| {who} | {honest:.1f} | {far:,.1f} | {heavy:,.1f} |".replace(".0 |", " |") in page()


@private
def test_how_far_one_client_of_ten_pulls_a_private_mean() -> None:
    far = [
        pull(1e6, w, PrivateFedAvg(epsilon=1e6, noise=1e-3, clip=1.0, fraction_evaluate=0))
        for w in (10.0, 1e12)
    ]

    assert far == pytest.approx([0.1, 0.1], abs=1e-3)
    assert "| noise at the server, clipped to a typical norm | 0.1 | 0.1 | 0.1 |" in page()


def learned(rules: str | None, factor: float) -> float:
    """Return the accuracy of a network on the digits after ten rounds of ten clients.

    The first of them multiplies its step by a factor, at an honest weight.
    """
    images, labels = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16).astype(np.float32), labels[order]
    rng = np.random.default_rng(1)
    model = {
        "w1": rng.normal(0, 0.15, (64, 32)).astype(np.float32),
        "w2": rng.normal(0, 0.2, (32, 10)).astype(np.float32),
    }

    def train(at: Visit, start: Arrays) -> tuple[Arrays, dict[str, Any]]:
        i = at.client
        w1, w2 = start["w1"].copy(), start["w2"].copy()
        for first in [*range(140 * i, 140 * i + 140, 10)] * 2:
            x, y = images[first : first + 10], labels[first : first + 10]
            hidden = np.maximum(x @ w1, 0)
            scores = hidden @ w2
            wrong = np.exp(scores - scores.max(axis=1, keepdims=True))
            wrong /= wrong.sum(axis=1, keepdims=True)
            wrong[np.arange(10), y] -= 1
            back = (wrong @ w2.T) * (hidden > 0)
            w2 -= 0.03 * hidden.T @ wrong
            w1 -= 0.03 * x.T @ back
        scale = np.float32(factor if i == 0 else 1)
        moved = {n: start[n] + scale * (x - start[n]) for n, x in {"w1": w1, "w2": w2}.items()}
        return moved, {"num-examples": 140}

    options = {"downlink": "exact", "error_bound": "step:0.1", "rules": rules}
    trained = Federation(training(train), CLIENTS, FedAvg, model, **options).run(10)
    w1, w2 = trained["w1"], trained["w2"]
    found = (np.maximum(images[1400:] @ w1, 0) @ w2).argmax(axis=1)
    return float((found == labels[1400:]).mean())


def test_one_client_of_ten_does_not_end_learning() -> None:
    honest, limited, free = learned("fleet", 1), learned("fleet", -9), learned(None, -9)

    assert (limited, honest) == pytest.approx((0.947, 0.975), abs=0.006)
    assert free < 0.5
    said = '0.947 with `rules="fleet"`, 0.975 if that client was honest, and 0.078 without rules'
    assert said in page()


def test_each_test_that_is_named_exists() -> None:
    named = re.findall(r"`(test_\w+)\.(test_\w+)`", page())

    assert len(named) >= 12
    for module, test in named:
        (path,) = (ROOT / "tests").rglob(f"{module}.py")
        source = path.read_text("utf-8")
        assert f"def {test}(" in source, f"{module}.{test}"


# What updates tell.


@pytest.mark.parametrize("hidden", [False, pytest.param(True, marks=private)])
def test_a_dense_layer_gives_its_input_away_unless_it_is_hidden(hidden: bool) -> None:
    """A gradient of its weights is that of its biases times the input: compressed, too."""
    picture = np.add.outer(np.arange(40), np.arange(50)).ravel().astype(np.float32) % 7 - 3

    def step(_: int, w: np.ndarray) -> tuple[np.ndarray, float]:
        by_bias = np.array([0.2, -0.9, 0.7], np.float32)
        return np.outer(by_bias, [*picture, 1]).astype(np.float32), 1.0

    start = {"w": np.zeros((3, picture.size + 1), np.float32)}
    noised = (
        PrivateFedAvg(epsilon=8, clip=1.0, at="client", fraction_evaluate=0) if hidden else None
    )

    before, after = run(app_of(step), noised, 1, start, error_bound="step:0.1")

    weights = (after - before)[1]
    found = np.corrcoef(weights[:-1] / weights[-1], picture)[0, 1]
    assert found < 0.1 if hidden else found > 0.95


# Clients that collude.


@pytest.mark.parametrize("n", [5, 10, 40, 100])
@pytest.mark.parametrize("signed", [False, True])
def test_as_many_as_may_collude_have_no_secret_by_their_shares(n: int, signed: bool) -> None:
    found = plan(n, Assumptions(signed=signed))
    shares = split(12345, range(1, found.degree + 1), found.threshold)
    few = dict(list(shares.items())[: found.threshold - 1])

    assert found.corrupt < found.threshold
    assert combine(few) != 12345
    assert combine(dict(list(shares.items())[: found.threshold])) == 12345


# A thief of a client's disk.


def steps(i: int, w: np.ndarray) -> tuple[np.ndarray, float]:
    rng = np.random.default_rng(i)
    return rng.normal(0, 0.1, w.shape).astype(np.float32), 10.0


def stolen(folder: Path) -> dict[str, Any]:
    """Return the records of the first client's state."""
    own = folder / "0"
    return {
        name: record
        for file in sorted(own.glob("*.fsr"))
        for name, record in read_records(file).items()
    }


def residual_in(records: dict[str, Any]) -> np.ndarray | None:
    arrays = [r for name, r in records.items() if name.startswith("fedsz.memory.")]
    return next(iter(arrays[0].values())).numpy() if arrays and len(arrays[0]) else None


def test_a_thief_finds_the_last_reply_and_what_it_left_out(tmp_path: Path) -> None:
    run(app_of(steps, state_dir=tmp_path), error_bound="step:1")

    records = stolen(tmp_path)

    assert any(name.startswith("fedsz.reply.") for name in records)
    assert any(name.startswith("fedsz.memory.") for name in records)


def test_a_thief_finds_no_secret_of_a_sum_that_is_over(tmp_path: Path) -> None:
    secure = SecureSum(bits=8, strategy_averages=True)
    run(app_of(steps, state_dir=tmp_path), secure=secure)

    records = stolen(tmp_path)

    assert SECURE not in records
    assert any(name.startswith("fedsz.memory.") for name in records)  # what was rounded off


@private
def test_a_thief_finds_nothing_of_an_update_with_noise_in_the_sum(tmp_path: Path) -> None:
    strategy = PrivateFedAvg(epsilon=100, noise=4.0, clip=0.5, at="sum", fraction_evaluate=0)
    run(app_of(steps, state_dir=tmp_path), strategy, secure=SecureSum(bits=20))

    records = stolen(tmp_path)

    assert SECURE not in records
    assert not any(name.startswith("fedsz.memory.") for name in records)


@private
def test_a_thief_finds_an_update_with_its_noise(tmp_path: Path) -> None:
    strategy = PrivateFedAvg(epsilon=100, noise=4.0, clip=0.5, at="client", fraction_evaluate=0)
    run(app_of(steps, state_dir=tmp_path), strategy, error_bound="step:1")

    residual = residual_in(stolen(tmp_path))

    assert residual is not None  # of the update with its noise: nothing like the app's own step
    step, _ = steps(0, MODEL["w"])
    assert abs(np.corrcoef(step.ravel(), residual.ravel())[0, 1]) < 0.1


# A snapshot of a client's state that is put back.


def test_a_server_notices_a_state_that_was_put_back(tmp_path: Path) -> None:
    """The reply names the model that its client had: another one than the server remembers."""
    model = {"w": np.random.default_rng(9).normal(0, 1, (40, 50)).astype(np.float32)}
    app = app_of(steps, state_dir=tmp_path / "states")
    ours = Federation(app, CLIENTS, FedAvg, model, error_bound="step:1", downlink="step:1")
    state, snapshot = tmp_path / "states" / "0", tmp_path / "snapshot"

    ours.train(1)
    shutil.copytree(state, snapshot)
    ours.train(2)
    ours.train(3)
    shutil.rmtree(state)
    shutil.copytree(snapshot, state)
    ours.train(4)

    first, *others = list(ours.grid.get_node_ids())
    assert ours.grid._sender._clients[first].stateless
    assert not any(ours.grid._sender._clients[other].stateless for other in others)


def test_a_client_that_was_put_back_within_a_sum_answers_no_other_round() -> None:
    from tests.privacy.secure_rounds import Round

    first, second = Round(5), Round(5, seed=0)
    client = min(first.sent)
    first.answer(client, first.sent[client])
    snapshot = first.clients[client].to_bytes()
    second.step()

    with pytest.raises(Exception, match="of another round"):
        SecureClient(client).restored(snapshot).answer(second.sent[client])
