"""The way of a reply to the strategy, whatever stands between strategy and Grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedsz.flower import FedSZGrid, StreamingFedAvg
from fedsz.flower.mean import Mean
from fedsz.flower.refusal import Refusal
from fedsz.flower.rules import Rules, Typical
from fedsz.flower.strategy import streamed
from fedsz.flower.update import SealedRecord, Update
from fedsz.transport.grid_base import StreamedRequest
from tests.federation import CLIENTS, app_of, grid_of, initial, moved, record_of, run, to_arrays


class Wrapper:
    """Somebody's Grid, written without a thought of fedsz: all that Flower's has, and no more."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name not in dir(Grid):
            raise AttributeError(name)
        return getattr(self.inner, name)


def test_a_wrapper_that_knows_nothing_keeps_streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next client starts after the last one's reply has been added, not after all are here.

    But for the first round of a run, whose replies show what is typical.
    """
    happened: list[str] = []
    add = Mean.add

    def edit(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        happened.append("train")
        return moved(arrays, client)

    def noted(mean: Mean, *args: Any) -> None:
        happened.append("add")
        add(mean, *args)

    monkeypatch.setattr(Mean, "add", noted)
    grid = FedSZGrid(Wrapper(grid_of(app_of(edit))), 1e-2, rules="fleet")

    result = run(StreamingFedAvg(fraction_evaluate=0), Wrapper(Wrapper(grid)), rounds=2)

    assert happened[: 2 * CLIENTS] == ["train"] * CLIENTS + ["add"] * CLIENTS
    assert happened[2 * CLIENTS :] == ["train", "add"] * CLIENTS
    direct = run(StreamingFedAvg(fraction_evaluate=0), FedSZGrid(grid_of(app_of()), 1e-2), rounds=2)
    theirs, ours = to_arrays(result.arrays), to_arrays(direct.arrays)
    assert all(np.allclose(theirs[name], ours[name], atol=1e-5) for name in ours)
    assert grid.take_traffic().replies == 2 * CLIENTS


def test_a_strategy_that_did_not_ask_gets_plain_arrays() -> None:
    grid = FedSZGrid(grid_of(app_of()), 1e-2)
    asked = FedAvg().configure_train(1, record_of(initial()), ConfigRecord(), grid)
    inside = StreamingFedAvg().configure_train(1, record_of(initial()), ConfigRecord(), grid)

    plain = list(grid.send_and_receive(asked))
    wrapped = list(grid.send_and_receive(inside))
    sealed = list(grid.send_and_receive(streamed(inside)))

    kinds = [
        {type(r) for m in some for r in m.content.array_records.values()}
        for some in (plain, wrapped, sealed)
    ]
    assert kinds == [{ArrayRecord}, {ArrayRecord}, {SealedRecord}]


def test_on_the_wire_a_streamed_request_is_its_records() -> None:
    """Flower names the class of what it sends, and its nodes know none of ours."""
    content = RecordDict({"arrays": record_of(initial()), "config": ConfigRecord({"lr": 0.1})})
    mark = StreamedRequest(dict(content))

    assert mark.deflate() == content.deflate()
    assert mark == content
    back = RecordDict.inflate(mark.deflate(), children=mark.children)
    assert back.keys() == content.keys()


def test_whoever_did_not_ask_waits_for_all_replies() -> None:
    """An app that never looks at its replies has sent its messages all the same."""
    trained: list[int] = []

    def edit(client: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        trained.append(client)
        return moved(arrays, client)

    for grid in (grid_of(app_of(edit)), FedSZGrid(grid_of(app_of(edit)), 1e-2)):
        trained.clear()
        grid.send_and_receive(
            FedAvg().configure_train(1, record_of(initial()), ConfigRecord(), grid)
        )
        assert sorted(trained) == list(range(CLIENTS))


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
def test_a_check_that_fails_refuses_one_reply(
    strategy: type[FedAvg], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug that a reply finds ends no server; too little memory is no fault of a reply."""
    check, checked = Rules.check, []
    raised: list[Exception] = [ZeroDivisionError("of\nall things")]

    def failing(rules: Rules, update: Update, typical: Typical) -> Update:
        checked.append(update)
        if len(checked) == CLIENTS - 1:
            raise raised[0]
        return check(rules, update, typical)

    monkeypatch.setattr(Rules, "check", failing)
    grid = FedSZGrid(grid_of(app_of()), 1e-2, rules="fleet")
    run(strategy(fraction_evaluate=0), grid)

    traffic = grid.take_traffic()
    assert [failure.kind for failure in traffic.failures] == [Refusal.DAMAGED]
    assert "ZeroDivisionError: of\\nall things" in traffic.failures[0].reason
    assert traffic.replies == CLIENTS - 1
    assert "a check failed in" in caplog.text
    raised[0] = MemoryError()
    checked.clear()
    with pytest.raises(MemoryError):
        run(strategy(fraction_evaluate=0), FedSZGrid(grid_of(app_of()), 1e-2, rules="fleet"))
