"""PrivateFedAvg: each update counts within the norm, noise is as planned, and the budget holds."""

from __future__ import annotations

import itertools
import logging
import math
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as Wrapper

from fedsz import extras
from fedsz.errors import ConfigError
from fedsz.flower import FedSZGrid, LocalGrid, PrivateFedAvg
from fedsz.privacy.budget import PrivacyPlan, epsilon_of
from tests.federation import app_of, initial, record_of, to_arrays

pytestmark = pytest.mark.skipif(
    bool(extras.missing("dp_accounting")), reason="dp-accounting is not installed"
)

Model = dict[str, np.ndarray]
CLIENTS = 5
C = 0.5
ONE: dict[str, Any] = {"fraction_evaluate": 0, "min_available_nodes": 1}
LITTLE = 1e-6  # a noise multiplier that hides nothing, so that sums can be seen
PLAIN: dict[str, Any] = {"epsilon": 1e6, "noise": LITTLE, "clip": C, "seed": 1}


@pytest.fixture(autouse=True)
def _much_may_be_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little noise spends more than any budget; what is spent is shown with real noise."""
    monkeypatch.setattr(PrivacyPlan, "rounds_left", _with_little_noise(PrivacyPlan.rounds_left))
    monkeypatch.setattr(PrivacyPlan, "spent", _with_little_noise(PrivacyPlan.spent))


def _with_little_noise(method: Any) -> Any:
    def run(plan: PrivacyPlan, *given: Any) -> Any:
        return 1 if plan.noise == LITTLE else method(plan, *given)

    return run


def grid_of(edit: Any, *, clients: int = CLIENTS, sealed: bool = True, **options: Any) -> Any:
    configs: list[dict[str, Any]] = [{"partition-id": i} for i in range(clients)]
    grid = LocalGrid(app_of(edit), configs)
    return FedSZGrid(grid, **options) if sealed else grid


def stepped(model: Model, client: int, norm: float) -> Model:
    """A step of a norm over the floats, in a direction of the client's own; counters move, too."""
    draws = np.random.default_rng(client)
    floats = {n: x for n, x in model.items() if x.dtype.kind == "f" and x.size}
    step = {n: draws.normal(size=x.shape) for n, x in floats.items()}
    scale = norm / math.sqrt(sum(float(np.square(s).sum()) for s in step.values()))
    return {
        n: (x.astype(float) + scale * step[n]).astype(x.dtype) if n in step
        else (x + 100 * client).astype(x.dtype)
        for n, x in model.items()
    }  # fmt: skip


def run(strategy: Any, grid: Any, rounds: int = 1, start: Model | None = None) -> list[Model]:
    after: list[Model] = []

    def keep(number: int, arrays: ArrayRecord) -> MetricRecord:
        after.append(to_arrays(arrays))
        return MetricRecord()

    first = record_of(start or initial())
    strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds, evaluate_fn=keep)
    return after


def flat(model: Model) -> np.ndarray:
    return np.concatenate([x.ravel().astype(float) for x in model.values() if x.dtype.kind == "f"])


@pytest.mark.parametrize("sealed", [True, False], ids=["FedSZGrid", "Flower's own"])
@pytest.mark.parametrize("norm", [0.1, 0.4, 7.0])
def test_the_mean_is_of_clipped_updates_that_count_alike(norm: float, sealed: bool) -> None:
    """Clients have 1 to 5 examples; their whole numbers move by hundreds, and count for nothing."""
    grid = grid_of(lambda i, model: stepped(model, i, norm), sealed=sealed, **BOUNDED[sealed])
    strategy = PrivateFedAvg(**PLAIN, **ONE)

    before, after = run(strategy, grid)

    steps = [flat(stepped(before, i, norm)) - flat(before) for i in range(CLIENTS)]
    expected = sum(min(1, C / np.linalg.norm(step)) * step for step in steps) / CLIENTS
    close = np.repeat([2e-4, 2e-3], [3060, 2000])  # the last are of float16, and so is the model
    assert (np.abs(flat(after) - flat(before) - expected) <= close).all()
    whole = [n for n, x in before.items() if x.dtype.kind in "ib"]
    assert all(np.array_equal(after[n], before[n]) for n in whole)
    assert {n: (x.shape, x.dtype) for n, x in after.items()} == {
        n: (x.shape, x.dtype) for n, x in before.items()
    }


