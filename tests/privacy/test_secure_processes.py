"""Secure sums of clients in processes of their own, some of which end in the middle of a round.

The strategy waits for its clients, and a server for those that have gone: nothing here depends on
how soon a process starts.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedsz.flower import StreamingFedAvg
from fedsz.flower.records import to_record, views_of
from fedsz.privacy.graph import Assumptions
from tests.privacy.secure_apps import KINDS, STEP, examples_of, processes
from tests.privacy.test_secure_sum import check, expected, grid_of, initial, run

if TYPE_CHECKING:
    from tests.conftest import Serve

pytestmark = [pytest.mark.slow]

N = 14
STAY = 10
LEAVERS = [(STAY + i, STAY + i + 1, kind) for i, kind in enumerate(KINDS)]  # one at each stage
THERE = [*range(STAY), STAY + KINDS.index("Survivors")]  # whose tokens are in the sum
ALL: dict[str, Any] = {"min_available_nodes": N, "min_train_nodes": N}
GRACE = 1.0  # seconds that the server waits for a connection which is gone


def test_processes_that_end_in_the_middle_of_a_round(serve: Serve) -> None:
    server = serve(reconnect_grace=GRACE)
    with processes(server.address, (0, STAY, ""), *LEAVERS):
        result = run(grid_of(server.grid, assumed=Assumptions(dropout=0.3)), **ALL)

    check(result, THERE)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("keeps", [True, False], ids=["with its state", "without"])
def test_processes_that_come_back_take_part_in_the_next_round(
    keeps: bool, serve: Serve, tmp_path: Path
) -> None:
    """Four have ended, one at each stage. One has masked its tokens, and remembers secrets."""
    server = serve(reconnect_grace=GRACE)
    grid = grid_of(server.grid, assumed=Assumptions(dropout=0.3))
    states = tmp_path if keeps else None
    models = []
    with (
        processes(server.address, (0, STAY, "")),
        processes(server.address, *LEAVERS, states=states) as left,
        ExitStack() as stack,
    ):

        def after(number: int, arrays: Any) -> None:
            models.append({name: x.copy() for name, x in views_of(arrays).items()})
            if number == 1:
                for process in left:
                    process.join()
                    assert process.exitcode == 1
                back = [(first, last, "") for first, last, _ in LEAVERS]
                stack.enter_context(processes(server.address, *back, states=states))

        strategy = StreamingFedAvg(fraction_evaluate=0.0, **ALL)
        first = to_record(initial())
        strategy.start(grid=grid, initial_arrays=first, num_rounds=3, evaluate_fn=after)

    traffic = grid.take_traffic()
    assert traffic.replies == len(THERE) + 2 * N
    assert len(traffic.failures) == len(LEAVERS)
    most = math.ceil(2 * np.mean([examples_of(i) for i in THERE]))  # that one weighs in round 2
    steps = [expected(THERE), expected([*range(N)], most=most), expected([*range(N)])]
    assert most < examples_of(N - 1)
    for rounds, step in enumerate(steps, 1):
        for name, wanted in step.items():
            moved = models[rounds][name] - models[rounds - 1][name].astype(np.float64)
            assert np.abs(moved - (wanted - initial()[name])).max() < 2e-3 * STEP
