"""The matrix of apps and strategies: what runs plain beside wrapped, in tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flwr.app import ArrayRecord
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.server import strategy as legacy
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import strategy as flower

from tests.flower.flower_apps import client_app, initial, named
from tests.flower.flower_legacy import legacy_app, server_fn, workflow
from tests.flower.flower_runs import CLIENTS, Case, started
from tests.flower.flower_trees import grown, tree_app


def _dict(seed: int) -> ArrayRecord:
    return named(initial(seed))


def _case(name: str, strategy: Callable[[], Any], *mods: Any, **options: Any) -> Case:
    serve = started(strategy, _dict)
    return Case(name, lambda first: client_app([*first, *mods]), serve, **options)


def _private(wrapper: str, **options: Any) -> Callable[[], Any]:
    """A strategy of differential privacy around FedAvg; its mods fail on evaluation, plain too."""

    def make() -> Any:
        base = flower.FedAvg(fraction_evaluate=0.0)
        return getattr(flower, wrapper)(base, num_sampled_clients=CLIENTS, **options)

    return make


FIXED = {"noise_multiplier": 0.001, "clipping_norm": 5.0}
ADAPTIVE = {"noise_multiplier": 0.001, "initial_clipping_norm": 5.0, "clipped_count_stddev": 0.25}
NO_EVALUATION = partial(flower.FedAvg, fraction_evaluate=0.0)

STRATEGIES = [
    _case("FedAvg", flower.FedAvg),
    _case("FedAvgM", partial(flower.FedAvgM, server_momentum=0.5)),
    _case("FedAdam", partial(flower.FedAdam, eta=0.01)),
    _case("FedYogi", partial(flower.FedYogi, eta=0.01)),
    _case("FedAdagrad", partial(flower.FedAdagrad, eta=0.02)),
    _case("FedProx", partial(flower.FedProx, proximal_mu=0.1)),
    _case("FedMedian", flower.FedMedian),
    _case("FedTrimmedAvg", flower.FedTrimmedAvg),
    _case("Krum", partial(flower.Krum, num_malicious_nodes=1)),
    _case("MultiKrum", partial(flower.MultiKrum, num_malicious_nodes=1, num_nodes_to_select=3)),
    _case("Bulyan", partial(flower.Bulyan, num_malicious_nodes=1), clients=7),
    _case("QFedAvg", partial(flower.QFedAvg, client_learning_rate=0.1)),
    *(
        _case(
            f"DP, {side.lower()}-side {kind.lower()} clipping",
            _private(f"DifferentialPrivacy{side}Side{kind}Clipping", **options),
            *([mod] if side == "Client" else []),
        )
        for kind, options, mod in (
            ("Fixed", FIXED, fixedclipping_mod),
            ("Adaptive", ADAPTIVE, adaptiveclipping_mod),
        )
        for side in ("Server", "Client")
    ),
    _case("local DP", NO_EVALUATION, LocalDpMod(5.0, 0.0001, 1.0, 0.01)),
]

OTHER_NAMES = ["dense/kernel", "dense/bias", "pos_embed", "beta", "γ", "f.γ"]

NAMINGS = [
    Case(
        "ArrayRecord(list)",
        client_app,
        started(flower.FedAvg, lambda seed: ArrayRecord(initial(seed))),
    ),
    Case(
        "names without 'weight'",
        client_app,
        started(flower.FedAvg, lambda seed: named(initial(seed), OTHER_NAMES)),
    ),
]

MASKS = "what clients mask for SecAgg+ looks random"

LEGACY = [
    Case("NumPyClient, DefaultWorkflow", legacy_app, workflow(legacy.FedAvg)),
    Case("NumPyClient, FedAvgM", legacy_app, workflow(legacy.FedAvgM)),
    Case("NumPyClient, FedMedian", legacy_app, workflow(legacy.FedMedian)),
    Case("NumPyClient, ServerApp(server_fn)", legacy_app, server_fn(legacy.FedAvg)),
    Case(
        "NumPyClient, SecAgg+",
        lambda first: legacy_app([*first, secaggplus_mod]),
        workflow(legacy.FedAvg, partial(SecAggPlusWorkflow, 3, 2)),
        passes=MASKS,
    ),
]

TREES = [
    Case("FedXgbBagging", tree_app, grown(flower.FedXgbBagging), points=0.0, passes="bytes"),
    Case(
        "FedXgbCyclic",
        lambda first: tree_app(first, whole=True),
        grown(flower.FedXgbCyclic),
        points=0.0,
        passes="bytes",
    ),
]

CASES = STRATEGIES + NAMINGS + LEGACY + TREES
