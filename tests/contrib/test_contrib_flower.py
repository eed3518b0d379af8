"""FetchSGD, EF21 and DIANA as mods and strategies of Flower apps, with and without fedsz."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz.contrib.ef21 import SHIFT, Diana, Ef21, shift_mod
from fedsz.contrib.fetchsgd import FetchSgd, fetchsgd_mod
from fedsz.contrib.steps import STEPS
from fedsz.errors import ConfigError
from fedsz.flower import FedSZMod
from tests.federation import Arrays, Federation, app_of, to_arrays

SHAPE, CLIENTS, STEP = (40, 50), 3, 0.05


def target(client: int) -> np.ndarray:
    """Targets that lie far apart, few of whose elements are large: skewed data."""
    rng = np.random.default_rng(client)
    x = np.zeros(SHAPE, np.float32)
    x.reshape(-1)[rng.choice(x.size, 10, replace=False)] = rng.choice([-3, 3], 10)
    return x


GOAL = np.mean([target(client) for client in range(CLIENTS)], axis=0)
FIRST = {"w": np.zeros(SHAPE, np.float32), "count": np.array(3)}


def pulled(client: int, arrays: Arrays) -> Arrays:
    """Clients pull the model towards targets of their own, and change no count."""
    w = arrays["w"]
    return {**arrays, "w": (w + STEP * (target(client) - w)).astype(np.float32)}


class Run(Federation):
    """Rounds of one strategy, which goes on with its model from call to call."""

    def __init__(self, strategy: FedAvg, mod: Any, *, sealed: bool = False) -> None:
        app = app_of(pulled, mods=[FedSZMod(), mod] if sealed else [mod], examples=lambda _: 1)
        options = {"downlink": "1e-4"} if sealed else {}
        super().__init__(app, CLIENTS, strategy, FIRST, wrapped=sealed, **options)

    def rounds(self, count: int, change: Callable[[Message], object] = lambda _: None) -> float:
        """Run rounds, and return how far the model is from its goal, relative to its first."""
        for number in range(1, count + 1):
            self.train(number, change)
        assert self.model["count"] == FIRST["count"]
        return float(np.square(self.model["w"] - GOAL).sum() / np.square(GOAL).sum())


NO_TEST: Any = {"fraction_evaluate": 0.0}
ALGORITHMS: dict[str, tuple[Callable[[], FedAvg], Any]] = {
    "FetchSGD": (lambda: FetchSgd(k=20, columns="25%", momentum=0.5, **NO_TEST), fetchsgd_mod),
    "EF21": (lambda: Ef21(chain="topk:k=2%", **NO_TEST), shift_mod),
    "DIANA": (lambda: Diana(chain="randk:k=20%,own=1", **NO_TEST), shift_mod),
}


@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "fedsz"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_finds_the_mean_of_skewed_targets(name: str, sealed: bool) -> None:
    strategy, mod = ALGORITHMS[name]
    sizes: list[int] = []

    def measure(reply: Message) -> None:
        assert not reply.content.array_records
        payload: Any = reply.content.config_records[STEPS].values()
        sizes.append(sum(len(x) for x in payload if isinstance(x, bytes)))

    run = Run(strategy(), mod, sealed=sealed)

    assert run.rounds(150, measure) < 0.02
    most = 1.3 if name == "FetchSGD" else 0.5  # five rows of a quarter
    assert max(sizes) < most * FIRST["w"].nbytes


def test_without_shifts_the_same_chain_does_not_find_it() -> None:
    """Each client's largest elements are its own, and cancel each other only in the mean."""
    plain = Run(Ef21(chain="topk:k=2", rate=1e-9, **NO_TEST), shift_mod).rounds(150)

    assert plain > 10 * Run(Ef21(chain="topk:k=2", **NO_TEST), shift_mod).rounds(150)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"stream": b"", "shift.age": 0, "w": b""},
        {"stream": b"no stream", "shift.age": 0, "w": b"\0" * 12},
        {"stream": 7, "shift.age": "no", "w": 7},
        {"stream": fedsz.compress({"w": np.zeros(3)}), "shift.age": 0, "w": b"\xff" * 10_000},
        {
            "stream": fedsz.compress({"w": np.full(SHAPE, np.nan, np.float32)}),
            "shift.age": 0,
            "w": np.full(2500, np.inf, np.float32).tobytes(),
        },
    ],
    ids=["nothing", "empty", "no stream", "other types", "another shape", "not finite"],
)
def test_a_hostile_reply_is_left_out(name: str, damaged: dict[str, Any]) -> None:
    strategy, mod = ALGORITHMS[name]
    run = Run(strategy(), mod)
    others = Run(strategy(), mod)
    hostile = run.grid.get_node_ids()[0]

    def damage(reply: Message) -> None:
        if reply.metadata.src_node_id == hostile:
            reply.content[STEPS] = ConfigRecord(dict(damaged))

    def drop(reply: Message) -> None:
        if reply.metadata.src_node_id == hostile:
            del reply.content[STEPS]

    assert run.rounds(3, damage) == others.rounds(3, drop) > 0


def test_both_sides_of_a_shift_start_anew_after_a_loss_and_agree_again() -> None:
    run = Run(Ef21(chain="topk:k=2%", **NO_TEST), shift_mod)
    nodes = run.grid.get_node_ids()
    run.rounds(20)

    def lose(reply: Message) -> None:  # and the client believes that it has arrived
        if reply.metadata.src_node_id == nodes[0]:
            del reply.content[STEPS]

    run.rounds(1, lose)
    for name in list(run.contexts[1].state):  # a SuperNode that has restarted
        del run.contexts[1].state[name]
    assert isinstance(run.strategy, Ef21)
    run.strategy.shifts.pop(nodes[2])  # a server that has

    run.rounds(1)
    ages = [run.strategy.shifts[node][0] for node in nodes]
    distance = run.rounds(120)

    assert ages == [1, 1, 1]
    assert distance < 0.02
    for client, node in enumerate(nodes):
        kept = to_arrays(run.contexts[client].state.array_records[SHIFT])
        assert np.array_equal(kept["w"], run.strategy.shifts[node][1]["w"])


def test_shifts_of_clients_that_stay_away_are_dropped() -> None:
    strategy = Ef21(most_clients=2, **NO_TEST)

    Run(strategy, shift_mod).rounds(3)

    assert len(strategy.shifts) == 2


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: FetchSgd(momentum=1.0), "momentum must lie from 0, below 1"),
        (lambda: FetchSgd(k=0), "number of elements"),
        (lambda: FetchSgd(rows=17), "rows must lie in 1..16"),
        (lambda: Ef21(rate=0), "rate of a shift must lie above 0"),
        (lambda: Ef21(chain="feedback>topk"), "without state"),
        (lambda: Diana(chain="topk"), "unbiased"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(make: Callable[[], FedAvg], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()
