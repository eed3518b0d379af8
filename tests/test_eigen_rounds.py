"""Histories that a server and its clients agree on, whatever becomes of either."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsz import methods
from fedsz.core import broadcast_histories, settings
from fedsz.core.broadcast import Broadcast
from fedsz.core.settings import Settings
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid
from fedsz.flower.records import to_array
from fedsz.methods import Eigen
from tests.eigen_fleet import CHAIN, NATURAL, Fleet, chains_of, model, stepped, ways
from tests.federation import around, record_of, to_arrays


def test_clients_that_take_part_in_all_rounds_code_by_one_history() -> None:
    fleet = Fleet()

    assert fleet.run() == [NATURAL] * 4
    seen = [fleet.run() for _ in range(3)]

    assert all(len(set(told)) == 1 and told[0].startswith("eigen:of=") for told in seen)
    assert len({told[0] for told in seen}) == 3


on_lattices = pytest.mark.parametrize("downlink", ["step:0.5", "staggered:step:0.5"])


@on_lattices
def test_evaluation_between_rounds_takes_no_basis_away(downlink: str) -> None:
    fleet = Fleet(downlink=downlink)
    told = [fleet.run(evaluated=range(4)) for _ in range(3)]

    assert all(text.startswith("eigen:of=") for text in [*told[1], *told[2]])


def test_who_missed_rounds_starts_anew_by_the_difference_that_it_is_sent() -> None:
    fleet = Fleet()
    fleet.run()
    fleet.run([0, 1])
    told = fleet.run()
    later = fleet.run()

    assert all(text.startswith("eigen:of=") for text in [*told, *later])
    assert len(set(told)) == len(set(later)) == 2


def test_who_lost_its_history_codes_without_and_begins_another() -> None:
    fleet = Fleet()
    fleet.run()
    fleet.run()
    for name in [
        n for n in fleet.contexts[2].state if n.startswith(("fedsz.history", "fedsz.seen"))
    ]:
        del fleet.contexts[2].state[name]
    told = fleet.run()
    later = fleet.run()

    assert sorted(text == NATURAL for text in told) == [False, False, False, True]
    assert NATURAL not in later


def test_a_history_that_began_anew_goes_on_with_the_next_round() -> None:
    first, second, third, fourth = ways(model(), 3)
    broadcast = Broadcast(Settings(update=CHAIN, downlink="step:0.1", threshold=0))
    for reference in (first, second, third):
        broadcast.put(reference.arrays, reference=True)
    begun = broadcast.history(broadcast.steps[0].digest, b"")
    held = broadcast.model
    assert begun is not None
    assert held is not None
    broadcast.put(fourth.arrays, reference=True)
    found = broadcast.history(held.digest, begun.digest)

    assert found is not None
    assert broadcast.model is not None
    assert found.digest == begun.beyond(held, broadcast.model).digest
    assert broadcast.history(held.digest, b"another") is not found


@pytest.mark.parametrize("update", ["difference>eigen>uniform@step:1", "matrix?" + CHAIN])
def test_wrappers_know_the_basis(update: str) -> None:
    fleet = Fleet(update=update)
    fleet.run()
    told = [fleet.run(), fleet.run([0, 1]), fleet.run()]

    assert all(any("eigen:of=" in text for text in texts) for texts in told)
    assert fleet.replies == 4


@on_lattices
def test_a_grid_that_goes_on_tells_the_same(downlink: str) -> None:
    whole, apart = Fleet(downlink=downlink), Fleet(downlink=downlink)
    for fleet in (whole, apart):
        fleet.run()
        fleet.run([0, 1, 2])
    apart.restart()

    assert sorted(whole.run()) == sorted(apart.run())


def test_a_downlink_that_is_exact_leaves_no_history() -> None:
    fleet = Fleet(downlink="exact")

    assert [fleet.run() for _ in range(2)] == [[NATURAL] * 4] * 2


@on_lattices
@pytest.mark.parametrize("at", range(4))
def test_a_server_that_goes_on_anywhere_leaves_everybody_the_same_basis(
    at: int, downlink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between evaluation and training, of clients that were asked for neither, or for one."""
    monkeypatch.setattr(broadcast_histories, "MOST_RESTARTS", 1)
    rng = np.random.default_rng(at)
    parts = [(rng.permutation(4)[: rng.integers(1, 5)], rng.permutation(4)[:2]) for _ in range(5)]
    whole, apart = Fleet(downlink=downlink), Fleet(downlink=downlink)
    for i, (trained, evaluated) in enumerate(parts):
        told = [fleet.run(list(trained), evaluated=list(evaluated)) for fleet in (whole, apart)]

        assert told[0] == told[1]
        if i >= at:
            apart.restart()


