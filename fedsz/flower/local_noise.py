"""Noise that a client adds to its own update, or a share of it, before anything of it leaves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fedsz.arrays import Layout, NDArray
from fedsz.core.clipping import add_step, parts, stepped
from fedsz.errors import ConfigError, DivergedUpdate
from fedsz.flower.records import passthrough_of, to_record, views_of
from fedsz.flower_compat import records_in
from fedsz.privacy.accounting import MOST_NOISE
from fedsz.privacy.noise import RandomBytes, SecureBytes, deviation_of, with_noise

# Of a client's node_config: the least noise multiplier that it trains with.
LEAST: Final = "least-noise"
# Of a ConfigRecord.
_NORM, _MULTIPLIER = "fedsz.noise.clipping-norm", "fedsz.noise.multiplier"
_SUMMED: Final = "fedsz.noise.summed"
_LEAST: Final = 1e-30  # norm, and multiplier; the largest norm is one over that


class LocalNoise(NamedTuple):
    """What a server asks clients to do to their updates before they send them.

    Attributes:
        norm: that a step is clipped to, over all its floats.
        multiplier: the noise's deviation, in norms.
        summed: whether it is that of a secure sum's noise, of which each client adds a share; see
            `fedsz.secagg.noise`. Else each adds all of it.
    """

    norm: float
    multiplier: float
    summed: bool = False

    def write(self, config: ConfigRecord) -> None:
        """Ask for it in a message's config."""
        config[_NORM], config[_MULTIPLIER] = self.norm, self.multiplier
        if self.summed:
            config[_SUMMED] = True

    @staticmethod
    def is_asked(content: RecordDict) -> bool:
        """Say whether a message asks for noise, of any size."""
        return any(_NORM in config for config in records_in(content, ConfigRecord).values())

    @classmethod
    def asked(cls, content: RecordDict, node_config: Mapping[str, Any]) -> Self | None:
        """Return what a message asks for; None if for nothing.

        Raises:
            ConfigError: it is less noise than this client wants, or no number.
        """
        configs: list[Any] = [c for c in records_in(content, ConfigRecord).values() if _NORM in c]
        found = None
        for config in configs[:1]:
            numbers = float(config[_NORM]), float(config[_MULTIPLIER])
            found = cls(*numbers, summed=bool(config.get(_SUMMED, False)))
        if found and not (
            _LEAST <= found.norm <= 1 / _LEAST and _LEAST <= found.multiplier <= MOST_NOISE
        ):
            raise ConfigError(f"the server asks for no noise that there is: {found}")
        least, have = float(node_config.get(LEAST, 0)), found.multiplier if found else 0.0
        if have < least:
            raise ConfigError(
                f"the server asks for noise of {have:g} clipping norms; this client wants {least:g}"
            )
        return found

    def added(
        self,
        record: ArrayRecord,
        start: Mapping[str, NDArray],
        generator: RandomBytes = SecureBytes(),  # noqa: B008 - it has no state
    ) -> ArrayRecord:
        """Return an update clipped and noised, in the dtypes of its start.

        Whole numbers and bools become those of the start.

        Args:
            record: what training made of it.
            start: the model that it started from.
            generator: of the noise.

        Raises:
            ConfigError: it holds what is no number.
            DivergedUpdate: it is not finite.
            ModelMismatch: it has other names or shapes than the start.
        """
        arrays = views_of(record)
        if passthrough_of(record):
            raise ConfigError("an update with arrays that are no numbers cannot be noised")
        Layout.of(start).check({name: x.shape for name, x in arrays.items()})
        steps: dict[str, NDArray] = {}
        for name, before in start.items():
            if before.dtype.kind not in "iub":
                steps[name] = np.zeros(parts(before).size, np.float64)
                add_step(arrays[name], before, steps[name])
        norm = math.sqrt(sum(float(np.vdot(step, step)) for step in steps.values()))
        if not math.isfinite(norm):
            raise DivergedUpdate("training made NaN or infinities; nothing is sent")
        scale = min(1.0, self.norm / norm) if norm else 1.0
        elements = sum(step.size for step in steps.values())
        deviation = deviation_of(self.multiplier, self.norm, elements)
        noised = {
            name: stepped(before, with_noise(scale * steps.pop(name), deviation, generator))
            if name in steps
            else before
            for name, before in start.items()
        }
        return to_record(noised)
