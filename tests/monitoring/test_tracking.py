"""Experiment trackers: what they are told, and that none of them can end a run."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsz.errors import ConfigError
from fedsz.monitoring import Tracking, tracking
from fedsz.monitoring.tracking import measured
from fedsz.training.events import Listening
from tests.links import LONG
from tests.monitoring.watched_runs import record


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "PATIENCE", LONG)  # the machine may be busy


RECORDS = [record(number) for number in range(4)]


def track(names: str, folder: Path, options: Mapping[str, Any] | None = None) -> None:
    with Tracking(names, options=options) as trackers:
        trackers.show(Listening(8080, str(folder), 2))
        for one in RECORDS:
            trackers.show(one)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    own = [one for one in caplog.records if one.name.startswith("fedsz.monitoring")]
    return [one.getMessage() for one in own if one.levelno >= logging.WARNING]


def test_tensorboard_has_every_number(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("tensorboard")
    track("tensorboard", tmp_path)

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for name, value in measured(RECORDS[-1]).items():
        told = {event.step: event.tensor_proto.float_val[0] for event in events.Tensors(name)}
        assert told[3] == pytest.approx(value, rel=1e-6)
    assert [event.step for event in events.Tensors("accuracy")] == [0, 1, 2, 3]
    assert not warnings(caplog)


def test_mlflow_has_every_number_and_option(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = tmp_path / "run"
    track("mlflow", folder, {"rounds": 3, "codec": "uniform"})

    assert not warnings(caplog)
    client = mlflow.MlflowClient()
    (experiment,) = client.search_experiments(filter_string="name = 'fedsz'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"rounds": "3", "codec": "uniform"}
    assert run.data.metrics == pytest.approx(measured(RECORDS[-1]))
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(one.step, one.value) for one in history] == [(r.round, r.loss) for r in RECORDS]


def test_wandb_writes_a_run_without_a_network(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    track("wandb", tmp_path, {"rounds": 3})

    assert not warnings(caplog)
    (run,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"accuracy" in run.read_bytes()


def test_a_missing_library_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    track("wandb", tmp_path)

    (warning,) = warnings(caplog)
    assert warning.startswith("the run goes on without tracker wandb: ")
    assert warning.endswith("pip install 'fedsz[wandb]'")


class Fake:
    """A tracker that notes what it is told, after waiting for ``go``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        self.go = threading.Event()
        monkeypatch.setitem(tracking.TRACKERS, "fake", lambda *_: self)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.go.wait(LONG)
        self.told.append(f"round {step}")

    def close(self) -> None:
        self.told.append("closed")


def test_a_server_that_is_down_is_one_warning_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> tracking.Tracker:
        raise ConnectionError("nobody\nlistens")

    fake = Fake(monkeypatch)
    fake.go.set()
    monkeypatch.setitem(tracking.TRACKERS, "down", refuse)
    track("down, fake", tmp_path)

    why = "ConnectionError: nobody\\nlistens"
    assert warnings(caplog) == [f"the run goes on without tracker down: {why}"]
    assert fake.told == [*(f"round {one.round}" for one in RECORDS), "closed"]


def test_a_server_that_never_answers_holds_up_no_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "PATIENCE", 0.1)
    silent = Fake(monkeypatch)
    track("fake", tmp_path)
    silent.go.set()

    assert warnings(caplog) == ["gave up on trackers after 0.1 s: fake"]


def test_what_waits_for_a_tracker_holds_no_clients() -> None:
    trackers = Tracking("tensorboard")
    trackers(RECORDS[-1])
    assert trackers._rounds.get_nowait() == (RECORDS[-1].round, measured(RECORDS[-1]))


def test_an_unknown_tracker_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"no tracker 'tensorbord' \(did you mean 'tensorboard'"):
        Tracking("tensorbord")
    with pytest.raises(ConfigError, match="no tracker ''"):
        Tracking("mlflow,")
