"""Clients that keep nothing from message to message, or lose what they kept now and then."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz.core import client
from fedsz.core.ahead import ALIKE
from fedsz.core.client import coded_update
from fedsz.core.protocol import Instructions
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg
from fedsz.flower.records import KEY
from fedsz.stream import Reader
from tests.federation import app_of, around, record_of, to_arrays

AHEAD = Settings(
    update="delta+ef", error_bound="step:2", ahead=True, threshold=0, rule="parameters"
)
EIGEN = "feedback>eigen>uniform:shrink=0.25@step:2"
CLIENTS, ROUNDS = 4, 8
MODEL = {"fc.weight": np.random.default_rng(0).normal(size=(100, 80)).astype(np.float32)}
Arrays = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def _first_in_its_process() -> None:
    client._warn_without_memory.cache_clear()


class Kept:
    """A keeper of one model's residual."""

    sender = 1

    def __init__(self, left: Arrays) -> None:
        self.left = left

    def turn(self, key: str, told: Instructions) -> int:
        return told.turn - 1 if self.left else -1

    def residual(self, key: str, told: Instructions) -> tuple[Arrays, int]:
        return self.left, 1

    def keep_residual(self, key: str, residual: Arrays, told: Instructions) -> None:
        self.left = residual


def worst_error(how: Settings, left: Arrays, *, replied: bool) -> float:
    """The largest error of a reply, in root mean squares of its step."""
    step = np.random.default_rng(1).normal(size=MODEL["fc.weight"].shape).astype(np.float32)
    meant = {"fc.weight": MODEL["fc.weight"] + step}
    told, keeper = Instructions(how, 2, replied=replied), cast(Any, Kept(left))

    stream, _, _ = coded_update("arrays", dict(meant), told, Reference(MODEL), keeper)

    came = fedsz.decompress(stream, reference=MODEL, as_numpy=True)
    sent = meant["fc.weight"] + left.get("fc.weight", np.float32(0))
    assert keeper.left  # for the next time, should it be there then
    return float(np.abs(came["fc.weight"] - sent).max() / step.std())


@pytest.mark.parametrize("codec", ["uniform", "uniform:shrink=0.25", "sz3"])
def test_a_reply_within_bounds_of_feedback_is_finer_where_nothing_is_kept(codec: str) -> None:
    how, left = AHEAD.replace(codec=codec), {"fc.weight": np.full_like(MODEL["fc.weight"], 0.1)}

    assert worst_error(how, {}, replied=True) == pytest.approx(ALIKE, rel=0.05)
    for kept, replied in (({}, False), (left, True)):
        assert worst_error(how, kept, replied=replied) == pytest.approx(2, rel=0.05)


def test_a_basis_needs_no_feedback_either() -> None:
    how = AHEAD.replace(update=EIGEN)
    assert worst_error(how, {}, replied=True) < worst_error(how, {}, replied=False) / 2


@pytest.mark.parametrize("changes", [{"ahead": False}, {"error_bound": "std:2"}])
def test_bounds_that_a_user_names_stay(changes: dict[str, Any]) -> None:
    how = AHEAD.replace(**changes)
    named = worst_error(how, {}, replied=False)
    assert worst_error(how, {}, replied=True) == pytest.approx(named, rel=0.05)


def test_servers_say_who_has_replied_and_those_of_before_do_not() -> None:
    said = Instructions(AHEAD, replied=True).written()

    assert Instructions.read(said).replied
    assert not Instructions.read(Instructions(AHEAD).written()).replied
    assert "replied" not in Instructions(AHEAD).written()


class Fleet:
    """Clients that train for some rounds, of which client 1 may lose what it has kept.

    Attributes:
        down: by client, the bytes of arrays of each message that it was sent.
        told: by client, the instructions of each.
        sent: by client, the arrays of each, as bytes.
        errors: how many messages got an error for a reply.
    """

    def __init__(
        self,
        *,
        forgets: set[int],
        drops: set[int],
        initial: bool,
        tests: bool = False,
        **named: Any,
    ) -> None:
        self._tests, self._named = tests, {"shared_initial": initial} | named
        self.down: dict[int, list[int]] = {i: [] for i in range(CLIENTS)}
        self.told: dict[int, list[Instructions]] = {i: [] for i in range(CLIENTS)}
        self.sent: dict[int, list[list[bytes]]] = {i: [] for i in range(CLIENTS)}
        rng = np.random.default_rng(3)

        def edit(client: int, x: Arrays) -> Arrays:
            return {k: (a + rng.normal(0, 0.02, a.shape)).astype(a.dtype) for k, a in x.items()}

        def before(client: int, message: Message, context: Context) -> None:
            number: Any = message.content["config"]["server-round"]
            if message.metadata.message_type != "train":
                return
            if client == 1 and number in forgets:
                context.state.clear()
            record, note = message.content["arrays"], message.content[KEY]
            assert isinstance(record, ArrayRecord)
            self.down[client].append(sum(len(array.data) for array in record.values()))
            self.sent[client].append([bytes(array.data) for array in record.values()])
            self.told[client].append(Instructions.read(cast(Any, note)))

        def after(client: int, message: Message, reply: Message) -> None:
            number: Any = message.content["config"]["server-round"]
            if client == 1 and number in drops:
                raise ConnectionError("the reply is lost")

        mod = FedSZMod(initial=(lambda: dict(MODEL)) if initial else None)
        app = around(app_of(edit, mods=[mod], examples=lambda _: 1), before, after)
        inner = LocalGrid(app, [{"partition-id": i} for i in range(CLIENTS)])
        self.grid = FedSZGrid(inner, **self._named)
        self.after: Arrays = MODEL

    def resumed(self, *, older: bool = False) -> None:
        """Go on with another server, from what the last one, maybe an older one, has kept."""
        state = self.grid.state()
        if older:
            packer = cast(Any, state["packer"])
            del state["lost"], packer["uninitiated"], packer["without"]
        self.grid = FedSZGrid(self.grid.inner, **self._named)
        self.grid.restore(state)

    def train(self, rounds: range) -> None:
        """Train for rounds of these numbers, in which all replies count."""
        strategy = FedAvg()
        for number in rounds:
            asked = strategy.configure_train(
                number, record_of(self.after), ConfigRecord(), self.grid
            )
            replies = list(self.grid.send_and_receive(list(asked)))
            assert not any(reply.has_error() for reply in replies)
            averaged, _ = strategy.aggregate_train(number, replies)
            assert averaged
            self.after = to_arrays(averaged)
        self.grid.end_round()

    def run(self) -> int:
        """Return how many replies have counted."""
        strategy = StreamingFedAvg(fraction_evaluate=float(self._tests))
        result = strategy.start(self.grid, record_of(MODEL), num_rounds=ROUNDS)
        self.after = to_arrays(result.arrays)
        return self.grid.take_traffic().replies

    def sent_what_is_new(self, client: int) -> bool:
        """Whether a client's last message is one difference from the model of the one before."""
        (stream,) = self.sent[client][-1]
        (held,) = self.told[client][-2].holds.values()
        return Reader(stream).header.reference == held


