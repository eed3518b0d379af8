"""Experiment trackers: TensorBoard, MLflow and Weights & Biases are told of each round."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from fedsz import extras
from fedsz.control.record import RoundRecord
from fedsz.control.round_numbers import NUMBERS
from fedsz.errors import ConfigError
from fedsz.formatting import did_you_mean, one_line
from fedsz.training.events import Event, Listening

logger = logging.getLogger(__name__)

PATIENCE = 30.0  # seconds, at the end, for what a tracker has not taken yet
EXPERIMENT: Final = "fedsz"  # in MLflow and Weights & Biases


class Tracker(NamedTuple):
    """A run in a tracker; any exception of these ends the tracking, and not the run."""

    log: Callable[[int, Mapping[str, float]], object]  # takes the numbers of a round
    close: Callable[[], object]  # notes that the run is over


Options = Mapping[str, Any]  # of the run


def _tensorboard(folder: Path, _options: Options) -> Tracker:
    """Write event files into a run's folder; ``tensorboard --logdir`` shows them."""
    from tensorboard.summary import DirectoryOutput, Writer

    writer = Writer(DirectoryOutput(str(folder / "tensorboard")))

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return Tracker(log, writer.close)


def _mlflow(folder: Path, options: Options) -> Tracker:
    """Log to the server or folder that MLFLOW_TRACKING_URI names."""
    from mlflow import MlflowClient

    client = MlflowClient()
    found = client.get_experiment_by_name(EXPERIMENT)
    experiment = found.experiment_id if found else client.create_experiment(EXPERIMENT)
    run = client.create_run(experiment, run_name=folder.name).info.run_id
    for name, value in options.items():
        client.log_param(run, name, value)

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            client.log_metric(run, name, value, step=step)

    return Tracker(log, lambda: client.set_terminated(run))


def _wandb(folder: Path, options: Options) -> Tracker:
    """Log to Weights & Biases; WANDB_MODE=offline writes into the run's folder alone."""
    import wandb

    told = dict(options)
    run = wandb.init(project=EXPERIMENT, name=folder.name, dir=str(folder), config=told)
    return Tracker(lambda step, values: run.log(dict(values), step=step), run.finish)


TRACKERS: Final[Mapping[str, Callable[[Path, Options], Tracker]]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
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
        self, names: str, folder: Path | None = None, options: Options | None = None
    ) -> None:
        self._makers = {name: _maker(name) for name in map(str.strip, names.split(","))}
        self._folder, self._options = folder, dict(options or {})
        self._trackers: dict[str, Tracker] = {}
        self._rounds: queue.SimpleQueue[tuple[int, dict[str, float]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="fedsz-tracking", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._rounds.put(None)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            late = ", ".join(self._makers)
            logger.warning("gave up on trackers after %g s: %s", PATIENCE, late)

    def __call__(self, record: RoundRecord) -> None:
        """Tell the trackers of a round; returns at once."""
        # Numbers alone: records of many rounds of a fleet would be gigabytes.
        self._rounds.put((record.round, measured(record)))

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

    def _try(self, name: str, act: Callable[[Tracker], object]) -> None:
        """Have a tracker do something, or leave it out from now on."""
        try:
            if name not in self._trackers:
                folder = self._folder or Path()
                self._trackers[name] = self._makers[name](folder, self._options)
            act(self._trackers[name])
        except ImportError as err:
            self._leave_out(name, extras.explain(err) or str(err))
        except Exception as err:  # whatever somebody else's library raises
            self._leave_out(name, f"{type(err).__name__}: {err}")

    def _leave_out(self, name: str, why: str) -> None:
        self._makers.pop(name, None)
        self._trackers.pop(name, None)
        logger.warning("the run goes on without tracker %s: %s", name, one_line(why))


def measured(record: RoundRecord) -> dict[str, float]:
    """Return what trackers are told of a round: the numbers that were measured, by name."""
    found = {name: number.of(record) for name, number in NUMBERS.items() if number.tracked}
    return {name: float(value) for name, value in found.items() if value is not None}


def _maker(name: str) -> Callable[[Path, Options], Tracker]:
    if name not in TRACKERS:
        hint = did_you_mean(name, TRACKERS)
        raise ConfigError(f"no tracker {name!r}{hint}; have {', '.join(TRACKERS)}")
    return TRACKERS[name]
