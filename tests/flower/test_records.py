"""Flower's Arrays, read and written."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedsz.core.encode import compress_measured
from fedsz.core.settings import Settings
from fedsz.errors import CorruptStream, LimitExceeded
from fedsz.flower.records import from_array, sealed, to_array
from fedsz.flower.update import Update


def test_bfloat16_arrays_cross() -> None:
    x = np.linspace(-1, 1, 4000, dtype=np.float32).astype(ml_dtypes.bfloat16)

    (back,) = Update.open(ArrayRecord({"x": to_array(x)})).arrays().values()

    assert back.dtype == x.dtype
    assert np.array_equal(back, x)


@pytest.mark.parametrize(
    "x",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array(5),
        np.empty((0, 3), np.float16),
        np.array([True, False]),
    ],
)
def test_plain_arrays_are_read_as_flower_writes_them(x: np.ndarray) -> None:
    for array in (Array(x), to_array(np.asarray(x, order="C"))):
        back = from_array("x", array)
        assert (back.dtype, back.shape) == (x.dtype, x.shape)
        assert np.array_equal(back, x)
        assert np.array_equal(array.numpy(), x)


def test_a_stream_may_decode_to_twice_the_model_and_no_more() -> None:
    model = {"w": np.zeros(5000, np.float32)}
    dtypes = {name: x.dtype for name, x in model.items()}
    for dtype, fits in ((np.float64, True), (np.complex128, False)):
        stream, _ = compress_measured(
            {"w": model["w"].astype(dtype)}, Settings(codec="zstd", lossless="zstd")
        )
        record = sealed(stream)
        if fits:
            (x,) = Update.open(record, model=model, dtypes=dtypes).arrays().values()
            assert x.dtype == np.float32
        else:
            with pytest.raises(LimitExceeded):
                Update.open(record, model=model)


def npy(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x09\x00\x00\x00",
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}\n", bytes(4)),
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}\n", bytes(4)),
        npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n", bytes(8)),
        npy(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}\n", bytes(5)),
        npy(b"{'descr': '|V4', 'fortran_order': False, 'shape': (1,)}\n", bytes(4)),
        npy(b"{'descr': '|V2', 'fortran_order': False, 'shape': (2,)}\n", bytes(4)),
        npy(b"{'descr': '<U1', 'fortran_order': False, 'shape': (1,)}\n", bytes(4)),
        npy(b"((((((((\n"),
        npy(b"{'descr': '<f4'}\n"),
    ],
)
def test_plain_arrays_that_lie_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptStream, match="'x'"):
        from_array("x", Array("bfloat17", (1,), "numpy.ndarray", data))


@pytest.mark.parametrize("shape", [(0, 2**47, 2**16), (2**70, 0), (1,) * 65])
def test_a_shape_that_no_array_has_is_refused(shape: tuple[int, ...]) -> None:
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}"
    data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode()
    data += bytes(math.prod(shape))

    with pytest.raises(CorruptStream, match="is not"):
        from_array("x", Array("uint8", (0,), "numpy.ndarray", data))
