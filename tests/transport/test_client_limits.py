"""What a server may ask of a client: no more than the client was started for."""

from __future__ import annotations

import gc
import math
import time
import tracemalloc
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

import fedsz
from fedsz.arrays import Layout
from fedsz.control.record import RoundRecord
from fedsz.core.protocol import Request
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError, CorruptStream, LimitExceeded, LinkError
from fedsz.flower import FedSZMod, LocalGrid, make_client_app
from fedsz.flower.records import replaced, sealed
from fedsz.stream import Limits
from fedsz.training.apps import TaskMod
from fedsz.training.federation import federate, prepare
from fedsz.training.fleet import _MessageLimit, _why_unfit
from fedsz.training.model_state import arrays_of
from fedsz.training.options import CAPPED, RunConfig, options
from fedsz.training.task import load_task
from fedsz.transport.client_session import ClientSession
from fedsz.transport.frames import (
    MAX_UNANSWERED,
    PROTOCOL,
    Ack,
    Bye,
    ByeKind,
    Hello,
    Welcome,
    frames,
    pack,
)
from fedsz.transport.grpc_client import _Link
from fedsz.transport.link_events import EventKind
from tests.fleets import federated, shares
from tests.links import LONG, reasons
from tests.transport.sessions import Door, encoded

if TYPE_CHECKING:
    from tests.links import Serve

SMALL: dict[str, Any] = {"task": "tabular", "rounds": 1, "epochs": 3, "batch_size": 64}


def rounds_of(place: dict[str, Any], **more: Any) -> list[RoundRecord]:
    return federated(RunConfig(**(SMALL | more)), shares(2, **place))


@pytest.mark.parametrize(
    ("place", "asked", "why"),
    [
        ({"max-epochs": 2}, {}, "the server asks for epochs 3; this client: --max-epochs 2"),
        ({"max-batch-size": 63}, {}, "asks for batch_size 64; this client: --max-batch-size 63"),
        ({"max-image-size": 64}, {"image_size": 65}, "image_size 65; this client: --max-"),
        ({"max-epochs": 3, "max-batch-size": 64, "max-image-size": 1}, {}, ""),
    ],
)
def test_a_server_that_asks_for_more_is_refused(
    place: dict[str, Any], asked: dict[str, Any], why: str
) -> None:
    for name in CAPPED:
        assert options()[name].sent
        assert options()[f"max_{name}"].commands == ("client",)
    last = rounds_of(place, **asked)[-1]

    assert last.replies == (0 if why else 2)
    assert [why in failure.reason for failure in last.failures] == [True] * (2 - last.replies)


def received(mod: FedSZMod, records: dict[str, ArrayRecord], **told: str) -> Message:
    """What a client replies that a hostile server sends sealed records."""
    request = Request(
        run=bytes(8), round=1, trains=True, base={}, reference={}, settings=Settings()
    )
    content = replaced(RecordDict({**records}), {}, request.encode())
    if told:
        content["config"] = ConfigRecord({**_told(RunConfig(**told)), "server-round": 1})
    message = Message(content, dst_node_id=1, message_type="train")
    context = Context(1, 1, node_config={}, state=RecordDict(), run_config={})
    return mod(message, context, lambda message, _: Message(RecordDict(), reply_to=message))


def _told(config: RunConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name, about in options().items() if about.sent}


def bomb(elements: int) -> ArrayRecord:
    return sealed(fedsz.compress({"w": np.zeros(elements, np.float32)}))


def test_the_records_of_a_message_share_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Limits(decoded_bytes=4_000_000, expansion=0)
    monkeypatch.setattr(FedSZMod, "limits", lambda *_: small)
    received(FedSZMod(), {f"{i}": bomb(330_000) for i in range(3)})

    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match="tensors of 1320000 bytes; limit 40000"):
            received(FedSZMod(), {f"{i}": bomb(330_000) for i in range(10)})
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()


def test_many_records_of_a_foreign_app_share_that_of_one_stream() -> None:
    limits = FedSZMod().limits(
        Message(RecordDict(), 1, "train"), Context(1, 1, {}, RecordDict(), {})
    )
    allowed = Limits()

    assert limits == allowed
    assert limits.together(1 << 30).decoded_bytes == allowed.expansion << 30
    assert limits.together(990).less(allowed.decoded_bytes + 1).decoded_bytes == 0


def test_a_client_of_a_task_takes_streams_of_its_own_model_alone() -> None:
    model = arrays_of(load_task(RunConfig(task="tabular")).build_model())
    nbytes = sum(x.nbytes for x in model.values())
    own = sealed(fedsz.compress(model))
    received(TaskMod(), {"arrays": own}, task="tabular")

    for records in ({"arrays": bomb(nbytes)}, {"arrays": own, "more": own, "and": own}):
        with pytest.raises(LimitExceeded, match=r"tensors of \d+ bytes; limit \d+"):
            received(TaskMod(), records, task="tabular")


