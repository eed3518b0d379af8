"""StreamingFedAvg inside Flower's wrappers of differential privacy, and records that they look at.

Their noise is made tiny, so that results can be compared, and their clipping norms are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    PrivacySpent,
    SamplingMethod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)

from fedsz.errors import ConfigError
from fedsz.flower import FedBuff, FedSZGrid, FedSZMod, FetchSgd, LocalGrid, StreamingFedAvg
from fedsz.flower.wrapped_grid import WrappedGrid
from tests.federation import record_of, to_arrays

CLIENTS = 5
C = 0.5  # the clipping norm; clients' steps have norms of 0.3 to 2.1

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
    rng = np.random.default_rng(0)
    return {
        "fc.weight": rng.normal(size=(60, 50)).astype(np.float32),
        "fc.bias": rng.normal(size=60).astype(np.float32),
    }


def trained(arrays: dict[str, np.ndarray], client: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(client)
    steps = {name: rng.normal(size=x.shape) for name, x in arrays.items()}
    norm = np.sqrt(sum(np.square(step).sum() for step in steps.values()))
    scale = (0.3 + 0.45 * client) / norm
    return {name: (x + scale * steps[name]).astype(x.dtype) for name, x in arrays.items()}


def app_of(mods: Iterable[Any] = (), edit: Any = trained) -> ClientApp:
    app = ClientApp(mods=[FedSZMod(), *mods])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = edit(to_arrays(message.content["arrays"]), int(context.node_config["client"]))
        metrics = MetricRecord({"num-examples": 10})
        content = RecordDict({"arrays": record_of(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def grid_of(app: ClientApp, **options: Any) -> FedSZGrid:
    return FedSZGrid(LocalGrid(app, [{"client": i} for i in range(CLIENTS)]), **options)


def private(wrapper: Any, inner: FedAvg, **options: Any) -> Any:
    return wrapper(inner, num_sampled_clients=CLIENTS, **WRAPPERS[wrapper][0], **options)


def run(
    strategy: Any, grid: FedSZGrid, rounds: int = 2, start: Any = initial
) -> dict[str, np.ndarray]:
    np.random.seed(0)  # noqa: NPY002 - Flower draws the noise from it
    result = strategy.start(grid=grid, initial_arrays=record_of(start()), num_rounds=rounds)
    return to_arrays(result.arrays)


class Accountant:
    """Counts releases; Flower's own needs a package."""

    config = PrivacyConfig(
        1e-5, CLIENTS, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
    )

    def __init__(self) -> None:
        self.num_releases = 0

    def compose(self, event: GaussianPrivacyEvent, count: int = 1) -> None:
        self.num_releases += count

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        return PrivacySpent(float(self.num_releases), 1e-5, self.num_releases, "counted")


@each_wrapper
@pytest.mark.parametrize("update", ["weights", "feedback>topk:k=50%"])
def test_streaming_ends_as_flowers_fedavg_does(wrapper: Any, update: str) -> None:
    mods = WRAPPERS[wrapper][1]
    grids = [grid_of(app_of(mods), error_bound=1e-3, update=update) for _ in range(2)]

    plain = run(private(wrapper, FedAvg(fraction_evaluate=0)), grids[0])
    streaming = run(private(wrapper, StreamingFedAvg(fraction_evaluate=0)), grids[1])

    assert all(np.allclose(plain[name], streaming[name], rtol=0, atol=1e-6) for name in plain)
    assert not np.allclose(plain["fc.weight"], initial()["fc.weight"], atol=1e-3)
    assert [grid.take_traffic().failures for grid in grids] == [[], []]


def nans(arrays: dict[str, np.ndarray], client: int) -> dict[str, np.ndarray]:
    """Too large to be squared in single precision, which no client notices."""
    return {name: x + np.float32(3e38) * (client == 2) for name, x in arrays.items()}


