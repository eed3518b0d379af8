"""Residuals under differential privacy: what a client sends is what its mods let out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod

from fedsz.core.feedback import RESIDUAL, by_tensor
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg
from fedsz.flower.store import RecordStore
from fedsz.privacy.flower_client import LocalNoise
from tests.federation import app_of, around, record_of, to_arrays
from tests.small_model import model

C = 0.5  # the norm that steps are clipped to
STEP = 0.05  # the deviation of what training moves: a norm of some 3
Arrays = dict[str, np.ndarray]


def norm_of(steps: Arrays) -> float:
    return float(np.sqrt(sum(np.square(x).sum() for x in steps.values())))


class Client:
    """One client of a server that says what it asks of each round.

    Attributes:
        steps: by round, what has left the mods, from the model that the app began with.
        arrived: likewise, what the server's model has moved by.
    """

    def __init__(self, *mods: Any) -> None:
        self.steps: list[Arrays] = []
        self.arrived: list[Arrays] = []
        self.context: Context | None = None

        def train(_: int, x: Arrays) -> Arrays:
            rng = np.random.default_rng(len(self.steps))
            return {k: a + rng.normal(0, STEP, a.shape).astype(a.dtype) for k, a in x.items()}

        def watch(message: Message, context: Context, call_next: Any) -> Message:
            begun = to_arrays(message.content["arrays"])  # type: ignore[arg-type]
            reply: Message = call_next(message, context)
            (record,) = reply.content.array_records.values()
            left = to_arrays(record)
            self.steps.append({k: x - begun[k].astype(float) for k, x in left.items()})
            return reply

        def note(_: int, __: Message, context: Context) -> None:
            self.context = context

        app = around(app_of(train, mods=[FedSZMod(), watch, *mods]), before=note)
        self.grid = FedSZGrid(LocalGrid(app, [{"partition-id": 0}]))
        self.strategy = StreamingFedAvg(min_train_nodes=1, min_available_nodes=1)
        self.model, self.round = record_of(model()), 0

    def train(self, asks: ConfigRecord | None = None) -> None:
        """Do a round."""
        self.round += 1
        before = to_arrays(self.model)
        messages = self.strategy.configure_train(
            self.round, self.model, asks or ConfigRecord(), self.grid
        )
        averaged, _ = self.strategy.aggregate_train(
            self.round, self.grid.send_and_receive(list(messages))
        )
        assert averaged is not None
        self.model = averaged
        after = to_arrays(averaged)
        self.arrived.append({k: x - before[k].astype(float) for k, x in after.items()})

    @property
    def residual(self) -> Arrays:
        assert self.context is not None
        memory = by_tensor(RecordStore(self.context.state).memory("arrays")[0])
        return {name: state[RESIDUAL] for name, state in memory.items()}

    def check_whole(self, steps: list[Arrays], first: int = 0) -> None:
        """See that what has arrived from a round on, and the residual, are these steps."""
        for name, residual in self.residual.items():
            came = sum(x[name] for x in self.arrived[first:])
            np.testing.assert_allclose(came + residual, sum(x[name] for x in steps), atol=2e-5)
            assert np.abs(residual).max() > 0.01


def test_clients_that_clip_send_what_they_have_clipped() -> None:
    """Also after rounds in which nobody clipped, whose residual is not sent."""

    def clips(message: Message, context: Context, call_next: Any) -> Message:
        asked = any("clipping_norm" in c for c in message.content.config_records.values())
        reply: Message = (
            fixedclipping_mod(message, context, call_next) if asked else call_next(message, context)
        )
        return reply

    client = Client(clips)
    for _ in range(3):
        client.train()
    assert client.residual

    for _ in range(2):
        client.train(ConfigRecord({"clipping_norm": C}))

    assert client.residual == {}
    for arrived, step in zip(client.arrived[3:], client.steps[3:], strict=True):
        assert norm_of(step) == pytest.approx(C, rel=1e-4)
        assert norm_of(arrived) <= C * (1 + 1e-6)
        # All but what half a step's bound leaves, and nothing of the residual.
        assert norm_of({k: x - arrived[k] for k, x in step.items()}) < C / 2


def test_a_residual_of_rounds_without_noise_goes_with_none_that_have_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody accounts for it. A residual of noised updates has all of their noise in it."""
    noised: list[Arrays] = []
    added = LocalNoise.added

    def noted(noise: LocalNoise, record: ArrayRecord, start: Arrays) -> ArrayRecord:
        out = added(noise, record, start)
        noised.append({k: x - start[k].astype(float) for k, x in to_arrays(out).items()})
        return out

    monkeypatch.setattr(LocalNoise, "added", noted)
    client = Client()
    for _ in range(2):
        client.train()
    assert client.residual
    asks = ConfigRecord()
    LocalNoise(C, 0.1).write(asks)
    for _ in range(3):
        client.train(asks)

    assert len(noised) == 3
    client.check_whole(noised, first=2)


def test_what_a_mod_clips_and_noises_is_all_that_anybody_learns() -> None:
    """What has arrived and the residual are the sum of what has left Flower's `LocalDpMod`."""
    client = Client(LocalDpMod(C, 0.01, 1.0, 0.01))
    for _ in range(8):
        client.train()

    noise = 0.01 * np.sqrt(2 * np.log(1.25 / 0.01)) * np.sqrt(sum(x.size for x in model().values()))
    assert max(map(norm_of, client.steps)) < 1.1 * np.hypot(C, noise)
    client.check_whole(client.steps)
