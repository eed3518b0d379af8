"""Differential privacy by clipping on clients: no update counts for more than the norm asked for.

The app here does not clip at all: error feedback and quantisation add to what mods clip, and so
does a client without them. What Flower's own mods and wrappers make of it is at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import strategy as flower
from hypothesis import given
from hypothesis import strategies as st

from fedsz.codecs import CODECS
from fedsz.core.clipping import scaled_step
from fedsz.core.protocol import Request
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.errors import RefusedReply
from fedsz.flower import (
    FedBuff,
    FedSZGrid,
    FedSZMod,
    LocalGrid,
    Rules,
    StreamingFedAvg,
)
from fedsz.flower.differential_privacy import clipping_norm
from fedsz.flower.mean import Mean
from fedsz.flower.records import note_of
from fedsz.flower.update import SealedRecord, Update
from tests.federation import Watched, record_of, to_arrays

Model = dict[str, np.ndarray]

C = 0.5


def initial(*, counter: bool = True) -> Model:
    rng = np.random.default_rng(0)
    made = {
        "single": rng.normal(size=(60, 50)).astype(np.float32),
        "half": rng.normal(size=(40, 50)).astype(np.float16),
        "double": rng.normal(size=(30, 50)),
        "bias": rng.normal(size=7).astype(np.float32),
    }
    return {**made, "seen": np.array(3)} if counter else made


def moved(start: Model, turn: int, norm: float = 1.5 * C) -> Model:
    """What training makes of it, and a counter that has not moved."""
    rng = np.random.default_rng(turn)
    steps = {name: rng.normal(size=x.shape) for name, x in start.items() if x.dtype.kind != "i"}
    scale = norm / np.sqrt(sum(np.square(step).sum() for step in steps.values()))
    return {
        name: (x + scale * steps[name]).astype(x.dtype) if name in steps else x
        for name, x in start.items()
    }


def norm_of(model: Model, start: Model) -> float:
    """Flower's norm, in float64: of the step, over all arrays."""
    return float(
        np.sqrt(sum(np.square(x.astype(float) - start[n]).sum() for n, x in model.items()))
    )


class App:
    """An app that keeps what it receives and what it sends, by round."""

    def __init__(
        self,
        *mods: Any,
        train: Callable[[Model, int], Model] = moved,
        around: Callable[[Any], Any] = lambda grid: grid,
    ) -> None:
        self.received: list[Model] = []
        self.sent: list[Model] = []
        self.norms: list[float] = []  # that it was to clip to
        self.own: list[Model] = []  # the server's models, which steps go onto
        self.app, self.around = ClientApp(mods=[FedSZMod(), *mods]), around

        @self.app.train()
        def _train(message: Message, context: Context) -> Message:
            self.received.append(to_arrays(message.content["arrays"]))
            self.norms.append(float(message.content["config"]["clipping_norm"]))
            self.sent.append(train(self.received[-1], len(self.received)))
            metrics = MetricRecord({"num-examples": 1})
            content = RecordDict({"arrays": record_of(self.sent[-1]), "metrics": metrics})
            return Message(content, reply_to=message)

    def run(
        self, strategy: Any, rounds: int = 3, start: Model | None = None, **options: Any
    ) -> Any:
        """Return the models after each round, of one client: each is its decoded reply."""
        self.grid = FedSZGrid(self.around(LocalGrid(self.app, [{}])), **options)
        after: list[Model] = []

        def keep(number: int, arrays: ArrayRecord) -> None:
            after.append(to_arrays(arrays))

        strategy.start(
            grid=self.grid,
            initial_arrays=record_of(start or initial()),
            num_rounds=rounds,
            train_config=ConfigRecord({"clipping_norm": C}),
            evaluate_fn=keep,
        )
        self.own = after[:-1]
        return after[1:]

    def check(self, after: list[Model], least: float = 0.9) -> None:
        """See that each reply counts for its norm at most, and for ``least`` of that at least."""
        assert self.grid.take_traffic().failures == []
        steps = [norm_of(*both) for both in zip(after, self.own, strict=True)]
        assert all(step <= norm for step, norm in zip(steps, self.norms, strict=True))
        assert all(step > least * norm for step, norm in zip(steps, self.norms, strict=True))


