"""What a server may ask of a client: no more than the client was started for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedsz.arrays import Layout
from fedsz.control.record import RoundRecord
from fedsz.errors import LinkError
from fedsz.flower import LocalGrid, make_client_app
from fedsz.training.federation import federate, prepare
from fedsz.training.fleet import _MessageLimit
from fedsz.training.model_state import arrays_of
from fedsz.training.options import CAPPED, RunConfig, options
from tests.links import LONG, reasons

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
