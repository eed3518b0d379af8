"""What a federation learns: the `Task` that somebody writes, or one of fedsz by its name."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from fedsz.errors import ConfigError, FedszError, TaskError
from fedsz.formatting import did_you_mean
from fedsz.training.model_state import arrays_of
from fedsz.training.options import BUILT_IN, RunConfig, is_own_task
from fedsz.training.seeding import seeded

logger = logging.getLogger(__name__)

Metrics = Mapping[str, Any]  # name -> number; tensors and arrays of one number will do


class Task(Protocol):
    """A model, its data, and what is done with them. It knows nothing of rounds, bytes or links.

    Write a class with these five methods, in any module, and name it by ``--task module:Class``. If
    its constructor takes an argument, that is the run's options, a `RunConfig`. Nothing need be
    imported from fedsz.

    A model is a ``torch.nn.Module``, a dict of numpy arrays by name, or any object with
    ``state_dict()`` and ``load_state_dict(state)``. Its arrays are what is sent.

    Torch's, numpy's and Python's global generators are seeded before `build_model` and `train`, by
    the run's seed, the round and the client: equal options give equal runs.
    """

    def build_model(self) -> Any:
        """Return the model with its first weights.

        The server builds one. A client builds one each round, and gets the server's weights in it:
        names, shapes and dtypes must be the same everywhere.
        """

    def load_share(self, index: int, count: int) -> Any:
        """Return share ``index`` of ``count`` of the training data, in any form that `train` takes.

        A client calls it once in a run. On a device that has no other data, it may return these
        whatever the numbers are.
        """

    def load_test(self) -> Any:
        """Return the held-out data, in any form that `evaluate` takes. The server calls it once."""

    def train(self, model: Any, share: Any) -> Metrics:
        """Train ``model`` in place on ``share``: a client's work in one round.

        Returns:
            ``{"examples": N}``, the number of examples, which weighs this client in the average,
            and any other numbers, such as ``"loss"``.
        """

    def evaluate(self, model: Any, test: Any) -> Metrics:
        """Test ``model`` on the held-out data, and leave it as it is.

        Returns:
            ``{"loss": L}``, and if there is one, ``"accuracy"``, in [0, 1].
        """


METHODS: Final = ("build_model", "load_share", "load_test", "train", "evaluate")


class Trained(NamedTuple):
    """What `Task.train` reports."""

    examples: int  # that it trained on, 1 or more
    metrics: dict[str, float]  # all other numbers


class Score(NamedTuple):
    """What `Task.evaluate` reports."""

    loss: float  # may be NaN or infinite: training can diverge
    accuracy: float | None  # in [0, 1]; None where the task has none


@dataclass(frozen=True, eq=False)
class LoadedTask:
    """A task whose mistakes are told in one line, each with the method that made it.

    Every method raises, beside what `FedszError` the task itself raises:
        TaskError: the task's method raised something else, or returned what it must not.
    """

    name: str  # as ``--task`` has it
    task: Task
    seed: int  # the run's

    def build_model(self) -> Any:
        """Return the model with its first weights."""
        with seeded(self.seed):
            model = self._call("build_model")
        try:
            arrays = arrays_of(model)
        except ConfigError as err:
            raise TaskError(f"{self.name}.build_model: {err}") from err
        if not arrays:
            raise self._error("build_model", "returned a model without arrays")
        return model

    def load_share(self, index: int, count: int) -> Any:
        """Return a client's part of the training data."""
        return self._call("load_share", index, count)

    def load_test(self) -> Any:
        """Return the held-out data."""
        return self._call("load_test")

    def train(self, model: Any, share: Any, seed: int) -> Trained:
        """Train a model in place; ``seed`` decides what is drawn meanwhile."""
        with seeded(seed):
            told = self._numbers("train", self._call("train", model, share))
        examples = told.pop("examples", None)
        if examples is None or not examples >= 1 or not examples.is_integer():
            have = "nothing" if examples is None else f"{examples:g}"
            what = "must return 'examples', a whole number from 1 on; got"
            raise self._error("train", f"{what} {have}")
        return Trained(int(examples), told)

    def evaluate(self, model: Any, test: Any) -> Score:
        """Test a model."""
        told = self._numbers("evaluate", self._call("evaluate", model, test))
        if "loss" not in told:
            have = ", ".join(told) or "nothing"
            raise self._error("evaluate", f"must return 'loss', a number; got {have}")
        accuracy = told.get("accuracy")
        if accuracy is not None and not 0 <= accuracy <= 1:
            raise self._error("evaluate", f"must return 'accuracy' in [0, 1], got {accuracy:g}")
        return Score(told["loss"], accuracy)

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.task, method)(*arguments)
        except FedszError:
            raise
        except Exception as err:
            logger.info("%s.%s failed", self.name, method, exc_info=True)
            raise self._error(method, f"failed: {_told(err)}") from err

    def _numbers(self, method: str, told: Any) -> dict[str, float]:
        """Return what a method reports, as plain numbers."""
        if not isinstance(told, Mapping):
            kind = type(told).__name__
            raise self._error(method, f"must return a dict of numbers, got a {kind}")
        found = {}
        for key, value in told.items():
            try:
                found[str(key)] = float(value.detach() if hasattr(value, "detach") else value)
            except (TypeError, ValueError):
                what = f"must return numbers, got {value!r:.80} for {key!r}"
                raise self._error(method, what) from None
        return found

    def _error(self, method: str, what: str) -> TaskError:
        return TaskError(f"{self.name}.{method} {what}")


