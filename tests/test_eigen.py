"""Bases that both sides know from broadcasts: equal bits, kept lengths, agreed histories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st

from fedsz.arrays import Layout
from fedsz.codecs import _eigen
from fedsz.errors import ConfigError, ReferenceMismatch
from fedsz.flower import FedSZGrid, LocalGrid, StreamingFedAvg
from fedsz.flower.mean import Mean
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import sealed, streams_of
from fedsz.methods import Eigen, History, parse
from fedsz.methods.eigen import axes_of
from fedsz.stream import Reader
from fedsz.update.broadcast import Broadcast
from fedsz.update.chained import ChainEncoder
from fedsz.update.compress import compress_measured
from fedsz.update.config import CompressionConfig
from fedsz.update.decompress import decompress
from fedsz.update.reference import Reference
from tests.federation import app_of, around, record_of, to_arrays
from tests.strategies import weights

ONES = np.ones(64)
CHAIN = "feedback>eigen>uniform@step:1"
SHAPES = {"conv.weight": (12, 10, 3, 3), "fc.weight": (40, 50), "fc.bias": (40,)}


def stepped(model: dict[str, np.ndarray], seed: int, rank: int = 2) -> dict[str, np.ndarray]:
    """The model after a step in directions that are the same for all seeds."""
    rng, moved = np.random.default_rng(seed), {}
    for name, x in model.items():
        fixed = np.random.default_rng(len(name))
        flat = x.reshape(len(x), -1) if x.ndim > 1 else x.reshape(1, -1)
        left, right = (fixed.normal(size=(n, rank)) for n in flat.shape)
        step = left @ rng.normal(size=(rank, rank)) @ right.T
        moved[name] = (x + 1e-3 * step.reshape(x.shape)).astype(x.dtype)
    return moved


def model(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}


def ways(first: dict[str, np.ndarray], steps: int = 2) -> list[Reference]:
    models = [first]
    for seed in range(steps):
        models.append(stepped(models[-1], seed))
    return [Reference(m) for m in models]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_a_basis_costs_no_bytes_and_makes_a_step_small(dtype: Any) -> None:
    before, now = ways(model(dtype), 1)
    now.history = History().beyond(before, now)
    update = stepped(now.arrays, 7)

    def coded(chain: str) -> tuple[int, float]:
        encoder = ChainEncoder(parse(chain), sent=now, history=now.history)
        config = CompressionConfig(threshold=0)
        blob, _ = compress_measured(update, config, now, encoder=encoder)
        decoded = decompress(blob, reference=now, as_numpy=True)
        assert all(decoded[name].dtype == x.dtype for name, x in update.items())
        return len(blob), encoder.arrived.kept

    plain, plain_kept = coded("feedback>uniform@std:1")
    size, kept = coded("feedback>eigen>uniform@std:1")
    if np.dtype(dtype).itemsize > 2:  # steps of half precision are mostly rounding
        assert size < 0.6 * plain
        assert kept > plain_kept


@given(x=weights(max_size=600), block=st.integers(1, 512), bad=st.booleans())
def test_all_instruction_sets_agree_and_lengths_stay(x: np.ndarray, block: int, bad: bool) -> None:
    x = x.reshape(-1)
    if bad and x.size:
        x[-1] = np.nan
    length = next(n for n in (24, 10, 7, 3, 2, 1) if x.size % n == 0)
    sides = 1, length, x.size // length, block
    squares = sum(len(part) ** 2 for part in np.array_split(range(length), -(-length // block)))
    found = []
    for level in _eigen.levels():
        products, vectors = np.zeros(squares, np.float32), np.zeros(squares, np.float32)
        added = _eigen.add_products(x, *sides, 0.9, products, level)
        _eigen.eigenvectors(products, length, block, vectors)
        y = x.copy()
        _eigen.rotate(y, *sides, vectors, False, level)
        back = y.copy()
        _eigen.rotate(back, *sides, vectors, True, level)
        found.append((added, *(z.tobytes() for z in (products, vectors, y, back))))

    assert all(f == found[0] for f in found)
    assert found[0][0] == bool(np.isfinite(x).all() and x.any())
    largest = np.abs(x).max(initial=0)
    if largest < 1e30:  # sums of larger ones may overflow
        assert np.abs(back - x).max(initial=0) <= 1e-4 * largest + 1e-40


@pytest.mark.parametrize(
    "products",
    [
        np.zeros(64),
        np.full(64, np.nan),
        np.full(64, np.inf),
        np.ones(64),
        np.eye(8),
        1e38 * np.eye(8),
    ],
    ids=["zero", "nan", "infinite", "rank 1", "all equal", "huge"],
)
def test_any_products_have_orthonormal_vectors(products: np.ndarray) -> None:
    vectors = np.zeros(64, np.float32)
    _eigen.eigenvectors(products.reshape(-1).astype(np.float32), 8, 8, vectors)

    u = vectors.reshape(8, 8).astype(np.float64)
    assert np.abs(u.T @ u - np.eye(8)).max() < 1e-6


def test_eigenvectors_are_those_of_numpy_largest_first() -> None:
    x = np.random.default_rng(0).normal(size=(60, 5, 300)).astype(np.float32)
    products, vectors = np.zeros(25, np.float32), np.zeros(25, np.float32)
    _eigen.add_products(x.reshape(-1), 60, 5, 300, 5, 1.0, products)
    _eigen.eigenvectors(products, 5, 5, vectors)

    wide = np.moveaxis(x, 1, 0).reshape(5, -1).astype(np.float64)
    values, expected = np.linalg.eigh(wide @ wide.T)
    assert products.reshape(5, 5) == pytest.approx(wide @ wide.T / values.sum(), abs=1e-6)
    assert np.abs(expected[:, ::-1].T @ vectors.reshape(5, 5)) == pytest.approx(np.eye(5), abs=1e-3)


def test_a_stream_in_another_basis_is_refused_before_it_is_decoded() -> None:
    first, second, third = ways(model())
    own = third.with_history(History().beyond(first, second).beyond(second, third))
    others = [third, third.with_history(History().beyond(second, third))]
    encoder = ChainEncoder(parse("eigen>uniform@std:1"), history=own.history)
    config = CompressionConfig(threshold=0)
    blob, _ = compress_measured(stepped(own.arrays, 9), config, own, encoder=encoder)

    decompress(blob, reference=own)
    for other in others:
        with pytest.raises(ReferenceMismatch, match="in the basis of history"):
            decompress(blob, reference=other)


def test_histories_are_kept_whatever_becomes_of_tensors() -> None:
    first, second = ways(model(), 1)
    second.arrays["fc.weight"][0, 0] = np.nan
    second.arrays["new.weight"] = np.ones((3, 4), np.float32)
    for arrays in (first.arrays, second.arrays):
        arrays["complex.weight"] = np.full((3, 4), len(arrays), np.complex64)
        arrays["tiny.weight"] = np.full((3, 4), 1e-310 * len(arrays))
    history = History().beyond(first, second)

    assert history.products.keys() == {"conv.weight"}
    assert history.basis("conv.weight", (12, 10, 9)) is not None
    assert history.basis("conv.weight", (12, 90)) is None
    again = History.read(history.arrays(), history.digest)
    assert again.shown == history.shown
    basis, known = (h.basis("conv.weight", (12, 10, 3, 3)) for h in (again, history))
    assert all(map(np.array_equal, basis.vectors, known.vectors))


class Fleet:
    """A server and four clients in one process, and by what chains they reply."""

    def __init__(self, strategy: type[FedAvg] = StreamingFedAvg, **named: Any) -> None:
        self.contexts: dict[int, Context] = {}
        self.told: list[str] = []
        self.grid_of = lambda: FedSZGrid(
            self.inner, **{"update": CHAIN, "downlink": "step:0.5", "threshold": 0, **named}
        )
        app = around(
            app_of(lambda i, x: stepped(x, 10 * self.round + i), examples=lambda _: 1),
            before=lambda i, _, context: self.contexts.update({i: context}),
            after=lambda i, asked, reply: self.told.extend(chains_of(reply)),
        )
        self.inner = LocalGrid(app, [{"partition-id": i} for i in range(4)])
        self.grid, self.round, self.strategy = self.grid_of(), 0, strategy
        self.model = record_of(model())

    def run(self, nodes: Sequence[int] = range(4), *, evaluates: bool = False) -> list[str]:
        """Do a round, and return the chain of each reply."""
        self.round += 1
        self.told.clear()
        strategy = self.strategy(fraction_evaluate=float(evaluates), min_train_nodes=1)
        asked = strategy.configure_train(self.round, self.model, ConfigRecord(), self.grid)
        left_out = {c.node_id for i, c in self.contexts.items() if i not in nodes}
        asked = [m for m in asked if m.metadata.dst_node_id not in left_out]
        replies = self.grid.send_and_receive(asked)
        averaged, _ = strategy.aggregate_train(self.round, replies)
        assert averaged is not None
        self.model = averaged
        if evaluates:
            asked = strategy.configure_evaluate(self.round, self.model, ConfigRecord(), self.grid)
            strategy.aggregate_evaluate(self.round, self.grid.send_and_receive(asked))
        self.grid.end_round()
        return list(self.told)

    def restart(self) -> None:
        """Go on in another Grid, from what this one remembers."""
        state = self.grid.state()
        self.grid = self.grid_of()
        self.grid.restore(state)


def chains_of(reply: Message) -> list[str]:
    """The texts of a reply's chains, if it has arrays."""
    streams = [s for record in reply.content.array_records.values() for s in streams_of(record)]
    return [chain.text for stream in streams for chain in Reader(stream).header.chains]


