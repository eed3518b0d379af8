"""Plans of secure sums that do not fit, and clients that lose what they keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from flwr.app import Message

from fedsz.flower import StreamingFedAvg
from fedsz.flower.records import SECURE
from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.privacy.flower_client import PLAN
from fedsz.privacy.quantizer import TokenPlan
from tests.privacy.test_secure_sum import N, grid_of, local, run


class Plans(WrappedGrid):
    """Changes the plans of one round, for its first clients."""

    def __init__(self, inner: Any, change: dict[str, Any], in_round: int, clients: int = N) -> None:
        super().__init__(inner)
        self.sent = 0  # rounds of masked tokens
        self._change, self._round, self._clients = change, in_round, clients

    def stream_replies(self, messages: Any, *, timeout: Any = None) -> Iterator[Message]:
        out = list(messages)
        records: list[Any] = [message.content.get(SECURE, {}) for message in out]
        found = [record for record in records if PLAN in record]
        self.sent += bool(found)
        if self.sent == self._round:
            for record in found[: self._clients]:
                plan = msgspec.structs.replace(TokenPlan.decode(record[PLAN]), **self._change)
                record[PLAN] = msgspec.msgpack.encode(plan)
        return iter(self.inner.stream_replies(out, timeout=timeout))


OTHERS: list[dict[str, Any]] = [
    {"scales": (1.0,)},
    {"bits": 19},
    {"cap": 5},
    {"scales": (1.0,) * 4},
    {"clients": 6},
]


@pytest.mark.parametrize("change", OTHERS)
def test_a_plan_that_does_not_fit_is_refused_by_all(change: dict[str, Any]) -> None:
    """Of another model, of other tokens than the server's, or on another grid."""
    plans = Plans(local(), change, in_round=3)
    grid = grid_of(plans)

    run(grid, StreamingFedAvg, rounds=3)

    assert plans.sent == 3
    traffic = grid.take_traffic()
    assert traffic.replies == 2 * N
    assert len({failure.client for failure in traffic.failures}) == N


def test_a_plan_for_one_client_alone_is_not_in_the_sum() -> None:
    grid = grid_of(Plans(local(), {"scales": (1.0,) * 4}, in_round=3, clients=1))

    run(grid, StreamingFedAvg, rounds=3)

    assert len(grid.take_traffic().failures) == 1