ONE: dict[str, Any] = {
    "fraction_evaluate": 0,
    "min_train_nodes": 1,
    "min_available_nodes": 1,
}
STRATEGIES = [flower.FedAvg, StreamingFedAvg, partial(FedBuff, buffer=1)]
PIPELINES = [
    "feedback>topk:k=20%>ternary",
    "feedback>rotate>centroids",
    "feedback>powersgd:rank=2",
    "randk:k=20%",
    "sketch:rows=3,columns=500",
    "qsgd",
    "sign",
]
WAYS: list[tuple[Any, float, dict[str, Any]]] = [
    *(
        (strategy, 0.9, {"update": update, "error_bound": "abs:1e-3"})
        for strategy in STRATEGIES
        for update in ("weights", "delta", "delta+ef")
    ),
    *(
        (StreamingFedAvg, 0.9, {"codec": codec.name, "error_bound": 1e-3})
        for codec in CODECS
        if codec.lossy and not codec.missing()
    ),
    *((STRATEGIES[i % 2], 0.1, {"update": pipeline}) for i, pipeline in enumerate(PIPELINES)),
]


@pytest.mark.parametrize(("strategy", "least", "options"), WAYS)
def test_no_reply_counts_for_more_than_the_norm(
    strategy: Any, least: float, options: dict[str, Any]
) -> None:
    app = App()
    app.check(app.run(strategy(**ONE), 2, **options), least)


@pytest.mark.parametrize("name", ["single", "half", "double", "brain"])
@given(scale=st.floats(0, 1), seed=st.integers(0, 99), size=st.integers(1, 2000))
def test_a_scaled_step_keeps_its_norm_once_it_is_rounded(
    name: str, scale: float, seed: int, size: int
) -> None:
    rng = np.random.default_rng(seed)
    dtype = ml_dtypes.bfloat16 if name == "brain" else initial()[name].dtype
    start = rng.normal(size=size).astype(dtype)
    x = (start + rng.normal(0, 1e-2, size)).astype(dtype)
    x[0] = start[0] = -np.inf if seed % 2 else 0

    y = scaled_step(x, start, scale)

    assert y.dtype == dtype
    assert y[0] == x[0]
    y, x, start = (each[1:].astype(float) for each in (y, x, start))
    assert np.linalg.norm(y - start) <= scale * np.linalg.norm(x - start) * (1 + 1e-12)
    assert (np.abs(y - start) <= np.abs(x - start)).all()
    assert ((y - start) * (x - start) >= 0).all()


def update_of(model: Model, start: Model) -> Update:
    return Update.open(record_of(model), model=start, reference=Reference(start))


def test_what_is_added_up_is_what_is_decoded() -> None:
    start = initial()
    update, mean = update_of(moved(start, 1), start), Mean()
    clipped, terms, scale = SealedRecord(update, [], C).opened()
    mean.add(clipped, terms, 7.0, scale)

    decoded, _ = update.clipped(C)

    added = to_arrays(mean.result())
    assert norm_of(decoded, start) <= C
    assert all(np.allclose(added[name], decoded[name], rtol=1e-6) for name in decoded)


def test_whole_numbers_take_their_part_of_the_norm() -> None:
    """They stay as they are, and floats have what is left; Flower's mods cannot scale them."""
    start = {"weight": np.zeros(100), "seen": np.arange(3)}
    after = {"weight": np.ones(100), "seen": np.arange(3) + np.array([0, 3, 0])}
    arrays, _ = update_of(after, start).clipped(5.0)
    assert np.linalg.norm(arrays["weight"]) == pytest.approx(4)
    assert norm_of(arrays, start) <= 5

    with pytest.raises(RefusedReply, match=r"its integers move by more than 2\.9"):
        update_of(after, start).clipped(2.9)
    kept, _ = update_of(after, start).clipped(2.9, keeps_integers=True)
    assert np.linalg.norm(kept["weight"]) == pytest.approx(2.9)
    assert (kept["seen"] == start["seen"]).all()


