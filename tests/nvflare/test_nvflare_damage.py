"""NVFlare's filters where a filter is missing, of another version, or a message is damaged."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed here")

from nvflare.apis.dxo import MetaKey, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.fuel.utils import fobs

import fedsz
from fedsz.nvflare.content import NAME
from tests.nvflare.nvflare_job import (
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
            stream = bytearray(dxo.data["stream"])
            stream[int(at * (len(stream) - 1))] ^= 0x10
            dxo.data["stream"] = bytes(stream)
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


@pytest.mark.parametrize("announced", [{"version": 99}, b"", msgspec.msgpack.encode({"type": 99})])
def test_a_client_of_another_version_is_sent_models_as_they_are(
    announced: Any, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job(clients=1)
    with job.clients[0].contexts.new_context() as fl_ctx:
        fl_ctx.set_prop(NAME, announced, private=False, sticky=True)
    (result,) = job.round(start := model(), trained, 0)

    np.testing.assert_array_equal(
        data_of(result)["fc.weight"], stepped("site-1", start)["fc.weight"]
    )
    assert "another version" in errors(caplog)[0]


@pytest.mark.parametrize("at", [0.0, 0.05, 0.5, 1.0])
def test_a_damaged_result_is_an_error_result_and_one_line(
    at: float, caplog: pytest.LogCaptureFixture
) -> None:
    job, whole = Job(tolerance=0.0), model()
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


def changed(**values: Any) -> Any:
    """Return what puts other values into the data of a sealed DXO."""

    def change(sent: Shareable) -> Shareable:
        data = from_shareable(sent).data
        data.update({name: f(data) if callable(f) else f for name, f in values.items()})
        return sent

    return change


def cleared(sent: Shareable) -> Shareable:
    from_shareable(sent).data.clear()
    return sent


HOSTILE = {
    "no data": cleared,
    "a note that is none": changed(note=b"note"),
    "a note of lists": changed(note=fobs.dumps([1])),
    "a note of text": changed(note="note"),
    "a flag that is none": changed(as_tensors="yes"),
    "no stream": changed(stream=b""),
    "another stream": changed(stream=b"x" * 100),
    "a stream of text": changed(stream="fedsz"),
    "a stream of another format": changed(stream=fobs.dumps(1)),
    "passthrough of a number": changed(passthrough=7),
    "a bomb": changed(stream=fedsz.compress({"fc.weight": np.zeros(1 << 24, np.float32)}, 0.1)),
    "another shape": changed(stream=fedsz.compress({"fc.weight": np.ones(9, np.float32)}, 0.1)),
    "another name": changed(stream=fedsz.compress({"head": np.ones(9, np.float32)}, 0.1)),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_no_result_ends_the_server(change: Any) -> None:
    job, whole = Job(clients=1), model()
    job.up.change = change
    (result,) = job.round(whole, trained, 0)
    assert result is not None

    job.up.change = lambda sent: sent
    data_of(job.round(whole, trained, 1)[0])


BESIDE = {
    "NaN": np.full((200, 300), np.nan, np.float32),
    "another shape": np.zeros(3),
    "text": "x",
}


@pytest.mark.parametrize("value", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("way", ["down", "up"])
def test_no_value_beside_a_stream_takes_the_place_of_a_tensor(way: str, value: Any) -> None:
    job, whole = Job(clients=1), model()
    getattr(job, way).change = changed(
        passthrough=lambda data: {**data["passthrough"], "fc.weight": value}
    )
    (result,) = job.round(whole, trained, 0)
    assert result is not None
    assert result.get_return_code() != ReturnCode.OK
    assert "DXO" not in result

    getattr(job, way).change = lambda sent: sent
    (result,) = job.round(whole, trained, 1)
    assert np.isfinite(data_of(result)["fc.weight"]).all()
