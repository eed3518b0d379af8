"""Flower's Arrays, read and written."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedsz.core.encode import compress_measured
from fedsz.core.framed import FRAMED_FROM, file_of, framed
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


@pytest.mark.parametrize("dtype", [np.float32, np.int64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(300, 200), (3, 5), (1 << 17,), ()])
def test_an_array_in_a_numpy_file_is_no_copy(dtype: type, shape: tuple[int, ...]) -> None:
    x, room = framed(shape, np.dtype(dtype))
    room[:] = np.arange(room.size) % 97
    array = to_array(x)
    file = file_of(x)

    assert (file is not None) == (x.nbytes >= FRAMED_FROM)
    assert file is None or (array.data is file and not x.flags.writeable)
    assert np.frombuffer(array.data, np.uint8)[-room.size :].tolist() == room.tolist()
    assert from_array("x", array).tobytes() == x.tobytes()
    assert array.data == to_array(x.copy()).data
    assert to_array(from_array("x", array)).data is array.data


def test_a_part_of_a_numpy_file_is_a_copy() -> None:
    x, room = framed((300, 200), np.dtype(np.float32))
    room[:] = 1
    for part in (x[1:], x.T, x.reshape(-1), x.view(np.int32), x[:, ::2]):
        assert file_of(part) is None
        assert np.array_equal(from_array("x", to_array(np.ascontiguousarray(part))), part)
    again = np.frombuffer(bytes(file_of(x) or b""), np.float32, x.size)  # of the header's bytes too
    assert file_of(again.reshape(x.shape)) is None


def test_more_memory_than_there_is_is_refused() -> None:
    with pytest.raises((MemoryError, ValueError)):
        framed((1 << 56,), np.dtype(np.float32))
