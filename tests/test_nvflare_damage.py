"""NVFlare's filters where a filter is missing, of another version, or a message is damaged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed here")

from nvflare.apis.dxo import MetaKey, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs

from fedsz.nvflare.content import NAME
from tests.nvflare_job import (
    LATE,
    TARGETS,
    Job,
    Site,
    apart,
    data_of,
    federate,
    mean,
    model,
    stepped,
    trained,
)


def damaged(at: float) -> Any:
    """Return what flips a bit in the stream of every sealed message, at a share of its length."""

    def change(sent: Shareable) -> Shareable:
        dxo = from_shareable(sent)
        if dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM) == NAME:
            stream = bytearray(dxo.data["streams"][0])
            stream[int(at * (len(stream) - 1))] ^= 0x10
            dxo.data["streams"][0] = bytes(stream)
        return sent

    return change


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_client_without_the_filter_trains_as_it_did(caplog: pytest.LogCaptureFixture) -> None:
    job = Job()
    job.clients[1] = Site("site-2")
    federate(job, 3)
    (result, other) = job.round(start := model(), trained, 3)

    wanted = stepped("site-2", start)
    for name, x in data_of(other).items():
        np.testing.assert_array_equal(x, wanted[name])
    assert data_of(result)["fc.weight"].shape == (200, 300)
    assert len([text for text in errors(caplog) if "site-2" in text]) == 1


def test_a_client_of_another_version_is_sent_models_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = Job(clients=1)
    with job.clients[0].contexts.new_context() as fl_ctx:
        fl_ctx.set_prop(NAME, {"version": 99, "holds": 7}, private=False, sticky=True)
    (result,) = job.round(start := model(), trained, 0)

    np.testing.assert_array_equal(
        data_of(result)["fc.weight"], stepped("site-1", start)["fc.weight"]
    )
    assert "version 99" in errors(caplog)[0]


@pytest.mark.parametrize("at", [0.0, 0.05, 0.5, 1.0])
def test_a_damaged_result_is_an_error_result_and_one_line(
    at: float, caplog: pytest.LogCaptureFixture
) -> None:
    job, whole = Job(), model()
    whole = mean([data_of(result) for result in job.round(whole, trained, 0)])
    job.up.change = damaged(at)
    results = job.round(whole, trained, 1)
    assert {r.get_return_code() for r in results if r} == {ReturnCode.TASK_RESULT_FILTER_ERROR}
    assert len(errors(caplog)) == 2
    assert all("\n" not in text for text in errors(caplog))

    job.up.change = lambda sent: sent
    for number in range(2, 14):
        whole = mean([data_of(result) for result in job.round(whole, trained, number)])
    wanted = mean([TARGETS["site-1"], TARGETS["site-2"]])
    assert apart(whole, wanted) < LATE * apart(model(), wanted)


@pytest.mark.parametrize("at", [0.0, 0.05, 0.5, 1.0])
def test_a_client_that_cannot_read_a_model_is_sent_the_whole_in_the_next_task(at: float) -> None:
    job, whole = Job(), model()
    whole = mean([data_of(result) for result in job.round(whole, trained, 0)])
    job.down.change = damaged(at)
    for result in job.round(whole, trained, 1):
        assert result is not None
        assert result.get_return_code() == ReturnCode.TASK_DATA_FILTER_ERROR

    job.down.change = lambda sent: sent
    results = [data_of(result) for result in job.round(whole, trained, 2)]
    for client, result in zip(job.clients, results, strict=True):
        step = stepped(client.name, whole)
        assert apart(result, step) < apart(whole, step)


def ugly_results() -> Iterator[Any]:
    """Yield what somebody may make of a sealed result."""

    def meta(**note: Any) -> Any:
        def change(sent: Shareable) -> Shareable:
            from_shareable(sent).meta[NAME] = note
            return sent

        return change

    def data(**values: Any) -> Any:
        def change(sent: Shareable) -> Shareable:
            dxo = from_shareable(sent)
            dxo.data.clear()
            dxo.data.update({"x": 1} | values)
            return sent

        return change

    yield meta(version=2)
    yield meta(version=1, said=["kept"], turn="1")
    yield data()
    yield data(streams=[])
    yield data(streams=[b""])
    yield data(streams=[b"x" * 100, b"y"])
    yield data(streams="fedsz")
    yield data(streams=[fobs.dumps(1)], beside=7)


@pytest.mark.parametrize("change", list(ugly_results()), ids=range(8))
def test_no_result_ends_the_server(change: Any) -> None:
    job, whole = Job(clients=1), model()
    job.up.change = change
    (result,) = job.round(whole, trained, 0)
    assert result is not None

    job.up.change = lambda sent: sent
    data_of(job.round(whole, trained, 1)[0])
