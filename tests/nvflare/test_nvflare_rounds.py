"""NVFlare's filters on a server: rounds in which sites are asked twice, late, or refused."""

from __future__ import annotations

import gc
import logging
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed here")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import FilterKey
from nvflare.apis.shareable import Shareable, make_copy

from fedsz.control.controller import Controller
from fedsz.control.record import RoundRecord
from fedsz.core import broadcast
from fedsz.core.reference import Reference
from fedsz.nvflare import FedSZServerFilter
from fedsz.nvflare.content import Announcement, Task
from tests.nvflare.nvflare_job import Arrays, Job, Site, data_of, mean, model, stepped, trained


@pytest.mark.parametrize("numbers", [[0] + [1] * 11, [i // 2 for i in range(12)]])
def test_a_site_that_is_asked_twice_in_a_round_sends_its_residual_once(numbers: list[int]) -> None:
    job = Job(clients=1, error_bound="std:4", downlink="exact", update="delta+ef")
    start, step = model(), model(5, 0.01)["fc.weight"]
    total = np.zeros_like(step, np.float64)

    def same_step(_: Site, data: Arrays) -> DXO:
        return DXO(DataKind.WEIGHTS, {**data, "fc.weight": data["fc.weight"] + step})

    for number in numbers:
        (result,) = job.round(start, same_step, number)
        total += data_of(result)["fc.weight"].astype(np.float64) - start["fc.weight"]
    error = np.abs(total - len(numbers) * step.astype(np.float64)).max()
    assert error <= 4 * step.std() * 1.01


@pytest.mark.parametrize("downlink", ["abs:0.01", "exact"])
@pytest.mark.parametrize("number", [1, None])
def test_a_model_that_could_not_be_packed_is_packed_for_the_next_site(
    downlink: str, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(clients=3, downlink=downlink, error_bound="abs:0.01")
    job.round(start := model(), trained, None if number is None else 0)
    moved = {name: (x + np.float32(1)).astype(x.dtype) for name, x in start.items()}
    compress, calls = broadcast.compress_measured, 0

    def full(*args: Any, **settings: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise MemoryError
        return compress(*args, **settings)

    monkeypatch.setattr(broadcast, "compress_measured", full)
    shared = job.data(moved, number, DataKind.WEIGHTS)
    with pytest.raises(MemoryError):
        job.ask(job.clients[0], make_copy(shared), trained)
    for client in (job.clients[1], job.clients[2], job.clients[0]):
        result = data_of(job.ask(client, make_copy(shared), trained))
        error = result["fc.weight"] - stepped(client.name, moved)["fc.weight"]
        assert np.abs(error).max() < 0.1  # and not by the step of 1 that the model has made


def rounds_of(monkeypatch: pytest.MonkeyPatch) -> list[RoundRecord]:
    """Return the list to which each round goes that a server decides by."""
    seen: list[RoundRecord] = []
    decide = Controller.decide

    def noted(self: Controller, record: RoundRecord) -> Any:
        seen.append(record)
        return decide(self, record)

    monkeypatch.setattr(Controller, "decide", noted)
    return seen


def scored(accuracy: float, data: Arrays) -> DXO:
    return DXO(DataKind.WEIGHTS, data, {MetaKey.INITIAL_METRICS: {"accuracy": accuracy}})


def test_no_site_s_metrics_count_twice_and_none_of_a_refused_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job, whole, seen = Job(clients=3), model(), rounds_of(monkeypatch)
    job.round(whole, lambda site, data: scored(0.3, stepped(site.name, data)), 0)
    for i in range(10):
        again = scored(0.99, {"x": np.ones(1)}).to_shareable()
        job.server.filtered(again, FilterKey.IN, f"none {i}", job.clients[0].public)
    job.round(whole, trained, 1)
    assert seen[-1].accuracy == 0.3

    def damaged(sent: Shareable) -> Shareable:
        from_shareable(sent).data["stream"] = b"no stream"
        return sent

    job.up.change = damaged
    job.round(whole, lambda site, data: scored(0.99, stepped(site.name, data)), 2)
    job.up.change = lambda sent: sent
    job.round(whole, trained, 3)
    assert seen[-1].accuracy is None
    assert len(seen[-1].failures) == 3


def test_a_server_forgets_the_models_of_sites_that_have_replied_or_gone() -> None:
    def nearby(_: Site, data: Arrays) -> DXO:
        return DXO(DataKind.WEIGHTS, {**data, "fc.weight": data["fc.weight"] + np.float32(0.01)})

    def models(rounds: int, *, silent: bool) -> int:
        job, whole = Job(clients=0, downlink="std:1"), model()
        if silent:
            job.up.change = lambda _: None
        for number in range(rounds):
            whole = {name: (x + np.float32(0.01)).astype(x.dtype) for name, x in whole.items()}
            site = job.client(number if silent else number % 3)
            job.ask(site, job.data(whole, number, DataKind.WEIGHTS), nearby)
        gc.collect()
        return sum(type(x) is Reference for x in gc.get_objects())

    before = models(2, silent=False)
    assert models(30, silent=False) <= before + 1
    assert models(60, silent=True) <= models(12, silent=True) + 1


@pytest.mark.parametrize("downlink", ["exact", "std:1"])
def test_a_model_is_compressed_for_all_sites_at_once(
    downlink: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress, calls = broadcast.compress_measured, 0

    def counted(*args: Any, **settings: Any) -> Any:
        nonlocal calls
        calls += 1
        return compress(*args, **settings)

    monkeypatch.setattr(broadcast, "compress_measured", counted)
    job, whole = Job(clients=8, downlink=downlink, error_bound="abs:0.05"), model()
    for number in range(3):
        calls = 0
        results = job.round(whole, lambda site, data: trained(job.clients[0], data), number)
        whole = mean([data_of(result) for result in results])
        assert calls <= 3


def test_each_task_has_the_settings_of_its_own_filter(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    job = Job(clients=0)
    filters = [
        FedSZServerFilter(error_bound=bound, downlink="exact") for bound in ("abs:0.5", "abs:1e-6")
    ]
    with job.server.contexts.new_context() as fl_ctx:
        servers = [filters[0]._task(fl_ctx, "train"), filters[1]._task(fl_ctx, "tune")]
        assert filters[1]._task(fl_ctx, "train") is servers[0]
    for server, bound in zip(servers, ("abs:0.5", "abs:1e-06"), strict=True):
        _, request = server.pack("site-1", Announcement(), Task("train", "", 0), model())
        assert request.settings.error_bound == bound


def test_rounds_are_recorded_with_the_settings_of_their_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = rounds_of(monkeypatch)
    job = Job(clients=0)
    with job.server.contexts.new_context() as fl_ctx:
        server = FedSZServerFilter(policy="auto")._task(fl_ctx, "train")
    whole, settings = model(), []
    for number in range(13):
        whole = {name: (x + np.float32(0.01)).astype(x.dtype) for name, x in whole.items()}
        _, request = server.pack("site-1", Announcement(), Task("train", "", number), whole)
        settings.append(request.settings)
    server.end_round()

    assert records[0].decision is None
    assert [one.decision and one.decision.config for one in records[1:]] == settings
