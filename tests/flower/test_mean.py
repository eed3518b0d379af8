"""Mean: what is coded is added as if it were decoded, and damage leaves no trace."""

from __future__ import annotations

import zlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedsz.codecs import CODECS
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.errors import RefusedReply
from fedsz.flower.mean import Mean
from fedsz.flower.records import KEY, STYPE, from_array, to_record
from fedsz.flower.update import Update
from fedsz.stream import Reader
from tests.federation import BOUND, seal
from tests.stream.test_stream import forge


def model(client: int) -> dict[str, np.ndarray]:
    """A state_dict with a tensor of every dtype that can be lossy, and some that cannot."""
    rng = np.random.default_rng(client)
    state = {
        f"{np.dtype(dtype)}.weight": rng.normal(size=(70, 50)).astype(dtype)
        for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
    }
    state["float32.weight"][3, 4] = 1e6
    return {**state, "bias": rng.normal(size=9).astype(np.float32), "steps": np.array(client)}


def sealed(arrays: dict[str, np.ndarray], codec: str) -> ArrayRecord:
    return seal(arrays, Settings.of(BOUND, codec=codec))


def damaged(record: ArrayRecord, payload: int, where: float = 0.5) -> ArrayRecord:
    """A sealed record in one payload of which a bit has changed; its checksums fit."""
    (array,) = record.values()
    _, data, offset = list(Reader(array.data).payloads())[payload]
    at = offset + int(where * len(data))
    changed = array.data[:at] + bytes([array.data[at] ^ 1]) + array.data[at + 1 :]

    def edit(header: Any) -> None:
        header["payloads"][payload][3] = zlib.crc32(changed[offset : offset + len(data)])

    stream = forge(changed, edit=edit)
    return ArrayRecord({KEY: Array("uint8", (len(stream),), STYPE, stream)})


def add(mean: Mean, update: Update, weight: float = 1.0, scale: float = 1.0) -> None:
    """Add an update as `StreamingFedAvg` does."""
    mean.add(update, update.terms(), weight, scale)


LOSSY = [codec.name for codec in CODECS if codec.lossy and not codec.missing()]


@pytest.mark.parametrize("codec", LOSSY)
def test_adding_coded_tensors_is_decoding_and_adding(codec: str) -> None:
    coded, plain = Mean(), Mean()
    for client, weight in enumerate([1.0, 0.3, 7.0, 12345.678]):
        record = sealed(model(client), codec)
        add(coded, Update.open(record), weight)
        add(plain, Update.open(to_record(Update.open(record).arrays())), weight)

    assert coded.weight == plain.weight
    expected = to_arrays_of(plain)
    for name, x in to_arrays_of(coded).items():
        assert x.dtype == expected[name].dtype
        assert np.array_equal(x, expected[name], equal_nan=x.dtype.kind in "fV"), name


def to_arrays_of(mean: Mean) -> dict[str, np.ndarray]:
    return {name: from_array(name, array) for name, array in mean.result().items()}


def test_clients_may_differ_in_their_dtypes() -> None:
    mean, expected = Mean(), np.zeros((70, 50))
    for client, dtype in enumerate([np.float32, np.float64, np.float16]):
        x = model(client)["float64.weight"]
        add(mean, Update.open(sealed({"weight": x.astype(dtype)}, "uniform")))
        expected += x / 3

    (x,) = to_arrays_of(mean).values()
    assert x.dtype == np.float32
    assert np.abs(x - expected).max() <= BOUND * 8  # of a range of about 8


# Differences


def tame(seed: int) -> dict[str, np.ndarray]:
    state = model(seed)
    state["float32.weight"][3, 4] = 1
    return state


BASES = [Reference(tame(seed)) for seed in (10, 11)]
SERVER = tame(12)  # the server's own model, near which those are in a run


def step(client: int, base: Reference | None, codec: str = "uniform") -> ArrayRecord:
    """What a client sends that has been sent `base`; one tensor of client 2 is sent as it is."""
    start = (base or BASES[0]).arrays
    after = {
        name: (x.astype(np.float64) + 0.01 * own).astype(x.dtype)
        for (name, x), own in zip(start.items(), tame(client).values(), strict=True)
    }
    return seal(after, Settings.of(BOUND, codec=codec), base)