def test_what_cannot_be_clipped_is_refused() -> None:
    """Such as a tensor that the server's model does not have."""
    for strategy in (flower.FedAvg, StreamingFedAvg):
        app = App(train=lambda model, turn: {**model, "new": np.ones(7)})
        app.run(strategy(**ONE), 1, same_model=False)
        (failure,) = app.grid.take_traffic().failures
        assert failure.reason == "model: 'new' cannot be clipped: its start is not known"


def test_the_norm_takes_the_place_of_other_limits() -> None:
    """Those follow other clients' updates, which the proof of a mechanism does not know of."""
    app = App()
    app.check(app.run(flower.FedAvg(**ONE), rules=Rules(max_update_norm=C / 10)))


def test_nothing_is_fed_back() -> None:
    """It would be clipped off again. Pipelines keep their feedback, and a bound that was named."""
    told: list[Settings] = []
    ways: list[dict[str, str]] = [{}, {"error_bound": "step:2"}, {"update": "feedback>topk"}]
    for way in ways:
        app = App(around=Watched)
        app.run(flower.FedAvg(**ONE), 8, **way)
        notes = [note_of(content) for content in app.grid.inner.down]
        told += [Request.decode(note).settings for note in notes]

    updates = [config.update for config in told]
    assert updates == ["delta"] * 16 + ["feedback>topk"] * 8
    assert max(config.bound.value for config in told[:8]) == 0.5
    assert {config.error_bound for config in told[8:16]} == {"step:2"}


@pytest.mark.parametrize(
    ("config", "norm"),
    [
        ({"clipping_norm": 2.0, "lr": 0.1}, 2.0),
        ({"dpfedavg_clip_norm": 3}, 3.0),
        ({"dpfedavg_clip_norm": 3.0, "dpfedavg_noise_stddev": 0.1}, None),
        ({"clipping_norm": "none"}, None),
        ({"clipping_norm": 0.0}, None),
        ({}, None),
    ],
)
def test_which_messages_ask_for_it(config: dict[str, Any], norm: float | None) -> None:
    assert clipping_norm({"config": ConfigRecord(config), "arrays": ArrayRecord()}) == norm


def around(wrapper: Any, inner: Any = StreamingFedAvg, **options: Any) -> Any:
    return wrapper(inner(**ONE), noise_multiplier=0.0, num_sampled_clients=1, **options)


@pytest.mark.parametrize("update", ["delta", "delta+ef", "feedback>topk:k=20%>ternary"])
@pytest.mark.parametrize("inner", STRATEGIES[:2])
@pytest.mark.parametrize("name", ["Fixed", "Adaptive"])
def test_flowers_client_side_clipping(name: str, inner: Any, update: str) -> None:
    """Norm bits arrive, and the norm that a round's messages say holds for its replies."""
    wrapper = getattr(flower, f"DifferentialPrivacyClientSide{name}Clipping")
    mod, norm, growth = fixedclipping_mod, {"clipping_norm": 0.3}, 1.0
    if name == "Adaptive":
        mod, norm = adaptiveclipping_mod, {"initial_clipping_norm": 0.3}
        norm["target_clipped_quantile"] = 0.25
        growth = np.exp(-0.2 * (1 - 0.25))  # of what was clipped each time
    app, options = App(mod), {"update": update, "error_bound": "step:1"}
    strategy = around(wrapper, inner, **norm)
    app.check(app.run(strategy, start=initial(counter=False), **options), least=0.2)
    assert app.norms == pytest.approx([0.3, 0.3 * growth, 0.3 * growth**2])
