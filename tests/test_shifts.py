"""Differences from what both sides have learnt of a sender: up by a shift of each client, and down.

Shifts agree on both sides whatever becomes of a reply, or the client starts anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context
from flwr.serverapp.strategy import FedAvg

from fedsz.core.broadcast import Broadcast
from fedsz.core.decode import decompress
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.core.shift import agreed_shift
from fedsz.errors import ConfigError
from fedsz.flower import AdmissionRules, FedSZGrid, LocalGrid, StreamingFedAvg
from fedsz.flower.shifts import Shifts
from fedsz.shelf import Parked, Shelf
from tests.federation import app_of, around, record_of, to_arrays

SHAPE = (40, 50)
CLIENTS = 3
STEP = 0.05  # what a client goes of the way to its target
CHAIN = "difference>topk:k=10%"
FIRST = {"fc.weight": np.zeros(SHAPE, np.float32)}


def target(client: int) -> np.ndarray:
    """Targets that lie far apart: skewed data."""
    return np.random.default_rng(client).laplace(size=SHAPE).astype(np.float32)


GOAL = np.mean([target(client) for client in range(CLIENTS)], axis=0)


class Clients:
    """Clients that pull the model towards targets of their own.

    Attributes:
        app: what they run.
        contexts: by client, its Context after its last reply.
        factors: by client, what its next step is multiplied by, once.
        names: by client, what it calls its tensor, once.
    """

    def __init__(self) -> None:
        self.contexts: dict[int, Context] = {}
        self.factors: dict[int, float] = {}
        self.names: dict[int, str] = {}
        trained = app_of(self._edit, examples=lambda _: 1)
        self.app = around(trained, lambda i, _, context: self.contexts.update({i: context}))

    def _edit(self, client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        w = arrays["fc.weight"]
        step = STEP * self.factors.pop(client, 1.0) * (target(client) - w)
        return {self.names.pop(client, "fc.weight"): w + step.astype(np.float32)}

    def shift(self, client: int) -> dict[str, np.ndarray]:
        """Return the shift that a client keeps."""
        name = "fedsz.residual.arrays"
        kept = to_arrays(self.contexts[client].state.array_records[name])
        prefix = "shift/"
        return {k.removeprefix(prefix): x for k, x in kept.items() if k.startswith(prefix)}


class Server:
    """A server and its clients, which it asks for rounds one at a time."""

    def __init__(self, *, strategy: type[FedAvg] = StreamingFedAvg, **named: Any):
        self.clients = Clients()
        self.nodes = [{"partition-id": i} for i in range(CLIENTS)]
        self.inner = LocalGrid(self.clients.app, self.nodes)
        named.setdefault("update", CHAIN)
        self.named = {"threshold": 0, **named}
        self.strategy = strategy
        self.grid = FedSZGrid(self.inner, **self.named)
        self.model, self.round = FIRST["fc.weight"], 0

    def run(self, rounds: int = 1, fraction: float = 1.0) -> None:
        strategy = self.strategy(fraction_train=fraction, fraction_evaluate=0.0, min_train_nodes=1)
        for _ in range(rounds):
            self.round += 1
            model, config = record_of({"fc.weight": self.model}), ConfigRecord()
            asked = strategy.configure_train(self.round, model, config, self.grid)
            replies = self.grid.send_and_receive(asked)
            averaged, _ = strategy.aggregate_train(self.round, replies)
            self.grid.end_round()
            self.model = to_arrays(averaged)["fc.weight"] if averaged else self.model

    def restart(self) -> None:
        """Go on in another Grid, from what this one remembers."""
        state = self.grid.state()
        self.grid = FedSZGrid(self.inner, **self.named)
        self.grid.restore(state)

    @property
    def shifts(self) -> dict[int, dict[str, np.ndarray]]:
        """What it has learnt, by the place of each client."""
        known, nodes = self.grid.state(), sorted(self.inner.get_node_ids())
        names = {i: f"shift.{node}.arrays" for i, node in enumerate(nodes)}
        return {i: to_arrays(known[name]) for i, name in names.items() if name in known}


def distance(w: np.ndarray) -> float:
    return float(np.square(w - GOAL).sum() / np.square(GOAL).sum())


def agree(server: Server) -> bool:
    """Say whether each client's shift is what the server has of it, to the bit."""
    clients = server.clients
    return len(server.shifts) == len(clients.contexts) and all(
        np.array_equal(shift["fc.weight"], clients.shift(client)["fc.weight"])
        for client, shift in server.shifts.items()
    )