ALL = set(range(1, ROUNDS + 1))


@pytest.mark.parametrize("initial", [True, False])
def test_who_never_keeps_anything_takes_part_in_each_round(
    initial: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(forgets=ALL, drops=set(), initial=initial)

    assert fleet.run() == CLIENTS * ROUNDS

    assert caplog.text.count("nothing is here of what the last reply left out") == 1
    # Two rounds find it out. Then it is asked once in each, and has the first model or nothing.
    late, others = fleet.down[1][6:], fleet.down[0][4:]
    assert len(fleet.down[1]) == ROUNDS + 2
    assert max(late) < 2 * max(others) if initial else min(late) > 4 * max(others)
    assert all(told.replied for told in fleet.told[1][1:])
    assert all(len(down) == ROUNDS for client, down in fleet.down.items() if client != 1)


@pytest.mark.parametrize(("initial", "shared"), [(True, True), (False, False), (False, True)])
@pytest.mark.parametrize("older", [False, True])
def test_a_resumed_server_knows_who_keeps_nothing(initial: bool, shared: bool, older: bool) -> None:
    """Also where a client lacks the first model that it should have."""
    named: Any = {"error_bound": "step:2", "downlink": "step:0.5", "shared_initial": shared}
    fleet = Fleet(forgets=ALL, drops=set(), initial=initial, update="delta+ef", **named)
    fleet.train(range(1, 5))
    before = len(fleet.down[1])

    fleet.resumed(older=older)
    fleet.train(range(5, 9))

    unread = len(fleet.down[1]) - before - 4
    assert unread >= 2 if older else unread == 0


def test_a_resumed_server_tells_who_keeps_nothing_of_a_basis() -> None:
    fleet = Fleet(forgets=ALL, drops=set(), initial=True, update=EIGEN, downlink="step:0.5")
    fleet.train(range(1, 5))

    fleet.resumed()
    fleet.train(range(5, 9))

    assert len(fleet.down[1]) == 8 + 2
    assert all(told.histories for told in fleet.told[1][-4:])


def test_who_has_lost_it_now_and_then_is_sent_what_is_new() -> None:
    fleet = Fleet(forgets={3, 5, 7}, drops=set(), initial=True)

    assert fleet.run() == CLIENTS * ROUNDS

    assert len(fleet.down[1]) == ROUNDS + 3
    assert fleet.sent_what_is_new(1)
    # Of the four lattices, two move as much.
    assert fleet.down[1][-1] == pytest.approx(fleet.down[2][-1], rel=0.1)


def test_who_replies_in_vain_is_no_such_client(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Fleet(forgets=set(), drops={2, 3, 4, 5}, initial=True)

    assert fleet.run() == CLIENTS * ROUNDS - 4

    assert len(fleet.down[1]) == ROUNDS
    assert fleet.sent_what_is_new(1)
    # Of the four lattices, two move as much.
    assert fleet.down[1][-1] == pytest.approx(fleet.down[2][-1], rel=0.1)
    assert "nothing is here" not in caplog.text


def test_who_keeps_a_model_again_goes_on_from_the_first_as_it_is_told() -> None:
    fleet = Fleet(forgets={3, 4}, drops=set(), initial=True)

    assert fleet.run() == CLIENTS * ROUNDS

    assert len(fleet.down[1]) == ROUNDS + 2
    assert max(fleet.down[1][6:]) < 2 * max(fleet.down[0][4:])


@pytest.mark.parametrize("initial", [True, False])
def test_who_keeps_a_model_for_its_test_alone_is_found_out_too(initial: bool) -> None:
    """It loses what it kept before each training, and answers between."""
    fleet = Fleet(forgets=ALL, drops=set(), initial=initial, tests=True)

    assert fleet.run() == CLIENTS * ROUNDS

    assert len(fleet.down[1]) <= ROUNDS + 3


def test_replies_that_arrive_exactly_leave_nothing_and_are_no_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fleet = Fleet(forgets=set(), drops=set(), initial=True)
    fleet.grid = FedSZGrid(fleet.grid.inner, codec="raw", update="delta+ef", policy="auto")

    assert fleet.run() == CLIENTS * ROUNDS

    assert "nothing is here" not in caplog.text
