"""Differences of bits: exact for every dtype and value, as specified, and no lie believed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz import codecs
from fedsz.arrays import DTYPE_IDS, DTYPES
from fedsz.codecs import _stream
from fedsz.core.reference import Reference
from fedsz.core.tensors import difference_of_bits, moved_by_bits
from fedsz.errors import CorruptStream, UnsupportedStream
from fedsz.stream import BITS, Part, Tensor, write
from fedsz.stream.format import DIFFERENCES
from tests.golden.make import FOLDER, is_float, rest_after
from tests.strategies import KIND, arrays, bits_of, finite, seeds, specials, state_dicts
from tests.stream.test_stream import forge, set_at

LOSSLESS = [codec.name for codec in codecs.CODECS if not codec.lossy]
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def step(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    """What might have been before ``x``: itself, something near, or anything of its dtype."""
    kind = rng.integers(3)
    if kind == 0 or not x.size:
        return x.copy()
    if x.dtype == np.bool_:
        return rng.integers(0, 2, x.shape).astype(np.bool_)
    octets = np.frombuffer(x.tobytes(), np.uint8).copy()
    if kind == 1:
        octets[:: x.itemsize] ^= rng.integers(0, 8, x.size).astype(np.uint8)
    else:
        octets[:] = rng.integers(0, 256, octets.size)
    return octets.view(x.dtype).reshape(x.shape)


def specified(x: np.ndarray, base: np.ndarray) -> bytes:
    """The planes as docs/format.md has them, in Python's own integers."""
    width = 8 * x.itemsize

    def ordered(b: int) -> int:
        negative = b >> (width - 1)
        return b ^ ((1 << (width - 1)) - 1) if negative and is_float(x.dtype) else b

    numbers = []
    for a, b in zip(bits_of(x.reshape(-1)), bits_of(base.reshape(-1)), strict=True):
        d = (ordered(int(a)) - ordered(int(b))) % (1 << width)
        d -= (1 << width) * (d >> (width - 1))
        numbers.append(2 * d if d >= 0 else -2 * d - 1)
    return bytes(n >> 8 * j & 255 for j in range(x.itemsize) for n in numbers)


real = arrays().filter(lambda x: x.dtype.kind != "c") | st.sampled_from(FLOATS).flatmap(specials)


@given(x=real, seed=seeds)
def test_planes_are_those_of_the_specification(x: np.ndarray, seed: int) -> None:
    base = step(np.random.default_rng(seed), x)

    assert difference_of_bits([x], [base]).tobytes() == specified(x, base)


@given(tensors=st.lists(real, min_size=1, max_size=8), seed=seeds)
def test_tensors_of_one_item_size_share_planes(tensors: list[np.ndarray], seed: int) -> None:
    tensors = [x for x in tensors if x.itemsize == tensors[0].itemsize]
    rng = np.random.default_rng(seed)
    bases = [step(rng, x) for x in tensors]
    held = [base.tobytes() for base in bases]

    back = list(moved_by_bits(difference_of_bits(tensors, bases).tobytes(), bases))

    for x, y in zip(tensors, back, strict=True):
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())
        assert y.flags.writeable
        y.fill(1)  # its own memory: no other tensor would survive it
    assert [base.tobytes() for base in bases] == held


@pytest.mark.parametrize("dtype", [*FLOATS, np.int64, np.uint8])
def test_arrays_of_many_chunks(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(1 << 16) + 7) * 50 + 120).astype(dtype)
    base = step(np.random.default_rng(1), x)

    (back,) = moved_by_bits(difference_of_bits([x], [base]), [base])

    assert back.tobytes() == x.tobytes()


def test_a_base_in_fortran_order_has_the_same_elements() -> None:
    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    base = np.asfortranarray(x - 5)

    (back,) = moved_by_bits(difference_of_bits([x], [base]), [base])

    np.testing.assert_array_equal(back, x)


