"""Models on staggered lattices: each client's is coarse, their mean fine, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz import compress
from fedsz.control.record import Decision
from fedsz.core.broadcast import Broadcast
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.core.staggered import (
    LATTICES,
    MOST,
    OFF,
    Staggered,
    shift_of,
    widening,
)
from fedsz.errors import ConfigError
from fedsz.flower import FedBuff, FedSZGrid, FedSZMod, LocalGrid, PrivateFedAvg, StreamingFedAvg
from fedsz.flower.broadcasts import Broadcasts
from fedsz.flower.mean import Mean
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import sealed, to_record, views_of
from tests.staggered_fleet import (
    BOUND,
    FINE,
    IN_BASIS,
    ROUNDS,
    Fleet,
    Watched,
    WatchedStream,
    first,
    grid_of,
    rounds,
)


def test_shifts_are_spread_evenly_and_coarser_lattices_are_parts_of_finer_ones() -> None:
    for exponent, unit in product(range(-40, 12), (0.5, 0.5625, 0.9375)):
        step = LATTICES * unit * 2.0**exponent
        shifts = [shift_of(lattice, step) for lattice in range(LATTICES)]
        assert sorted(shift / step for shift in shifts) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
        twice = [shift_of(lattice, 2 * step) for lattice in range(LATTICES)]
        assert [shift % step for shift in twice] == shifts


@pytest.mark.parametrize(
    "weights", [{0: 1.0}, {0: 1, 1: 1, 2: 1, 3: 1}, {0: 2, 1: 3, 2: 1, 3: 2, 4: 2}, {0: 9, 1: 1}]
)
def test_a_mean_on_widened_lattices_is_as_exact_as_on_one(weights: dict[int, float]) -> None:
    rng, total = np.random.default_rng(0), sum(weights.values())
    x = rng.normal(0, 50, 100_000)
    mean_energy = []
    for exponent in range(4):  # which lattices are beside each other depends on it
        step = LATTICES * 2.0**exponent
        error = np.zeros(x.size)
        for lattice, weight in weights.items():
            shift = shift_of(lattice, step)
            error += weight / total * (np.rint((x - shift) / step) * step + shift - x)
        mean_energy.append(np.mean(error**2) / (step**2 / 12))
    wide = widening(weights)
    assert 1 <= wide <= MOST
    assert wide == MOST or np.mean(mean_energy) * wide**2 == pytest.approx(1, rel=0.1)


def test_points_keep_to_the_bound_and_differ_by_what_the_grid_says() -> None:
    rng = np.random.default_rng(1)
    x = np.ldexp(np.rint(rng.normal(0, 5e4, (40, 50))), -20).astype(np.float32)  # on a lattice
    ugly = np.array([np.nan, np.inf, 1e-42, 0, -1], np.float32)
    first = Reference({"a": x, "still": x, "ugly": ugly, "half": x.astype(np.float16)})
    lattices = [Staggered(k, first) for k in range(LATTICES)]
    held, x = LATTICES * [first], x.copy()
    for turn, bound in enumerate((1e-3, 1e-3, 5e-3, 4e-2, 2e-3)):
        some = x if turn > 1 else x[4:]  # the others begin to move later
        some += rng.normal(0, 2e-3, some.shape).astype(np.float32)
        now = {**first.arrays, "a": x, "ugly": ugly + 1}
        bounds = {"a": bound, "still": bound, "ugly": 0.0 if turn else bound, "half": bound}
        placed = [one.place(now, bounds, base) for one, base in zip(lattices, held, strict=True)]
        for k, ((one, after), base) in enumerate(zip(placed, held, strict=True)):
            assert one.points.keys() == {"a", "still"}
            assert after.steps["ugly"] == OFF
            point = one.points["a"]
            assert np.abs(point - x).max() <= bound
            moved = (point.astype(np.float64) - base.arrays["a"]) / one.grid["a"]
            assert (moved == np.rint(moved)).all()
            assert one.points["still"] is first.arrays["still"]
            lattices[k] = after
            held[k] = Reference({**first.arrays, "a": point})
        mean = np.mean([one.points["a"] for one, _ in placed], axis=0, dtype=np.float64)
        # That of all five is a point of a lattice five times as fine.
        assert np.abs(mean - x).max() <= bound / LATTICES * 1.001


def test_weights_that_stand_still_beside_a_counter_stay_on_their_lattices() -> None:
    config = Settings(threshold=0, downlink="staggered:step:2", update="delta+ef")
    broadcasts, rng = Broadcasts(Broadcast), np.random.default_rng(0)
    x = rng.normal(size=(60, 50)).astype(np.float32)

    def put(model: dict[str, np.ndarray], config: Settings) -> list[Broadcast]:
        lattices = broadcasts.of_nodes(range(5), {"arrays": model}, config, trains=True)
        of_each = [(k, model, config) for k in sorted(lattices)]
        return [broadcasts.put("arrays", *one, reference=True)[0] for one in of_each]

    for number in range(6):
        sent = put({"fc.weight": x, "n": np.array(number)}, config)
        x = x if number == 4 else x + 0.01 * rng.normal(size=x.shape).astype(np.float32)
    assert len(sent) == LATTICES
    assert all(one.staggered and one.staggered.steps["fc.weight"] > 0 for one in sent)
    assert all(len(one.steps[-1].stream) < x.nbytes / 8 for one in sent)

    (one,) = put({"fc.weight": x[:9], "n": np.array(7)}, config.not_staggered)  # another layout
    assert one.model is not None
    assert one.model.arrays["fc.weight"].shape == (9, 50)


def test_only_bounds_of_a_step_are_staggered() -> None:
    config = Settings(downlink="staggered:step:0.50")
    assert config.downlink == BOUND
    assert config.staggers
    assert str(config.downlink_bound) == "step:0.5"
    assert config.not_staggered.downlink == "step:0.5"
    assert not Settings(downlink="std:1").staggers
    for text in ("staggered:std:1", "staggered:exact", "staggered:"):
        with pytest.raises(ConfigError):
            Settings(downlink=text)


@pytest.mark.parametrize("strategy", [Watched, WatchedStream])
@pytest.mark.parametrize("weights", [lambda _: 1, lambda i: 1 + 3 * i])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("update", ["delta", IN_BASIS])
def test_the_model_is_the_sum_of_all_steps(
    strategy: type[Watched], weights: Callable[[int], int], shared: bool, update: str
) -> None:
    """Whatever models clients hold: their errors leave no trace in what the strategy has."""
    fleet, made = Fleet(4, weights), strategy(fraction_evaluate=0.0)
    how = {"downlink": BOUND, "update": update, "shared_initial": shared}
    grid = FedSZGrid(fleet.grid(), FINE, **how)
    result = made.start(grid=grid, initial_arrays=ArrayRecord([first()]), num_rounds=ROUNDS)
    (got,) = result.arrays.to_numpy_ndarrays()
    meant = first() + np.sum([fleet.mean_step(turn) for turn in range(ROUNDS)], axis=0)
    # Without the initial model the first goes coarsely, which the second round sets right.
    np.testing.assert_allclose(got, meant, atol=2e-6)


@pytest.mark.parametrize("strategy", [Watched, WatchedStream])
@pytest.mark.parametrize(("dtype", "error"), [(np.float64, 2e-6), (np.float16, 2e-4)])
def test_models_in_another_dtype_count_from_what_was_meant(
    strategy: type[Watched], dtype: type, error: float
) -> None:
    fleet, made = Fleet(4, dtype=dtype), strategy(fraction_evaluate=0.0)
    model = rounds(grid_of(fleet), made, ArrayRecord([first()]), 0, ROUNDS)
    meant = first() + np.sum([fleet.mean_step(turn) for turn in range(ROUNDS)], axis=0)
    np.testing.assert_allclose(model.to_numpy_ndarrays()[0], meant, atol=error)


@pytest.mark.parametrize("seals", [True, False])
def test_what_is_no_difference_counts_from_what_was_meant_if_it_is_a_model(seals: bool) -> None:
    held, step = first(), np.random.default_rng(3).normal(0, 1e-3, (60, 60)).astype(np.float32)
    meant = held + np.float32(5e-4)
    for reply, expected in ((held + step, meant + step), (step, step)):
        record = to_record({"x": reply})
        if seals:
            record = sealed([compress({"x": reply}, codec="raw")], {})
        updates = [ReceivedUpdate(record, sent={"x": held}, meant={"x": meant}) for _ in range(2)]
        mean = Mean()
        mean.add(updates[1], 2.0)
        for got in (updates[0].arrays(), views_of(mean.result())):
            np.testing.assert_allclose(got["x"], expected, atol=1e-7)


def test_clients_begin_apart_and_their_mean_does_not() -> None:
    fleet, strategy = Fleet(5), WatchedStream(fraction_evaluate=0.0)
    grid = FedSZGrid(fleet.grid(), FINE, downlink=BOUND, update="delta")
    strategy.start(grid=grid, initial_arrays=ArrayRecord([first()]), num_rounds=ROUNDS)
    for turn in range(2, ROUNDS):
        begun = [fleet.begun[i][turn] for i in range(5)]
        assert all(not np.array_equal(begun[0], other) for other in begun[1:])
        each = [np.sqrt(np.mean((x - strategy.sent[turn]) ** 2)) for x in begun]
        mean = np.sqrt(np.mean((np.mean(begun, axis=0) - strategy.sent[turn]) ** 2))
        assert max(each) > 3 * mean
        step = np.sqrt(np.mean(fleet.mean_step(turn - 1) ** 2))
        assert mean < 0.5 * step


def test_bounds_of_many_steps_do_not_grow_by_the_errors_that_they_allow() -> None:
    fleet, strategy, many = Fleet(2), WatchedStream(fraction_evaluate=0.0), 3.4
    grid = grid_of(fleet, downlink=f"staggered:step:{many}")
    strategy.start(grid=grid, initial_arrays=ArrayRecord([first()]), num_rounds=3 * ROUNDS)
    for turn in range(2, 3 * ROUNDS):
        step = np.sqrt(np.mean(fleet.mean_step(turn - 1) ** 2))
        most = 1.001 * many * widening({0: 1, 1: 1}) * step
        assert not np.array_equal(fleet.begun[0][turn], fleet.begun[1][turn])
        assert all(np.abs(x[turn] - strategy.sent[turn]).max() < most for x in fleet.begun.values())


def test_staggered_models_take_fewer_bytes() -> None:
    bytes_down = []
    for downlink in ("step:0.5", BOUND):
        fleet = Fleet(4)
        grid = FedSZGrid(fleet.grid(), FINE, downlink=downlink, update="delta")
        StreamingFedAvg(fraction_evaluate=0.0).start(
            grid=grid, initial_arrays=ArrayRecord([first()]), num_rounds=20
        )
        bytes_down.append(grid.take_traffic().sent_down)
    assert bytes_down[1] < 0.8 * bytes_down[0]


def test_all_hold_one_model_where_lattices_are_of_no_use() -> None:
    fleet, clients = Fleet(4), 4
    grid = FedSZGrid(fleet.grid(), FINE, update="delta", codec="sz3", downlink=BOUND)
    StreamingFedAvg(fraction_evaluate=0.0).start(
        grid=grid, initial_arrays=ArrayRecord([first()]), num_rounds=3
    )
    for turn in range(3):
        for client in range(1, clients):
            np.testing.assert_array_equal(fleet.begun[client][turn], fleet.begun[0][turn])


def test_rounds_that_overlap_have_one_lattice() -> None:
    fleet = Fleet(4)
    grid = FedSZGrid(fleet.grid(), FINE, downlink=BOUND, update="delta")
    FedBuff(buffer=2, fraction_evaluate=0.0).start(
        grid=grid, initial_arrays=ArrayRecord([first()]), num_rounds=4
    )
    seen = {x.tobytes() for begun in fleet.begun.values() for x in begun}
    assert len(seen) <= 5  # one for each model that there was


@pytest.mark.parametrize("update", ["delta", IN_BASIS])
@pytest.mark.parametrize("stopped", [1, 3])
def test_a_run_resumed_between_testing_and_training_is_the_same(stopped: int, update: str) -> None:
    ends, bounds = [], []
    for stop in (None, stopped):
        fleet, made = Fleet(4, lambda i: 1 + 9 * i), Watched(fraction_evaluate=0.0)
        grid, model = grid_of(fleet, update=update), ArrayRecord([first()])
        if stop:
            model = rounds(grid, made, model, 0, stop)
            grid.end_round()
            state, inner = grid.state(), grid.inner
            grid = FedSZGrid(inner, FINE, downlink=BOUND, update=update)
            grid.restore(state)
        model = rounds(grid, made, model, stop or 0, stopped + 1)
        grid.end_round()
        (put,) = (record for name, record in grid.state().items() if name.startswith("put."))
        bounds.append(put["bounds"])
        model = rounds(grid, made, model, stopped + 1, ROUNDS)
        ends.append((model.to_numpy_ndarrays()[0], [x[-1] for x in fleet.begun.values()]))
    # But for the order in which Flower asks clients, and adds up replies.
    np.testing.assert_allclose(ends[0][0], ends[1][0], atol=1e-6)
    np.testing.assert_allclose(np.sort(ends[0][1], 0), np.sort(ends[1][1], 0), atol=1e-6)
    np.testing.assert_allclose(bounds[0], bounds[1], rtol=1e-3)


def test_a_client_keeps_to_the_same_lattice_in_whatever_order_clients_are_asked() -> None:
    class Ordered(WatchedStream):
        backwards = False

        def configure_train(self, *given: Any) -> Iterable[Message]:
            asked = super().configure_train(*given)
            return sorted(asked, key=lambda x: x.metadata.dst_node_id, reverse=self.backwards)

    begun = []
    for backwards in (False, True):
        fleet, made = Fleet(4), Ordered(fraction_evaluate=0.0)
        made.backwards = backwards
        made.start(grid_of(fleet), ArrayRecord([first()]), num_rounds=3)
        begun.append([fleet.begun[client][2] for client in range(4)])
    assert not np.allclose(begun[0][0], begun[0][1], atol=1e-6)
    np.testing.assert_allclose(begun[0], begun[1], atol=1e-6)


@pytest.mark.parametrize("then", ["", "resumes", "unites"])
def test_nothing_is_lost_if_the_round_in_which_lattices_part_has_no_replies(then: str) -> None:
    fleet, made = Fleet(4), Watched(fraction_evaluate=0.0)
    grid, model = grid_of(fleet), ArrayRecord([first()])
    model = rounds(grid, made, model, 0, 1)
    grid.end_round()
    grid.push_messages(list(made.configure_train(2, model, ConfigRecord(), grid)))
    grid.end_round()
    if then == "unites":
        grid.steer(Decision(config=Settings(error_bound=FINE, update="delta")))
    if then == "resumes":
        state, inner = grid.state(), grid.inner
        grid = FedSZGrid(inner, FINE, downlink=BOUND, update="delta")
        grid.restore(state)
    model = rounds(grid, made, model, 2, ROUNDS)
    meant = first() + np.sum([fleet.mean_step(turn) for turn in range(ROUNDS - 1)], axis=0)
    np.testing.assert_allclose(model.to_numpy_ndarrays()[0], meant, atol=2e-6)


@pytest.mark.parametrize("then", ["exact", "step:0.5"])
def test_clients_that_held_different_models_hold_one_again(then: str) -> None:
    fleet, made = Fleet(4), Watched(fraction_evaluate=0.0)
    grid = grid_of(fleet)
    model = rounds(grid, made, ArrayRecord([first()]), 0, 3)
    how = Settings(error_bound=FINE, update="delta", downlink=then)
    for number in range(3, 6):
        grid.end_round()
        grid.steer(Decision(config=how))
        model = rounds(grid, made, model, number, number + 1)
    for turn in (3, 4, 5):
        for client in range(1, 4):
            np.testing.assert_array_equal(fleet.begun[client][turn], fleet.begun[0][turn])
    meant = first() + np.sum([fleet.mean_step(turn) for turn in range(6)], axis=0)
    off = 0 if then == "exact" else 1e-3  # what the last broadcast has left out, the next has
    np.testing.assert_allclose(model.to_numpy_ndarrays()[0], meant, atol=3e-6 + off)


def test_what_clients_leave_at_0_stays_there_and_does_not_fall_below() -> None:
    class Pruned(Fleet):
        def step(self, turn: int, client: int) -> np.ndarray:
            step = super().step(turn, client)
            step[:30] = 0
            return step

    start = first()
    start[:30] = 0
    fleet, made = Pruned(4), WatchedStream(fraction_evaluate=0.0)
    grid = grid_of(fleet, shared_initial=True)
    result = made.start(grid=grid, initial_arrays=ArrayRecord([start]), num_rounds=ROUNDS)
    assert not result.arrays.to_numpy_ndarrays()[0][:30].any()
    assert not any(x[:30].any() for begun in fleet.begun.values() for x in begun)


def test_steps_in_place_of_models_count_as_they_are() -> None:
    fleet = Fleet(4)

    made = Watched(fraction_evaluate=0.0)
    app = ClientApp(mods=[FedSZMod()])
    turns = dict.fromkeys(range(4), 0)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        turns[client] += 1
        content = RecordDict({
            "arrays": ArrayRecord([fleet.step(turns[client] - 1, client)]),
            "metrics": MetricRecord({"num-examples": 1}),
        })  # fmt: skip
        return Message(content, reply_to=message)

    nodes = [{"partition-id": i, "num-partitions": 4} for i in range(4)]
    grid = FedSZGrid(LocalGrid(app, nodes), FINE, downlink=BOUND, update="delta")
    x = first()
    for number in range(ROUNDS):
        asked = list(made.configure_train(number + 1, ArrayRecord([x]), ConfigRecord(), grid))
        averaged, _ = made.aggregate_train(number + 1, grid.send_and_receive(asked))
        assert averaged is not None
        x = x + averaged.to_numpy_ndarrays()[0]
    meant = first() + np.sum([fleet.mean_step(turn) for turn in range(ROUNDS)], axis=0)
    np.testing.assert_allclose(x, meant, atol=2e-6)


@pytest.mark.parametrize("rules", ["fleet", None])
def test_a_weight_that_is_capped_is_kept(rules: str | None) -> None:
    fleet, made = Fleet(6, lambda i: 10_000 if i == 5 else 10), Watched(fraction_evaluate=0.0)
    grid = grid_of(fleet, rules=rules)
    model = ArrayRecord([first()])
    for number in range(4):
        asked = list(made.configure_train(number + 1, model, ConfigRecord(), grid))
        model = made.aggregate_train(number + 1, grid.send_and_receive(asked))[0] or model
        grid.end_round()
        assert grid.state()


def test_private_runs_begin_with_one_model_also_if_they_test_at_clients() -> None:
    fleet = Fleet(4)

    strategy = PrivateFedAvg(epsilon=50, noise=0.5, clip=0.05, rounds=3, fraction_evaluate=1.0)
    strategy.start(
        grid=FedSZGrid(fleet.grid()), initial_arrays=ArrayRecord([first()]), num_rounds=3
    )
    for turn in range(3):
        for client in range(1, 4):
            np.testing.assert_array_equal(fleet.begun[client][turn], fleet.begun[0][turn])
