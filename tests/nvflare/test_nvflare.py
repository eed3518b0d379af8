"""NVFlare's filters: what a job's sites hold and get, whatever becomes of a message."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

pytest.importorskip("nvflare", reason="NVFlare is not installed here")

from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.fl_constant import FilterKey
from nvflare.fuel.utils import fobs

from fedsz.errors import ConfigError
from fedsz.nvflare import FedSZClientFilter, FedSZServerFilter, add_fedsz
from tests.nvflare.nvflare_job import (
    LATE,
    RATE,
    TARGETS,
    Arrays,
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


def test_a_job_comes_to_the_same_model_with_a_tenth_of_the_bytes() -> None:
    job = Job(tolerance=0.0)
    seen: list[Arrays] = []

    def noted(client: Site, data: Arrays) -> DXO:
        seen.append({k: np.array(x) for k, x in data.items()})
        return trained(client, data)

    result = federate(job, 12, noted)

    wanted = mean([TARGETS["site-1"], TARGETS["site-2"]])
    assert apart(result, wanted) < LATE * apart(model(), wanted)
    raw = 12 * 2 * sum(x.nbytes for x in model().values())
    assert job.up.up < raw / 10
    assert job.down.down < raw / 10
    for one, other in zip(seen[::2], seen[1::2], strict=True):  # clients start from one model
        for name, x in one.items():
            np.testing.assert_array_equal(x, other[name])
    assert result["bn.num_batches_tracked"] == 12
    assert result["empty"].shape == (0, 4)


@pytest.mark.parametrize("numbered", [True, False])
def test_rounds_are_known_by_their_number_or_by_who_is_asked_again(
    numbered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    job, whole = Job(), model()
    for number in range(4):
        results = job.round(whole, trained, number if numbered else None)
        whole = mean([data_of(result) for result in results])

    told = [text for text in caplog.messages if text.startswith("fedsz: train, round")]
    assert [text.partition(":")[2].partition(",")[2][:8] for text in told] == [
        " round 1", " round 2", " round 3",
    ]  # fmt: skip
    assert all("2 replies" in text for text in told)


def test_a_named_bound_holds_both_ways() -> None:
    job, start = Job(error_bound="abs:0.01", downlink="abs:0.02", update="delta"), model()
    results = [data_of(result) for result in job.round(start, trained, 0)]

    for client, result in zip(job.clients, results, strict=True):
        wanted = stepped(client.name, start)
        error = np.abs(result["fc.weight"] - wanted["fc.weight"].astype(np.float64)).max()
        assert error <= 0.01 + (1 - RATE) * 0.02 + 1e-6  # what training sees is 0.02 off at most


@pytest.mark.parametrize("downlink", ["exact", "abs:0.02"])
def test_a_workflow_may_write_into_the_model_that_it_has_sent(downlink: str) -> None:
    job, sent = Job(clients=1, error_bound="abs:0.01", downlink=downlink), model()
    start = {name: x.copy() for name, x in sent.items()}

    def meanwhile(client: Site, data: Arrays) -> DXO:
        sent["fc.weight"][...] = 7
        return trained(client, data)

    (result,) = job.round(sent, meanwhile, 0)
    error = np.abs(data_of(result)["fc.weight"] - stepped("site-1", start)["fc.weight"]).max()
    assert error <= 0.02 + 1e-6


@pytest.mark.parametrize("lost", [(), (3, 8)])
def test_a_residual_comes_with_the_next_result_also_after_one_that_is_lost(
    lost: tuple[int, ...],
) -> None:
    job = Job(clients=1, error_bound="std:4", downlink="exact", update="delta+ef")
    start, step = model(), model(5, 0.01)
    total = np.zeros_like(step["fc.weight"], np.float64)

    def same_step(_: Site, data: Arrays) -> DXO:
        moved = {**data, "fc.weight": data["fc.weight"] + step["fc.weight"]}
        return DXO(DataKind.WEIGHTS, moved)

    counted = 0
    for number in range(12):
        job.up.change = (lambda _: None) if number in lost else (lambda sent: sent)
        (result,) = job.round(start, same_step, number)
        if result is not None:
            counted += 1
            total += data_of(result)["fc.weight"].astype(np.float64) - start["fc.weight"]

    # A lost result takes its residual along: the sum is off by a bound, and two for each of these.
    error = np.abs(total - counted * step["fc.weight"].astype(np.float64)).max()
    assert error <= (1 + 2 * len(lost)) * 4 * step["fc.weight"].std() * 1.01


def test_a_client_that_starts_again_is_sent_the_whole_and_has_the_model_of_the_others() -> None:
    job, whole = Job(clients=3), model()
    for number in range(6):
        if number in (2, 4):
            job.clients[1] = job.client(1)
        seen: list[Arrays] = []

        def noted(client: Site, data: Arrays, seen: list[Arrays] = seen) -> DXO:
            seen.append({k: np.array(x) for k, x in data.items()})
            return trained(client, data)

        before = job.down.down
        whole = mean([data_of(result) for result in job.round(whole, noted, number)])
        assert job.down.down > before
        for other in seen[1:]:
            for name, x in seen[0].items():
                np.testing.assert_array_equal(x, other[name])


def test_differences_stay_differences() -> None:
    job, whole = Job(tolerance=0.0), model()

    def difference(client: Site, data: Arrays) -> DXO:
        moved = stepped(client.name, data)
        return DXO(DataKind.WEIGHT_DIFF, {name: moved[name] - data[name] for name in moved})

    for number in range(14):
        results = job.round(whole, difference, number)
        kinds = {from_shareable(result).data_kind for result in results if result}
        assert kinds == {DataKind.WEIGHT_DIFF}
        step = mean([data_of(result) for result in results])
        whole = {name: (x + step[name]).astype(x.dtype) for name, x in whole.items()}

    wanted = mean([TARGETS["site-1"], TARGETS["site-2"]])
    assert apart(whole, wanted) < LATE * apart(model(), wanted)
    assert job.up.up < 14 * 2 * whole["fc.weight"].nbytes / 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_come_back_as_tensors_and_what_is_no_array_beside_them(dtype: torch.dtype) -> None:
    job = Job(clients=1, error_bound="abs:0.05", downlink="abs:0.05")
    whole = {"w": torch.randn(64, 64).to(dtype), "name": "bert", "ids": [1, 2], "lr": np.float32(3)}
    seen: Arrays = {}

    def train(_: Site, data: Arrays) -> DXO:
        seen.update(data)
        return DXO(DataKind.WEIGHTS, {**data, "w": data["w"] + 1})

    (result,) = job.round(whole, train, 0)
    for data, step in ((seen, 0), (data_of(result), 1)):
        assert (data["name"], data["ids"], data["lr"]) == ("bert", [1, 2], np.float32(3))
        assert isinstance(data["w"], torch.Tensor)
        assert data["w"].dtype == dtype
        assert (data["w"] - step - whole["w"]).abs().max() < 0.1


@pytest.mark.parametrize(
    "dxo",
    [
        DXO(DataKind.METRICS, {"accuracy": 1.0}),
        DXO(DataKind.WEIGHTS, {"w": np.ones(10, np.float32)}),
        DXO(DataKind.WEIGHTS, {"w": "encrypted" * 999}),
        DXO(DataKind.WEIGHTS, model(), {MetaKey.PROCESSED_ALGORITHM: "HE"}),
        DXO(DataKind.COLLECTION, {"generator": DXO(DataKind.WEIGHTS, model())}),
    ],
    ids=["metrics", "small", "no arrays", "encrypted", "collection"],
)
def test_what_is_no_model_of_its_own_passes_as_it_is(dxo: DXO) -> None:
    job = Job(clients=1)
    before = fobs.dumps(dxo.to_shareable())
    peer = job.clients[0].public
    out = job.server.filtered(dxo.to_shareable(), FilterKey.OUT, "a task", peer)
    assert fobs.dumps(out) == before
    assert fobs.dumps(job.clients[0].filtered(out, FilterKey.IN, "a task")) == before
    assert fobs.dumps(job.server.filtered(out, FilterKey.IN, "a task", peer)) == before


def test_arrays_that_the_model_does_not_have_pass_as_they_are() -> None:
    job, whole, head = (
        Job(clients=1, error_bound="abs:0.05"),
        model(),
        np.ones((100, 100), np.float32),
    )

    def other(_: Site, data: Arrays) -> DXO:
        return DXO(DataKind.WEIGHTS, {"head": head})

    def both(_: Site, data: Arrays) -> DXO:
        more = {"head": head, "fc.bias": head}
        return DXO(DataKind.WEIGHTS, {"fc.weight": data["fc.weight"] + 1, **more})

    np.testing.assert_array_equal(data_of(job.round(whole, other, 0)[0])["head"], head)
    result = data_of(job.round(whole, both, 1)[0])
    assert set(result) == {"fc.weight", "fc.bias", "head"}
    np.testing.assert_array_equal(result["head"], head)
    np.testing.assert_array_equal(result["fc.bias"], head)
    assert np.abs(result["fc.weight"] - whole["fc.weight"] - 1).max() < 0.1


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
@pytest.mark.parametrize("downlink", ["exact", "abs:0.05"])
def test_a_result_is_put_onto_the_server_s_own_model(kind: str, downlink: str) -> None:
    job, whole = Job(clients=1, error_bound="abs:1e-6", downlink=downlink), model()
    step, seen = model(9, 0.01)["fc.weight"], []

    def same_step(_: Site, data: Arrays) -> DXO:
        seen.append(data["fc.weight"].copy())
        start = 0 if kind == DataKind.WEIGHT_DIFF else data["fc.weight"]
        return DXO(kind, {"fc.weight": start + step})

    for number in range(4):
        result = data_of(job.round(whole, same_step, number)[0])["fc.weight"]
        onto = 0 if kind == DataKind.WEIGHT_DIFF else whole["fc.weight"]
        assert np.abs(result - onto - step).max() < 3e-6
        assert (np.abs(seen[-1] - whole["fc.weight"]).max() > 1e-3) == (downlink != "exact")
        whole = {**whole, "fc.weight": whole["fc.weight"] + step}


@pytest.mark.parametrize("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
@pytest.mark.parametrize("update", ["weights", "delta"])
def test_with_an_exact_downlink_a_lossless_result_is_equal_to_the_bit(
    update: str, kind: str
) -> None:
    settings = {"codec": "zstd", "error_bound": "abs:1e-3", "downlink": "exact"}
    job, whole, sent = Job(update=update, **settings), model(), []

    def noted(client: Site, data: Arrays) -> DXO:
        moved = stepped(client.name, data)
        if kind == DataKind.WEIGHT_DIFF:
            moved = {name: x - data[name] for name, x in moved.items()}
        sent.append(moved)
        return DXO(kind, moved)

    for _ in range(2):  # the same model again, too
        results = job.round(whole, noted)
    for wanted, result in zip(sent[-2:], results, strict=True):
        for name, x in data_of(result).items():
            assert x.dtype == wanted[name].dtype
            np.testing.assert_array_equal(x, wanted[name])


def test_a_client_that_starts_again_is_asked_for_results_that_need_no_residual() -> None:
    def error(*, restarts: bool) -> float:
        job, whole = Job(clients=1, error_bound="step:4", update="delta+ef"), model()
        for number in range(6):
            if restarts:
                job.clients[0] = job.client(0)
            result = data_of(job.round(whole, trained, number)[0])
            last, whole = stepped("site-1", whole), result
        return apart(last, result) / apart(last, model())

    assert error(restarts=True) < 0.1


def test_an_update_that_has_diverged_is_not_sent() -> None:
    job, whole = Job(clients=1), model()

    def diverged(_: Site, data: Arrays) -> DXO:
        return DXO(DataKind.WEIGHTS, {**data, "fc.weight": np.full_like(data["fc.weight"], np.inf)})

    (result,) = job.round(whole, diverged, 0)
    assert result is not None
    assert "DivergedUpdate" in result["why"]
    data_of(job.round(whole, trained, 1)[0])


def test_one_client_s_own_model_does_not_disturb_the_others() -> None:
    job, whole = Job(clients=3, error_bound="abs:0.05", downlink="std:1"), model()
    for number in range(4):
        own = {name: x + 1 if x.dtype == np.float32 else x for name, x in whole.items()}
        shared = [job.ask(one, job.data(whole, number, "WEIGHTS"), trained)
                  for one in job.clients[:2]]  # fmt: skip
        alone = data_of(job.ask(job.clients[2], job.data(own, number, "WEIGHTS"), trained))
        error = np.abs(alone["fc.weight"] - stepped("site-3", own)["fc.weight"]).max()
        assert error < 0.1
        whole = mean([data_of(result) for result in shared])


def test_a_shared_initial_model_is_named_and_not_sent(tmp_path: Path) -> None:
    file, start = tmp_path / "initial.safetensors", model()
    save_file(start, file)
    job = Job(shared_initial=True)
    job.clients = [Site(f"site-{i}", FedSZClientFilter(str(file))) for i in (1, 2)]
    data_of(job.round(start, trained, 0)[0])
    assert job.down.down < 10_000

    save_file(model(7), file)
    late = Site("site-3", FedSZClientFilter(str(file)))
    failed = job.ask(late, job.data(start, 0, "WEIGHTS"), trained)
    assert failed is not None
    assert "NeedsKeyFrame" in failed["why"]
    data_of(job.ask(late, job.data(start, 1, "WEIGHTS"), trained))


def test_settings_that_cannot_be_are_refused_where_the_job_is_made() -> None:
    for settings, says in (
        ({"error_bound": -1}, "above 0"),
        ({"policy": "brave"}, "no policy 'brave'"),
        ({"policy": "layers", "error_bound": "std:3"}, "held-out set"),
    ):
        with pytest.raises(ConfigError, match=says):
            FedSZServerFilter(**settings)


def test_a_recipe_has_the_settings_on_the_server_alone(tmp_path: Path) -> None:
    from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe

    script = tmp_path / "client.py"
    script.write_text("")
    recipe = NumpyFedAvgRecipe(min_clients=2, num_rounds=1, model=[[1.0]], train_script=str(script))
    add_fedsz(recipe, tolerance=1.0)
    recipe.export(str(tmp_path / "job"))

    (server,) = (tmp_path / "job").rglob("config_fed_server.json")
    (client,) = (tmp_path / "job").rglob("config_fed_client.json")
    for text, settings in ((server, {"tolerance": 1.0}), (client, {})):
        config = json.loads(text.read_text())
        for chain in ("task_data_filters", "task_result_filters"):
            (entry,) = config[chain]
            assert entry["tasks"] == ["train"]
            (one,) = entry["filters"]
            assert one["path"].startswith("fedsz.nvflare.")
            assert one["args"] == settings
    assert not list((tmp_path / "job").rglob("fedsz"))  # sites have it
