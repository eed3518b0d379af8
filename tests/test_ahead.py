"""Clients that begin to train with what they have not sent yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg

import fedsz
from fedsz import codecs
from fedsz.arrays import LOSSY_DTYPES
from fedsz.bounds import ErrorBound
from fedsz.core import settings
from fedsz.core.ahead import WIDER, ahead_of, head_start
from fedsz.core.client import coded_update
from fedsz.core.protocol import Instructions
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg
from fedsz.methods.state import flat
from tests.eigen_fleet import Fleet, model
from tests.federation import app_of, around, grid_of, record_of, to_arrays

AHEAD = Settings(update="delta+ef", error_bound="step:2", ahead=True)
CHOSEN: dict[str, Any] = dict.fromkeys(("update", "downlink", "threshold"))  # by the policy
EIGEN = "feedback>eigen>uniform:shrink=0.25@step:2"
Arrays = dict[str, np.ndarray]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("update", ["delta+ef", EIGEN, "feedback>topk"])
def test_training_begins_with_the_model_and_the_residual_that_is_left_of_it(
    update: str, dtype: str
) -> None:
    sent = {name: x.astype(dtype) for name, x in model().items()}
    left = {name: 0.1 * np.ones_like(x) for name, x in sent.items()}
    chained = flat({name: {"residual": x, "round": np.array([3])} for name, x in left.items()})
    how = AHEAD.replace(update=update, decay=0.5)  # which is not of chains
    begun = ahead_of(Reference(sent), left if how.chain is None else chained, 2, how)

    assert begun.keys() == sent.keys()
    for name, x in begun.items():
        assert x.dtype == dtype
        share = head_start(how.bound) * (0.25 if how.chain is None else 1.0)
        np.testing.assert_allclose(x, sent[name] + share * left[name], rtol=1e-6)


@pytest.mark.parametrize(
    ("bound", "share"),
    [
        ("step:0.6", 1.0),
        ("step:1.8", 0.4),
        ("step:3.6", 0.2),
        ("step:1e30", 0.0),
        ("rel:1e-2", 0.4),
    ],
)
def test_the_finer_the_bound_the_more_of_a_residual_training_begins_with(
    bound: str, share: float
) -> None:
    assert head_start(ErrorBound.of(bound)) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize(
    ("update", "ahead"),
    [
        *(("delta+ef", False), ("delta", True), ("weights", True), ("eigen>uniform@step:1", True)),
        ("feedback:decay=0.5>topk", True),
        *(("dgc>topk", True), ("ecx>topk", True), ("difference>feedback>topk", True)),
    ],
)
def test_nothing_else_begins_ahead(update: str, ahead: bool) -> None:
    how = Settings(update=update, ahead=ahead)
    left = {name: np.ones_like(x) for name, x in model().items()}

    assert not how.begins_ahead
    for kept in (left, flat({name: {"residual": x} for name, x in left.items()})):
        assert ahead_of(Reference(model()), kept, 1, how) == {}


def test_residuals_that_fit_nothing_or_lead_nowhere_are_left_out() -> None:
    sent = {**model(), "tall": np.full(9, 3e38, np.float32), "lost": np.zeros(3, np.float32)}
    sent["half"] = np.ones(3, np.float16)
    left: Arrays = {
        "fc.bias": np.ones(3, np.float32),
        "fc.weight": np.ones((40, 50), np.float64),
        "tall": np.full(9, 3e38, np.float32),
        "lost": np.full(3, np.nan, np.float32),
        "elsewhere": np.ones(3, np.float32),
        "half": np.ones(3, np.float32),
    }
    assert ahead_of(Reference(sent), left, 1, AHEAD) == {}


@pytest.mark.parametrize("update", ["delta+ef", "feedback>uniform@step:2"])
@pytest.mark.parametrize("ahead", [True, False])
def test_tensors_that_never_begin_ahead_have_finer_bounds(update: str, ahead: bool) -> None:
    rng = np.random.default_rng(3)
    step = rng.normal(0, 1, (64, 64))
    sent = {dtype.name: np.full((64, 64), 4, dtype) for dtype in LOSSY_DTYPES}
    done = {name: (x + step).astype(x.dtype) for name, x in sent.items()}
    how = AHEAD.replace(update=update, threshold=0, rule="parameters", ahead=ahead)
    told, reference = Instructions(how, 1), Reference(sent)

    stream, _, _ = coded_update("arrays", done, told, reference, cast(Any, Kept()))

    arrived = fedsz.decompress(stream, reference=sent, as_numpy=True)
    worst = {k: np.abs(arrived[k].astype(np.float64) - done[k]).max() for k in sent}
    whole, half = ("float32", "float64"), ("float16", "bfloat16")
    assert [worst[name] for name in whole] == [pytest.approx(2, rel=0.05)] * 2
    wide = 2 / WIDER if ahead else 2
    assert [worst[name] for name in half] == [pytest.approx(wide, rel=0.05)] * 2


def test_servers_of_before_do_not_speak_of_it() -> None:
    told = Instructions(AHEAD).written()
    del told["ahead"]

    assert not Instructions.read(told).config.ahead
    assert Instructions.read(Instructions(AHEAD).written()).config.ahead


class Kept:
    """A keeper of one model's residual."""

    sender = 1

    def __init__(self) -> None:
        self.left: Arrays = {}

    def residual(self, key: str, told: Instructions) -> tuple[Arrays, int]:
        return self.left, 1

    def keep_residual(self, key: str, residual: Arrays, told: Instructions) -> None:
        self.left = residual

    def forget_residual(self, key: str) -> None:
        self.left = {}