@pytest.mark.parametrize(
    ("update", "strategy"), [(CHAIN, FedAvg), ("difference:rate=0.2>qsgd", StreamingFedAvg)]
)
def test_shifts_bring_the_average_of_unlike_clients_there(
    update: str, strategy: type[FedAvg]
) -> None:
    server = Server(update=update, strategy=strategy)

    server.run(60)

    assert agree(server)
    assert distance(server.model) < 0.1


def test_without_a_shift_the_same_chain_stays_behind() -> None:
    apart = Server(update="topk:k=10%")

    apart.run(60)

    assert distance(apart.model) > 0.2


def test_clients_that_were_not_asked_keep_their_shift() -> None:
    server = Server()
    server.run(2)
    before = server.shifts

    server.run(1, fraction=0.4)

    after = server.shifts
    moved = [i for i in before if not np.array_equal(before[i]["fc.weight"], after[i]["fc.weight"])]
    assert len(moved) == 1
    assert agree(server)


def test_a_refused_reply_moves_no_shift_and_its_sender_goes_back() -> None:
    server = Server(rules=AdmissionRules(max_update_norm="refuse:10x"))
    server.run(3)
    before = server.shifts

    server.clients.factors[0] = 1e4
    server.run()
    left_out = server.shifts[0]["fc.weight"]
    server.run()

    assert np.array_equal(left_out, before[0]["fc.weight"])
    assert not np.array_equal(server.shifts[0]["fc.weight"], left_out)
    assert agree(server)
    assert np.abs(server.model).max() < 10