BOUNDED: dict[bool, dict[str, Any]] = {True: {"error_bound": "abs:1e-5"}, False: {}}


def test_one_client_moves_the_sum_by_the_norm_at_most_whatever_it_sends() -> None:
    """With it and without: coarse compression and weights in float16 add to what it has clipped."""

    def edit(hostile: bool) -> Any:
        def of(i: int, model: Model) -> Model:
            return stepped(model, i, 1e3 if hostile else 0.2) if i == 0 else stepped(model, i, 0.4)

        return of

    def sum_of(clients: int, *, hostile: bool) -> np.ndarray:
        grid = grid_of(edit(hostile), clients=clients, update="delta", error_bound="std:0.5")
        before, after = run(PrivateFedAvg(**PLAIN, **ONE), grid, start=floats())
        return (flat(after) - flat(before)) * clients

    def floats() -> Model:
        return {n: x.astype(np.float64) for n, x in initial().items() if x.dtype.kind == "f"}

    with_it = sum_of(1, hostile=True)

    assert 0.99 * C < np.linalg.norm(with_it) <= C * (1 + 1e-5)


def test_what_others_send_changes_nothing_of_an_update() -> None:
    """Rules would limit it by what is typical of others: then one client moves many."""
    norms = [0.4, *[0.01] * (CLIENTS - 1)]
    grid = grid_of(lambda i, model: stepped(model, i, norms[i]), rules="fleet", **BOUNDED[True])
    start = {"w": np.zeros(3000)}

    before, after = run(PrivateFedAvg(**PLAIN, **ONE), grid, start=start)

    steps = [flat(stepped(before, i, norm)) for i, norm in enumerate(norms)]
    np.testing.assert_allclose(flat(after), sum(steps) / CLIENTS, atol=1e-5)


def test_the_noise_is_what_the_plan_says() -> None:
    plan = PrivacyPlan(epsilon=8, rounds=4, clip=C)
    model = {"w": np.zeros(20_000, np.float64)}
    strategy = PrivateFedAvg(plan=plan, **ONE)

    before, after = run(strategy, grid_of(lambda i, x: x), start=model)

    noise = (after["w"] - before["w"]) * CLIENTS / C
    assert noise.std() == pytest.approx(plan.multiplier, rel=0.03)
    assert abs(noise.mean()) < 5 * plan.multiplier / math.sqrt(noise.size)
    assert strategy.releases == 1
    assert strategy.epsilon == epsilon_of(plan.multiplier, 1, 1e-5)


def test_each_client_is_drawn_by_itself_and_the_divisor_tells_nothing() -> None:
    """The sum is over the number that was expected, not over those that came."""
    asked: list[set[int]] = []

    def edit(i: int, model: Model) -> Model:
        asked[-1].add(i)
        return stepped(model, i, 0.1)

    strategy = PrivateFedAvg(**{**PLAIN, "seed": None}, sampling=0.4, **ONE)
    grid = grid_of(edit, clients=20, **BOUNDED[True])
    start = {"w": np.zeros(3000, np.float32)}
    for _ in range(40):
        asked.append(set())
        before, after = run(strategy, grid, start=start)
        steps = sum(flat(stepped(before, i, 0.1)) - flat(before) for i in asked[-1])
        np.testing.assert_allclose(flat(after) - flat(before), steps / 8, atol=1e-4)

    counts = [len(each) for each in asked]
    assert 6 < np.mean(counts) < 10
    assert len(set(counts)) > 4
    assert set().union(*asked) == set(range(20))


def test_the_budget_ends_the_run_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fedsz")
    plan = PrivacyPlan(epsilon=30, rounds=4, clip=C, noise=1.0)
    strategy, grid = PrivateFedAvg(plan=plan, **ONE), grid_of(lambda i, x: x)

    done = len(run(strategy, grid, rounds=50)) - 1

    assert 2 < done < 50
    assert plan.spent(done) <= 30 < plan.spent(done + 1)
    assert strategy.ends_after(done) == "the privacy budget of epsilon 30 has no further round"
    assert not strategy.ends_after(done - 1)
    assert f"{done} of 50 rounds: the privacy budget of epsilon 30" in caplog.text
    with pytest.raises(ConfigError, match=r"no round left: epsilon \S+ of 30 at delta 1e-05"):
        run(strategy, grid)


