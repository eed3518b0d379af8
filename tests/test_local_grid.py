"""The Grid in one process: what a wire would do to messages, without the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedsz.errors import ConfigError
from fedsz.flower_compat import ErrorCode, Run
from fedsz.transport.local_grid import LocalGrid
from fedsz.transport.node import node_id

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Add this node's number to every weight."""
    number = int(context.node_config["partition-id"])
    calls = context.state.setdefault("calls", MetricRecord({"n": 0}))
    calls["n"] += 1
    weights = [a.numpy() + np.float32(number) for a in message.content["arrays"].values()]
    metrics = MetricRecord({"num-examples": number + 1, "calls": calls["n"]})
    return Message(
        RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    raise ValueError("no data")


@app.query()
def query(message: Message, context: Context) -> Any:
    return {"not": "a message"}


def grid_of(nodes: int) -> LocalGrid:
    return LocalGrid(app, [{"partition-id": i} for i in range(nodes)], {"lr": 0.1})


def requests(grid: LocalGrid, kind: str = "train") -> list[Message]:
    content = RecordDict({"arrays": ArrayRecord([np.zeros(3, np.float32)])})
    return [Message(content, node, kind) for node in grid.get_node_ids()]


def test_unmodified_fedavg_runs() -> None:
    grid = grid_of(3)
    result = FedAvg(fraction_evaluate=0.0).start(
        grid, ArrayRecord([np.zeros(4, np.float32)]), num_rounds=2
    )

    # Each round adds the mean of 0, 1 and 2, weighted by 1, 2 and 3.
    np.testing.assert_allclose(result.arrays["0"].numpy(), 2 * (0 + 2 + 6) / 6, rtol=1e-5)
    assert result.train_metrics_clientapp[2]["calls"] == pytest.approx(2)  # the Context lasts


def test_node_ids_are_those_of_the_names() -> None:
    assert grid_of(2).get_node_ids() == [node_id("0"), node_id("1")]
    assert all(0 < node < 1 << 63 for node in grid_of(50).get_node_ids())


def test_replies_are_made_one_at_a_time() -> None:
    ran = []
    lazy = ClientApp()

    @lazy.train()
    def note(message: Message, context: Context) -> Message:
        ran.append(context.node_config["i"])
        return Message(RecordDict(), reply_to=message)

    grid = LocalGrid(lazy, [{"i": i} for i in range(3)])
    replies = grid.stream_replies(requests(grid))

    assert ran == []
    next(replies)
    assert ran == [0]
    assert len(list(replies)) == 2
    assert ran == [0, 1, 2]


def test_reply_metadata_is_the_servers_own() -> None:
    liar = ClientApp()

    @liar.train()
    def lie(message: Message, context: Context) -> Message:
        reply = Message(RecordDict(), reply_to=message)
        reply.metadata.__dict__.update(_src_node_id=7, _reply_to_message_id="other", _run_id=9)
        return reply

    grid = LocalGrid(liar, [{}])
    (request,) = requests(grid)
    (reply,) = grid.send_and_receive([request])

    assert reply.metadata.reply_to_message_id == request.metadata.message_id != ""
    assert reply.metadata.src_node_id == request.metadata.dst_node_id
    assert reply.metadata.run_id == request.metadata.run_id == grid.run.run_id


def test_the_app_cannot_reach_the_servers_records() -> None:
    vandal = ClientApp()

    @vandal.train()
    def clear(message: Message, context: Context) -> Message:
        message.content.clear()
        return Message(message.content, reply_to=message)

    grid = LocalGrid(vandal, [{}])
    (request,) = requests(grid)
    (reply,) = grid.send_and_receive([request])

    assert list(request.content) == ["arrays"]
    assert list(reply.content) == []


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("evaluate", "ValueError: no data"),
        ("query", "TypeError: the ClientApp returned dict, not a Message"),
        ("train.absent", "ValueError: No train function registered with name 'absent'"),
    ],
)
def test_a_failing_app_is_an_error_reply(kind: str, reason: str) -> None:
    grid = grid_of(1)
    (reply,) = grid.send_and_receive(requests(grid, kind))

    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert reply.error.reason == reason


def test_what_no_wire_can_carry_is_an_error_reply() -> None:
    odd = ClientApp()

    @odd.train()
    def smuggle(message: Message, context: Context) -> Message:
        content = RecordDict({"config": ConfigRecord({"x": 1})})
        content["config"].__dict__["_data"]["x"] = object()
        return Message(content, reply_to=message)

    grid = LocalGrid(odd, [{}])
    (reply,) = grid.send_and_receive(requests(grid))

    assert "cannot be sent" in (reply.error.reason or "")


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
