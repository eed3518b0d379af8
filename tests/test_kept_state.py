"""What a client keeps of a chain, from round to round: all of it, where it belongs, or an error.

Laws over chains as users write them, of clients as an app has them: a `FedSZMod` and a Context.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsz.core.client import received
from fedsz.core.decode import decompress
from fedsz.core.encode import compress
from fedsz.core.protocol import Instructions
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.core.shift import Shift, digest_of, shift_after
from fedsz.errors import ConfigError, ReferenceMismatch
from fedsz.flower import FedSZMod, LocalGrid
from fedsz.flower.client_state import ClientState
from fedsz.flower.records import KEY as NOTE
from fedsz.flower.records import streams_of, to_array
from fedsz.flower.shifts import KnownModels
from fedsz.methods import Difference, Shared, TensorSpec, parse
from fedsz.methods.base import dense
from fedsz.methods.payload import write
from fedsz.methods.state import by_tensor, flat, misfit, path_of
from fedsz.stream import CHAINED, Limits, Reader
from tests.federation import record_of

KEY, RUN, SENDER = "arrays", b"\7" * 16, 2
EXACTLY = Settings(codec="raw")
SHAPES = {"fc.weight": (40, 50), "fc.bias": (1500,)}

AROUND = (
    "", "feedback", "feedback:decay=0.5", "ecx", "ecx:decay=0.5,smooth=0.4", "dgc",
    "dgc:decay=0.5,momentum=0.5,clip=20", "adaptive", "adaptive:by=variance", "adaptive>feedback",
    "adaptive:by=variance>feedback:decay=0.5", "adaptive>ecx", "adaptive:times=2>dgc",
)  # fmt: skip
CODED = (
    "topk:k=5%", "rtopk>qsgd:unbiased=0", "threshold:k=5%>centroids", "randk:k=20%,unbiased=0",
    "sbc", "sign", "ternary", "rotate>sign", "sketch:unbiased=0", "powersgd>uniform@std:1",
    "uniform@std:2", "qsgd", "drive", "accordion",
)  # fmt: skip
PAIRS = [
    *itertools.product(AROUND, ("topk:k=4%>ternary", "powersgd:rank=2")),
    *itertools.product(("feedback", ""), CODED),
]
CHAINS = [">".join(filter(None, pair)) for pair in PAIRS]


def keeps(text: str) -> bool:
    """Say whether a client takes a chain, and keeps anything of it."""
    try:
        return Settings(update=text).keeps_state
    except ConfigError:
        return False


KEPT = [
    text
    for text in [
        *CHAINS,
        *(f"difference>{text}" for text in CHAINS),
        "difference:rate=0.5>feedback>topk:k=5%>ternary",
        "matrix?feedback>topk:k=5%|*?adaptive>feedback>topk:k=2%",
        "matrix?difference>feedback>powersgd|*.bias?feedback>sign",
        "matrix?difference>adaptive>ecx>topk|vector?difference>dgc>topk:k=5%>ternary",
        "*.bias?difference>sign|fc*?powersgd",
    ]
    if keeps(text)
]


def steps(turn: int) -> dict[str, np.ndarray]:
    """What training changes in a turn: alike from turn to turn, and not the same."""
    rng, again = np.random.default_rng(turn), np.random.default_rng(99)
    return {
        name: (1 + turn / 10) * (again.laplace(size=shape) + 0.3 * rng.laplace(size=shape))
        for name, shape in SHAPES.items()
    }


class Client:
    """One client of a run, and what its server has learnt of it.

    Its model is zeros in each turn, so that a difference from a shifted model is exact.
    """

    def __init__(self, update: str, dtype: Any = np.float32) -> None:
        self.config, self.dtype = Settings(update=update, threshold=0), np.dtype(dtype)
        self.context = Context(1, SENDER, {}, RecordDict(), {})
        LocalGrid(ClientApp(), [])  # who sends messages
        self.shift: Shift = {}
        self.turn = 0

    def train(self) -> tuple[bytes, dict[str, np.ndarray], float]:
        """Return the next turn's stream, what its receiver has of it, and "kept energy"."""
        self.turn += 1
        step = {name: x.astype(self.dtype) for name, x in steps(self.turn).items()}
        model = Reference({name: np.zeros_like(x) for name, x in step.items()})
        shifts = {KEY: digest_of(self.shift)} if self.shift else {}
        told = Instructions(self.config, self.turn, {KEY: model.digest}, RUN, shifts=shifts)
        content = RecordDict(
            {KEY: record_of(dict(model.arrays)), NOTE: ConfigRecord(told.written())}
        )
        reply = FedSZMod()(
            Message(content, SENDER, "train"),
            self.context,
            lambda asked, _: Message(RecordDict({KEY: record_of(step)}), reply_to=asked),
        )
        (stream,) = streams_of(reply.content.array_records[KEY])
        models = KnownModels({model.digest: model}, [self.shift])
        base = models[Reader(stream).header.reference or b""]
        if self.config.learns_shifts:
            before = {} if base is model else self.shift
            assert self.config.chain is not None
            self.shift = shift_after(stream, base, before, self.config.chain)
        kept: Any = reply.content.config_records[NOTE]["kept-energy"]
        return stream, decompress(stream, reference=base, as_numpy=True), kept

    @property
    def kept(self) -> Any:
        """What it keeps of its chain, as a record."""
        return self.context.state["fedsz.residual.arrays"]