@pytest.mark.parametrize(
    ("width", "sizes", "first"),
    [(3, (6, 6, 6), 0), (0, (4, 4, 4), 0), (16, (16, 16, 16), 0), (4, (6, 6, 8), 0),
     (4, (8, 4, 8), 0), (4, (8, 8, 4), 0), (4, (8, 8, 8), 1), (1, (1, 1, 1), 1 << 63)],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused(
    width: int, sizes: tuple[int, int, int], first: int
) -> None:
    x, base, planes = (np.zeros(size, np.uint8) for size in sizes)

    with pytest.raises(ValueError, match=r"bytes|fit|differ"):
        _stream.bit_difference(x, base, width, False, planes, first)
    with pytest.raises(ValueError, match=r"bytes|fit|differ"):
        _stream.move_bits(planes, first, width, False, base, x)


@given(lossless=st.sampled_from(LOSSLESS), state=state_dicts(), seed=seeds)
def test_every_state_dict_comes_back(lossless: str, state: dict[str, Any], seed: int) -> None:
    rng = np.random.default_rng(seed)
    before = {name: step(rng, x) for name, x in state.items()}

    blob = fedsz.compress(state, codec=lossless, lossless=lossless, reference=before)
    back = fedsz.decompress(blob, reference=before, as_numpy=True)

    assert [(n, x.dtype, x.shape, x.tobytes()) for n, x in back.items()] == [
        (n, x.dtype, x.shape, x.tobytes()) for n, x in state.items()
    ]


def rest(seed: int = 0, n: int = 3000) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors that stay lossless, before and after a round of training."""
    rng = np.random.default_rng(seed)
    before = {
        **{f"{i}.bias": rng.normal(size=n // 4).astype(np.float32) for i in range(4)},
        "big.bias": finite(KIND["laplace"](rng, 20_000), np.float32),
        **{f"{i}.steps": np.array(i * i * 1000) for i in range(50)},
        "scalar": np.array(1.5, np.float32),
        "empty": np.empty((0, 3), np.float32),
    }
    after = {
        name: (x * (1 + 1e-3 * rng.normal(size=x.shape))).astype(x.dtype)
        if is_float(x.dtype)
        else np.array(x + 9)
        for name, x in before.items()
    }
    return before, after


@pytest.mark.parametrize("lossless", LOSSLESS)
def test_small_steps_take_fewer_bytes(lossless: str) -> None:
    before, after = rest()
    plain = fedsz.compress(after, lossless=lossless, rule="paper")

    step = fedsz.compress(after, lossless=lossless, rule="paper", reference=before)

    infos = fedsz.inspect(step).tensors
    if lossless == "raw":
        assert step == plain
        return
    assert {(info.transform, info.codec, info.bound) for info in infos} == {("bits", "zstd", None)}
    assert len(step) < 0.8 * len(plain)
    assert (step[8], plain[8]) == (DIFFERENCES, 1)


def test_what_is_smaller_as_it_is_stays_as_it_is() -> None:
    rng = np.random.default_rng(0)
    after = {"bias": np.zeros(1000, np.float32), "z": rng.normal(size=500).astype(np.complex64)}
    before = {"bias": rng.normal(size=1000).astype(np.float32), "z": after["z"]}

    blob = fedsz.compress(after, reference=before)

    assert {info.transform for info in fedsz.inspect(blob).tensors} == {"values"}
    assert blob == fedsz.compress(after)


def test_the_golden_stream_holds_nothing_else() -> None:
    infos = fedsz.inspect((FOLDER / "v2-bits.fsz").read_bytes()).tensors

    assert {info.transform for info in infos} == {"bits"}
    assert {info.dtype for info in infos} == {x.dtype.name for x in rest_after().values()}
    assert {info.dtype for info in infos} == {dtype.name for dtype in DTYPES if dtype.kind != "c"}


def test_a_reference_that_lacks_a_tensor_is_refused_though_its_digest_fits() -> None:
    before, after = rest()
    blob = fedsz.compress(after, reference=before)

    short = {**before, "1.bias": before["1.bias"][:-1]}
    for lacking in (short, {n: x for n, x in before.items() if n != "1.bias"}):
        reference = Reference(lacking)
        with pytest.raises(CorruptStream, match=r"from '1\.bias', which the reference lacks"):
            fedsz.decompress(forge(blob, reference=reference.digest), reference=reference)


LIES: dict[str, tuple[Callable[[], dict[str, Any]], type[Exception]]] = {
    "a bound": (lambda: set_at("payloads", 0, 4, to=0.5), CorruptStream),
    "another transform": (lambda: set_at("payloads", 0, 1, to=3), UnsupportedStream),
    "a difference without a bound": (lambda: set_at("payloads", 0, 1, to=1), CorruptStream),
    "no reference": (lambda: {"reference": None}, CorruptStream),
    "a lossy codec": (lambda: set_at("payloads", 0, 0, to=20), CorruptStream),
    "another lossless codec": (lambda: set_at("payloads", 0, 0, to=3), CorruptStream),
    "complex numbers": (lambda: set_at("tensors", 0, 1, to=13), CorruptStream),
    "more elements": (lambda: set_at("tensors", 0, 2, to=[10**6]), CorruptStream),
    "fewer elements": (lambda: set_at("tensors", 0, 2, to=[3]), CorruptStream),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies(lie: str) -> None:
    x = np.arange(1000, dtype=np.float64)
    before = {"bias": x}
    blob = fedsz.compress({"bias": x + 1}, reference=before)
    changes, error = LIES[lie]
    assert fedsz.inspect(blob).tensors[0].transform == "bits"

    with pytest.raises(error):
        fedsz.decompress(forge(blob, **changes()), reference=before)


def test_version_1_has_no_differences_of_bits() -> None:
    blob = fedsz.compress({"bias": np.arange(9.0)})

    with pytest.raises(UnsupportedStream, match="unknown transform 2"):
        fedsz.decompress(forge(blob, **set_at("payloads", 0, 1, to=BITS)))


def stream_of(x: np.ndarray, planes: bytes, reference: Reference, codec: str = "raw") -> bytes:
    """A stream of one tensor ``x`` that differs by ``planes``."""
    packer = codecs.get_lossless(codec)
    part = Part(packer.wire_id, packer.pack(planes, 1), None, (0,), BITS)
    return write([Tensor("x", DTYPE_IDS[x.dtype], x.shape)], [part], reference.digest)


@given(
    codec=st.sampled_from(LOSSLESS),
    data=st.binary(max_size=200),
    shape=st.sampled_from([(), (0,), (1,), (5,), (2, 3)]),
)
def test_noise_is_refused_or_decodes(codec: str, data: bytes, shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    reference = Reference({"x": x})

    blob = stream_of(x, data, reference, codec)
    if len(data) != x.nbytes:
        with pytest.raises(CorruptStream):
            fedsz.decompress(blob, reference=reference)
        return
    y = fedsz.decompress(blob, reference=reference, as_numpy=True)["x"]
    assert specified(y, x) == data


def test_bools_are_0_or_1() -> None:
    mask = np.array([True, False])
    reference = Reference({"x": mask})

    for planes, fits in ((b"\0\0", True), (b"\1\2", True), (b"\2\0", False), (b"\0\1", False)):
        blob = stream_of(mask, planes, reference)
        if fits:
            assert fedsz.decompress(blob, reference=reference, as_numpy=True)["x"].dtype == np.bool_
            continue
        with pytest.raises(CorruptStream, match="a bool of 'x' is neither 0 nor 1"):
            fedsz.decompress(blob, reference=reference)
