"""StreamingFedAvg inside Flower's wrappers of differential privacy, and mods after FedSZMod.

The wrappers' noise is made tiny, so that results can be compared, and their clipping norms are not.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client import mod as legacy_mods
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.common import ndarrays_to_parameters
from flwr.compat.client.dpfedavg_numpy_client import DPFedAvgNumPyClient
from flwr.server import LegacyContext, ServerConfig
from flwr.server import strategy as legacy
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from fedsz.errors import ConfigError
from fedsz.flower import FedBuff, FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg
from tests import federation
from tests.federation import record_of, to_arrays
from tests.privacy.test_differential_privacy import ONE, C, moved, norm_of
from tests.privacy.test_differential_privacy import initial as floats

CLIENTS = 5  # whose steps have norms of 0.3 to 2.1, where C is the clipping norm

FIXED = {"noise_multiplier": 1e-9, "clipping_norm": C}
ADAPTIVE = {"noise_multiplier": 1e-9, "initial_clipping_norm": C, "clipped_count_stddev": 0.01}
WRAPPERS: dict[Any, tuple[dict[str, float], list[Any]]] = {
    DifferentialPrivacyServerSideFixedClipping: (FIXED, []),
    DifferentialPrivacyServerSideAdaptiveClipping: (ADAPTIVE, []),
    DifferentialPrivacyClientSideFixedClipping: (FIXED, [fixedclipping_mod]),
    DifferentialPrivacyClientSideAdaptiveClipping: (ADAPTIVE, [adaptiveclipping_mod]),
}
each_wrapper = pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda w: w.__name__[19:])


def initial() -> dict[str, np.ndarray]:
    return {name: x for name, x in floats().items() if name in ("single", "bias")}


def trained(arrays: dict[str, np.ndarray], client: int) -> dict[str, np.ndarray]:
    return moved(arrays, client, norm=0.3 + 0.45 * client)


def app_of(mods: Iterable[Any] = (), edit: Any = trained, before: Iterable[Any] = ()) -> ClientApp:
    mods = [*before, FedSZMod(), *mods]
    return federation.app_of(lambda i, arrays: edit(arrays, i), mods=mods, examples=lambda _: 10)


def grid_of(app: ClientApp, **options: Any) -> FedSZGrid:
    return FedSZGrid(LocalGrid(app, [{"partition-id": i} for i in range(CLIENTS)]), **options)


def private(wrapper: Any, inner: FedAvg, **options: Any) -> Any:
    return wrapper(inner, num_sampled_clients=CLIENTS, **WRAPPERS[wrapper][0], **options)


def run(
    strategy: Any, grid: FedSZGrid, rounds: int = 2, start: Any = initial
) -> dict[str, np.ndarray]:
    random.seed(0)  # of the order of clients
    np.random.seed(0)  # noqa: NPY002 - Flower draws the noise from it
    result = strategy.start(grid=grid, initial_arrays=record_of(start()), num_rounds=rounds)
    return to_arrays(result.arrays)


@each_wrapper
@pytest.mark.parametrize("update", ["weights", "feedback>topk:k=50%"])
def test_streaming_ends_as_flowers_fedavg_does(wrapper: Any, update: str) -> None:
    mods = WRAPPERS[wrapper][1]
    grids = [grid_of(app_of(mods), error_bound=1e-3, update=update) for _ in range(2)]

    plain = run(private(wrapper, FedAvg(fraction_evaluate=0)), grids[0])
    streaming = run(private(wrapper, StreamingFedAvg(fraction_evaluate=0)), grids[1])

    assert all(np.allclose(plain[name], streaming[name], rtol=0, atol=1e-5) for name in plain)
    assert not np.allclose(plain["single"], initial()["single"], atol=1e-3)
    assert [grid.take_traffic().failures for grid in grids] == [[], []]


def nans(arrays: dict[str, np.ndarray], client: int) -> dict[str, np.ndarray]:
    """Too large to be squared in single precision, which no client notices."""
    return {name: x + np.float32(3e38) * (client == 2) for name, x in arrays.items()}


def counted() -> dict[str, np.ndarray]:
    return {**initial(), "batches": np.arange(3)}


def too_far(arrays: dict[str, np.ndarray], client: int) -> dict[str, np.ndarray]:
    """Floats that cannot be squared, and whole numbers above the norm, which cannot be clipped."""
    return {**nans(arrays, client), "batches": arrays["batches"] + 1000 * (client == 2)}


def test_a_round_inside_a_wrapper_counts_whole_or_not_at_all() -> None:
    grid = grid_of(app_of(edit=too_far))
    strategy = private(
        DifferentialPrivacyServerSideFixedClipping, StreamingFedAvg(fraction_evaluate=0)
    )

    after = run(strategy, grid, start=counted)

    assert after == {}  # Flower's result of no round
    assert len(grid.take_traffic().failures) == 2


def test_fedbuff_says_that_it_runs_its_rounds_itself() -> None:
    strategy = private(DifferentialPrivacyServerSideFixedClipping, FedBuff(fraction_evaluate=0))
    with pytest.raises(ConfigError, match="not inside another strategy"):
        run(strategy, grid_of(app_of()))


def test_noise_reaches_counters() -> None:
    """Flower rounds noise to the dtype of a mean: that of a whole number would be lost."""
    strategy = DifferentialPrivacyClientSideFixedClipping(
        StreamingFedAvg(fraction_evaluate=0), 0.1, 100.0, CLIENTS
    )
    app = app_of([fixedclipping_mod], lambda x, _: {**x, "bias": x["bias"] + 1})
    after = run(strategy, grid_of(app), 1, counted)

    noise = after["batches"] - np.arange(3)
    assert noise.dtype == np.float64
    assert (noise != np.rint(noise)).all()


class Looking(FedAvg):
    """A strategy around the streaming one that looks at replies, and halves a tensor's steps."""

    inner = StreamingFedAvg(fraction_evaluate=0)

    def configure_train(self, *arguments: Any) -> Any:
        return self.inner.configure_train(*arguments)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        looked_at = [reply for reply in replies if not reply.has_error()]
        for reply in looked_at:
            (record,) = reply.content.array_records.values()
            assert list(record) == list(initial())
            half = (record["bias"].numpy() + initial()["bias"]) / 2
            record["bias"] = next(iter(ArrayRecord([half]).values()))
        return self.inner.aggregate_train(server_round, looked_at)