def payloads(stream: bytes) -> dict[str, bytes]:
    """Return what a chain has coded, by tensor."""
    reader = Reader(stream)
    return {
        reader.header.tensors[payload.members[0]].name: bytes(data)
        for payload, data, _ in reader.payloads()
        if payload.transform in CHAINED
    }


class Methods:
    """The same by the methods alone, whose state never leaves memory."""

    def __init__(self, update: str) -> None:
        self.transform = parse(update)
        self.states: dict[str, Any] = {}
        self.shifts: dict[str, np.ndarray] = {}

    def payload(self, name: str, x: np.ndarray, turn: int) -> bytes:
        spec = TensorSpec(x.shape, x.dtype, name)
        shared = Shared(spec, int.from_bytes(RUN[:8], "little"), turn, SENDER)
        before = self.states.get(name) or self.transform.init(spec)
        shift = self.shifts.get(name, np.zeros_like(x))
        planes, self.states[name], _ = self.transform.encode(x - shift, before, shared)
        chain = self.transform.sent(spec)
        assert chain is not None
        if isinstance(difference := self.transform.of(spec), Difference):
            self.shifts[name] = difference.moved(shift, dense(chain.decode(planes, shared)))
        return write(chain, planes)

    def left(self, name: str) -> np.ndarray | None:
        """Return what feedback has left out of a tensor."""
        path = path_of(self.states[name], "residual")
        return self.states[name][path] if path else None


@pytest.mark.sampled(25)
@pytest.mark.parametrize("update", KEPT)
def test_a_chain_goes_on_from_what_it_kept_and_says_how_much_arrives(
    update: str, caplog: pytest.LogCaptureFixture
) -> None:
    client, anew, methods = Client(update), Client(update), Methods(update)
    for turn in (1, 2, 3):
        stream, arrived, kept = client.train()
        coded = payloads(stream)
        meant = missing = 0.0
        for name, y in arrived.items():
            step = steps(turn)[name].astype(np.float32)
            left = None
            if name in coded:
                assert coded[name] == methods.payload(name, step, turn), name
                left = methods.left(name)
            left = step - y if left is None else left
            meant += float(np.square(y + left, dtype=np.float64).sum())
            missing += float(np.square(left, dtype=np.float64).sum())
        assert "fc.weight" in coded
        assert kept == pytest.approx(1 - missing / meant, abs=1e-5)
        if turn == 3:
            anew.context.state.clear()
            assert not [line for line in caplog.records if line.levelname == "ERROR"]
        without, _, _ = anew.train()
    assert without != stream


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_energy_is_of_the_step_and_what_was_left_of_earlier_ones(weight: float) -> None:
    """By the definition of error feedback, and no state of ours."""
    client, left = Client(f"feedback:decay={weight}>topk:k=5%"), dict[str, Any]()
    for turn in (1, 2, 3):
        _, arrived, kept = client.train()
        meant = {k: x + weight * left.get(k, 0) for k, x in steps(turn).items()}
        left = {k: v - arrived[k] for k, v in meant.items()}
        energy = [sum(float(np.square(x).sum()) for x in of.values()) for of in (left, meant)]
        assert kept == pytest.approx(1 - energy[0] / energy[1], abs=1e-5)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=lambda x: np.dtype(x).name)
