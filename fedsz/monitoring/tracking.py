"""Experiment trackers: TensorBoard, MLflow and Weights & Biases are told of each round."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, Self

from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError
from fedsz.formatting import did_you_mean, one_line
from fedsz.monitoring.round_numbers import numbers_of
from fedsz.training.events import Event, Listening

logger = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds, at the end, for what a tracker has not taken yet
BACKLOG: Final = 10_000  # rounds that wait for a slow tracker
EXPERIMENT: Final = "fedsz"  # in MLflow and Weights & Biases


class Tracker(Protocol):
    """A run in a tracker; any exception of its methods ends the tracking, and not the run."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a round."""

    def close(self) -> None:
        """Note that the run is over."""


class TensorBoard:
    """Writes event files into a run's folder; ``tensorboard --logdir`` shows them."""

    def __init__(self, folder: Path, _options: Mapping[str, Any]) -> None:
        from tensorboard.summary import DirectoryOutput, Writer

        self._writer = Writer(DirectoryOutput(str(folder / "tensorboard")))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a round."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Note that the run is over."""
        self._writer.close()


class Mlflow:
    """Logs to the server or folder that MLFLOW_TRACKING_URI names."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        found = self._client.get_experiment_by_name(EXPERIMENT)
        experiment = found.experiment_id if found else self._client.create_experiment(EXPERIMENT)
        self._run = self._client.create_run(experiment, run_name=folder.name).info.run_id
        for name, value in options.items():
            self._client.log_param(self._run, name, value)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a round."""
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        """Note that the run is over."""
        self._client.set_terminated(self._run)


class Wandb:
    """Logs to Weights & Biases; WANDB_MODE=offline writes into the run's folder alone."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=EXPERIMENT, name=folder.name, dir=str(folder), config=dict(options)
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a round."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Note that the run is over."""
        self._run.finish()


TRACKERS: Final[Mapping[str, Callable[[Path, Mapping[str, Any]], Tracker]]] = {
    "tensorboard": TensorBoard,
    "mlflow": Mlflow,
    "wandb": Wandb,
}


class Tracking:
    """Tells trackers of each round, from a thread of its own: no slow server holds up a round.

    A tracker whose library is missing, or whose server is down, is left out with one warning. In a
    Flower app::

        with Tracking("tensorboard", Path("runs/mine")) as tracking:
            grid = FedSZGrid(grid, on_round=tracking)

    Args:
        names: of trackers, with commas between.
        folder: of the run; None if the event `Listening` tells of it.
        options: of the run, for trackers that show them.

    Raises:
        ConfigError: there is no such tracker.
    """

    def __init__(
        self, names: str, folder: Path | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self._makers = {name: _maker(name) for name in map(str.strip, names.split(","))}
        self._folder, self._options = folder, dict(options or {})
        self._trackers: dict[str, Tracker] = {}
        self._rounds: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(BACKLOG)
        self._thread = threading.Thread(target=self._work, name="fedsz-tracking", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + PATIENCE
        with contextlib.suppress(queue.Full):  # rounds may be left out, the end may not
            self._rounds.put(None, timeout=PATIENCE)
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            late = ", ".join(self._makers)
            logger.warning("gave up on trackers after %g s: %s", PATIENCE, late)

    def __call__(self, record: RoundRecord) -> None:
        """Tell the trackers of a round; returns at once."""
        try:
            # Numbers alone: records of so many rounds of a fleet would be gigabytes.
            self._rounds.put_nowait((record.round, numbers_of(record)))
        except queue.Full:
            logger.debug("a tracker is %d rounds late; one is left out", BACKLOG)

    def show(self, event: Event) -> None:
        """Take an event of a server's run."""
        if isinstance(event, Listening):
            self._folder = Path(event.run_dir)
        elif isinstance(event, RoundRecord):
            self(event)

    def _work(self) -> None:
        while (told := self._rounds.get()) is not None:
            step, values = told
            for name in list(self._makers):
                self._try(name, lambda tracker: tracker.log(step, values))  # noqa: B023
        for name in list(self._trackers):
            self._try(name, lambda tracker: tracker.close())

    def _try(self, name: str, act: Callable[[Tracker], None]) -> None:
        """Have a tracker do something, or leave it out from now on."""
        try:
            if name not in self._trackers:
                folder = self._folder or Path()
                self._trackers[name] = self._makers[name](folder, self._options)
            act(self._trackers[name])
        except ImportError as err:
            self._leave_out(name, f"{err}: pip install 'fedsz[{name}]'")
        except Exception as err:  # whatever somebody else's library raises
            self._leave_out(name, f"{type(err).__name__}: {err}")

    def _leave_out(self, name: str, why: str) -> None:
        self._makers.pop(name, None)
        self._trackers.pop(name, None)
        logger.warning("the run goes on without tracker %s: %s", name, one_line(why))


def _maker(name: str) -> Callable[[Path, Mapping[str, Any]], Tracker]:
    if name not in TRACKERS:
        hint = did_you_mean(name, TRACKERS)
        raise ConfigError(f"no tracker {name!r}{hint}; have {', '.join(TRACKERS)}")
    return TRACKERS[name]