@pytest.mark.parametrize("wrapper", list(WRAPPERS)[:1] + list(WRAPPERS)[2:3])
def test_accounted_rounds_count_whole_or_not_at_all(wrapper: Any) -> None:
    accountant, mods = Accountant(), WRAPPERS[wrapper][1]
    strategy = private(wrapper, StreamingFedAvg(fraction_evaluate=0), accountant=accountant)
    run(strategy, grid_of(app_of(mods)))
    assert accountant.num_releases == 2

    grid = grid_of(app_of(edit=nans))
    after = run(private(wrapper, StreamingFedAvg(fraction_evaluate=0), accountant=accountant), grid)

    assert accountant.num_releases == 2
    assert after == {}  # Flower's result of no round
    assert [failure.kind for failure in grid.take_traffic().failures] == ["not finite"] * 2


def test_accounting_refuses_a_strategy_that_does_more_than_average() -> None:
    wrapper, inner = DifferentialPrivacyServerSideFixedClipping, FetchSgd(fraction_evaluate=0)
    with pytest.raises(ValueError, match=r"FedAvg\.aggregate_train"):
        private(wrapper, inner, accountant=Accountant())


def test_fedbuff_says_that_it_runs_its_rounds_itself() -> None:
    strategy = private(DifferentialPrivacyServerSideFixedClipping, FedBuff(fraction_evaluate=0))
    with pytest.raises(ConfigError, match="not inside another strategy"):
        run(strategy, grid_of(app_of()))


def test_noise_reaches_counters() -> None:
    """Flower rounds noise to the dtype of a mean: that of a whole number would be lost."""

    def counted() -> dict[str, np.ndarray]:
        return {**initial(), "batches": np.arange(3)}

    strategy = DifferentialPrivacyClientSideFixedClipping(
        StreamingFedAvg(fraction_evaluate=0), 0.1, 100.0, CLIENTS
    )
    app = app_of([fixedclipping_mod], lambda x, _: {**x, "fc.bias": x["fc.bias"] + 1})
    after = run(strategy, grid_of(app), 1, counted)

    noise = after["batches"] - np.arange(3)
    assert noise.dtype == np.float64
    assert (noise != np.rint(noise)).all()


class Looking(StreamingFedAvg):
    """Somebody's strategy that looks at its replies, and halves one tensor of their steps."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        looked_at = [reply for reply in replies if not reply.has_error()]
        for reply in looked_at:
            (record,) = reply.content.array_records.values()
            assert list(record) == list(initial()) == list(record.copy())
            half = (record["fc.bias"].numpy() + initial()["fc.bias"]) / 2
            record["fc.bias"] = next(iter(ArrayRecord([half]).values()))
        return super().aggregate_train(server_round, looked_at)


def test_what_was_put_into_a_record_counts() -> None:
    grids = [grid_of(app_of(), error_bound=1e-4, update="delta") for _ in range(2)]

    plain = run(FedAvg(fraction_evaluate=0), grids[0], rounds=1)
    looked = run(Looking(fraction_evaluate=0), grids[1], rounds=1)

    start = initial()
    assert np.allclose(looked["fc.weight"], plain["fc.weight"], atol=1e-6)
    half = (plain["fc.bias"] - start["fc.bias"]) / 2
    assert np.allclose(looked["fc.bias"] - start["fc.bias"], half, atol=1e-6)


def test_a_reply_that_does_not_decode_is_refused_before_anybody_looks_at_it() -> None:
    """What a strategy around the streaming one cannot decode would end the run."""
    grid = grid_of(app_of(edit=nans))

    after = run(Looking(fraction_evaluate=0), grid, rounds=1)

    start = initial()
    assert np.allclose(after["fc.weight"], start["fc.weight"], atol=0.1)
    assert [failure.kind for failure in grid.take_traffic().failures] == ["not finite"]


def test_a_strategy_that_adds_as_it_goes_decodes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsz.flower.received_update import ReceivedUpdate

    seen: list[ReceivedUpdate] = []
    unpacked = ReceivedUpdate.unpacked

    def noted(update: ReceivedUpdate) -> Any:
        seen.append(update)
        return unpacked(update)

    monkeypatch.setattr(ReceivedUpdate, "unpacked", noted)
    run(StreamingFedAvg(fraction_evaluate=0), WrappedGrid(grid_of(app_of())), 1)  # type: ignore[arg-type]

    first = 3  # of a run's first round, of which admission learns what is ordinary
    assert len(seen) == CLIENTS + first
