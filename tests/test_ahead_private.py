"""What clients begin with under differential privacy: by the values that apps see and send."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod

from fedsz.arrays import NDArray
from fedsz.bounds import ErrorBound
from fedsz.core.ahead import head_start
from fedsz.core.settings import Settings
from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid, StreamingFedAvg
from fedsz.flower.differential_privacy import under_privacy
from fedsz.flower.local_noise import LocalNoise
from tests.eigen_fleet import model
from tests.federation import app_of, around, record_of, to_arrays

C = 0.5  # the norm that steps are clipped to
LEAST = head_start(ErrorBound.step(1.8))  # in the first rounds, whose bounds are at most as wide
STEP = 0.05  # the deviation of what training moves: a norm of some 3
Arrays = dict[str, np.ndarray]


def norm_of(steps: Arrays) -> float:
    return float(np.sqrt(sum(np.square(x).sum() for x in steps.values())))


class Client:
    """One client of a server that says what it asks of each round.

    Attributes:
        held, begun: by round, the model that it was sent, and what its app has begun with.
        left_mods: likewise, what its last mod has passed to `FedSZMod`.
        arrived: likewise, what the server decodes of its reply.
    """

    def __init__(self, *mods: Any, **options: Any) -> None:
        self.held: list[Arrays] = []
        self.begun: list[Arrays] = []
        self.left_mods: list[Arrays] = []
        self.arrived: list[Arrays] = []
        self.context: Context | None = None

        def train(_: int, x: Arrays) -> Arrays:
            assert self.context is not None
            record = self.context.state["fedsz.model.arrays"]
            assert isinstance(record, ArrayRecord)
            self.held.append(to_arrays(record))
            self.begun.append(x)
            rng = np.random.default_rng(len(self.begun))
            return {k: a + rng.normal(0, STEP, a.shape).astype(a.dtype) for k, a in x.items()}

        def watch(message: Message, context: Context, call_next: Any) -> Message:
            reply: Message = call_next(message, context)
            (record,) = reply.content.array_records.values()
            self.left_mods.append(to_arrays(record))
            return reply

        def note(_: int, __: Message, context: Context) -> None:
            self.context = context

        app = around(app_of(train, mods=[FedSZMod(), watch, *mods]), before=note)
        self.grid = FedSZGrid(LocalGrid(app, [{"partition-id": 0}]), **options)
        self.strategy = StreamingFedAvg(min_train_nodes=1, min_available_nodes=1)
        self.model, self.round = record_of(model()), 0

    def train(self, asks: ConfigRecord | None = None) -> None:
        """Do a round."""
        self.round += 1
        messages = self.strategy.configure_train(
            self.round, self.model, asks or ConfigRecord(), self.grid
        )
        averaged, _ = self.strategy.aggregate_train(
            self.round, self.grid.send_and_receive(list(messages))
        )
        assert averaged is not None
        self.model = averaged
        self.arrived.append(to_arrays(averaged))  # of one client

    @property
    def residual(self) -> Arrays:
        assert self.context is not None
        record = self.context.state.get("fedsz.residual.arrays")
        return to_arrays(record) if isinstance(record, ArrayRecord) else {}

    @property
    def ahead(self) -> list[float]:
        """By round, how far from the model the app has begun."""
        pairs = zip(self.begun, self.held, strict=True)
        return [norm_of({k: x - held[k] for k, x in begun.items()}) for begun, held in pairs]

    @property
    def steps(self) -> list[Arrays]:
        """By round, what has left the mods, from where the app has begun."""
        pairs = zip(self.left_mods, self.begun, strict=True)
        return [{k: x - begun[k].astype(float) for k, x in left.items()} for left, begun in pairs]

    def came(self, name: str, first: int = 0) -> NDArray:
        """What has arrived of a tensor from a round on, counted from 0."""
        pairs = list(zip(self.arrived, self.held, strict=True))[first:]
        return np.sum([after[name] - held[name].astype(float) for after, held in pairs], axis=0)

    def left_of(self, name: str) -> NDArray:
        """What the client holds back of a tensor."""
        shape = model()[name].shape
        found = [x for k, x in self.residual.items() if k.endswith(name) and x.shape == shape]
        return found[0]


each_policy = pytest.mark.parametrize("policy", ["auto", "auto+basis"])


@each_policy
def test_clients_that_clip_begin_with_the_model_and_send_what_they_have_clipped(
    policy: str,
) -> None:
    """Also after rounds in which nobody clipped, whose residual is neither begun with nor sent."""

    def clips(message: Message, context: Context, call_next: Any) -> Message:
        asked = any("clipping_norm" in c for c in message.content.config_records.values())
        reply: Message = (
            fixedclipping_mod(message, context, call_next) if asked else call_next(message, context)
        )
        return reply

    client = Client(clips, policy=policy)
    for _ in range(3):
        client.train()
    assert client.ahead[0] == 0
    assert min(client.ahead[1:]) > LEAST * C
    assert client.residual

    for _ in range(2):
        client.train(ConfigRecord({"clipping_norm": C}))

    assert client.ahead[3:] == [0, 0]
    assert client.residual == {}
    for turn in (3, 4):
        arrived, held, step = client.arrived[turn], client.held[turn], client.steps[turn]
        assert norm_of(step) == pytest.approx(C, rel=1e-4)
        sent = {k: x - held[k].astype(float) for k, x in arrived.items()}
        assert norm_of(sent) <= C * (1 + 1e-6)
        # All but what half a step's bound leaves, and nothing of what was held back.
        assert norm_of({k: x - sent[k] for k, x in step.items()}) < C / 2


@each_policy
def test_clients_that_add_noise_begin_with_the_model(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A residual has all of their own noise in it, and the model a mean of everybody's.

    What rounds without noise have left out goes with none of these: nobody accounts for it.
    """
    noised: list[Arrays] = []
    added = LocalNoise.added

    def noted(*given: Any) -> ArrayRecord:
        record = added(*given)
        noised.append(to_arrays(record))
        return record

    monkeypatch.setattr(LocalNoise, "added", noted)
    client = Client(policy=policy)
    for _ in range(2):
        client.train()
    assert client.residual
    asks = ConfigRecord()
    LocalNoise(C, 0.1).write(asks)
    for _ in range(3):
        client.train(asks)
    assert client.ahead[1] > LEAST * C
    assert client.ahead[2:] == [0, 0, 0]
    for name in model():  # what came of the rounds with noise, and is left, has gone through it
        steps = [
            after[name] - begun[name].astype(float)
            for after, begun in zip(noised, client.begun[2:], strict=True)
        ]
        left = client.left_of(name)
        np.testing.assert_allclose(client.came(name, 2) + left, np.sum(steps, axis=0), atol=1e-5)
        assert np.abs(left).max() > 0.01

    legacy = ConfigRecord({"dpfedavg_clip_norm": C, "dpfedavg_noise_stddev": 0.01})
    client.train(legacy)
    assert client.ahead[-1] == 0