@pytest.mark.parametrize("missing", ["epochs", "task", "config", ""])
def test_nothing_is_decoded_of_a_request_that_is_refused(missing: str) -> None:
    stream = bomb(1 << 24)
    told = ConfigRecord({**_told(RunConfig(task="tabular")), "server-round": 1})
    told.pop(missing, None)
    note = Request(run=bytes(8), round=1, trains=True, base={}, reference={}, settings=Settings())
    content = replaced(RecordDict({"arrays": stream}), {}, note.encode())
    if missing != "config":
        content["config"] = told
    context = Context(1, 1, node_config={"task": "tabular"}, state=RecordDict(), run_config={})
    app = make_client_app()
    LocalGrid(app, [])  # tells Flower who sends from this process
    load_task(RunConfig(task="tabular")).build_model()  # its memory is not the stream's

    tracemalloc.start()
    try:
        with pytest.raises((ConfigError, LimitExceeded)) as refused:
            app(Message(content, dst_node_id=1, message_type="train"), context)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()
    lacks = "the server's request does not say "
    assert str(refused.value).startswith(lacks if missing else "tensors of 67108864 bytes")


def test_the_limit_of_messages_follows_the_model() -> None:
    seen: list[Layout] = []
    config = RunConfig(**SMALL, min_clients=1)
    problem = prepare(config)
    federate(LocalGrid(make_client_app(seen.append), shares(1)), config, problem)
    limit = _MessageLimit(512_000_000)
    assert limit() == 512_000_000
    limit.follow(seen[-1])

    nbytes = sum(x.nbytes for x in arrays_of(problem.model).values())
    assert limit() == 2 * nbytes + (1 << 20)
    limit = _MessageLimit(1000)
    limit.follow(Layout.of({"trees": np.zeros(10, np.uint8)}))
    assert limit() == 1000


def test_a_message_over_the_limit_of_its_time_ends_the_client(serve: Serve) -> None:
    server, most = serve(reconnect_grace=0.0), [1_000_000]
    client = server.client("c", max_message_bytes=lambda: most[0])
    (first,) = server.grid.send_and_receive(server.requests(size=100_000), timeout=LONG)
    most[0] = 100_000
    replies = server.grid.send_and_receive(server.requests(size=100_000), timeout=LONG)

    assert first.has_content()
    assert isinstance(client.ended(), LinkError)
    assert "a message of 0.4 MB, at most 0.1 MB" in str(client.error)
    assert len(reasons(replies)) == 1


def test_what_is_loaded_is_not_looked_at_by_each_collection_of_garbage(serve: Serve) -> None:
    server = serve()
    client = server.client("c")
    server.ask()
    client.events.wait(EventKind.SENT)
    while not (frozen := gc.get_freeze_count()):
        time.sleep(0.01)
    server.grid.close()

    assert frozen > 1000
    assert client.ended() is None
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("node_config", "why"),
    [
        ({"dataset": "cifar10"}, "this client has 'cifar10', the server asks for 'breast_cancer'"),
        ({"task": "images"}, "this client has task 'images', the server asks for 'tabular'"),
        ({"task": "my:Task"}, "this client has task 'my:Task', the server asks for 'tabular'"),
        ({"max-epochs": 2}, "the server asks for epochs 3; this client: --max-epochs 2"),
        ({"max-epochs": "many"}, "--max-epochs must be a number, got 'many'"),
        ({"max-epochs": 3, "task": "tabular", "data-dir": "/data", "max-batch-size": "64"}, ""),
        ({"max-epochs": math.nan}, "the server asks for epochs 3; this client: --max-epochs nan"),
        ({"max-batch-size": math.inf}, ""),
        ({}, ""),
    ],
)
def test_a_client_for_another_run_is_refused_when_it_joins(
    node_config: dict[str, Any], why: str
) -> None:
    config = RunConfig(**SMALL)
    door = Door(why_unfit=partial(_why_unfit, config))
    answers = door.knock("link", Hello(PROTOCOL, "pi", node_config, [], b"key"))

    if why:
        assert answers == [Bye(ByeKind.REFUSED, f"'pi' cannot take part: {why}")]
        assert not door.session.connected
    else:
        assert isinstance(answers[0], Welcome)


def link_of(*arrived: str) -> _Link:
    """Return the link of a client that has been sent these requests."""
    link = _Link("127.0.0.1:1", Hello(PROTOCOL, "c", {}, []), 1000, None, None)
    session = link.session
    session.connect()
    session.receive(pack(Welcome(2, 1000, [])))
    for message_id in arrived:
        send(session, message_id)
    return link


def send(session: ClientSession, message_id: str) -> None:
    for raw in frames(encoded(message_id, b"a request")):
        session.receive(raw)


def test_a_server_that_sends_more_than_it_may_wait_for_is_refused() -> None:
    session = link_of("a", "b").session
    send(session, "a")  # once more, as after a broken link

    with pytest.raises(CorruptStream, match="another request while 2 have no acknowledged reply"):
        send(session, "c")
    assert list(session.requests) == ["a", "b"]
    for _ in range(MAX_UNANSWERED):  # a reply that is not acknowledged counts as a request
        request = session.take()
        assert request is not None
        session.hand_in(encoded(request.message_id, b"the reply"))
    with pytest.raises(CorruptStream):
        send(session, "c")
    session.receive(pack(Ack("a", received=True)))
    send(session, "c")


def test_a_reply_that_waits_behind_another_is_freed_once_it_is_not_wanted() -> None:
    link = link_of("a")
    reply = encoded("a", b"the reply")
    freed = weakref.ref(reply)
    link.hand_in(reply)
    del reply
    link.session.receive(pack(Ack("a", received=False)))
    gc.collect()

    assert freed() is None
