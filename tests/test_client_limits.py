"""What a server may ask of a client: no more than the client was started for."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedsz.arrays import Layout
from fedsz.control.record import RoundRecord
from fedsz.errors import CorruptStream, LinkError
from fedsz.flower import LocalGrid, make_client_app
from fedsz.training.federation import federate, prepare
from fedsz.training.fleet import _MessageLimit, _why_unfit
from fedsz.training.model_state import arrays_of
from fedsz.training.options import CAPPED, RunConfig, options
from fedsz.transport.client import _Link
from fedsz.transport.client_session import ClientSession
from fedsz.transport.events import EventKind
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
from fedsz.transport.server_session import Send, ServerSession
from tests.links import LONG, reasons, waiting_app
from tests.session_links import Sink, encoded

if TYPE_CHECKING:
    from tests.links import Serve

SMALL: dict[str, Any] = {"task": "tabular", "rounds": 1, "epochs": 3, "batch_size": 64}


def rounds_of(place: dict[str, Any], **more: Any) -> list[RoundRecord]:
    config, rounds = RunConfig(**(SMALL | more)), list[RoundRecord]()
    nodes = [{"partition-id": i, "num-partitions": 2, **place} for i in range(2)]
    federate(LocalGrid(make_client_app(), nodes), config, prepare(config), rounds.append)
    return rounds


@pytest.mark.parametrize(
    ("place", "asked", "why"),
    [
        ({"max-epochs": 2}, {}, "the server asks for epochs 3; this client: --max-epochs 2"),
        ({"max-batch-size": 63}, {}, "asks for batch_size 64; this client: --max-batch-size 63"),
        (
            {"max-image-size": 64},
            {"image_size": 65},
            "image_size 65; this client: --max-",
        ),
    ],
)
def test_a_server_that_asks_for_more_is_refused(
    place: dict[str, Any], asked: dict[str, Any], why: str
) -> None:
    last = rounds_of(place, **asked)[-1]

    assert last.replies == 0
    assert [why in failure.reason for failure in last.failures] == [True, True]


def test_a_server_that_asks_for_as_much_is_not() -> None:
    assert rounds_of({"max-epochs": 3, "max-batch-size": 64, "max-image-size": 1})[-1].replies == 2


def test_each_capped_option_has_its_cap() -> None:
    known = options()
    for name in CAPPED:
        assert known[name].sent
        assert known[f"max_{name}"].commands == ("client",)


def test_the_limit_of_messages_follows_the_model() -> None:
    seen: list[Layout] = []
    config = RunConfig(**SMALL, min_clients=1)
    nodes = [{"partition-id": 0, "num-partitions": 1}]
    problem = prepare(config)
    federate(LocalGrid(make_client_app(seen.append), nodes), config, problem)
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
    server = ServerSession(
        max_message_bytes=1000,
        reconnect_grace=1.0,
        open_sink=Sink,
        why_unfit=partial(_why_unfit, config),
    )
    server.connect("link")
    hello = Hello(PROTOCOL, "pi", node_config, [], b"key")
    answers = [x.item for x in server.receive("link", pack(hello), 0.0) if isinstance(x, Send)]

    if why:
        assert answers == [Bye(ByeKind.REFUSED, f"'pi' cannot take part: {why}")]
        assert not server.connected
    else:
        assert isinstance(answers[0], Welcome)


def session_of(*arrived: str) -> ClientSession:
    """Return a client that has been sent these requests."""
    hello = Hello(PROTOCOL, "c", {}, [])
    session = ClientSession(hello, max_message_bytes=1000)
    session.connect()
    session.receive(pack(Welcome(2, 1000, [])))
    for message_id in arrived:
        send(session, message_id)
    return session


def send(session: ClientSession, message_id: str) -> None:
    for raw in frames(encoded(message_id, b"a request")):
        session.receive(raw)


def test_a_server_that_sends_more_than_it_may_wait_for_is_refused() -> None:
    session = session_of("a", "b")
    send(session, "a")  # once more, as after a broken link

    with pytest.raises(CorruptStream, match="another request while 2 have no acknowledged reply"):
        send(session, "c")
    assert list(session.requests) == ["a", "b"]


def test_a_reply_that_is_not_acknowledged_counts_as_a_request() -> None:
    session = session_of("a", "b")
    for _ in range(MAX_UNANSWERED):
        request = session.take()
        assert request is not None
        session.hand_in(encoded(request.message_id, b"the reply"))

    with pytest.raises(CorruptStream):
        send(session, "c")
    session.receive(pack(Ack("a", received=True)))
    send(session, "c")


def test_what_the_server_has_given_up_takes_no_memory() -> None:
    session = session_of()
    for number in range(20):
        send(session, f"m{number}")
        session.receive(pack(Ack(f"m{number}", received=False)))
    assert not session.requests
    assert session.take() is None

    send(session, "last")
    session.disconnect()
    session.receive(pack(Welcome(2, 1000, [])))
    assert not session.requests


def test_a_reply_that_waits_behind_another_is_freed_once_it_is_not_wanted() -> None:
    session = session_of("a")
    link = _Link("127.0.0.1:1", session, None, None, math.inf)
    reply = encoded("a", b"the reply")
    freed = weakref.ref(reply)
    link.hand_in(reply)
    del reply
    session.receive(pack(Ack("a", received=False)))
    gc.collect()

    assert freed() is None


def test_more_requests_than_a_client_takes_at_a_time_wait_on_the_server(serve: Serve) -> None:
    server, go = serve(), threading.Event()
    client = server.client("busy", waiting_app(go))
    requests = [request for _ in range(5) for request in server.requests()]
    replies = server.grid.stream_replies(requests, timeout=LONG)
    client.events.wait(EventKind.RECEIVED, n=MAX_UNANSWERED)
    go.set()

    assert [reply.has_content() for reply in replies] == [True] * 5
    assert client.error is None
