"""FetchSGD: clients send sketches of their steps and keep nothing; the server feeds back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid

from fedsz import methods
from fedsz.arrays import NDArray
from fedsz.contrib.sketch import Sketch
from fedsz.contrib.steps import (
    App,
    Arrays,
    FedAvgOfSteps,
    coded_reply,
    floats,
    require_finite,
    setting_of,
)
from fedsz.errors import ConfigError
from fedsz.methods import Shared, TensorSpec
from fedsz.methods.base import VALUES, Count
from fedsz.methods.top_k import largest

SKETCH: Final = "fetchsgd.sketch"  # the setting that clients are sent


def fetchsgd_mod(message: Message, context: Context, call_next: App) -> Message:
    """Reply with count sketches of the step, one for each float tensor, to a `FetchSgd`."""
    text = setting_of(message, SKETCH)
    if text is None:
        return call_next(message, context)
    (sketch,) = methods.parse_sent(str(text)).stages
    assert isinstance(sketch, Sketch)

    def encode(step: Arrays) -> Mapping[str, bytes]:
        return {name: _table(sketch, name, x).tobytes() for name, x in step.items()}

    return coded_reply(message, context, call_next, encode)


class FetchSgd(FedAvgOfSteps):
    """FetchSGD (Rothchild et al. 2020, algorithm 1), for clients with `fetchsgd_mod`.

    With S FedAvg's mean of the sketches of a round, u the velocity and e the error, both sketches:

        u = momentum u + S;  e = e + u;  apply the k largest medians of e;  e = e - sketch(applied)

    The learning rate of the source is that of the clients. All other arguments are FedAvg's.

    Args:
        k: elements of a tensor that are applied in a round: a number, or a share such as "1%".
        momentum: of the mean sketches, 0 to below 1.
        columns: of a row of a sketch: a number, or a share of the tensor's elements.
        rows: of a sketch, 1 to 16.

    Attributes:
        state: by tensor, velocity and error, float32 or float64 of rows times columns.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        *arguments: Any,
        k: str | int = "1%",
        momentum: float = 0.0,
        columns: str | int = "10%",
        rows: int = 5,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        if not 0 <= momentum < 1:
            raise ConfigError(f"FetchSgd's momentum must lie from 0, below 1, got {momentum:g}")
        self.k, self.momentum = Count(str(k)), momentum
        self.sketch = Sketch(Count(str(columns)), rows)
        self.state: dict[str, tuple[NDArray, NDArray]] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a round's messages, which say how to sketch."""
        config[SKETCH] = str(self.sketch)
        return super().configure_train(server_round, arrays, config, grid)

    def decode(self, node: int, coded: Mapping[str, Any]) -> Arrays:
        """Return a reply's sketches; see `FedAvgOfSteps.decode`."""
        tables = {}
        for name, x in floats(self.model).items():
            table = np.frombuffer(coded[name], x.dtype)
            if table.size != self.sketch.values_spec({}, _shared(name, x).spec).size:
                raise ValueError(f"{table.size} values are no sketch of {name!r}")
            require_finite(name, table)
            tables[name] = table
        return tables

    def server_step(self, mean: Arrays) -> Arrays:
        """Return the largest elements of the error, and keep the rest."""
        like = floats(self.model)
        return {name: self._step(name, like[name], table) for name, table in mean.items()}

    def _step(self, name: str, x: NDArray, mean: NDArray) -> NDArray:
        """Return the step of a tensor like ``x``, given the mean of its sketches.

        If an estimate is not finite, the step is 0, and velocity and error begin anew.
        """
        applied = np.zeros(x.size, x.dtype)
        nothing = np.zeros_like(mean)
        velocity, error = self.state.pop(name, (nothing, nothing))
        with np.errstate(over="ignore", invalid="ignore"):
            velocity = mean.dtype.type(self.momentum) * velocity + mean
            error = error + velocity
            estimates = self.sketch.estimates(error, _shared(name, x), _medians)
        if np.isfinite(estimates).all() and x.size:
            places = largest(estimates, self.k.of(x.size))
            applied[places] = estimates[places]
            with np.errstate(over="ignore", invalid="ignore"):  # seen in the next estimates
                self.state[name] = velocity, error - _table(self.sketch, name, applied)
        return applied


def _table(sketch: Sketch, name: str, x: NDArray) -> NDArray:
    return sketch.code(x.reshape(-1), _shared(name, x))[VALUES]


def _medians(rows: NDArray) -> NDArray:
    medians: NDArray = np.median(rows, axis=0)
    return medians


def _shared(name: str, x: NDArray) -> Shared:
    return Shared(TensorSpec((x.size,), x.dtype, name))
