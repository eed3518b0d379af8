"""What a run's policy decided, and whether it would decide so again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedsz.control.policy import replay
from fedsz.control.record import Decision, Observation
from fedsz.errors import ConfigError, FedszError
from fedsz.training.events import RoundDone, from_json
from fedsz.training.options import RunConfig
from fedsz.training.rounds import policy_of
from fedsz.training.run_folder import CONFIG, ROUNDS


@dataclass(frozen=True)
class Decided:
    """A round's decision.

    Attributes:
        row: the round.
        decision: what it used.
        again: what the policy decides now, from the rounds before it.
    """

    row: RoundDone
    decision: Decision
    again: Decision

    @property
    def same(self) -> bool:
        """Whether the two agree."""
        return self.decision == self.again


def decisions(folder: Path) -> Iterator[Decided]:
    """Decide the rounds of a run again, from its folder.

    Raises:
        ConfigError: it is no folder of a run, or its policy does not exist here.
    """
    config = RunConfig.read(folder / CONFIG)
    try:
        lines = (folder / ROUNDS).read_text("utf-8").splitlines()
        rows = [row for line in lines if isinstance(row := from_json(line), RoundDone)]
    except (OSError, FedszError) as err:
        raise ConfigError(f"cannot read {folder / ROUNDS}: {err}") from err
    by_number = {row.round: row for row in rows}
    for number, decision, again in replay(policy_of(config), [observed(row) for row in rows]):
        yield Decided(by_number[number], decision, again)


def observed(row: RoundDone) -> Observation:
    """Return a line of rounds.jsonl as its policy saw it."""
    names = Observation.__struct_fields__
    return Observation(**{name: getattr(row, name) for name in names})
