"""The two lines alone: what they choose, what they leave as it is, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedsz.control.record import Decision, Traffic
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, compressed
from fedsz.flower.records import KEY, STYPE
from fedsz.flower.round_log import RoundLog
from tests import federation
from tests.federation import CLIENTS, Watched, grid_of, record_of, to_arrays

ROUNDS = 4
Train = Callable[[int, dict[str, np.ndarray]], dict[str, np.ndarray]]


def model(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "0": rng.normal(size=(100, 80)).astype(np.float32),
        "1": rng.normal(size=100).astype(np.float32),
    }


def step(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(client)
    return {k: (x + rng.normal(0, 1e-3, x.shape)).astype(x.dtype) for k, x in arrays.items()}


app_of = partial(federation.app_of, step, examples=lambda _: 1)


def start(grid: Grid, *, rounds: int = ROUNDS, evaluate: float = 0.0, seed: int = 0) -> Any:
    nodes = len(list(grid.get_node_ids()))
    strategy = FedAvg(
        fraction_evaluate=evaluate,
        min_train_nodes=nodes,
        min_available_nodes=nodes,
        min_evaluate_nodes=1,
    )
    return strategy.start(grid, record_of(model(seed)), num_rounds=rounds)


def alone(app: ClientApp) -> LocalGrid:
    """One client: the sums of several depend on the order in which Flower asks them."""
    return LocalGrid(app, [{"partition-id": 0}])


def told(content: RecordDict) -> dict[str, Any]:
    return dict(content.config_records[KEY])


@pytest.mark.parametrize(("codec", "ratio"), [("uniform", 10), ("szx", 2)])
def test_whoever_names_nothing_or_a_codec_alone_gets_what_is_safe(codec: str, ratio: int) -> None:
    watched = Watched(grid_of(app_of()))
    grid = FedSZGrid(watched, codec=codec)
    start(grid)

    asked = told(watched.down[0])
    assert (asked["update"], asked["rule"], asked["codec"]) == ("delta+ef", "shape", codec)
    assert asked["error-bound"].startswith("step:")
    traffic = grid.take_traffic()
    assert traffic.lossy == 1  # the vector could be statistics
    assert traffic.raw_up > ratio * traffic.sent_up


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("error_bound", "0.001"),
        ("rule", "ndim"),
        ("update", "delta"),
        ("downlink", "std:1"),
        ("threshold", 5),
    ],
)
def test_whoever_names_something_gets_exactly_that(name: str, value: Any) -> None:
    watched = Watched(grid_of(app_of()))
    start(FedSZGrid(watched, **{name: value}), rounds=2)

    for content in watched.down:
        asked = {"error-bound": "0.01", **told(content), "downlink": value}
        assert asked[name.replace("_", "-")] == value
        assert asked["error-bound"] == (value if name == "error_bound" else "0.01")


def test_evaluation_neither_has_nor_takes_the_residual() -> None:
    """Its arrays go exactly, they are counted apart, and training is as it is without them."""
    finals = []
    for evaluate in (0.0, 1.0):
        # Bounds that stay: `auto` has another for each round, and evaluation comes before it.
        grid = FedSZGrid(alone(app_of(evaluates_arrays=True)), "step:1", downlink="step:1")
        finals.append(to_arrays(start(grid, evaluate=evaluate).arrays))
        traffic = grid.take_traffic()
        assert traffic.replies == ROUNDS
        assert traffic.raw_aside == evaluate * traffic.raw_up
        assert 20 * traffic.sent_aside <= traffic.raw_aside  # nothing has changed
    assert all(np.array_equal(finals[0][name], x) for name, x in finals[1].items())


def test_a_second_grid_starts_without_the_residuals_of_the_first() -> None:
    fresh = to_arrays(start(FedSZGrid(alone(app_of())), seed=1).arrays)

    clients = alone(app_of())
    start(FedSZGrid(clients))
    second = to_arrays(start(FedSZGrid(clients), seed=1).arrays)

    assert all(np.array_equal(fresh[name], x) for name, x in second.items())


def test_each_round_is_a_line_in_flowers_log(flower_log: list[str]) -> None:
    start(FedSZGrid(grid_of(app_of())))
    assert [line.split(":")[1] for line in flower_log] == [
        f" round {n}" for n in range(1, ROUNDS + 1)
    ]
    for part in (f"{CLIENTS} replies", "up ", "x smaller", "energy arrived", "rounds behind"):
        assert part in flower_log[-1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"error_bound": 1e-2, "update": "delta"}, "is lost"),
        ({"error_bound": 1e-2}, "name a smaller one"),
        ({"rule": "paper"}, "0 of 2 tensors are lossy"),
    ],
)
def test_what_costs_accuracy_or_saves_nothing_is_warned_of_once(
    options: dict[str, Any], says: str, flower_log: list[str]
) -> None:
    start(FedSZGrid(grid_of(app_of()), **options))
    assert sum(says in line for line in flower_log) == 1


def test_what_is_no_floats_is_not_told_to_use_what_it_uses(flower_log: list[str]) -> None:
    """As FedXgb's trees are, which are bytes."""
    trees = ArrayRecord({"0": Array(np.arange(2000, dtype=np.uint8))})
    FedAvg().start(FedSZGrid(grid_of(federation.app_of(lambda _, x: x))), trees, num_rounds=1)
    (why,) = [line for line in flower_log if "tensors" in line]
    assert "rule=" not in why
    assert "0 of 1 tensors hold floating-point numbers: they are sent without loss" in why

    bias = ArrayRecord({"0": Array(np.ones(20, np.float32))})
    FedAvg().start(FedSZGrid(grid_of(app_of())), bias, num_rounds=1)
    why = "the replies hold fewer than 1024 bytes of arrays; they pass as they are"
    assert flower_log[-1] == f"fedsz: {why}"