@pytest.mark.parametrize("update", ["delta+ef", "feedback>uniform:shrink=0.25@step:2"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("exact", [None, 2])
def test_no_update_is_lost(update: str, dtype: str, exact: int | None) -> None:
    """All steps together are what has arrived, and what the client still holds.

    Also where a turn's bound is so fine that tensors go without loss, as bits that differ.
    """
    sent = {name: x.astype(dtype) for name, x in model().items()}
    how, keeper = AHEAD.replace(update=update, threshold=0, rule="parameters"), Kept()
    steps = {name: np.zeros(x.shape) for name, x in sent.items()}
    arrived = {name: np.zeros(x.shape) for name, x in sent.items()}
    for turn in range(6):
        fine = how.replace(update="delta+ef", error_bound="abs:1e-12")
        told, reference = Instructions(fine if turn == exact else how, turn), Reference(sent)
        if exact is not None and turn >= exact and how.chain is not None:
            return  # a chain has no other bound, and its residual another form
        reference.begun = ahead_of(reference, keeper.left, 1, how)
        begun = {**sent, **reference.begun}
        rng = np.random.default_rng(turn)
        done = {k: (x + rng.normal(0, 0.05, x.shape)).astype(dtype) for k, x in begun.items()}
        stream, _, arrival = coded_update("arrays", done, told, reference, cast(Any, keeper))
        decoded = fedsz.decompress(stream, reference=sent, as_numpy=True)
        for name, x in sent.items():
            steps[name] += done[name].astype(np.float64) - begun[name]
            arrived[name] += decoded[name].astype(np.float64) - x
        assert arrival.lag < 2  # of the step from where training began

    left = {name.rpartition("/")[2]: x for name, x in keeper.left.items() if "round" not in name}
    for name in sent:
        close = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-9}[dtype]
        np.testing.assert_allclose(arrived[name] + left[name], steps[name], atol=close)
        assert np.abs(left[name]).max() > 0.01


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("policy", ["auto", "auto+basis"])
def test_apps_begin_ahead_by_default_and_test_the_model_itself(
    strategy: type[FedAvg], policy: str
) -> None:
    contexts: dict[int, Context] = {}
    begun: list[tuple[int, Arrays, Arrays]] = []  # client, the model that it holds, what it gets
    residuals: dict[int, Arrays] = {}
    told: dict[int, ErrorBound] = {}

    def note(client: int, message: Message, context: Context) -> None:
        contexts[client] = context
        instructions = message.content.config_records["fedsz"]
        told[client] = ErrorBound.of(str(instructions["error-bound"]))
        kept = context.state.get("fedsz.residual.arrays")
        residuals[client] = to_arrays(kept) if isinstance(kept, ArrayRecord) else {}

    def train(client: int, x: Arrays) -> Arrays:
        record = contexts[client].state["fedsz.model.arrays"]
        assert isinstance(record, ArrayRecord)
        begun.append((client, to_arrays(record), x))
        rng = np.random.default_rng(len(begun))
        for name, a in x.items():
            left = [r for key, r in residuals[client].items() if key.endswith(name) and r.ndim]
            held = to_arrays(record)[name]
            residual = next((r for r in left if r.shape == a.shape), np.float32(0))
            expected = held + np.float32(head_start(told[client])) * residual
            assert np.array_equal(a, expected)
        return {k: a + rng.normal(0, 0.01, a.shape).astype(a.dtype) for k, a in x.items()}

    tested: list[bool] = []

    def watch(message: Message, context: Context, call_next: Any) -> Message:
        if message.metadata.message_type == "evaluate":
            kept = context.state["fedsz.model.arrays"]
            assert isinstance(kept, ArrayRecord)
            (record,) = message.content.array_records.values()
            held = to_arrays(kept)
            tested.append(all(np.array_equal(x, held[k]) for k, x in to_arrays(record).items()))
        reply: Message = call_next(message, context)
        return reply

    app = around(app_of(train, mods=[FedSZMod(), watch], examples=lambda _: 1), before=note)
    grid = FedSZGrid(grid_of(app), policy=policy)
    strategy(fraction_evaluate=1.0).start(grid, record_of(model()), num_rounds=4)

    assert len(begun) == 16
    ahead = [not np.array_equal(held["fc.weight"], x["fc.weight"]) for _, held, x in begun]
    assert ahead == 4 * [False] + 12 * [True]
    assert tested == 16 * [True]


def test_a_client_that_calls_its_model_otherwise_begins_ahead_as_well() -> None:
    """As those of Flower's older interfaces do."""
    begun: list[Arrays] = []

    def renamed(message: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(message, context)
        if "arrays" in reply.content.array_records:
            reply.content["mine"] = reply.content.array_records["arrays"]
            del reply.content["arrays"]
        return reply

    def train(client: int, x: Arrays) -> Arrays:
        begun.append(x)
        rng = np.random.default_rng((client, len(begun)))
        return {k: a + rng.normal(0, 0.1, a.shape).astype(a.dtype) for k, a in x.items()}

    app = app_of(train, mods=[FedSZMod(), renamed], examples=lambda _: 1)
    FedAvg(fraction_evaluate=0).start(FedSZGrid(grid_of(app)), record_of(model()), num_rounds=3)

    of_rounds = [begun[i : i + 4] for i in range(0, 12, 4)]
    assert all(np.array_equal(x["fc.bias"], of_rounds[0][0]["fc.bias"]) for x in of_rounds[0])
    for clients in of_rounds[1:]:
        assert len({x["fc.bias"].tobytes() for x in clients}) == 4  # each has what it holds back


def test_a_reply_too_small_to_compress_takes_nothing_along_that_stays_behind() -> None:
    """An app may reply with its head alone, in one round and not in another."""
    contexts: dict[int, Context] = {}
    steps, arrived = ({turn: np.zeros(0) for turn in range(1, 5)} for _ in range(2))
    turns: list[int] = []

    def train(_: int, x: Arrays) -> Arrays:
        turns.append(len(turns) + 1)
        rng = np.random.default_rng(len(turns))
        after = {k: a + rng.normal(0, 0.1, a.shape).astype(a.dtype) for k, a in x.items()}
        steps[turns[-1]] = after["fc.bias"] - x["fc.bias"].astype(float)
        return {"fc.bias": after["fc.bias"]} if turns[-1] > 2 else after

    app = around(app_of(train), before=lambda i, _, context: contexts.update({i: context}))
    grid = FedSZGrid(LocalGrid(app, [{"partition-id": 0}]), policy="auto", same_model=False)
    strategy = FedAvg(min_train_nodes=1, min_available_nodes=1)
    sent = record_of(model())
    for turn in steps:
        asked = strategy.configure_train(turn, sent, ConfigRecord(), grid)
        (reply,) = grid.send_and_receive(list(asked))
        held = contexts[0].state["fedsz.model.arrays"]
        assert isinstance(held, ArrayRecord)
        came = to_arrays(reply.content.array_records["arrays"])["fc.bias"].astype(float)
        arrived[turn] = came - to_arrays(held)["fc.bias"]

    kept = contexts[0].state["fedsz.residual.arrays"]
    assert isinstance(kept, ArrayRecord)
    left = to_arrays(kept)["fc.bias"]
    np.testing.assert_allclose(sum(arrived.values()) + left, sum(steps.values()), atol=1e-6)
    np.testing.assert_allclose(arrived[4], steps[4], atol=1e-6)
    assert np.abs(left).max() > 0.01


@pytest.mark.parametrize("update", ["delta+ef", "feedback>uniform:shrink=0.25@step:2"])
def test_what_is_left_of_tensors_that_a_reply_lacks_goes_on_waiting(update: str) -> None:
    """An app may train its layers in turn, and reply with those alone."""
    sent = model()
    how, keeper = AHEAD.replace(update=update, threshold=0, rule="parameters"), Kept()
    steps, arrived = ({name: np.zeros(x.shape) for name, x in sent.items()} for _ in range(2))
    for turn in range(6):
        told, reference = Instructions(how, turn), Reference(sent)
        reference.begun = ahead_of(reference, keeper.left, 1, how)
        begun = {**sent, **reference.begun}
        rng = np.random.default_rng(turn)
        replied = [name for i, name in enumerate(sent) if (i + turn) % 2]
        done = {k: (begun[k] + rng.normal(0, 0.05, sent[k].shape)).astype("f4") for k in replied}
        stream, _, _ = coded_update("arrays", done, told, reference, cast(Any, keeper))
        decoded = fedsz.decompress(stream, reference=sent, as_numpy=True)
        for name in replied:
            steps[name] += done[name].astype(np.float64) - begun[name]
            arrived[name] += decoded[name].astype(np.float64) - sent[name]

    left = {name.rpartition("/")[2]: x for name, x in keeper.left.items() if "round" not in name}
    for name in sent:
        np.testing.assert_allclose(arrived[name] + left[name], steps[name], atol=1e-5)
        assert np.abs(left[name]).max() > 0.01


def test_what_is_left_of_tensors_that_a_reply_lacks_decays() -> None:
    sent, keeper = model(), Kept()
    keeper.left = {name: np.ones_like(x) for name, x in sent.items()}
    absent, *others = sent
    how = AHEAD.replace(decay=0.5, threshold=0, rule="parameters")

    done = {name: sent[name] + 1 for name in others}
    coded_update("arrays", done, Instructions(how, 1), Reference(sent), cast(Any, keeper))

    np.testing.assert_array_equal(keeper.left[absent], np.full_like(sent[absent], 0.5))


@contextmanager
def release_that_cannot_shrink(client: int) -> Iterator[None]:
    """Client 2 reads codecs as releases did before `uniform` had the setting."""
    parse = codecs.parse

    def earlier(text: str) -> codecs.Codec:
        if "shrink" in text:
            raise ConfigError("codec 'uniform' has no setting 'shrink'; have effort, threads")
        return parse(text)

    codecs.parse = earlier if client == 2 else parse
    settings._meant.cache_clear()
    try:
        yield
    finally:
        codecs.parse = parse
        settings._meant.cache_clear()


SHRINKS: list[dict[str, Any]] = [
    {**CHOSEN, "policy": "auto", "codec": "uniform:shrink=0.25"},
    {**CHOSEN, "policy": "auto+basis", "codec": "uniform:shrink=0.25"},
    {**CHOSEN, "policy": "auto", "codec": "uniform:shrink=0.25", "shared_initial": True},
    {"policy": "gate:codecs=uniform:shrink=0.25", "update": "delta+ef", "error_bound": "step:2"},
    *(
        {"update": chain}
        for chain in (
            "feedback>uniform:shrink=0.25@step:2",
            "feedback>eigen>uniform:shrink=0.25@std:2",
            "difference>dgc>topk>uniform:shrink=0.25@std:0.1",
            "matrix?feedback>uniform:shrink=0.25@step:2|uniform:shrink=0.1@std:1",
        )
    ),
]


@pytest.mark.parametrize("how", SHRINKS, ids=str)
def test_a_client_whose_release_cannot_shrink_is_told_so_in_the_same_round(
    how: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(within=release_that_cannot_shrink, **how)
    with caplog.at_level("WARNING"):
        for _ in range(4):
            fleet.run()
            assert fleet.replies == 4

    assert len([r for r in caplog.records if "has a release without" in r.getMessage()]) == 1


@pytest.mark.parametrize("how", SHRINKS[-4:], ids=str)
def test_all_else_of_a_chain_stays_where_it_cannot_shrink(how: dict[str, Any]) -> None:
    asked = Settings(update=how["update"])

    told = asked.without_history

    rest = str(asked.update).replace("eigen>", "")
    assert told.update == rest.replace(":shrink=0.25", "").replace(":shrink=0.1", "")
    assert told.without_history == told