def test_what_was_put_into_a_record_counts() -> None:
    grids = [grid_of(app_of(), error_bound=1e-4, update="delta") for _ in range(2)]

    plain = run(FedAvg(fraction_evaluate=0), grids[0], rounds=1)
    looked = run(Looking(fraction_evaluate=0), grids[1], rounds=1)

    start = initial()
    assert np.allclose(looked["single"], plain["single"], atol=1e-6)
    half = (plain["bias"] - start["bias"]) / 2
    assert np.allclose(looked["bias"] - start["bias"], half, atol=1e-6)


def test_a_reply_that_does_not_decode_is_refused_before_anybody_looks_at_it() -> None:
    """What a strategy around the streaming one cannot decode would end the run."""
    grid = grid_of(app_of(edit=nans))

    after = run(Looking(fraction_evaluate=0), grid, rounds=1)

    start = initial()
    assert np.allclose(after["single"], start["single"], atol=0.1)
    assert [failure.kind for failure in grid.take_traffic().failures] == ["not finite"]


FED_BACK = {"update": "delta+ef", "error_bound": "step:2"}


@pytest.mark.parametrize(
    ("wrapper", "norm", "mods"),
    [
        (
            legacy.DifferentialPrivacyClientSideFixedClipping,
            {"clipping_norm": C},
            [legacy_mods.fixedclipping_mod],
        ),
        (
            legacy.DifferentialPrivacyClientSideAdaptiveClipping,
            {"initial_clipping_norm": C, "clip_norm_lr": 1e-9},
            [legacy_mods.adaptiveclipping_mod],
        ),
        (legacy.DPFedAvgFixed, {"clip_norm": C}, []),
    ],
)
def test_legacy_apps_keep_to_the_norm(wrapper: Any, norm: dict[str, Any], mods: list[Any]) -> None:
    received, after = [], []
    is_dpfedavg = wrapper is legacy.DPFedAvgFixed

    class Legacy(NumPyClient):
        def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
            received.append(dict(zip(initial(), map(np.copy, parameters), strict=True)))
            return list(trained(received[-1], len(received)).values()), 1, {}

    def client(_: Context) -> Any:
        inner = Legacy()
        return (DPFedAvgNumPyClient(inner) if is_dpfedavg else inner).to_client()

    def keep(number: int, weights: list[np.ndarray], config: dict[str, Any]) -> None:
        after.append(dict(zip(initial(), weights, strict=True)))

    inner = legacy.FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=1,
        min_available_clients=1,
        initial_parameters=ndarrays_to_parameters(list(initial().values())),
        evaluate_fn=keep,
    )
    strategy = wrapper(inner, num_sampled_clients=1, noise_multiplier=0.0, **norm)
    app = ClientApp(client_fn=client, mods=[FedSZMod(), *mods])
    grid = FedSZGrid(LocalGrid(app, [{}]), **FED_BACK)
    context = Context(grid.run.run_id, 1, {}, RecordDict(), {})
    around = LegacyContext(context, config=ServerConfig(num_rounds=3), strategy=strategy)
    DefaultWorkflow()(grid, around)

    assert grid.take_traffic().failures == []
    norms = [norm_of(*both) for both in zip(after[1:], received, strict=True)]
    assert len(norms) == 3
    assert max(norms) <= C
    assert min(norms) > 0.2 * C


@pytest.mark.parametrize(
    "mod", [fixedclipping_mod, adaptiveclipping_mod, LocalDpMod(C, 0.1, 1.0, 0.01)]
)
def test_a_mod_before_fedszs_is_told_in_one_line(mod: Any) -> None:
    grid = FedSZGrid(LocalGrid(app_of(before=[mod]), [{"partition-id": 0}]))
    run(private(DifferentialPrivacyClientSideFixedClipping, FedAvg(**ONE)), grid, 1)

    (failure,) = grid.take_traffic().failures
    assert failure.reason.endswith("; is FedSZMod() the first of its ClientApp's mods?")
