"""Tensors are coded on several threads, to the same bytes as on one."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

import fedsz
from fedsz.core.client import ClientSession
from fedsz.core.protocol import Request
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError
from fedsz.flower import FedSZMod, LocalGrid
from fedsz.flower.store import RecordStore
from fedsz.threads import WORTH, allow, allowed, side_by_side

NOBODY = 65534


def model(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"large": (1 << 10, 3 << 10), "half": (1 << 9, 1 << 9), "long": (1 << 18,)}
    shapes |= {f"{i}.weight": (300, 400) for i in range(9)} | {f"{i}.bias": (7,) for i in range(3)}
    state = {n: rng.normal(size=shape).astype(np.float32) * scale for n, shape in shapes.items()}
    state["half"] = state["half"].astype(np.float16)
    return {**state, "count": np.arange(1 << 17)}


BEFORE = model(0)
AFTER = {name: (x + model(1, 1e-2)[name]).astype(x.dtype) for name, x in BEFORE.items()}
WAYS = {
    "values": {},
    "steps": {"error_bound": "step:1", "reference": BEFORE},
    "lossless": {"codec": "exponents", "lossless": "exponents"},
    "pipeline": {"chain": "topk:k=10%>qsgd", "reference": BEFORE},
}


@pytest.mark.parametrize("way", WAYS)
def test_any_number_of_threads_makes_the_same_bytes(way: str) -> None:
    options = WAYS[way]
    reference = options.get("reference")
    streams = [fedsz.compress(AFTER, threads=n, **options) for n in (1, 2, 3, 7, 0)]

    assert len(set(streams)) == 1
    models = [fedsz.decompress(streams[0], reference=reference, threads=n) for n in (1, 2, 7, 0)]
    for found in models[1:]:
        assert list(found) == list(AFTER)
        assert all(x.equal(models[0][name]) for name, x in found.items())


@pytest.mark.parametrize("update", ["delta", "delta+ef", "feedback>topk:k=10%"])
def test_any_number_of_threads_leaves_the_same_state(update: str) -> None:
    digest, settings = Reference(BEFORE).digest, Settings(error_bound="step:1", update=update)
    found = []
    for threads in (1, 3):
        records: dict[str, Any] = {}
        with allow(threads):
            for number in (1, 2):
                request = Request(
                    run=b"run", round=number, trains=True, base={},
                    reference={"arrays": digest}, settings=settings,
                )  # fmt: skip
                session = ClientSession(request, RecordStore(records))
                session.receive("arrays", fedsz.compress(BEFORE, codec="raw"))
                stream = session.reply("arrays", AFTER)
        note = msgspec.structs.replace(session.note(), encode_seconds=0.0)
        state = {
            key: [(n, x.data) for n, x in kept.items()]
            for key, kept in records.items()
            if isinstance(kept, ArrayRecord)
        }
        found.append((stream, note, state))

    assert found[0] == found[1]


@pytest.mark.parametrize(("threads", "expected"), [(None, 1), (3, 3)])
def test_a_client_codes_on_one_thread_unless_it_is_allowed_more(
    threads: int | None, expected: int
) -> None:
    app, found = ClientApp(mods=[FedSZMod(threads=threads)]), []

    @app.query()
    def query(message: Message, _: Context) -> Message:
        found.append(allowed())
        return Message(RecordDict(), reply_to=message)

    grid = LocalGrid(app, [{}])
    (node,) = grid.get_node_ids()
    list(grid.send_and_receive([Message(RecordDict(), node, "query")]))

    assert found == [expected]


def test_an_item_is_allowed_one_thread_and_a_large_one_all() -> None:
    sizes = [WORTH, 5 * WORTH, 0, WORTH, WORTH]
    with allow(3):
        found = side_by_side(lambda _: allowed(), sizes, lambda size: size, sum(sizes))

        assert allowed() == 3

    assert found == [1, 3, 1, 1, 1]
    assert allowed() == 1


def test_the_first_of_several_errors_is_raised_once_no_thread_works() -> None:
    working, together = set[int](), threading.Barrier(3)

    def fail(i: int) -> None:
        working.add(i)
        together.wait(60)
        working.remove(i)
        raise ValueError(i)

    with allow(3), pytest.raises(ValueError, match=r"^0$"):
        side_by_side(fail, range(3), lambda _: WORTH, 3 * WORTH)

    assert not working


def test_an_error_of_the_items_is_raised() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("damaged")

    with allow(2), pytest.raises(ValueError, match="damaged"):
        side_by_side(str, items(), lambda _: WORTH, WORTH)


@pytest.mark.parametrize("threads", [-1, 1025])
def test_a_number_out_of_range_is_refused(threads: int) -> None:
    with pytest.raises(ConfigError, match="threads must be from 0 to 1024"):
        fedsz.compress({}, threads=threads)


def test_a_forked_process_that_may_start_no_thread_uses_one() -> None:
    """As under `ulimit -u`: native code too, which splits the large tensor."""
    wanted = fedsz.compress(AFTER, threads=4)
    child = os.fork()
    if not child:
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
            if not os.getuid():
                os.setuid(NOBODY)  # the limit is none for root
            with pytest.raises(RuntimeError):
                threading.Thread(target=print).start()
            stream = fedsz.compress(AFTER, threads=4)
            back = fedsz.decompress(stream, threads=4)
            status = 0 if stream == wanted and len(back) == len(AFTER) else 2
        finally:
            os._exit(status)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