NATURAL = "uniform@step:1"


def test_clients_that_take_part_in_all_rounds_code_by_one_history() -> None:
    fleet = Fleet()

    assert fleet.run() == [NATURAL] * 4
    seen = [fleet.run() for _ in range(3)]

    assert all(len(set(told)) == 1 and told[0].startswith("eigen:of=") for told in seen)
    assert len({told[0] for told in seen}) == 3


def test_evaluation_between_rounds_takes_no_basis_away() -> None:
    fleet = Fleet()
    told = [fleet.run(evaluates=True) for _ in range(3)]

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
    broadcast = Broadcast(CompressionConfig(update=CHAIN, downlink="step:0.1", threshold=0))
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
    assert len(fleet.told) == 4


@pytest.mark.parametrize(
    ("shape", "blocks"),
    [
        ((1 << 20, 1), []),
        ((1 << 16, 8), [8, 64]),
        ((8, 3, 3, 3), [27, 64, 24]),
        ((5,), []),
        ((0, 3), []),
        ((1, 7), []),
    ],
)
def test_products_take_no_more_than_the_tensor(shape: tuple[int, ...], blocks: list[int]) -> None:
    axes = axes_of(shape)

    assert [axis.block for axis in axes] == blocks
    assert all(axis.squares <= np.prod(shape) for axis in axes)


