"""What the native codecs ask of their arguments: alignment, and sizes that fit together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedsz.codecs import _szx, _uniform
from fedsz.codecs.szx import Szx
from fedsz.codecs.uniform import DTYPE_IDS, Uniform, compare
from tests.codecs.uniform_cases import DTYPES, every_dtype, flat, rng

ROWS, COLUMNS = 30, 36
FLOAT32, FLOAT64, FLOAT16 = 0, 1, 2


def weights(dtype: Any = np.float32) -> np.ndarray:
    return rng().normal(size=(ROWS, COLUMNS)).astype(dtype)


def misaligned(x: np.ndarray) -> np.ndarray:
    """A copy of x at an odd address."""
    memory = np.empty(x.nbytes + 1, np.uint8)
    memory[1:] = flat(x)
    y = memory[1:].view(x.dtype).reshape(x.shape)
    assert not y.flags.aligned
    return y


def encode(x: np.ndarray, **changes: Any) -> Any:
    what = {
        "dtype": FLOAT32,
        "rows": ROWS,
        "columns": COLUMNS,
        "planes": 9,
        "width": 3,
        "bound": 0.1,
        "effort": 5,
        "threads": 1,
        "level": "",
    }
    return _uniform.encode(x, **(what | changes))


X = weights()
OCTETS = flat(X)
PAYLOAD = encode(OCTETS)[0]


# Misaligned arrays, and others that do not lie as C++ wants them


def strided(x: np.ndarray) -> np.ndarray:
    return np.repeat(x, 2, axis=0)[::2]


@every_dtype
@pytest.mark.parametrize("lying", [misaligned, np.asfortranarray, strided])
def test_arrays_and_payloads_may_lie_anywhere(
    dtype: np.dtype, lying: Callable[[np.ndarray], np.ndarray]
) -> None:
    x, base = weights(dtype), weights(dtype)[::-1]
    payload, onto = (Uniform().encode(x, 0.1, start) for start in (None, base))
    y = Uniform().decode(payload, x.shape, dtype, base)

    assert Uniform().encode(lying(x), 0.1) == payload
    assert Uniform().encode(lying(x), 0.1, lying(base)) == onto
    assert np.array_equal(Uniform().decode(payload, x.shape, dtype, lying(base)), y)
    for shift in range(1, 8):
        moved = memoryview(bytes(shift) + payload)[shift:]
        assert np.array_equal(Uniform().decode(moved, x.shape, dtype, base), y)
    if dtype.itemsize >= 4:
        assert compare(lying(x), lying(base), deviation=True) == compare(x, base, deviation=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_natives_refuse_misaligned_arrays(dtype: np.dtype) -> None:
    id_, x = DTYPE_IDS[dtype], weights(dtype)
    odd, payload = flat(misaligned(x)), Uniform().encode(x, 0.1)
    sums = np.zeros(x.shape, np.float64 if dtype == np.float64 else np.float32)

    refused = {
        "x": [
            lambda: encode(odd, dtype=id_),
            lambda: _uniform.value_range(odd, id_, ""),
            lambda: _uniform.standard_deviation(odd, id_, ""),
            lambda: _uniform.energy(odd, id_, None, False, 1, ""),
        ],
        "y": [lambda: _uniform.decode(payload, id_, odd, 1, "")],
        "sums": [lambda: _uniform.accumulate(payload, id_, 1.0, flat(misaligned(sums)), 1, "")],
    }
    even = flat(x)
    refused["base"] = [lambda: _uniform.energy(even, id_, odd, False, 1, "")]
    if dtype.itemsize >= 4:
        how = (id_, True, True, 1, "")
        refused["x"].append(lambda: _uniform.compare(odd, even, *how))
        refused["base"] += [
            lambda: encode(even, dtype=id_, base=odd),
            lambda: _uniform.decode(payload, id_, even, 1, "", odd),
            lambda: _uniform.compare(even, odd, *how),
        ]
        refused |= {
            "residual": [
                lambda: encode(even, dtype=id_, residual=odd),
                lambda: _uniform.compare(even, even, *how, odd),
            ],
            "left": [lambda: encode(even, dtype=id_, left=odd)],
        }
    for name, calls in refused.items():
        for call in calls:
            with pytest.raises(ValueError, match=f"{name} must be aligned"):
                call()


def test_misaligned_arrays_are_copied_for_szx() -> None:
    assert Szx().encode(misaligned(X), 0.1) == Szx().encode(X, 0.1)
    with pytest.raises(ValueError, match="x must be aligned"):
        _szx.encode(misaligned(X).reshape(-1), 0.1)


@pytest.mark.parametrize("offset", range(4))
def test_no_elements_may_lie_anywhere(offset: int) -> None:
    none = np.empty(8, np.uint8)[offset : offset + 0]

    payload, *_ = encode(none, rows=0, planes=1, width=1)
    _uniform.decode(payload, FLOAT32, none, 1, "")
    _uniform.accumulate(payload, FLOAT32, 1.0, none, 1, "")
    assert _szx.decode(_szx.encode(none.view(np.float32), 0.1)[0], 0).size == 0


# Sizes that do not fit together


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": ROWS + 1}, "1080 elements are not 31 rows of 36"),
        ({"columns": COLUMNS + 9}, "1080 elements are not 30 rows of 45"),
        ({"rows": 1, "columns": 1}, "1080 elements are not 1 rows of 1"),
        ({"rows": 0}, "1080 elements are not 0 rows"),
        ({"rows": ROWS, "columns": 0}, "1080 elements are not 30 rows of 0"),
        ({"rows": 2**63, "columns": 2}, "elements are not"),
        ({"rows": 2**62 + ROWS, "columns": 4}, "elements are not"),
        ({"dtype": FLOAT64}, "540 elements are not"),
        ({"dtype": FLOAT16}, "2160 elements are not"),
        ({"dtype": 4}, "no dtype 4"),
        ({"dtype": 256}, "no dtype 256"),
        ({"planes": 0}, "planes must lie in 1..255, got 0"),
        ({"planes": 256}, "planes must lie in 1..255, got 256"),
        ({"planes": 5}, "5 planes do not fill 36 columns"),
        ({"width": 0}, "width must lie in 1..255, got 0"),
        ({"width": 256}, "width must lie in 1..255, got 256"),
        ({"bound": -1.0}, "bound must be 0 or more"),
        ({"bound": np.nan}, "bound must be 0 or more"),
        ({"effort": 10}, "effort must lie in 0..9, got 10"),
        ({"threads": 0}, "threads must lie in 1..1024, got 0"),
        ({"threads": 2**32 - 1}, "threads must lie in 1..1024"),
        ({"level": "mmx"}, "no such level"),
        ({"base": OCTETS[4:]}, "another size: 4316 bytes for 4320"),
        ({"base": np.zeros(0, np.uint8)}, "another size: 0 bytes"),
        ({"dtype": FLOAT16, "rows": 2 * ROWS, "base": OCTETS}, "float32 or float64"),
        ({"residual": OCTETS[4:]}, "another size: 4316 bytes for 4320"),
        ({"dtype": FLOAT16, "rows": 2 * ROWS, "residual": OCTETS}, "float32 or float64"),
        ({"left": np.zeros(4316, np.uint8)}, "another size: 4316 bytes for 4320"),
    ],
)
def test_what_encode_refuses(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        encode(OCTETS, **changes)


PART, SHORT, SUMS = np.zeros(4322, np.uint8), OCTETS[4:], np.zeros(X.size, np.float32)
NOT_WHOLE = "4322 bytes are no whole number of 4-byte elements"
THREADS, OTHER_SIZE = r"threads must lie in 1\.\.1024", "another size: 4316 bytes for 4320"
# Nobody would see what is written to a copy of an array of another kind.
OTHER_KIND = "incompatible function arguments"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: encode(PART), NOT_WHOLE),
        (lambda: _uniform.decode(PAYLOAD, FLOAT32, PART, 1, ""), NOT_WHOLE),
        (lambda: _uniform.accumulate(PAYLOAD, FLOAT32, 1.0, PART, 1, ""), NOT_WHOLE),
        (lambda: _uniform.accumulate(PAYLOAD, FLOAT16, 1.0, PART, 1, ""), NOT_WHOLE),
        (lambda: _uniform.compare(PART, PART, FLOAT32, True, True, 1, ""), NOT_WHOLE),
        (lambda: _uniform.value_range(PART, FLOAT32, ""), NOT_WHOLE),
        (lambda: _uniform.standard_deviation(OCTETS, 4, ""), "no dtype 4"),
        (lambda: _uniform.value_range(OCTETS, FLOAT32, "mmx"), "no such level"),
        (lambda: _uniform.energy(OCTETS, FLOAT32, None, False, 1025, ""), THREADS),
        (lambda: _uniform.energy(OCTETS, FLOAT32, SHORT, True, 1, ""), OTHER_SIZE),
        *((lambda n=n: _uniform.decode(PAYLOAD, FLOAT32, OCTETS.copy(), n, ""), THREADS)
          for n in (0, 1025, 2**32 - 1)),
        (lambda: _uniform.accumulate(PAYLOAD, FLOAT32, 1.0, flat(SUMS), 0, ""), THREADS),
        (lambda: _uniform.compare(OCTETS, OCTETS, FLOAT32, True, True, 1025, ""), THREADS),
        (lambda: _uniform.decode(PAYLOAD, FLOAT32, OCTETS.copy(), 1, "", SHORT), OTHER_SIZE),
        (lambda: _uniform.compare(OCTETS, SHORT, FLOAT32, True, True, 1, ""), OTHER_SIZE),
        (lambda: _uniform.compare(OCTETS, OCTETS, FLOAT32, True, True, 1, "", SHORT), OTHER_SIZE),
        (lambda: _uniform.compare(SHORT, OCTETS, FLOAT32, True, True, 1, ""), "4320 bytes"),
        *((lambda bound=bound: _szx.encode(X.reshape(-1), bound), "bound must be 0 or more")
          for bound in (-1.0, -0.001, np.nan)),
        (lambda: _uniform.accumulate(PAYLOAD, FLOAT32, 1.0, SUMS, 1, ""), OTHER_KIND),
        (lambda: _uniform.accumulate(PAYLOAD, FLOAT32, 1.0, flat(SUMS)[::2], 1, ""), OTHER_KIND),
        (lambda: _uniform.decode(PAYLOAD, FLOAT32, SUMS, 1, ""), OTHER_KIND),
        (lambda: encode(X.reshape(-1)), OTHER_KIND),
        (lambda: _szx.encode(X.reshape(-1).astype(np.float64), 0.1), OTHER_KIND),
        (lambda: _szx.encode(X, 0.1), OTHER_KIND),
    ],
)  # fmt: skip
def test_what_the_natives_refuse(call: Callable[[], object], says: str) -> None:
    with pytest.raises(TypeError if says == OTHER_KIND else ValueError, match=says):
        call()
    assert not SUMS.any()