def assert_close(mean: Mean, expected: Mean, roundings: float) -> None:
    """Two means differ by no more than so many roundings of their largest values."""
    wanted = to_arrays_of(expected)
    for name, x in to_arrays_of(mean).items():
        y = wanted[name]
        assert x.dtype == y.dtype
        if x.dtype.kind == "i":
            assert np.array_equal(x, y)
            continue
        a, b = x.astype(np.float64), y.astype(np.float64)
        tolerance = roundings * float(ml_dtypes.finfo(x.dtype).eps) * float(np.nanmax(np.abs(b)))
        assert np.allclose(a, b, 0, tolerance, equal_nan=True), name


@pytest.mark.parametrize("codec", LOSSY)
def test_averaging_differences_is_averaging_models(codec: str) -> None:
    mean, plain = Mean(), Mean()
    bases = [BASES[0], BASES[0], BASES[0], BASES[1], None]
    for client, (base, weight) in enumerate(zip(bases, [1.0, 0.3, 7.0, 3.5, 2.0], strict=True)):
        record = step(client, base, codec)
        reply = Update.open(record, model=SERVER, reference=base)
        add(mean, reply, weight)
        add(plain, Update.open(to_record(reply.arrays())), weight)

    assert_close(mean, plain, 4)


def test_many_small_steps_from_large_numbers() -> None:
    rng = np.random.default_rng(0)
    base = Reference({"weight": rng.uniform(1e3, 2e3, (50, 60)).astype(np.float32)})
    mean, steps = Mean(), []
    for weight in range(1, 41):
        after = {"weight": base.arrays["weight"] + rng.normal(size=(50, 60)).astype(np.float32)}
        record = seal(after, Settings.of("abs:1e-2"), base)
        reply = Update.open(record, model=base.arrays, reference=base)
        exact = reply.arrays()["weight"].astype(np.float64)
        steps.append(weight * (exact - base.arrays["weight"]))
        add(mean, reply, float(weight))

    (x,) = to_arrays_of(mean).values()

    exact = base.arrays["weight"] + np.sum(steps, axis=0) / mean.weight
    # One rounding of the weights, however many replies there are, and those of each decoded step.
    assert np.abs(x - exact).max() <= 1.5 * float(np.spacing(np.float32(2e3)))


def test_an_update_without_arrays_is_no_template() -> None:
    mean = Mean()
    with pytest.raises(RefusedReply, match="holds no arrays"):
        add(mean, Update.open(ArrayRecord()))

    add(mean, Update.open(sealed(model(1), "raw")))

    assert to_arrays_of(mean).keys() == model(1).keys()


def test_bytes_of_another_length_are_not_added() -> None:
    mean = Mean()
    add(mean, Update.open(to_record({"trees": np.zeros(5, np.uint8)})))
    with pytest.raises(RefusedReply, match="another length"):
        add(mean, Update.open(to_record({"trees": np.zeros(7, np.uint8)})))
    assert mean.weight == 1


def test_a_mean_beyond_its_dtype_is_the_end_of_its_range() -> None:
    """Of steps onto a newer model, and of a difference from another model than it names."""
    start = {"half": np.zeros(3, np.float16), "byte": np.zeros(3, np.uint8)}
    onto = {"half": np.array([6e4, -6e4, -np.inf], np.float16), "byte": np.full(3, 250, np.uint8)}
    step = {"half": np.array([6e4, -6e4, 1], np.float16), "byte": np.full(3, 250, np.uint8)}
    steps, claimed = Mean(onto), Mean()
    add(steps, Update.open(to_record(dict(step)), model=start, reference=Reference(start)), 2.0)

    ends = {name: from_array(name, array) for name, array in steps.result().items()}

    assert ends["half"].tolist() == [65504, -65504, -np.inf]
    assert ends["byte"].tolist() == [250] * 3  # whole numbers are averaged, not added as steps
    low, high, held = ({"weight": np.full((70, 50), x, np.float16)} for x in (-6e4, 6e4, 100))
    known = Reference(held)
    (array,) = seal(high, Settings.of("abs:1"), Reference(low)).values()
    stream = forge(array.data, reference=known.digest)
    record = ArrayRecord({KEY: Array("uint8", (len(stream),), STYPE, stream)})
    add(claimed, Update.open(record, model=held, reference=known))
    assert to_arrays_of(claimed)["weight"].max() == 65504