def test_a_basis_is_of_the_tensor_itself() -> None:
    for chain in ("topk>eigen>sign", "eigen>eigen>sign", "rotate>eigen>sign"):
        with pytest.raises(ConfigError, match="must be the first of its chain"):
            parse(chain)
    with pytest.raises(ConfigError, match="a downlink has no eigen"):
        CompressionConfig(downlink="difference>eigen>sign")


def test_a_grid_that_goes_on_tells_the_same() -> None:
    whole, apart = Fleet(), Fleet()
    for fleet in (whole, apart):
        fleet.run()
        fleet.run([0, 1, 2])
    apart.restart()

    assert sorted(whole.run()) == sorted(apart.run())


def test_sums_in_a_basis_are_those_of_decoded_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two replies in one basis are decoded once, another in a basis of its own by itself."""
    first, second, third = ways(model())
    shared = third.with_history(History().beyond(first, second).beyond(second, third))
    own = third.with_history(History().beyond(second, third))
    mean, decoded, config = Mean(), [], CompressionConfig(threshold=0)
    for client, known in enumerate((shared, shared, own)):
        encoder = ChainEncoder(parse("eigen>uniform@std:1"), history=known.history)
        update = stepped(third.arrays, 20 + client)
        blob, _ = compress_measured(update, config, known, encoder=encoder)
        decoded.append(decompress(blob, reference=known, as_numpy=True))
        layout, models = Layout.of(third.arrays), {known.digest: known}
        mean.add(ReceivedUpdate(sealed([blob]), layout, models, sent=third.arrays), 1.0)
    turned: list[tuple[int, ...]] = []
    decode = Eigen.decode
    monkeypatch.setattr(
        Eigen, "decode", lambda part, *of: turned.append(of[1].spec.shape) or decode(part, *of)
    )
    averaged = to_arrays(mean.result())

    assert [turned.count(SHAPES[name]) for name in ("conv.weight", "fc.weight")] == [1, 1]
    for name, x in averaged.items():
        expected = np.mean([of[name] for of in decoded], axis=0, dtype=np.float64)
        assert np.abs(x - expected).max() < 1e-6


def test_a_downlink_that_is_exact_leaves_no_history() -> None:
    fleet = Fleet(downlink="exact")

    assert [fleet.run() for _ in range(2)] == [[NATURAL] * 4] * 2
