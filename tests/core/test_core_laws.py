"""What holds of the core for all models, bounds, codecs and pipelines, the ugly ones too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsz
from fedsz.codecs import CODECS
from fedsz.core import broadcast as broadcasts
from fedsz.core.broadcast import KEY_FRAME, Broadcast, initial_reference
from fedsz.core.client import ClientSession, Memory
from fedsz.core.decode import owned, unpack
from fedsz.core.encode import compress
from fedsz.core.feedback import RESIDUAL
from fedsz.core.grid import initial_spacing
from fedsz.core.partition import is_lossy
from fedsz.core.protocol import ReplyNote, Request
from fedsz.core.reference import Reference, bounds_of_step, energies
from fedsz.core.settings import EXACT, Settings
from fedsz.errors import DivergedUpdate, NeedsKeyFrame
from fedsz.stream import CHAIN_DIFFERENCE, DIFFERENCE, Reader
from tests.core.test_core_grid import follow, resumed
from tests.core.test_settings import legal
from tests.strategies import FLOATS, bits_of, finite, moved, seeds, ugly_model, ugly_tensor

Arrays = dict[str, np.ndarray]

KEY, RUN = "arrays", b"\7" * 16
DOWNLINKS = [EXACT, "step:0.6", "step:2", "std:1", "1e-3", "abs:1e-4", "abs:100"]
LOSSY = [codec.name for codec in CODECS if codec.lossy and codec.missing() is None]
BOUNDED = [c.name for c in CODECS if c.name in LOSSY and c.keeps_bound]
PIPELINES = [
    "topk:k=5%>ternary", "randk:k=20%", "qsgd", "uniform@std:1",
    "powersgd", "rotate>sign", "centroids:bits=2",
]  # fmt: skip
FEEDBACK = [
    "feedback>topk:k=20%", "feedback>sign", "feedback>uniform@step:1",
    "feedback>topk:k=20%>centroids", "feedback>powersgd:rank=1",
]  # fmt: skip


def equal(x: np.ndarray, y: np.ndarray) -> bool:
    return (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def assert_within(x: np.ndarray, y: np.ndarray, bound: float) -> None:
    """Assert that y is x within a bound, measured in float64; what is not finite, to the bit."""
    if x.dtype not in FLOATS:
        assert equal(x, y)
        return
    assert (x.dtype, x.shape) == (y.dtype, y.shape)
    there = np.isfinite(x)
    assert np.array_equal(bits_of(x[~there]), bits_of(y[~there]))
    error = np.abs(x[there].astype(np.float64) - y[there].astype(np.float64))
    assert error.max(initial=0.0) <= bound


def bounds_of(model: Arrays, last: Arrays | None, settings: Settings) -> dict[str, float]:
    """Return the bounds of a broadcast, given the model that was published before it, if any."""
    bound, found = settings.downlink_bound, {}
    assert bound is not None
    if bound.kind == "step" and last is not None:
        return bounds_of_step(energies(model, Reference(last), settings), settings, bound.value)
    for name, x in model.items():
        if is_lossy(name, x, rule=settings.rule, threshold=settings.threshold):
            with np.errstate(all="ignore"):
                of = x - last[name] if last is not None and bound.kind == "std" else x
                found[name] = (KEY_FRAME if last is None else bound).absolute(of)
    return found


@settings(max_examples=150)
@given(
    seed=seeds,
    shared=st.booleans(),
    threshold=st.sampled_from([0, 10, 1024]),
    downlinks=st.lists(st.sampled_from(DOWNLINKS), min_size=4, max_size=4),
)
def test_all_clients_end_with_one_reference_within_the_bound(
    seed: int, shared: bool, threshold: int, downlinks: list[str]
) -> None:
    rng = np.random.default_rng(seed)
    model, last, broadcast = ugly_model(rng), None, Broadcast(shared_initial=shared)
    clients: list[Reference | None] = [None]
    twin, before, moves = broadcast, None, Settings()
    for number, downlink in enumerate(downlinks):
        moves = Settings(threshold=threshold, downlink=downlink)
        begins = number == 0 and shared
        reference = broadcast.publish(model, moves)
        assert broadcast.exact == (downlink == EXACT)
        bounds = {} if broadcast.exact else bounds_of(model, last, moves)
        for name, x in model.items():
            y = reference.arrays[name]
            if last is not None and Reference(model).digest == Reference(last).digest:
                break  # the model again: it is sent as it was
            if begins and name in bounds:
                bounds[name] = initial_spacing(x) / 2
            # A tensor that has not moved has no bound of a step, and stays where it is.
            unmoved = last is not None and before is not None and equal(x, last[name])
            if not bounds.get(name) and unmoved and not broadcast.exact:
                assert equal(y, before.arrays[name]) or equal(x, y)
            else:
                assert_within(x, y, bounds.get(name, 0.0))
        if begins and not broadcast.exact:
            clients.append(initial_reference(model, moves))
            assert clients[-1].digest == broadcast.initial
        for client in clients:
            assert follow(broadcast, client).digest == reference.digest
        if twin is not broadcast and not broadcast.exact:
            assert twin.publish(model, moves).digest == reference.digest
            for client in filter(None, clients):
                assert twin.since(client.digest) == broadcast.since(client.digest)
            assert twin.key_frame() == broadcast.key_frame()
        assert broadcast.publish({n: x.copy() for n, x in model.items()}, moves) is reference
        clients.append(reference)
        twin = broadcast if broadcast.exact else resumed(broadcast, moves)
        before, last = (None, None) if broadcast.exact else (reference, model)
        model = {name: moved(rng, x) for name, x in model.items()}
        if rng.random() < 0.1:
            model[f"new.{number}.weight"] = ugly_tensor(rng, np.float32, (40, 50))
            last = None


def test_a_model_of_many_rounds_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "SPARE_BYTES", 1e9)
    rng, broadcast = np.random.default_rng(0), Broadcast()
    x, references = rng.normal(size=(40, 50)).astype(np.float32), []
    for _ in range(broadcasts.MOST_DELTAS + 3):
        references.append(broadcast.publish({"w": x}, Settings(downlink="step:1")))
        x = x + rng.normal(0, 0.01, x.shape).astype(np.float32)

    found = [broadcast.since(reference.digest) for reference in references]

    assert [stream is None for stream in found] == [True] * 2 + [False] * (len(found) - 2)
    assert len({follow(broadcast, reference).digest for reference in references}) == 1


class MemoryStore:
    """A `fedsz.core.client.Store` in memory."""

    def __init__(self) -> None:
        self.references: dict[str, Reference] = {}
        self.memories: dict[str, tuple[Memory, bytes, int]] = {}

    def reference(self, key: str) -> Reference | None:
        return self.references.get(key)

    def keep_reference(self, key: str, model: Reference) -> Reference:
        self.references[key] = model
        return model

    def memory(self, key: str) -> tuple[Memory, bytes, int]:
        return self.memories.get(key, ({}, b"", 0))

    def keep_memory(self, key: str, memory: Memory, run: bytes, round_number: int) -> None:
        self.memories[key] = dict(memory), run, round_number


def request_of(how: Settings, model: Reference, number: int = 1, **changes: Any) -> Request:
    about = {"run": RUN, "round": number, "trains": True, "base": {}, "settings": how}
    return Request(**{**about, "reference": {KEY: model.digest}, **changes})


def reply(
    how: Settings, store: MemoryStore, model: Reference, trained: Mapping[str, Any], number: int = 1
) -> tuple[ClientSession, bytes]:
    """Send a client a key frame, and return its session and the stream of its reply."""
    session = ClientSession(request_of(how, model, number), store, sender=5)
    assert session.receive(KEY, compress(model.arrays, codec="raw")).digest == model.digest
    return session, session.reply(KEY, trained)


all_settings = st.builds(
    legal,
    update=st.sampled_from(["weights", "delta", "delta+ef", *PIPELINES, *FEEDBACK]),
    codec=st.sampled_from(LOSSY),
    error_bound=st.sampled_from(["step:1", "std:1", "1e-2", "abs:1e-3", "abs:1e-30"]),
    threshold=st.sampled_from([0, 10, 1024]),
)


@settings(max_examples=200)
@given(seed=seeds, how=all_settings)
def test_a_reply_comes_back_within_its_bound(seed: int, how: Settings) -> None:
    """In part, with a tensor of another name; deterministic; only what diverges is not sent."""
    rng = np.random.default_rng(seed)
    model = Reference(ugly_model(rng))
    trained = {name: moved(rng, x) for name, x in model.arrays.items()}
    if rng.random() < 0.3:
        del trained[rng.choice(list(trained))]
        trained["another.weight"] = ugly_tensor(rng, np.float32, (40, 50))
    diverged = any(
        not np.isfinite(x).all() and np.isfinite(model.arrays[name]).all()
        for name, x in trained.items()
        if name in model.arrays
    )
    try:
        session, stream = reply(how, MemoryStore(), model, trained)
    except DivergedUpdate:
        assert diverged
        return
    assert not diverged
    back = fedsz.decompress(stream, reference=model, as_numpy=True)

    assert list(back) == list(trained)
    bounds = {}
    if how.bound.kind == "step":
        bounds = bounds_of_step(energies(trained, model, how), how)
    for name, x in trained.items():
        lossy = is_lossy(name, x, rule=how.rule, threshold=how.threshold)
        if not lossy:
            assert equal(x, back[name])
        elif how.pipeline is None and how.codec in BOUNDED and not session.is_step:
            bound = bounds.get(name, how.bound.absolute(x))
            base = model.arrays.get(name)
            if how.bound.kind == "std" and base is not None and how.sends_differences:
                with np.errstate(all="ignore"):
                    bound = how.bound.absolute(x.astype(np.float64) - base.astype(np.float64))
            assert_within(x, back[name], bound * (1 + 1e-6))
        else:
            assert_within(x, back[name], np.inf)
    note = session.note()
    assert ReplyNote.decode(note.encode()) == note
    assert note.max_error <= 1
    if how.codec != "sz2":  # it leaves bytes of its payload unset
        assert reply(how, MemoryStore(), model, trained)[1] == stream


codecs_or_pipelines = st.sampled_from(
    [
        *(Settings(codec=c, error_bound=b) for c in LOSSY for b in ("step:2", "std:2", "1e-2")),
        *(Settings(update=text) for text in FEEDBACK),
    ]
)


@settings(max_examples=150)
@given(
    seed=seeds,
    how=codecs_or_pipelines,
    dtype=st.sampled_from(FLOATS),
    steps_only=st.booleans(),
)
def test_with_feedback_all_steps_arrive_but_for_the_residual(
    seed: int, how: Settings, dtype: np.dtype, steps_only: bool
) -> None:
    """Of tensors that are not in each reply, too; of apps that reply with a step, too."""
    rng, how, store = np.random.default_rng(seed), how.replace(threshold=0), MemoryStore()
    shapes = {"a.weight": (40, 50), "b.bias": (300,), "c.weight": ()}
    model = Reference({n: rng.normal(size=s).astype(dtype) for n, s in shapes.items()})
    missing = {name: np.zeros(shape) for name, shape in shapes.items()}
    rounds = 5
    for number in range(1, rounds + 1):
        trained = {
            name: finite(x * (not steps_only) + 0.05 * rng.laplace(size=x.shape), dtype)
            for name, x in model.arrays.items()
            if name == "a.weight" or rng.random() < 0.7
        }
        session, stream = reply(how, store, model, trained, number)
        assert session.is_step == session.note().is_step == steps_only
        back = fedsz.decompress(stream, reference=None if steps_only else model, as_numpy=True)
        for name, x in trained.items():
            missing[name] += x.astype(np.float64) - back[name].astype(np.float64)
    memory, _, of_round = store.memory(KEY)
    assert of_round == rounds
    for name, lost in missing.items():
        residual = memory.get(f"{RESIDUAL}/{name}", np.zeros(shapes[name], dtype))
        assert residual.dtype == dtype
        eps = float(ml_dtypes.finfo(dtype).eps)
        size = np.abs(model.arrays[name].astype(np.float64)) + np.abs(lost) + 1
        assert (np.abs(lost - residual.astype(np.float64)) <= 4 * rounds * eps * size).all()


@given(
    how=codecs_or_pipelines, run=st.sampled_from([RUN, b"another run's"]), number=st.integers(1, 9)
)
def test_a_residual_counts_in_later_rounds_of_its_run(
    how: Settings, run: bytes, number: int
) -> None:
    rng, how = np.random.default_rng(0), how.replace(threshold=0, codec="uniform")
    model = Reference({"w": rng.normal(size=(40, 50)).astype(np.float32)})
    trained = {"w": model.arrays["w"] + rng.laplace(0, 0.1, (40, 50)).astype(np.float32)}
    store = MemoryStore()
    reply(how, store, model, trained, 4)
    streams = []
    for kept in (store, MemoryStore()):
        session = ClientSession(request_of(how, model, number, run=run), kept, sender=5)
        session.receive(KEY, compress(model.arrays, codec="raw"))
        streams.append(session.reply(KEY, trained))

    assert (streams[0] != streams[1]) == (run == RUN and number > 4)


@pytest.mark.parametrize("loses", ["everything", "another model", "another initial"])
def test_a_client_without_the_base_asks_for_a_key_frame(loses: str) -> None:
    rng, broadcast, store = np.random.default_rng(0), Broadcast(), MemoryStore()
    how = Settings(downlink="step:1")
    first = broadcast.publish({"w": rng.normal(size=(40, 50)).astype(np.float32)}, how)
    second = broadcast.publish({"w": rng.normal(size=(40, 50)).astype(np.float32)}, how)
    if loses == "another model":
        store.references[KEY] = Reference({"w": np.ones((40, 50), np.float32)})
    initial = {"w": np.zeros(3)} if loses == "another initial" else None
    delta = broadcast.since(first.digest)
    assert delta

    session = ClientSession(
        request_of(how, second, base={KEY: first.digest}), store, initial=lambda: initial
    )
    with pytest.raises(NeedsKeyFrame, match="starts from model"):
        session.receive(KEY, delta)

    session = ClientSession(request_of(how, second), store)
    assert session.receive(KEY, broadcast.key_frame()).digest == second.digest
    assert session.receive(KEY, b"").digest == second.digest  # a model that it has
    session.reply(KEY, second.arrays)
    assert session.note().had == {KEY: second.digest}


@settings(max_examples=60)
@given(seed=seeds, how=all_settings, dtype=st.sampled_from(FLOATS))
def test_differences_are_put_onto_another_model(seed: int, how: Settings, dtype: np.dtype) -> None:
    rng = np.random.default_rng(seed)
    start, step, other = (rng.normal(size=(40, 50)) for _ in range(3))
    model = Reference({"w": start.astype(dtype)})
    trained = {"w": finite(start + 0.1 * step, dtype)}
    _, stream = reply(how, MemoryStore(), model, trained)
    onto = {"w": other.astype(dtype)}
    transforms = {payload.transform for payload in Reader(stream).header.payloads}

    ((_, coded),) = unpack(Reader(stream), model, onto)
    found = owned(coded).astype(np.float64)
    ((_, plain),) = unpack(Reader(stream), model)

    expected = owned(plain).astype(np.float64)
    if transforms <= {DIFFERENCE, CHAIN_DIFFERENCE}:
        expected += onto["w"].astype(np.float64) - model.arrays["w"].astype(np.float64)
    eps = float(ml_dtypes.finfo(dtype).eps)
    assert np.abs(found - expected).max() <= 4 * eps * max(np.abs(expected).max(), 4)
