"""Records, message types and loops that no strategy of Flower has, plain beside wrapped."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid
from tests.federation import Watched

NODES = 3
SHAPE = (60, 50)


def start_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


def moved(x: np.ndarray, turn: int) -> np.ndarray:
    """What a client makes of a tensor: a step, the same in every run."""
    step = np.random.default_rng(turn).normal(0, 0.01, x.shape)
    return np.asarray(x.astype(np.float32) + step).astype(x.dtype)


def answering(wrapped: bool, **fails: bool) -> ClientApp:
    """An app that moves every tensor of floats, and sends all else back as it is."""
    app = ClientApp(mods=[FedSZMod()] if wrapped else [])

    def answer(message: Message, context: Context) -> Message:
        kind = message.metadata.message_type
        if fails.get(kind.split(".")[0]):
            raise RuntimeError("no power")
        state = context.state.setdefault("turns", MetricRecord({"n": 0}))
        state["n"] += kind == "train"
        content: dict[str, Any] = {"metrics": MetricRecord({"num-examples": 1})}
        for key, record in message.content.array_records.items():
            replied = ArrayRecord()
            for name, array in record.items():
                floats = array.dtype in ("float32", "float64", "bfloat16")
                replied[name] = Array(moved(numpy_of(array), state["n"])) if floats else array
            content[key] = replied
        content |= message.content.config_records
        return Message(RecordDict(content), reply_to=message)

    for register in (app.train, app.evaluate, app.query):
        register()(answer)
    return app


def numpy_of(array: Array) -> np.ndarray:
    """What an Array holds; numpy's files give bfloat16 back as bytes."""
    x = array.numpy()
    return x.view(ml_dtypes.bfloat16) if array.dtype == "bfloat16" else x


def grid_of(*, wrapped: bool, **fails: bool) -> tuple[Grid, Watched]:
    counting = Watched(LocalGrid(answering(wrapped, **fails), [{"i": i} for i in range(NODES)]))
    return (FedSZGrid(counting) if wrapped else counting), counting


def messages(grid: Grid, records: dict[str, Any], kind: str = "train") -> list[Message]:
    content = RecordDict(records)
    return [Message(content, node, kind) for node in grid.get_node_ids()]


def asked(grid: Grid, records: dict[str, Any], kind: str = "train") -> list[dict[str, Any]]:
    """The records of each reply; none of them may be an error."""
    replies = list(grid.send_and_receive(messages(grid, records, kind)))
    assert [reply.error.reason for reply in replies if reply.has_error()] == []
    return [dict(reply.content) for reply in replies]


def both(records: dict[str, Any], kind: str = "train") -> tuple[list[dict], list[dict]]:
    return tuple(asked(grid_of(wrapped=wrapped)[0], records, kind) for wrapped in (False, True))  # type: ignore[return-value]


def same(ours: Array, plain: Array, error: float) -> None:
    x, y = numpy_of(ours), numpy_of(plain)
    assert (ours.dtype, x.shape) == (plain.dtype, y.shape)
    assert np.abs(x.astype(float) - y.astype(float)).max() <= error


STEP = 0.05  # more than any element moves: a tensor that is lost would be further off


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16])
def test_floats_of_any_width(dtype: Any) -> None:
    plain, wrapped = both({"arrays": ArrayRecord([start_of(0).astype(dtype)])})

    for ours, theirs in zip(wrapped, plain, strict=True):
        same(ours["arrays"]["0"], theirs["arrays"]["0"], STEP)


def test_several_array_records_in_a_message() -> None:
    records = {
        "generator": ArrayRecord({"fc.weight": Array(start_of(0))}),
        "critic": ArrayRecord({"fc.weight": Array(start_of(1)), "fc.bias": Array(start_of(2)[0])}),
    }
    plain, wrapped = both(records)

    for ours, theirs in zip(wrapped, plain, strict=True):
        assert set(ours) == set(theirs)
        for key in records:
            for name in records[key]:
                same(ours[key][name], theirs[key][name], STEP)


def pickled(odd: np.ndarray) -> Array:
    return Array(str(odd.dtype), odd.shape, "pickle", odd.dumps())


def test_arrays_that_are_no_numbers_pass_as_they_are_and_where_they_are() -> None:
    aside = {
        "first": Array(np.array(["cat", "dog"])),  # numpy's own strings
        "str": pickled(np.array(["cat", "dog"])),
        "bytes": pickled(np.array([b"cat", b"dog"])),
        "object": pickled(np.array([1, "two", None], dtype=object)),
        "datetime": pickled(np.array(["2026-11-22"], dtype="datetime64[D]")),
    }
    first, *rest = aside.items()
    arrays = {**dict([first]), "fc.weight": Array(start_of(0)), **dict(rest)}
    grids = [grid_of(wrapped=wrapped)[0] for wrapped in (False, True)]
    for _ in range(2):  # the second goes as a difference
        plain, wrapped = (asked(grid, {"arrays": ArrayRecord(arrays)}) for grid in grids)

    for ours in wrapped:
        assert {name: ours["arrays"][name] for name in aside} == aside
        assert list(ours["arrays"]) == list(arrays)
        same(ours["arrays"]["fc.weight"], plain[0]["arrays"]["fc.weight"], STEP)


def test_no_array_and_empty_arrays() -> None:
    config = ConfigRecord({"lr": 0.1, "name": "x", "blob": b"\0\1"})
    for records in (
        {"config": config},
        {"arrays": ArrayRecord(), "config": config},
        {"arrays": ArrayRecord([np.zeros((0, 3), np.float32), np.array(1, np.float32)])},
    ):
        plain, wrapped = both(records)
        for ours, theirs in zip(wrapped, plain, strict=True):
            assert set(ours) == set(theirs)
            assert ours.get("config") == theirs.get("config")
            assert list(ours.get("arrays", ())) == list(theirs.get("arrays", ()))


@pytest.mark.parametrize("failing", ["train", "evaluate"])
def test_a_handler_that_fails_is_an_error_reply_and_keeps_its_model(failing: str) -> None:
    """It is not sent the whole model again each time."""
    grid, counting = grid_of(wrapped=True, **{failing: True})
    model, down = start_of(0), []
    for turn in range(1, 6):
        for kind in ("train", "evaluate"):
            before = counting.bytes_down
            arrays = {"arrays": ArrayRecord({"w.weight": Array(model)})}
            # Not by `send_and_receive`, which ends a run whose clients all fail three times.
            replies = list(grid.stream_replies(messages(grid, arrays, kind)))
            assert [reply.has_error() for reply in replies] == [kind == failing] * NODES
            down.append(counting.bytes_down - before)
        model = moved(model, 100 + turn)

    assert all("no power" in reason for reason in counting.errors)
    assert sum(down[2:]) * 5 < (len(down) - 2) * NODES * model.nbytes


def test_another_model_in_the_middle_of_a_run() -> None:
    """A loop that grows its model, or goes on to the next one."""
    grid, counting = grid_of(wrapped=True)
    for shape in ((40, 30), (60, 50), (7,), (40, 30)):
        model = np.random.default_rng(1).normal(size=shape).astype(np.float32)
        for reply in asked(grid, {"arrays": ArrayRecord({"w.weight": Array(model)})}):
            assert numpy_of(reply["arrays"]["w.weight"]).shape == shape
    assert counting.errors == []
