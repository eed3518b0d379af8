"""The Grid in one process: what a wire would do to messages, without the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedsz.errors import ConfigError
from fedsz.flower_compat import ErrorCode, Run
from fedsz.transport.local_grid import LocalGrid
from fedsz.transport.node import node_id
from tests.links import app


def grid_of(nodes: int, app: Any = app) -> LocalGrid:
    return LocalGrid(app, [{"number": i} for i in range(nodes)], {"lr": 0.1})


def requests(grid: LocalGrid, kind: str = "train") -> list[Message]:
    content = RecordDict({"arrays": ArrayRecord([np.zeros(3, np.float32)])})
    return [Message(content, node, kind) for node in grid.get_node_ids()]


def test_unmodified_fedavg_runs() -> None:
    initial = ArrayRecord([np.zeros(4, np.float32)])
    result = FedAvg(fraction_evaluate=0.0).start(grid_of(3), initial, num_rounds=2)

    np.testing.assert_allclose(result.arrays["0"].numpy(), 2.0, rtol=1e-5)  # 0, 1 and 2, twice
    assert result.train_metrics_clientapp[2]["calls"] == pytest.approx(2)  # the Context lasts


def test_node_ids_are_those_of_the_names() -> None:
    assert grid_of(2).get_node_ids() == [node_id("0"), node_id("1")]
    assert all(0 < node < 1 << 63 for node in grid_of(50).get_node_ids())


def test_replies_are_made_one_at_a_time() -> None:
    ran = []

    def note(message: Message, context: Context) -> Message:
        ran.append(context.node_config["number"])
        return Message(RecordDict(), reply_to=message)

    grid = grid_of(3, note)
    replies = grid.stream_replies(requests(grid))

    assert ran == []
    next(replies)
    assert ran == [0]
    assert len(list(replies)) == 2
    assert ran == [0, 1, 2]


def test_reply_metadata_is_the_servers_own_and_so_are_its_records() -> None:
    def lie(message: Message, context: Context) -> Message:
        message.content.clear()
        reply = Message(message.content, reply_to=message)
        reply.metadata.__dict__.update(_src_node_id=7, _reply_to_message_id="other", _run_id=9)
        return reply

    grid = grid_of(1, lie)
    (request,) = requests(grid)
    (reply,) = grid.send_and_receive([request])

    assert reply.metadata.reply_to_message_id == request.metadata.message_id != ""
    assert reply.metadata.src_node_id == request.metadata.dst_node_id
    assert reply.metadata.run_id == request.metadata.run_id == grid.run.run_id
    assert list(request.content) == ["arrays"]
    assert list(reply.content) == []


def smuggle(message: Message, context: Context) -> Message:
    """Reply with what no wire can carry."""
    content = RecordDict({"config": ConfigRecord({"x": 1})})
    content["config"].__dict__["_data"]["x"] = object()
    return Message(content, reply_to=message)


@pytest.mark.parametrize(
    ("app", "kind", "reason"),
    [
        (app, "query", "ValueError: no such thing"),
        (app, "train.absent", "ValueError: No train function registered with name 'absent'"),
        (lambda *_: {}, "train", "TypeError: the ClientApp returned dict, not a Message"),
        (smuggle, "train", "ConfigError: these records cannot be sent: "),
    ],
)
def test_a_failing_app_is_an_error_reply(app: Any, kind: str, reason: str) -> None:
    grid = grid_of(1, app)
    (reply,) = grid.send_and_receive(requests(grid, kind))

    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert str(reply.error.reason).startswith(reason)


def test_unknown_nodes_and_late_starts_are_error_replies() -> None:
    grid = grid_of(2)
    (unknown,) = grid.send_and_receive([Message(RecordDict(), 5, "train")])
    late = grid.send_and_receive(requests(grid), timeout=-1)

    assert (unknown.error.code, unknown.error.reason) == (
        ErrorCode.NODE_UNAVAILABLE,
        "node 5 is not connected",
    )
    assert [reply.error.reason for reply in late] == [
        "no reply from client '0' within -1 s",
        "no reply from client '1' within -1 s",
    ]


def test_push_and_pull() -> None:
    grid = grid_of(2)
    first, second = grid.push_messages(requests(grid))

    assert [r.metadata.reply_to_message_id for r in grid.pull_messages([second])] == [second]
    assert [r.metadata.reply_to_message_id for r in grid.pull_messages([first, second])] == [first]


def test_only_requests_can_be_pushed() -> None:
    grid = grid_of(1)
    (request,) = requests(grid)
    grid.send_and_receive([request])
    with pytest.raises(ConfigError):
        grid.push_messages([Message(RecordDict(), reply_to=request)])


def test_another_run_starts_with_fresh_contexts() -> None:
    grid = grid_of(1)
    calls = []
    for run_id in (5, 5, 6):
        grid.set_run(Run.create_empty(run_id))
        (reply,) = grid.send_and_receive(requests(grid))
        calls.append(reply.content["metrics"]["calls"])

    assert calls == [1, 2, 1]
