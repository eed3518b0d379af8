"""What a run's policy decided, and whether it would decide so again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fedsz.control.controller import Controller
from fedsz.control.record import Decision, RoundRecord
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import CONFIG, read_rounds


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
    controller = Controller(
        run.policy,
        run.compression,
        tolerance=run.tolerance,
        rounds=run.rounds,
        private=run.dp_epsilon > 0,
    )
    for record in read_rounds(folder):
        if record.decision is not None and controller.decision is not None:
            yield Decided(record, record.decision, controller.decision)
        controller.decide(record)