@pytest.mark.parametrize("strategy", [StreamingFedAvg, FedAvg])
def test_a_reply_is_kept_once_it_is_admitted_and_until_its_round_is_over(
    strategy: type[FedAvg], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that are refused nothing is kept, and of others nothing in memory."""
    kept: list[set[int]] = []
    shifts = Shifts()
    server = Server(strategy=strategy, shifts=shifts)
    nodes = sorted(server.inner.get_node_ids())
    counted = shifts.counted

    def looks(nodes: Any) -> None:
        kept.append(set(shifts._admitted))
        waiting = [s for answer in shifts._admitted.values() for s in answer.streams.values()]
        assert all(isinstance(stream, Parked) for stream in waiting)
        counted(nodes)

    monkeypatch.setattr(shifts, "counted", looks)
    server.run(3)
    server.clients.names[0] = "other.weight"
    server.run()

    of_rounds = [held for held in kept if held]
    assert of_rounds[-2:] == [set(nodes), set(nodes[1:])]
    assert not shifts._admitted


def test_replies_that_wait_come_back_from_a_file_and_without_room_from_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf()
    texts = [b"a" * 1000, b"", b"bc" * 5000]
    parked = [shelf.put("a reply", text) for text in texts]
    assert [bytes(one[:]) for one in reversed(parked) if one is not None] == texts[::-1]

    monkeypatch.setattr("tempfile.tempdir", "/nowhere")

    assert Shelf().put("a reply", b"kept") is None
    assert "a reply stays in memory" in caplog.text


def test_a_clipped_reply_moves_the_shift_of_both_sides() -> None:
    server = Server(rules=AdmissionRules(max_update_norm="2x"))
    server.run(3)

    server.clients.factors[0] = 1e3
    server.run()
    after = server.model
    server.run()

    assert agree(server)
    assert np.abs(after).max() < 1


def test_a_server_that_goes_on_elsewhere_has_the_same_shifts() -> None:
    server = Server()
    server.run(3)
    before = {i: np.count_nonzero(shift["fc.weight"]) for i, shift in server.shifts.items()}

    server.restart()
    restored = agree(server)
    server.run()

    assert restored
    assert agree(server)
    assert all(np.count_nonzero(server.shifts[i]["fc.weight"]) >= before[i] > 200 for i in before)


def test_another_start_of_a_grid_knows_no_shift(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(shifts=Shifts())
    for _ in range(2):
        strategy = StreamingFedAvg(fraction_evaluate=0.0)
        first = record_of({"fc.weight": FIRST["fc.weight"]})
        strategy.start(grid=server.grid, initial_arrays=first, num_rounds=3)

    server.grid.end_round()
    learnt = [np.count_nonzero(shift["fc.weight"]) for shift in server.shifts.values()]
    assert len(learnt) == CLIENTS
    assert max(learnt) <= 3 * 200
    assert agree(server)
    assert not [line for line in caplog.records if line.levelname == "ERROR"]


def test_a_client_that_has_lost_its_state_starts_anew() -> None:
    server = Server()
    server.run(3)

    server.clients.contexts[1].state.clear()
    server.run()

    assert agree(server)
    assert np.count_nonzero(server.shifts[1]["fc.weight"]) == 200
    assert np.count_nonzero(server.shifts[0]["fc.weight"]) > 200


@pytest.mark.parametrize(
    "limits", [Shifts(most_clients=1), Shifts(most_bytes=4 * 40 * 50)], ids=["clients", "bytes"]
)
def test_a_client_whose_shift_was_dropped_starts_anew(
    limits: Shifts, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(shifts=limits)

    server.run(3)

    assert len(server.shifts) == 1
    assert "no room for the shifts of 2 clients" in caplog.text
    assert all(
        np.count_nonzero(server.clients.shift(i)["fc.weight"]) >= 200 for i in range(CLIENTS)
    )
    assert 0 < distance(server.model) < 1


def test_a_sender_uses_no_shift_that_its_receiver_does_not_have() -> None:
    kept = {"shift/fc.weight": np.ones(SHAPE, np.float32)}

    assert agreed_shift(kept, b"another") == agreed_shift(kept, None) == {}


def test_replies_of_another_model_than_was_sent_have_no_shift() -> None:
    server = Server(same_model=False)

    server.run(2)

    assert server.shifts == {}


@pytest.mark.parametrize("chain", [CHAIN, "difference>sign"])
def test_a_model_that_rests_arrives_by_differences(chain: str) -> None:
    downlink = Broadcast(Settings(downlink=chain, threshold=0))
    downlink.put(FIRST, reference=True)
    held = downlink.model
    model = {"fc.weight": target(1)}

    for _ in range(60):
        downlink.put({**model, "n": np.array(1)}, reference=True)  # put anew, though it rests
        downlink.put(model, reference=True)
        for stream in downlink.streams(held.digest if held else b""):
            held = Reference(decompress(stream, reference=held, as_numpy=True))

    assert held is not None
    assert downlink.model is not None
    assert held.digest == downlink.model.digest
    assert np.square(held.arrays["fc.weight"] - model["fc.weight"]).sum() < 1


@pytest.mark.parametrize("update", [CHAIN, "feedback>topk:k=10%"])
def test_one_object_serves_both_ways(update: str) -> None:
    server = Server(update=update, downlink=CHAIN)

    server.run(60)

    traffic = server.grid.take_traffic()
    assert distance(server.model) < 0.3
    assert traffic.sent_down < 0.2 * traffic.raw_down


def test_a_downlink_by_a_chain_goes_on_in_another_process() -> None:
    server = Server(downlink="difference>rtopk")
    server.run(3)
    before = server.grid.take_traffic().sent_down

    server.restart()
    server.run()

    assert before > 0
    assert server.grid.take_traffic().sent_down < 0.2 * CLIENTS * FIRST["fc.weight"].nbytes


@pytest.mark.parametrize(
    ("downlink", "why"),
    [
        ("difference:rate=0.5>topk", "of rate 1"),
        ("difference>qsgd", "moves away from the model: write qsgd:unbiased=0"),
        ("difference>feedback>topk", "has no feedback"),
        ("difference>powersgd", "has no powersgd"),
        ("difference>difference>topk", "once"),
        ("topk", "error bound"),
    ],
)
def test_a_downlink_that_cannot_be_is_refused(downlink: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Settings(downlink=downlink)