@on_lattices
def test_the_order_in_which_clients_are_asked_changes_no_history(
    downlink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most in ("MOST_RESTARTS", "MOST_HISTORIES"):
        monkeypatch.setattr(broadcast_histories, most, 1)
    told = []
    for backwards in (False, True):
        fleet, given = Fleet(downlink=downlink), ways(model(), 8)
        fleet.backwards = backwards
        for number, reference in enumerate(given):
            fleet.model = record_of(reference.arrays)
            fleet.run([(number + i * i) % 4 for i in range(3)])
            told.append((number, dict(sorted(fleet.told.items()))))

    assert told[: len(given)] == told[len(given) :]


def test_a_broadcast_that_moves_nothing_shows_nothing() -> None:
    """Clients that hold its model are sent nothing, and so count no broadcast."""
    how = Settings(update=CHAIN, downlink="abs:1e-3", threshold=0)
    broadcast = Broadcast(how, feedback=False)
    first, second = ways(model(), 1)
    for arrays in (first.arrays, second.arrays):
        broadcast.put(arrays, reference=True)
    held, main = broadcast.model, broadcast.histories.main
    assert held is not None
    assert main is not None
    broadcast.put({name: x + x.dtype.type(1e-6) for name, x in held.arrays.items()}, reference=True)

    assert broadcast.model is not None
    assert broadcast.model.digest == held.digest
    assert broadcast.history(held.digest, main.digest) is main


@contextmanager
def earlier_release(client: int) -> Iterator[None]:
    """Client 2 knows what releases before the method knew, as far as this can be had here."""
    known = methods.METHODS
    if client == 2:
        methods.METHODS = tuple(m for m in known if m.name != Eigen.name)  # type: ignore[misc]
    settings._meant.cache_clear()
    try:
        yield
    finally:
        methods.METHODS = known  # type: ignore[misc]
        settings._meant.cache_clear()


@pytest.mark.parametrize(
    ("update", "instead"),
    [
        (CHAIN, []),
        ("difference>eigen>uniform@std:1", ["uniform@std:1"]),
        ("matrix?feedback>eigen>sign|topk", ["sign", "topk"]),
        ("feedback>eigen>exponents", ["exponents"]),
    ],
)
def test_a_client_without_the_method_is_told_the_rest_of_the_chain_in_the_same_round(
    update: str, instead: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(within=earlier_release, update=update)
    with caplog.at_level("WARNING"):
        for number in range(4):
            if number == 2:
                fleet.restart()
            fleet.run()

            assert fleet.replies == 4
            assert fleet.told[2] == instead
            known = {i: str(texts) for i, texts in fleet.told.items() if "eigen" in str(texts)}
            assert known.keys() == ({0, 1, 3} if number else set())

    assert len([r for r in caplog.records if "without eigen" in r.getMessage()]) == 1


def test_a_client_without_the_method_answers_what_was_pushed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """To an app that pulls replies, and sees only the second of such a client."""
    fleet = Fleet(within=earlier_release)
    content = RecordDict({"arrays": fleet.model, "config": ConfigRecord({"server-round": 1})})
    nodes = list(fleet.grid.get_node_ids())
    ids = list(fleet.grid.push_messages([Message(content, node, "train") for node in nodes]))
    pulled = [list(fleet.grid.pull_messages(ids)) for _ in range(3)]

    assert list(map(len, pulled)) == [3, 1, 0]
    assert [reply for replies in pulled for reply in replies if reply.has_error()] == []
    assert fleet.told[2] == []
    assert "without eigen" in caplog.text


def test_what_releases_without_the_method_are_told_they_all_know() -> None:
    asked = Settings(update="feedback:decay=0.9>eigen>uniform:effort=9@step:2", codec="szx")
    told = asked.without_history

    assert (told.update, told.error_bound, told.decay) == ("delta+ef", "step:2", 0.9)
    assert told.codec == "uniform:effort=9"
    assert told.without_history is told
    for nothing_else in ("eigen", "feedback>eigen", "matrix?eigen|sign"):
        told = Settings(update=nothing_else).without_history
        assert (told.update, told.codec) == ("delta", told.lossless)


SPOILS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a bit": lambda x: np.where(np.arange(x.size) == 7, -x, x).astype(x.dtype),
    "not finite": lambda x: np.full_like(x, np.nan),
    "shorter": lambda x: x[:-1],
    "another dtype": lambda x: x.view(np.int32),
    "zeros": np.zeros_like,
}


@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
@pytest.mark.parametrize("evaluated", [(), range(4)], ids=["trains", "evaluates first"])
def test_products_that_were_damaged_code_nothing(
    spoil: Callable[[np.ndarray], np.ndarray], evaluated: Sequence[int]
) -> None:
    fleet = Fleet()
    fleet.run()
    fleet.run(evaluated=evaluated)
    kept = fleet.contexts[1].state["fedsz.history.arrays"]
    assert isinstance(kept, ArrayRecord)
    name = sorted(kept)[0]
    kept[name] = to_array(spoil(kept[name].numpy()))
    told = fleet.run()
    later = fleet.run()

    assert sorted(text == NATURAL for text in told) == [False, False, False, True]
    assert fleet.told[1] != [NATURAL]
    assert NATURAL not in later
    assert fleet.replies == 4


def two_models() -> dict[str, dict[str, np.ndarray]]:
    return {"student": model(), "teacher": {k: -x for k, x in model().items()}, "copy": model()}


@pytest.mark.parametrize("keys", [("student", "teacher", "copy"), ("student",)])
@pytest.mark.parametrize("renamed", [False, True])
def test_each_record_of_a_message_has_a_history_of_its_own(
    keys: tuple[str, ...], renamed: bool
) -> None:
    """Also where a client calls its only model otherwise, and misses every other round."""
    told: dict[int, list[str]] = {}
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        made = {}
        for key in keys:
            arrays = to_arrays(message.content.array_records[key])
            name = "weights" if renamed and len(keys) == 1 else key
            made[name] = record_of(stepped(arrays, client, rank=len(key) % 3 + 1))
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({**made, "metrics": metrics}), reply_to=message)

    watched = around(app, after=lambda i, _, reply: told.update({i: chains_of(reply)}))
    inner = LocalGrid(watched, [{"partition-id": i} for i in range(3)])
    grid = FedSZGrid(inner, update=CHAIN, downlink="step:0.5", threshold=0)
    models = {key: two_models()[key] for key in keys}
    for number in range(1, 6):
        nodes = list(grid.get_node_ids())[: 3 if number % 2 else 2]
        told.clear()
        records: dict[str, Any] = {key: record_of(x) for key, x in models.items()}
        content = RecordDict({**records, "config": ConfigRecord({"server-round": number})})
        replies = grid.send_and_receive([Message(content, node, "train") for node in nodes])
        assert [reply for reply in replies if reply.has_error()] == []
        grid.end_round()
        for key in keys:
            own = "weights" if renamed and len(keys) == 1 else key
            each = [to_arrays(reply.content.array_records[own]) for reply in replies]
            models[key] = {k: np.mean([x[k] for x in each], axis=0) for k in models[key]}

        bases = [text for texts in told.values() for text in texts if "eigen:of=" in text]
        assert len(bases) == (len(nodes) * len(keys) if number > 1 else 0)


