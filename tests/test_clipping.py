"""Updates whose norm is above the limit: they are clipped to it, and pull no further."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from fedsz.core.protocol import Instructions
from fedsz.flower import FedSZGrid, LocalGrid, StreamingFedAvg
from fedsz.flower.admission_rules import AdmissionRules
from fedsz.flower.mean import Mean
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import KEY
from tests.federation import Watched, app_of, initial, moved, record_of, run, to_arrays
from tests.test_hostile_replies import CLIENTS, REFUSED, Hostile


def steps_norm(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    floats = [name for name, x in one.items() if x.dtype.kind == "f"]
    return float(np.sqrt(sum(np.square(one[n].astype(float) - other[n]).sum() for n in floats)))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("name", REFUSED)
def test_an_attack_moves_the_average_by_a_share_of_the_limit(
    name: str, strategy: type[FedAvg]
) -> None:
    hostile, start = 4, initial()
    rules = AdmissionRules(max_update_norm="6x")
    grid = FedSZGrid(Hostile(REFUSED[name][0], hostile), 1e-3, rules=rules)

    result = to_arrays(run(strategy(fraction_evaluate=0), grid).arrays)

    norms = sorted(steps_norm(moved(start, i), start) for i in range(3))
    weights = {i: i + 1 for i in range(CLIENTS) if i != hostile}
    others = {
        name: np.average([moved(start, i)[name] for i in weights], 0, list(weights.values()))
        for name in start
    }
    share = (hostile + 1) / (hostile + 1 + sum(weights.values()))
    slack = 0.05 + 0.001 * steps_norm(others, start)  # of the error bound, in two dtypes
    assert steps_norm(result, others) <= share * (6 * norms[1] + steps_norm(others, start)) + slack


@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("update", ["weights", "delta"])
def test_what_is_clipped_goes_as_far_as_the_limit_its_own_way(
    strategy: type[FedAvg], update: str
) -> None:
    """Floats of every width; a counter and a mask arrive as they are."""
    start, after = initial(), moved(initial(), 1)
    rules = AdmissionRules(max_update_norm=0.5, max_client_share=1)
    app = app_of()
    grid = FedSZGrid(LocalGrid(app, [{"partition-id": 1}] * 2), 1e-4, update=update, rules=rules)

    result = to_arrays(run(strategy(fraction_evaluate=0), grid).arrays)

    scale = 0.5 / steps_norm(after, start)
    for name in ("fc.weight", "fc.bias", "half.weight"):
        wanted = start[name] + scale * (after[name].astype(float) - start[name])
        assert np.allclose(result[name], wanted, rtol=0, atol=2e-3), name
    assert result["bn.num_batches_tracked"] == after["bn.num_batches_tracked"]
    assert np.array_equal(result["mask"], after["mask"])
    scales = [client.scale for client in grid.take_traffic().clients]
    assert scales == pytest.approx([scale] * 2, rel=1e-2)


def test_a_clipped_reply_has_counted_and_leaves_its_sender_its_residual() -> None:
    """What was clipped does not come back; what compression left out does."""
    rules = AdmissionRules(max_update_norm=0.5)
    nodes = [{"partition-id": i} for i in range(CLIENTS)]
    watched = Watched(LocalGrid(app_of(), nodes))
    grid = FedSZGrid(watched, "std:2", rules=rules)

    run(StreamingFedAvg(fraction_evaluate=0), grid, rounds=3)

    told = [Instructions.read(content[KEY]).counted for content in watched.down]
    assert told == [None] * 3 * CLIENTS
    traffic = grid.take_traffic()
    assert traffic.failures == []
    assert all(client.scale < 0.5 for client in traffic.clients)


def test_an_infinite_mask_of_a_reply_without_weight_is_no_nan() -> None:
    mean, mask = Mean(), np.array([0, -np.inf], np.float32)
    for weight in (0.0, 1.0):
        mean.add(ReceivedUpdate(record_of({"mask": mask}), sent={"mask": mask}), weight)
    assert np.array_equal(to_arrays(mean.result())["mask"], mask)
