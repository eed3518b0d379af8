"""What every method of the list and every chain of them keeps to, whatever is coded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from fedsz import methods
from fedsz.contrib.threshold import Estimate
from fedsz.errors import CodecError, ConfigError, CorruptStream
from fedsz.methods import Chain, Shared, Stage, TensorSpec, all_methods, parse
from fedsz.methods.base import dense
from fedsz.methods.symbols import read, write
from tests.strategies import weights

# Settings beside the defaults, by name of the method.
SETTINGS: dict[str, tuple[str, ...]] = {
    "topk": ("k=20%", "k=7", "k=5,chunk=64", "k=1%,warmup=3"),
    "rtopk": ("k=5%,among=50%",),
    "threshold": (*(f"k=20%,by={by}" for by in Estimate), "magnitude=0.02"),
    "randk": ("k=30%", "k=70%,own=1", "k=40%,unbiased=0", "k=30%,block=1"),
    "rotate": ("block=16",),
    "powersgd": ("rank=1",),
    "atomo": ("rank=1",),
    "sketch": ("columns=30%,rows=3", "columns=20%,unbiased=0"),
    "uveqfed": ("step=0.3", "lattice=hexagonal"),
    "layered": ("sigma=0.1",),
    "sbc": ("k=10%",),
    "centroids": ("bits=1", "bits=5"),
    "ternary": ("threshold=0.3",),
    "qsgd": ("bits=2,bucket=64", "bits=8,bucket=0", "bits=6,unbiased=0", "bits=2,norm=max"),
}
STAGES = [method for method in all_methods() if isinstance(method, Stage)]
WRITTEN = [
    f"{part.name}:{settings}" if settings else part.name
    for part in STAGES
    for settings in ("", *SETTINGS.get(part.name, ()))
]
LAST = ["", "uniform@std:0.5", "szx@1e-2", "fp16", "zstd"]


def well_formed(texts: tuple[str, ...]) -> bool:
    try:
        parse(">".join(texts))
    except ConfigError:
        return False
    return True


NAMES = [part.name for part in STAGES]
PAIRS = [">".join(pair) for pair in itertools.product(NAMES, repeat=2) if well_formed(pair)]
CHAINS = [
    *WRITTEN,
    *PAIRS,
    *(f"{text}>{last}" for text in WRITTEN for last in LAST if last and well_formed((text, last))),
    *LAST[1:],
]
CONTRACTING = [text for text in WRITTEN if all(part.contracts for part in parse(text).stages)]
BIASED = [text for text in CHAINS if well_formed(("feedback", text)) and not parse(text).wrappers]
AROUND = [
    f"{around}>{text}"
    for around in ("ecx", "ecx:smooth=0.4", "dgc", "adaptive>feedback", "adaptive:by=variance>ecx")
    for text in ("topk:k=20%", "threshold:k=20%", "topk:k=20%>ternary", "topk>centroids")
]
FEEDBACK = [*AROUND, *(f"feedback:decay=0.9>{text}" for text in BIASED)]


def cases(texts: Iterable[str]) -> list[Any]:
    """Return a case for each chain; every sample has each method by itself."""
    alone = {*NAMES, *(f"feedback>{name}" for name in NAMES)}
    return [pytest.param(t, marks=pytest.mark.always if t in alone else ()) for t in texts]


chains = st.sampled_from([*CHAINS, *FEEDBACK])
odd = [np.zeros(shape, np.float32) for shape in ((), (0,), (0, 3), (50,))]
odd += [np.ones((), np.float32), np.eye(1, 70, 3, np.float32)]
tensors = st.one_of(weights(np.float32), weights(np.float64), st.sampled_from(odd))


def shared_of(x: np.ndarray, seed: int = 1, round_: int = 2, sender: int = 3) -> Shared:
    spec = TensorSpec(x.shape, x.dtype, "fc.weight")
    return Shared(spec, seed, round_, sender)


def coded(transform: Chain, x: np.ndarray, shared: Shared, state: Any = None) -> Any:
    """Return the payload of x, what it decodes to, and the state after it."""
    decay = transform.feedback_decay
    before = state or {"inner": transform.init(shared.spec), "residual": np.zeros_like(x)}
    # Error feedback as `fedsz.core.feedback` does it, a round after the last one.
    v = x if decay is None else x + x.dtype.type(decay) * before["residual"]
    symbols, after = transform.encode(v, before["inner"], shared)
    chain = transform.sent
    payload = write(chain, symbols)
    decoded = dense(chain.decode(read(chain, payload, shared.spec), shared))
    assert dense(chain.decode(symbols, shared)).tobytes() == decoded.tobytes()
    return payload, decoded, {"inner": after, "residual": v - decoded}


def ordinary(seed: int, size: int = 600) -> np.ndarray:
    return np.random.default_rng(seed).laplace(size=(size // 20, 20)).astype(np.float32)


@pytest.mark.parametrize("preset", methods.PRESETS, ids=lambda preset: preset.name)
def test_a_preset_is_another_name_of_its_chain(preset: methods.Preset) -> None:
    assert str(parse(preset.name)) == str(parse(preset.chain)) == preset.chain
    assert preset.name not in {method.name for method in all_methods()}


@pytest.mark.repository
def test_every_method_and_preset_is_described() -> None:
    docs = Path(__file__).parents[2] / "docs"
    pages, wire = (docs / "methods.md").read_text(), (docs / "format.md").read_text()

    assert [m.name for m in all_methods() if f"`{m.name}" not in pages] == []
    assert [p.name for p in STAGES if f"`{p.name}`" not in wire] == []
    rows = [f"| `{preset.name}` | `{preset.chain}` |" for preset in methods.PRESETS]
    assert [row for row in rows if row not in pages] == []


def test_a_chain_is_written_as_it_is_read() -> None:
    for text in [*CHAINS, *FEEDBACK]:
        assert parse(str(parse(text))) == parse(text)


@given(text=chains, x=tensors)
def test_shape_and_dtype_come_back_and_nothing_is_changed(text: str, x: np.ndarray) -> None:
    x = 1e-3 * x / max(float(np.abs(x).max(initial=0)), 1e-30)
    x = np.asarray(x, x.dtype)
    transform, shared, before = parse(text), shared_of(x), x.copy()

    try:
        _, y, _ = coded(transform, x, shared)
    except CodecError:  # within no bound, a codec of float32 has nothing for float64
        assert x.dtype == np.float64
        assert text.endswith("szx@1e-2")
        return

    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert np.isfinite(y).all()
    assert np.array_equal(x, before)
    assert x.any() or not y.any() or "layered" in text  # whose error is the same for all


@pytest.mark.sampled(60)
@pytest.mark.parametrize("text", cases([*CHAINS, *FEEDBACK]))
def test_equal_arguments_give_equal_bytes_and_state_survives_a_restart(text: str) -> None:
    transform, x, y = parse(text), ordinary(1), ordinary(2)

    first, _, state = coded(transform, x, shared_of(x))
    again, _, _ = coded(transform, x, shared_of(x))
    goes_on, _, _ = coded(transform, y, shared_of(y, round_=3), state)
    restored = {**state, "inner": load(save(dict(state["inner"])))}
    restarts, _, _ = coded(transform, y, shared_of(y, round_=3), restored)

    assert first == again
    assert goes_on == restarts


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text", cases(t for t in CHAINS if not parse(t).biased))
def test_what_is_declared_unbiased_is(text: str) -> None:
    transform, x, rounds = parse(text), ordinary(3, 40), 800

    decoded = [coded(transform, x, shared_of(x, round_=r))[1] for r in range(rounds)]

    mean = np.mean(decoded, axis=0, dtype=np.float64)
    error = np.std(decoded, axis=0, dtype=np.float64) / math.sqrt(rounds)
    # 40 elements: the largest of so many is beyond 5 deviations once in 40,000 runs.
    assert (np.abs(mean - x) <= 5 * error + 1e-6 * np.abs(x).max()).all()
    assert error.any() or np.allclose(decoded[0], x, rtol=1e-6, atol=1e-6)  # of what draws nothing


# d of E|x - decode(encode(x))|^2 <= (1 - d)|x|^2, by the part and the number of elements.
SHARES: dict[str, Callable[[Any, int], float]] = {
    "powersgd": lambda _part, _n: 1 / 20,  # the least that a random column takes, in expectation
    "rotate": lambda _part, _n: 1 - 1e-6,  # less what rounding takes
    # Stich et al. 2018, of the chunk where that is least.
    "topk": lambda part, n: min(
        part.k.of(size) / size for size in ((part.chunk, n % part.chunk) if part.chunk else (n,))
    ),
    # Each of the r largest is kept with chance k/r, and of all with k/n.
    **dict.fromkeys(("rtopk", "randk"), lambda part, n: part.k.of(n) / n),
    "sbc": lambda part, n: 1 / (n * part.k.of(n) ** 2),  # a mean is at least the largest over k
    "natural": lambda _part, _n: 7 / 8,
    # 1 - step^2 times the mean square of a cell by element.
    "uveqfed": lambda part, _n: 1 - part.step**2 * (1 / 12 if part.lattice == "scalar" else 5 / 72),
    # What is taken off is the largest element, or |v|_1^2 / n, which is at least |v|_2^2 / n.
    **dict.fromkeys(("threshold", "ternary", "centroids"), lambda _part, n: 1 / n),
    **dict.fromkeys(("qsgd", "sketch"), lambda part, n: 1 / (1 + part.variance(TensorSpec((n,))))),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text", cases(CONTRACTING))
def test_what_is_declared_to_contract_does(text: str) -> None:
    (part,) = parse(text).stages
    one = np.eye(30, 20, 5, np.float32) * np.eye(30, 1, dtype=np.float32)
    for x in (ordinary(4), one, np.ones((30, 20), np.float32)):
        share = SHARES[part.name](part, x.size)
        assert 0 < share <= 1
        losses = [
            np.square(coded(parse(text), x, shared_of(x, round_=r))[1] - x).sum(dtype=np.float64)
            for r in range(200)
        ]
        spread = 5 * np.std(losses) / math.sqrt(len(losses))
        most = (1 - share) * np.square(x).sum(dtype=np.float64)
        assert np.mean(losses) <= most * (1 + 1e-5) + spread


SETTLES = [
    *(f"feedback>{text}" for text in BIASED if text not in PAIRS),
    *(text for text in AROUND if not text.startswith("dgc")),
    "dgc>topk:k=10%>ternary",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", cases(SETTLES))
def test_feedback_around_a_biased_part_finds_the_minimum_of_a_quadratic(text: str) -> None:
    target = ordinary(7, 200)
    # Steps small beside the share that a round sends, as error feedback needs them.
    w, state, transform = np.zeros_like(target), None, parse(text)
    spec = TensorSpec(target.shape, target.dtype, "fc.weight")
    start, rate = float(np.square(target).sum()), 0.005

    for r in range(1000):
        _, step, state = coded(transform, rate * (target - w), Shared(spec, 1, r + 1), state)
        w = w + step

    assert np.square(target - w).sum() < 0.02 * start


@given(text=st.sampled_from(CHAINS), data=st.data())
def test_mutated_payloads_are_refused_or_decode(text: str, data: st.DataObject) -> None:
    x = ordinary(9, 300)
    shared, transform = shared_of(x), parse(text)
    payload = bytearray(write(transform, transform.encode(x, {}, shared)[0]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    payload = (
        payload[: data.draw(st.integers(0, len(payload)))] if data.draw(st.booleans()) else payload
    )

    try:
        with np.errstate(all="ignore"):
            y = dense(transform.decode(read(transform, payload, shared.spec), shared))
    except CorruptStream:
        return
    assert (y.shape, y.dtype) == (x.shape, x.dtype)


DRAWN = [
    (by, draw)
    for by in Estimate
    for draw in ("laplace", "normal", "standard_cauchy")
    if (by, draw) != (Estimate.SIDCO, "standard_cauchy")  # no tail is exponential there
]


@pytest.mark.parametrize(("by", "draw"), DRAWN)
def test_an_estimated_threshold_keeps_about_k_elements(by: Estimate, draw: str) -> None:
    x = getattr(np.random.default_rng(12), draw)(size=200_000).astype(np.float32)

    (symbols,), _ = parse(f"threshold:k=1%,by={by}").encode(x, {}, shared_of(x))

    assert 1000 < symbols["values"].size <= 4000


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_indices_take_at_most_three_percent_more_than_their_entropy(density: float) -> None:
    k = 2000
    size = round(k / density)
    rng = np.random.default_rng(10)
    indices = np.sort(rng.choice(size, k, replace=False))
    nats = math.lgamma(size + 1) - math.lgamma(k + 1) - math.lgamma(size - k + 1)
    symbols = {"indices": indices, "values": np.ones(k, np.float32)}
    chain = parse("topk")

    nbytes = len(write(chain, (symbols,))) - 4 * k

    assert nbytes <= 1.03 * nats / math.log(2) / 8


@pytest.mark.parametrize(
    ("text", "size", "times"),
    [
        ("topk:k=1%>ternary", 100_000, 100),
        ("topk:k=64,chunk=4096>centroids:bits=2", 1 << 20, 210),
    ],
)
def test_a_few_values_of_a_few_bits_are_so_many_times_smaller(
    text: str, size: int, times: int
) -> None:
    x = ordinary(11, size)

    payload, _, _ = coded(parse(text), x, shared_of(x))

    assert x.nbytes >= times * len(payload)
