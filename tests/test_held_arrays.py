"""Arrays that a Grid and a mod hand out: Flower's own in all, but sooner read."""

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest
from flwr.app import Array

from fedsz.arrays import DTYPES
from fedsz.flower.records import from_array, to_array

SHAPES = [(), (0,), (3, 0, 2), (7,), (4, 5), (2, 3, 2, 2)]


def array_of(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    count = int(np.prod(shape))
    return np.arange(count).astype(np.float32).astype(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_they_read_as_flowers_own_do(shape: tuple[int, ...], dtype: np.dtype) -> None:
    x = array_of(shape, dtype)
    ours = to_array(x)
    theirs = Array(ours.dtype, ours.shape, ours.stype, ours.data)
    read, expected = ours.numpy(), theirs.numpy()
    assert (read.dtype, read.shape) == (expected.dtype, expected.shape)
    assert read.tobytes() == expected.tobytes() == x.tobytes()
    assert from_array("x", ours).dtype == dtype


def test_what_is_read_is_the_readers_own() -> None:
    array = to_array(np.ones((3, 4), np.float32))
    read = array.numpy()
    read += 1
    assert read.flags.writeable
    assert (array.numpy() == 1).all()


def test_fields_that_have_changed_are_read_anew() -> None:
    array, other = to_array(np.ones(4, ml_dtypes.bfloat16)), to_array(np.zeros(4, np.float16))
    assert from_array("x", array).dtype == ml_dtypes.bfloat16
    array.dtype = "float16"
    assert from_array("x", array).dtype == np.float16
    array.data = other.data
    assert not from_array("x", array).any()


def test_they_are_equal_to_flowers_own_and_become_such() -> None:
    x = np.ones((3, 4), np.float32)
    ours, theirs, other = to_array(x), Array(x), Array(x + 1)
    assert ours == theirs == ours
    assert ours != other != ours
    assert ours != 1
    assert ours.object_id == theirs.object_id
    assert ours.deflate() == theirs.deflate()
    assert repr(ours) == repr(theirs)
    pickled = pickle.loads(pickle.dumps(ours))  # noqa: S301 - its own
    for again in (pickled, copy.deepcopy(ours), copy.copy(ours)):
        assert type(again) is Array
        assert again == theirs


def test_other_serialisations_and_damage_are_errors() -> None:
    array = to_array(np.ones(4, np.float32))
    array.stype = "pickle"
    with pytest.raises(TypeError, match="pickle"):
        array.numpy()
    array = to_array(np.ones(4, ml_dtypes.bfloat16))
    assert array.numpy().dtype == np.dtype("V2")  # as Flower's own
    array = to_array(np.ones(4, np.float32))
    array.data = array.data[:-1]
    with pytest.raises(ValueError, match="array"):
        array.numpy()