def test_what_half_precision_rounds_away_is_left_out_too(dtype: Any) -> None:
    client, given, got = Client("feedback>topk:k=20%>ternary", dtype), 0.0, 0.0
    for turn in range(1, 6):
        given = given + steps(turn)["fc.weight"].astype(dtype).astype(np.float64)
        got = got + client.train()[1]["fc.weight"].astype(np.float64)

    left = client.kept["residual/fc.weight"].numpy()
    assert np.abs(given - got - left).max() < 1e-4


def test_a_tensor_that_would_hardly_shrink_goes_exactly_and_its_chain_goes_on() -> None:
    """`adaptive` keeps all elements in its first round, and must know of it in the second."""
    client = Client("adaptive>feedback>topk:k=10%")

    first, second, third = (client.train()[0] for _ in range(3))

    assert payloads(first) == {}
    assert payloads(second).keys() == SHAPES.keys()
    assert len(third) < 0.3 * len(first)


def test_feedback_waits_while_its_tensor_goes_exactly() -> None:
    client, exact = Client("feedback>topk:k=5%"), Client("feedback>topk:k=100%")
    client.train()
    left = client.kept["residual/fc.weight"].numpy()

    exact.context, exact.turn = client.context, client.turn
    stream, arrived, _ = exact.train()

    assert payloads(stream) == {}
    assert np.array_equal(arrived["fc.weight"], steps(2)["fc.weight"].astype(np.float32))
    assert np.array_equal(client.kept["residual/fc.weight"].numpy(), left)


def test_records_are_flat_and_those_of_feedback_as_they_were() -> None:
    def names(update: str) -> set[str]:
        client = Client(update)
        client.train()
        return {name for name in client.kept if name.endswith("fc.weight")}

    assert names("delta+ef") == {"fc.weight"}
    assert names("feedback>topk") == {"residual/fc.weight", "round/fc.weight"}
    assert names("difference>topk") == {"shift/fc.weight"}
    assert names("difference>feedback>powersgd") == {
        "shift/fc.weight",
        "inner.residual/fc.weight",
        "inner.round/fc.weight",
        "inner.inner.0.factor/fc.weight",
    }


def test_a_state_comes_back_from_a_record_whatever_tensors_are_called() -> None:
    x = np.ones((2, 3), np.float32)
    states: dict[str, Any] = {
        name: {"residual": x, "inner.0.factor": 2 * x}
        for name in ("a", "a.b", "inner.0.factor/a", "/", "residual/residual")
    }
    here, told = ClientState(Context(1, 2, {}, RecordDict(), {})), Instructions(EXACTLY, 1)

    here.keep_residual(KEY, flat(states), told)
    back = by_tensor(here.residual(KEY, replace(told, turn=2))[0])

    assert back.keys() == states.keys()
    assert all(misfit(back[name], states[name]) == "" for name in states)


def told(**changes: Any) -> Callable[[Client], None]:
    """The server orders something else."""

    def change(client: Client) -> None:
        client.config = client.config.replace(**changes)

    return change