def load_task(config: RunConfig) -> LoadedTask:
    """Return the task that ``config.task`` names: one of fedsz, or ``module:name``.

    The module of a task that is not of fedsz may lie in the current folder. ``name`` is a class or
    function that makes a task, of the run's options if it takes an argument.

    Raises:
        ConfigError: there is no such module or name, the module cannot be imported, or what it
            names is no task.
        TaskError: its constructor failed.
    """
    path = BUILT_IN.get(config.task, config.task)
    module, colon, name = path.partition(":")
    if not (colon and module and name):
        have = ", ".join(BUILT_IN)
        raise ConfigError(f"no task {config.task!r}; have {have}, and module:Class of your own")
    own = is_own_task(config.task)
    found = find_object(module, name, f"task {config.task!r}", own=own)
    task = _made(found, config)
    for method in METHODS:
        if not callable(getattr(task, method, None)):
            have = ", ".join(METHODS)
            raise ConfigError(f"task {config.task!r} has no method {method!r}; a task has {have}")
    return LoadedTask(config.task, task, config.seed)


def client_task(have: str, asked: str) -> str:
    """Return which task a client runs, and never one of others' making because a server says so.

    Args:
        have: the task that the client was started with; "" if it will run any of fedsz.
        asked: the server's.

    Raises:
        ConfigError: they differ, and are not both somebody's own; or the server's is not one of
            fedsz and the client was started without one.
    """
    own = is_own_task(have)
    if not have and is_own_task(asked):
        raise ConfigError(
            f"the server asks for task {asked!r}, which is no task of fedsz; a client runs only the"
            " task that it was started with: --task"
        )
    if have and have != asked and not (own and is_own_task(asked)):
        raise ConfigError(f"this client has task {have!r}, the server asks for {asked!r}")
    return have or asked


def require_plain(dataset: str) -> None:
    """Raise `ConfigError` for a data set whose name could lead to a file somewhere else."""
    if not re.fullmatch(r"\w[\w .+-]*", dataset):
        raise ConfigError(f"no data set {dataset!r}: a name has letters, digits, and any of _.+-")


def find_object(module: str, name: str, what: str, *, own: bool = True) -> Any:
    """Return what a module calls ``name``.

    Args:
        module: is imported.
        name: of an object in it.
        what: stands before the text of an error.
        own: whether the module may lie in the current folder.

    Raises:
        ConfigError: there is no such module or name, or the module cannot be imported.
    """
    folder = str(Path.cwd())
    # Fedsz looks there by itself for nothing: anybody's numpy.py may lie in a folder.
    if own and folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as err:
        if err.name is None or not f"{module}.".startswith(f"{err.name}."):
            raise ConfigError(f"{what}: cannot import {module}: {_told(err)}") from err
        where = f"in {folder} or among the installed packages"
        raise ConfigError(f"{what}: no module {err.name!r} {where}") from None
    except Exception as err:
        raise ConfigError(f"{what}: cannot import {module}: {_told(err)}") from err
    if not hasattr(found, name):
        hint = did_you_mean(name, vars(found))
        raise ConfigError(f"{what}: module {module} has no {name!r}{hint}")
    return getattr(found, name)


def _made(maker: Any, config: RunConfig) -> Any:
    """Return what a class or function makes, of the run's options if it takes an argument."""
    if not callable(maker):
        raise ConfigError(f"task {config.task!r} is a {type(maker).__name__}, which is no task")
    try:
        return maker(config) if inspect.signature(maker).parameters else maker()
    except FedszError:
        raise
    except Exception as err:
        raise TaskError(f"{config.task} cannot be made: {_told(err)}") from err


def _told(err: BaseException) -> str:
    """Return an exception in one line, with the place that raised it."""
    text = " ".join(str(err).split()) or "no reason given"
    frames = traceback.extract_tb(err.__traceback__)
    if isinstance(err, SyntaxError) and err.filename:
        return f"{type(err).__name__}: {text}"  # which says where
    last = next((f for f in reversed(frames) if "site-packages" not in f.filename), None)
    place = f" ({Path(last.filename).name}, line {last.lineno})" if last else ""
    return f"{type(err).__name__}: {text}{place}"