def test_histories_begin_anew_for_the_models_that_most_clients_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broadcast_histories, "MOST_RESTARTS", 2)
    broadcast = Broadcast(Settings(update=CHAIN, downlink="step:0.5", threshold=0))
    held = []
    for reference in ways(model(), 6):
        broadcast.put(reference.arrays, reference=True)
        assert broadcast.model is not None
        held.append(broadcast.model.digest)
    rare, usual = [held[0], held[3]], [held[1], held[2], held[4]]
    broadcast.prepare([*rare, *usual, *usual])

    assert [bool(broadcast.history(digest, b"")) for digest in held[:5]] == [
        *(False, True, True, False, False)
    ]


def test_equal_models_may_have_other_histories_each() -> None:
    """Of a client that has lost one of them, and began it anew."""
    told: dict[int, list[str]] = {}
    contexts: dict[int, Context] = {}
    keys = ("one", "two")
    app = ClientApp(mods=[FedSZMod()])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        contexts[0] = context
        records = message.content.array_records
        made = {key: record_of(stepped(to_arrays(records[key]), len(told))) for key in keys}
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({**made, "metrics": metrics}), reply_to=message)

    watched = around(app, after=lambda i, _, reply: told.update({len(told): chains_of(reply)}))
    inner = LocalGrid(watched, [{"partition-id": 0}])
    grid = FedSZGrid(inner, update=CHAIN, downlink="step:0.5", threshold=0)
    at = model()
    for number in range(1, 7):
        if number == 3:
            del contexts[0].state["fedsz.history.two"]
        records: dict[str, Any] = {key: record_of(at) for key in keys}
        content = RecordDict({**records, "config": ConfigRecord({"server-round": number})})
        (reply,) = grid.send_and_receive([Message(content, grid.get_node_ids()[0], "train")])
        assert not reply.has_error(), reply.error.reason
        grid.end_round()
        at = to_arrays(reply.content.array_records["one"])

    assert [len(set(texts)) for texts in told.values()] == [1, 1, 2, 2, 2, 2]
    assert all("eigen:of=" in text for number in (1, 3, 4, 5) for text in told[number])
