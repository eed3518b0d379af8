"""``fedsz decisions``: what a run's policy decided, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedsz.cli.options import Json
from fedsz.cli.output import print_json, print_table, say
from fedsz.control.round_numbers import NUMBERS
from fedsz.core.settings import EXACT

if TYPE_CHECKING:
    from fedsz.training.decisions import Decided


def command(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run.")], *, json: Json = False
) -> None:
    """Show how each round of a run was compressed and why, and check it against its record.

    The exit code is 1 if a policy would not decide as it did.
    """
    from fedsz.training.decisions import decisions

    rows, reasons, differ = [], [], []  # and no records: those of a long run are gigabytes
    for one in decisions(run_dir):
        number = one.record.round
        if not one.same:
            differ.append(str(number))
        if json:
            print_json({"round": number, "decision": one.decision, "again": one.again})
        else:
            rows.append(_cells(one))
            reasons.append(f"round {number}: {one.decision.why or 'as the options say'}")
    if not json:
        heads = ("round", "update", "bound", "downlink", "accuracy", "up", "energy", "residual")
        words = ("update", "bound", "downlink")
        print_table([head if head in words else f">{head}" for head in heads], rows)
        # Reasons are sentences: in a column, a narrow screen would leave a word a line.
        for reason in reasons:
            say(reason)
        verdict = f"differ in round {', '.join(differ)}" if differ else "the same again"
        say(f"{len(rows)} decisions: {verdict}")
    if differ:
        raise typer.Exit(1)


def _cells(one: Decided) -> tuple[str, ...]:
    config, row = one.decision.config, one.record
    accuracy = "-" if row.accuracy is None else f"{100 * row.accuracy:.2f} %"
    ratio = f"{row.ratio:.1f}x" if row.ratio else "-"
    sent = (config.update, _short(config.error_bound), _short(config.downlink))
    arrived = NUMBERS["energy_fraction"].text(row), NUMBERS["residual_ratio"].text(row)
    return (str(row.round), *sent, accuracy, ratio, *arrived)


def _short(bound: str) -> str:
    """Return a bound to four digits, and any other downlink as it is: --json has them all."""
    kind, colon, number = bound.rpartition(":")
    return f"{kind}{colon}{float(number):.4g}" if bound != EXACT else bound
