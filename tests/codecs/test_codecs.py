"""Every codec in each of its dtypes: the bound holds, NaN survives, damage is refused."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedsz
from fedsz.codecs import CODECS, Codec, LosslessCodec
from fedsz.codecs import decoder_process as isolation
from fedsz.codecs.envelope import CODED, STORED, EnvelopeCodec
from fedsz.errors import CodecError, CodecUnavailable, ConfigError, CorruptStream
from tests.strategies import KIND, bits_of, finite, relative, specials

USABLE = [
    pytest.param(codec, id=codec.name, marks=pytest.mark.skipif(bool(why), reason=why or ""))
    for codec in CODECS
    for why in [codec.missing()]
]
every_codec = pytest.mark.parametrize("codec", USABLE)
every_dtype = pytest.mark.parametrize(
    ("codec", "dtype"),
    [
        pytest.param(param.values[0], dtype, id=f"{param.id}-{dtype}", marks=param.marks)
        for param in USABLE
        for dtype in param.values[0].dtypes
    ],
)
every_lossless = pytest.mark.parametrize(
    "codec", [param for param in USABLE if not param.values[0].lossy]
)
every_envelope = pytest.mark.parametrize(
    "codec", [param for param in USABLE if isinstance(param.values[0], EnvelopeCodec)]
)
every_isolated = pytest.mark.parametrize(
    "codec", [param for param in USABLE if getattr(param.values[0], "isolated", False)]
)


def bound_of(x: np.ndarray, rel: float) -> float:
    return fedsz.ErrorBound.rel(rel).absolute(x)


def largest_error(x: np.ndarray, y: np.ndarray) -> float:
    """Of the finite elements of x, in float64."""
    where = np.isfinite(x)
    return float(np.abs(y[where].astype(np.float64) - x[where].astype(np.float64)).max(initial=0))


def check(codec: Codec, x: np.ndarray, bound: float) -> tuple[bytes, np.ndarray]:
    """Return a payload and what it decodes to, which is as near as it says, and exact elsewhere."""
    payload, error = codec.encode_measured(x, bound)

    y = codec.decode(memoryview(payload), x.shape, x.dtype)

    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    odd = ~np.isfinite(x)
    assert np.array_equal(bits_of(x)[odd], bits_of(y)[odd])
    assert error == largest_error(x, y)
    assert error <= bound or not codec.keeps_bound
    return payload, y


@every_dtype
@given(data=st.data(), rel=relative, weight=st.floats(-1e4, 1e4))
def test_keeps_its_bound_and_accumulates_what_it_decodes(
    codec: Codec, dtype: np.dtype, data: st.DataObject, rel: float, weight: float
) -> None:
    x = data.draw(specials(dtype))
    payload, y = check(codec, x, bound_of(x, rel))

    wide = np.float64 if dtype == np.float64 else np.float32
    sums = finite(np.random.default_rng(x.size).normal(size=x.shape), wide)
    with np.errstate(all="ignore"):
        expected = sums + wide(weight) * y.astype(wide)
        codec.open(payload, x.shape, dtype).add(sums, weight)
    assert np.array_equal(sums, expected, equal_nan=True)


@pytest.mark.sampled(3, each=("codec", "dtype"))
@every_dtype
@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (3, 0, 2), (1, 1, 1), (1, 5), (2000,)])
def test_shapes_and_extreme_bounds(codec: Codec, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).normal(1000, 1e-3, shape)
    x = np.asarray(x if shape == (2000,) else x - 1000, dtype)

    for bound in (0.0, 1e-45, 1e-30, 1e-3, 10.0, 1e30, 3e38):
        check(codec, x, bound)


@pytest.mark.sampled(2, each=("codec", "dtype"))
@every_dtype
@pytest.mark.parametrize("kind", KIND)
def test_large_arrays(codec: Codec, dtype: np.dtype, kind: str) -> None:
    x = finite(KIND[kind](np.random.default_rng(7), 300_000), dtype)

    payload, _ = check(codec, x, bound_of(x, 1e-3))

    if codec.name != "sz2":  # it reads memory that it never set
        assert codec.encode(x, bound_of(x, 1e-3)) == payload


@every_dtype
def test_beside_a_base_the_difference_is_coded(codec: Codec, dtype: np.dtype) -> None:
    x, base = np.random.default_rng(0).normal(size=(2, 30, 70)).astype(dtype)
    base[0, :3], x[0, 2:5] = [np.nan, np.inf, np.inf], [np.inf, np.nan, -np.inf]
    with np.errstate(invalid="ignore"):
        alone = codec.encode_measured(x - base, 0.03)

    encoded = codec.encode_measured(x, 0.03, base)
    y, same = (codec.decode(e.payload, x.shape, dtype) for e in (encoded, alone))
    onto = codec.decode(encoded.payload, x.shape, dtype, base)

    assert encoded.max_error == alone.max_error
    with np.errstate(invalid="ignore"):
        for a, b in ((y, same), (onto, base + y)):
            assert np.array_equal(a.astype(float), b.astype(float), equal_nan=True)
    for other in (base[:2], np.zeros(base.shape, np.int32), base.reshape(70, 30)):
        with pytest.raises(CodecError, match="as a difference from"):
            codec.encode(x, 0.1, other)


@every_codec
@pytest.mark.parametrize("dtype", [np.int32, np.complex64, ml_dtypes.float8_e5m2, ">f4"])
def test_refuses_other_dtypes(codec: Codec, dtype: Any) -> None:
    with pytest.raises(CodecError, match="this codec takes float32"):
        codec.encode(np.zeros(3, dtype), 0.1)


@every_codec
@pytest.mark.parametrize("bound", [-1.0, float("nan")])
def test_refuses_impossible_bounds(codec: Codec, bound: float) -> None:
    with pytest.raises(CodecError, match="bound"):
        codec.encode(np.zeros(3, np.float32), bound)


@every_lossless
@given(data=st.binary(max_size=2000), itemsize=st.sampled_from([1, 2, 4, 8, 16]))
def test_bytes_come_back(codec: LosslessCodec, data: bytes, itemsize: int) -> None:
    data = data[: len(data) // itemsize * itemsize]

    packed = codec.pack(data, itemsize)

    assert bytes(codec.unpack(packed, len(data))) == data
    assert len(packed) <= len(data) + 1 + 4 * 8 or codec.name != "exponents"


def refuses_or_decodes(
    codec: Codec, payload: bytes, shape: tuple[int, ...], dtype: np.dtype
) -> None:
    with suppress(CorruptStream):
        assert codec.decode(payload, shape, dtype).shape == shape


@every_dtype
@given(
    noise=st.binary(max_size=200),
    at=st.floats(0, 1, exclude_max=True),
    flip=st.integers(1, 255),
    n=st.integers(0, 4000),
)
def test_damage_is_refused_or_decodes(
    codec: Codec, dtype: np.dtype, noise: bytes, at: float, flip: int, n: int
) -> None:
    x = np.random.default_rng(n).normal(size=2000).astype(dtype)
    payload = codec.encode(x, 0.05)
    damaged = bytearray(payload)
    damaged[int(at * len(payload))] ^= flip

    refuses_or_decodes(codec, noise, (n % 100,), dtype)
    refuses_or_decodes(codec, bytes(damaged), x.shape, dtype)
    refuses_or_decodes(codec, bytes(damaged), (n,), dtype)
    refuses_or_decodes(codec, payload[: int(at * len(payload))], x.shape, dtype)
    refuses_or_decodes(codec, payload[: int(at * 12)], x.shape, dtype)


@every_isolated
def test_a_dead_decoder_is_replaced(codec: EnvelopeCodec) -> None:
    x = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    payload = codec.encode(x, 0.05)
    codec.decode(payload, x.shape)
    process = isolation._worker._process
    assert process is not None

    process.kill()
    process.wait()

    assert np.abs(codec.decode(payload, x.shape) - x).max() <= 0.05


@every_envelope
def test_patches_out_of_order_are_refused(codec: EnvelopeCodec) -> None:
    x = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    x[[10, 20]] = np.nan
    payload = bytearray(codec.encode(x, 0.05))
    assert payload[0] == CODED

    payload[5:17], payload[17:29] = payload[17:29], payload[5:17]

    with pytest.raises(CorruptStream, match="ascend"):
        codec.decode(bytes(payload), x.shape)


def test_sz2_that_exits_on_bad_bytes_harms_nobody() -> None:
    native = bytes(4000)  # version 0.0.0: SZ 2 prints a line and calls exit

    with pytest.raises(CorruptStream, match="ended the sz2 decoder"):
        fedsz.codecs.get("sz2").decode(bytes([CODED, 0, 0, 0, 0]) + native, (100_000,))


def test_tiny_arrays_are_stored_by_sz2() -> None:
    x = np.arange(20, dtype=np.float32)

    assert fedsz.codecs.get("sz2").encode(x, 1.0)[0] == STORED


def test_the_worker_ends_with_its_parent() -> None:
    code = (
        "import numpy as np; from fedsz import codecs; from fedsz.codecs import decoder_process\n"
        "x = np.linspace(0, 1, 5000, dtype=np.float32); c = codecs.get('zfp')\n"
        "c.decode(c.encode(x, 0.01), x.shape); print(decoder_process._worker._process.pid)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )

    with pytest.raises(ProcessLookupError):
        __import__("os").kill(int(done.stdout), 0)


def test_wire_ids_are_bytes_and_unique() -> None:
    ids = [codec.wire_id for codec in CODECS]

    assert len(set(ids)) == len(ids)
    assert all(0 <= wire_id < 256 for wire_id in ids)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("sz4", "no codec 'sz4'; have raw, blosclz"),
        ("zstd:speed=3", "no setting 'speed'; have level"),
        ("raw:level=3", "no setting 'level'; have none"),
        ("zstd:level=high", "level must be int, got 'high'"),
        ("zstd:level=99", "level must lie in 1..22, got 99"),
        ("uniform:effort=-1", "effort must lie in 0..9"),
        ("uniform:effort=10", "effort must lie in 0..9"),
        ("zfp:precision=-1", "precision must lie in 0..32"),
        ("sz3:algorithm=best", "no sz3 algorithm 'best'; have nopred"),
        ("blosclz:shuffle=no", "no blosclz shuffle 'no'; have none, byte, bit"),
    ],
)
def test_bad_names_and_settings(spec: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        fedsz.codecs.get(spec)


def test_settings_by_text_and_by_keyword() -> None:
    assert fedsz.codecs.get("zstd:level=19") == fedsz.codecs.get("zstd", level=19)


def test_a_missing_library_leaves_its_codec_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("fedsz.extras._found", set())

    says = r"'sz3' needs the package 'pysz': pip install 'fedsz\[baselines\]' \(wheels: x86-64"
    with pytest.raises(CodecUnavailable, match=says):
        fedsz.codecs.get("sz3")
    with pytest.raises(ConfigError, match="sz3"):
        fedsz.codecs.get("nothing")