@each_policy
def test_what_a_mod_clips_and_noises_is_all_that_anybody_learns(policy: str) -> None:
    """Flower's `LocalDpMod` sees the step from where training began.

    What has arrived and what is held back are the sum of what has left the mod: nothing else.
    """
    client = Client(LocalDpMod(C, 0.01, 1.0, 0.01), policy=policy)
    for _ in range(8):
        client.train()
    assert min(client.ahead[1:]) > LEAST * C / 2
    noise = 0.01 * np.sqrt(2 * np.log(1.25 / 0.01)) * np.sqrt(sum(x.size for x in model().values()))
    assert max(map(norm_of, client.steps)) < 1.1 * np.hypot(C, noise)

    for name in model():
        came, left = client.came(name), client.left_of(name)
        np.testing.assert_allclose(came + left, sum(x[name] for x in client.steps), atol=1e-5)


def test_a_chain_keeps_the_feedback_that_it_names_and_begins_with_the_model() -> None:
    named = Settings(update="feedback>topk", ahead=True)
    asks = RecordDict({"config": ConfigRecord({"clipping_norm": C})})
    assert named.begins_ahead

    told = under_privacy(named, named, asks)

    assert told.feeds_back
    assert not told.begins_ahead
    assert under_privacy(named, named, RecordDict()) is named
