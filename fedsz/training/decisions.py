"""What a run's policy decided, and whether it would decide so again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from fedsz.bounds import ErrorBound
from fedsz.control.policy import Controller, replay
from fedsz.control.record import Decision, RoundRecord
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import CONFIG, read_rounds
from fedsz.update.config import is_bound


class Decided(NamedTuple):
    """A round's decision."""

    record: RoundRecord
    decision: Decision  # what the round used
    again: Decision  # what the policy decides now, from the rounds before it

    @property
    def same(self) -> bool:
        """Whether the two agree."""
        return self.decision == self.again


def decisions(folder: Path) -> Iterator[Decided]:
    """Decide the rounds of a run again, from its folder; keeps none of them.

    Raises:
        ConfigError: it is no folder of a run, or its policy does not exist here.
    """
    run = RunConfig.read(folder / CONFIG)
    controller = Controller(run.policy, run.compression, tolerance=run.tolerance, rounds=run.rounds)
    for record, again in replay(controller, read_rounds(folder, run.compression)):
        if record.decision is not None:
            again = again if record.version > 1 else _rounded(again)
            yield Decided(record, record.decision, again)


def _rounded(decision: Decision) -> Decision:
    """Return a decision as version 1 of the record had it: bounds of six digits."""
    config = decision.config
    config = config.replace(
        error_bound=_six_digits(config.error_bound), downlink=_six_digits(config.downlink)
    )
    return msgspec.structs.replace(decision, config=config)


def _six_digits(text: str) -> str:
    if not is_bound(text):
        return text
    bound = ErrorBound.of(text)
    return str(ErrorBound(bound.kind, float(f"{bound.value:g}")))
