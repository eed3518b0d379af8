"""The first model is not sent to clients that have it; another than the server's harms nobody."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from safetensors.numpy import save_file

from fedsz.control.record import Traffic
from fedsz.experiments.sweep_worker import grid_of as grid_of_run
from fedsz.flower import FedSZMod, StreamingFedAvg
from fedsz.training.federation import federate, prepare
from fedsz.training.options import RunConfig
from tests.federation import CLIENTS, Federation, app_of, around, initial

Initial = str | Path | Callable[[], Any] | None


def weights() -> dict[str, np.ndarray]:
    """A model of float32 alone, a tensor of zeros and a constant among them."""
    rng = np.random.default_rng(1)
    return {
        "fc.weight": rng.normal(size=(60, 50)).astype(np.float32),
        "fc.bias": np.zeros(60, np.float32),
        "norm.weight": np.ones(60, np.float32),
    }


def trained(
    held: Initial, *, start: Mapping[str, np.ndarray] | None = None, rounds: int = 1, **options: Any
) -> tuple[Traffic, dict[str, np.ndarray]]:
    """What crosses where clients hold one model and the server starts from another."""
    app = app_of(mods=())
    mod = FedSZMod(initial=held)

    def client(message: Message, context: Context) -> Message:
        return mod(message, context, app)

    first = weights() if start is None else dict(start)
    options = {"shared_initial": True, **options}
    federation = Federation(client, CLIENTS, StreamingFedAvg, first, **options)
    model = federation.run(rounds)
    return federation.take_traffic(), model


@pytest.mark.parametrize("by_path", [False, True])
def test_a_model_that_clients_have_is_not_sent(tmp_path: Path, by_path: bool) -> None:
    path = tmp_path / "first.safetensors"
    save_file(weights(), path)

    had, model = trained(path if by_path else weights)
    lacked, same = trained(None)

    assert (had.replies, had.failures) == (lacked.replies, lacked.failures) == (CLIENTS, [])
    assert 20 * had.sent_down < lacked.sent_down < lacked.raw_down
    for name, x in model.items():  # but for the order in which replies are added up
        np.testing.assert_allclose(x, same[name], rtol=0, atol=1e-6)


def changed(name: str, dtype: type, at: int) -> dict[str, np.ndarray]:
    model = weights()
    model[name] = model[name].astype(dtype)
    model[name].reshape(-1).view(np.uint8)[at] ^= 0x40
    return model


def of_no_use() -> dict[str, np.ndarray]:
    raise RuntimeError("the disk is gone")


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (lambda: changed("fc.weight", np.float32, 3), "starts from model"),
        (lambda: changed("fc.bias", np.float16, 0), "starts from model"),
        (initial, "starts from model"),
        (lambda: {"other": np.ones(3, np.float32)}, "starts from model"),
        (lambda: {"fc.weight": "text"}, "no initial model here"),
        (of_no_use, "the disk is gone"),
        ("nowhere.safetensors", "cannot read the initial weights nowhere.safetensors"),
    ],
    ids=["byte", "dtype", "model", "names", "text", "function", "file"],
)
def test_another_model_is_told_of_and_the_servers_is_sent(
    held: Initial, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    _, right = trained(weights, rounds=2)
    with caplog.at_level(logging.WARNING, logger="fedsz"):
        traffic, model = trained(held, rounds=2)

    assert (traffic.replies, traffic.failures) == (2 * CLIENTS, [])
    told = [record.getMessage() for record in caplog.records if says in record.getMessage()]
    assert len(told) == CLIENTS
    assert all("\n" not in line for line in told)
    for name, x in right.items():
        np.testing.assert_allclose(model[name], x, rtol=0, atol=0.05)


@pytest.mark.parametrize("offered", [False, True])
def test_a_server_that_sends_the_model_needs_no_clients_that_have_it(offered: bool) -> None:
    """An exact downlink sends it in any case, and so does a server that does not offer it."""
    options = {"downlink": "exact"} if offered else {"shared_initial": False}
    traffic, _ = trained(weights, **options)

    assert (traffic.replies, traffic.failures) == (CLIENTS, [])
    assert traffic.sent_down > 0


def test_clients_that_keep_nothing_are_sent_key_frames_once_that_is_known() -> None:
    """And so need no second exchange in each round."""
    asked = []

    def forget(client: int, message: Message, context: Context) -> None:
        asked.append(client)
        context.state = RecordDict()

    federation = Federation(around(app_of(), forget), CLIENTS, StreamingFedAvg)
    federation.run(6)

    assert federation.take_traffic().replies == 6 * CLIENTS
    assert len(asked) == (6 + 1) * CLIENTS


def test_clients_of_a_task_build_the_first_model_from_the_seed() -> None:
    config = RunConfig(task="tabular", dataset="breast_cancer", rounds=2, clients=3, seed=5)
    sent: list[int] = []

    federate(grid_of_run(config), config, prepare(config), lambda r: sent.append(r.sent_down))

    assert sent[0] == 0
    assert 3 * sent[1] < sent[2]  # the order of its tensors, then what training has changed


def test_weights_in_a_file_are_the_first_model_where_the_client_has_them(tmp_path: Path) -> None:
    base = RunConfig(task="tabular", dataset="breast_cancer", rounds=1, clients=2, seed=5)
    path = tmp_path / "first.safetensors"
    state = prepare(base).model.state_dict()
    save_file({name: x.numpy() + np.float32(0.5) for name, x in state.items()}, path)
    config = RunConfig(**{**base.as_dict(), "initial": str(path)})
    sent: list[int] = []

    for held in (config, base):  # who has the file, and who was not told of it
        grid = grid_of_run(held)
        federate(grid, config, prepare(config), lambda r: sent.append(r.sent_down))

    assert 10 * sent[1] < sent[3]