def test_a_round_whose_updates_are_all_zero_is_told_once(flower_log: list[str]) -> None:
    start(FedSZGrid(grid_of(federation.app_of(lambda i, x: step(i, x) if i else x))), rounds=2)
    assert not any("updates are zero" in line for line in flower_log)
    start(FedSZGrid(grid_of(federation.app_of(lambda _, arrays: arrays))), rounds=3)
    assert sum("all updates are zero" in line for line in flower_log) == 1


def test_a_round_that_saves_nothing_claims_nothing(flower_log: list[str]) -> None:
    log = RoundLog(Settings())
    told = {"replies": 1, "tensors": 1, "lossy": 1, "raw_down": 1000, "sent_down": 990}
    usual = Decision(config=Settings())
    log.tell(1, Traffic(**told, raw_up=100, sent_up=3000), usual)
    log.tell(2, Traffic(raw_down=10, raw_aside=9, sent_down=10, sent_aside=9), usual)
    assert flower_log == [
        "fedsz: round 1: 1 replies, up 3.0 kB of 100 B, down 990 B of 1.0 kB",
        "fedsz: round 2: down 10 B of 10 B, replies that do not train 9 B of 9 B",
    ]


def test_what_makes_auto_careful_is_told_once(flower_log: list[str]) -> None:
    log = RoundLog(Settings())
    usual, gains = "auto: 1 of what 0.5 points allow", "still gaining 2.9 points"
    whys = [usual, f"{usual}, {gains}", f"{usual}, still gaining 2.75 points"]
    whys += [f"{usual}; accuracy x1: nothing measured", f"{usual}; accuracy x0.5: fell"]
    for number, why in enumerate(whys, 1):
        log.tell(number, Traffic(tensors=1, lossy=1), Decision(config=Settings(), why=why))
    told = [line for line in flower_log if not line.startswith("fedsz: round")]
    assert [line for line in told if "allow" in line] == [
        f"fedsz: {usual}, {gains}",
        f"fedsz: {usual}; accuracy x0.5: fell",
    ]


def test_the_mods_class_and_a_grid_that_is_wrapped_twice_are_told(flower_log: list[str]) -> None:
    start(FedSZGrid(grid_of(app_of(mods=[FedSZMod]))), rounds=1)
    assert any("mods has the class FedSZMod: write FedSZMod()" in line for line in flower_log)
    with pytest.raises(ConfigError, match="this Grid is a FedSZGrid already: wrap it once"):
        FedSZGrid(FedSZGrid(grid_of(app_of())))
    with pytest.raises(ConfigError, match="wrap it once"):
        FedSZGrid(Watched(FedSZGrid(grid_of(app_of()))))


def test_whoever_forgets_the_mod_is_told_so(flower_log: list[str]) -> None:
    start(FedSZGrid(grid_of(app_of(mods=[]))), rounds=1)
    assert any(STYPE in line and "FedSZMod()" in line for line in flower_log)


def test_an_app_that_is_handed_no_grid_gets_one_of_ours() -> None:
    app = ServerApp()
    given: list[Grid] = []

    @app.main()
    def _(grid: Grid, context: Context) -> None:
        del context
        given.append(grid)
        start(grid, rounds=1)

    clients = grid_of(app_of())
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={})
    compressed(app, codec="szx")(clients, context)

    (grid,) = given
    assert isinstance(grid, FedSZGrid)
    assert grid.take_traffic().replies == CLIENTS