def test_a_resumed_run_goes_on_with_what_was_spent() -> None:
    plan = PrivacyPlan(epsilon=30, clip=C, noise=1.0)
    first = PrivateFedAvg(plan=plan, **ONE)
    run(first, grid_of(lambda i, x: x), rounds=3)
    second = PrivateFedAvg(plan=plan, **ONE)

    second.restore({name: x.copy() for name, x in first.state().items()})

    assert second.releases == first.releases == 3
    assert second.epsilon == first.epsilon > plan.spent(2)
    with pytest.raises(ConfigError, match="did not begin under a budget"):
        PrivateFedAvg(plan=plan, **ONE).restore({})
    with pytest.raises(ConfigError, match="it began with noise of 1 and sampling of 1"):
        PrivateFedAvg(epsilon=30, noise=2.0, **ONE).restore(first.state())


@pytest.mark.parametrize(
    "options",
    [{}, {"rules": "fleet"}, {"downlink": "std:1"}, None],
    ids=["run", "fleet", "downlink", "Flower's own"],
)
@pytest.mark.parametrize("nobody", ["drawn", "replies"])
def test_a_round_without_a_reply_has_the_noise_of_any_other(
    nobody: str, options: dict[str, Any] | None
) -> None:
    """Nor does a run of such rounds end: that would tell that nobody was there, too."""

    def edit(i: int, model: Model) -> Model:
        raise RuntimeError("no training today")

    plan = PrivacyPlan(epsilon=1e3, noise=1.0, clip=C, sampling=1e-9 if nobody == "drawn" else 1.0)
    strategy = PrivateFedAvg(plan=plan, **ONE)
    grid = grid_of(edit, sealed=options is not None, **(options or {}))

    models = run(strategy, grid, rounds=5, start={"w": np.zeros(4000), "n": np.array([7])})

    assert len(models) == 6
    noise = (models[5]["w"] - models[4]["w"]) * plan.sampling * CLIENTS
    assert noise.std() == pytest.approx(C, rel=0.06)
    assert all((b["w"] != a["w"]).all() for a, b in itertools.pairwise(models))
    assert all(model["n"] == 7 for model in models)
    assert not strategy.quorum.why
    assert strategy.releases == 5


def test_what_is_released_goes_onto_a_model_that_depends_on_nobody() -> None:
    """What a lossy downlink has sent is not it: a round that has asked nobody sent nothing."""
    model = {"w": np.random.default_rng(3).normal(size=4000)}
    grid = grid_of(lambda i, x: x, update="delta", error_bound="abs:1e-7", downlink="std:2")

    before, after = run(PrivateFedAvg(**PLAIN, **ONE), grid, start=model)

    np.testing.assert_allclose(after["w"], before["w"], atol=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0}, {"epsilon": -1}, {"epsilon": math.nan}, {"delta": 0}, {"delta": 0.6},
        {"sampling": 0}, {"sampling": 1.1}, {"rounds": 0}, {"noise": -1}, {"noise": math.inf},
        {"clip": 0}, {"clip": math.nan}, {"clip": math.inf}, {"at": "nowhere"},
        {"epsilon": 1, "noise": 0.5},
        {"fraction_train": 0.5}, {"plan": PrivacyPlan(epsilon=1)}, {"min_replies": 2},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_promised_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        PrivateFedAvg(**{"epsilon": 8, "clip": 1.0, **wrong}, **ONE)


def test_it_stands_alone() -> None:
    inner = PrivateFedAvg(epsilon=8, clip=1.0, **ONE)
    wrapped = Wrapper(inner, noise_multiplier=1, clipping_norm=1, num_sampled_clients=CLIENTS)

    with pytest.raises(ConfigError, match="not inside another strategy"):
        run(wrapped, grid_of(lambda i, x: x))