def holding(name: str, x: Any) -> Callable[[Client], None]:
    """The client finds something else in its state."""

    def change(client: Client) -> None:
        client.kept[name] = x if isinstance(x, Array) else to_array(x)

    return change


def earlier_turn(client: Client) -> None:
    client.turn = 0


def other_shift(client: Client) -> None:
    client.shift = {name: x + 1 for name, x in client.shift.items()}


RESIDUAL = "inner.inner.residual/fc.weight"
NO_ARRAY = Array("int64", (1,), "numpy.ndarray", b"x")
NOT_FINITE, SMALL = np.full((40, 50), np.nan, np.float32), np.ones((3, 2), np.float32)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            told(update="difference>feedback>powersgd"),
            "inner.inner.0.factor is none and must be",
        ),
        (
            told(update="delta+ef", error_bound="std:1"),
            "inner.norm/fc.bias: residual is float64",
        ),
        (told(threshold=1800), "fc.bias: no chain codes it"),
        (holding(RESIDUAL, SMALL), "residual is float32 (3, 2) and must be float32 (40, 50)"),
        (holding(RESIDUAL, NOT_FINITE), "inner.inner.residual/fc.weight: not finite"),
        (holding(RESIDUAL, NO_ARRAY), "what was kept cannot be read"),
        (
            holding("inner/fc.weight", np.ones(2)),
            "fc.weight: inner is float64 (2,) and must be",
        ),
        (earlier_turn, "what it kept is of turn 1, and the server counts up to 0"),
        (other_shift, "'arrays' starts anew: the server has another shift than is kept here"),
    ],
)
def test_what_was_kept_and_does_not_fit_is_an_error_in_the_log(
    change: Callable[[Client], None], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client("difference>adaptive>feedback>topk:k=2%")
    client.train()
    client.train()
    assert caplog.text == ""

    change(client)
    client.train()

    errors = [line.getMessage() for line in caplog.records if line.levelname == "ERROR"]
    assert any(why in line for line in errors), errors


def other_array(kept: ArrayRecord) -> None:
    kept["w"] = to_array(np.zeros(2000, np.float32))


def other_bytes(kept: ArrayRecord) -> None:
    kept["w"].data = to_array(np.zeros(2000, np.float32)).data


def other_dtype(kept: ArrayRecord) -> None:
    y = to_array(np.ones(2000, np.float64))
    kept["w"].data, kept["w"].dtype = y.data, y.dtype


def other_name(kept: ArrayRecord) -> None:
    kept["v"] = kept.pop("w")


@pytest.mark.parametrize("change", [other_array, other_bytes, other_dtype, other_name])
def test_a_kept_model_that_has_changed_is_not_taken_for_the_servers(
    change: Callable[[ArrayRecord], None],
) -> None:
    x = np.ones(2000, np.float32)
    digest = Reference({"w": x}).digest
    context = Context(1, SENDER, node_config={}, state=RecordDict(), run_config={})
    ClientState(context).keep_model(KEY, record_of({"w": x}), digest)
    told = Instructions(EXACTLY, holds={KEY: digest})

    def asked_again() -> Reference:
        return received(KEY, [], {}, told, ClientState(context), lambda: None, Limits())

    assert asked_again().digest == digest
    kept = context.state[f"fedsz.model.{KEY}"]
    assert isinstance(kept, ArrayRecord)
    change(kept)
    with pytest.raises(ReferenceMismatch):
        asked_again()
    # Nor is a difference from it, of a model that it has no place for.
    sent = Reference({"w": x})
    later = compress({"w": x + np.arange(2000, dtype=np.float32)}, "abs:1", reference=sent)
    after = Reference(decompress(later, reference=sent, as_numpy=True))
    told = Instructions(EXACTLY, holds={KEY: after.digest})
    with pytest.raises(ReferenceMismatch):
        received(KEY, [later], {}, told, ClientState(context), lambda: None, Limits())
