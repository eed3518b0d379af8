"""``fedsz decisions``: what a run's policy decided, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsz.cli.options import Json


def command(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run.")], *, json: Json = False
) -> None:
    """Show how each round of a run was sent and why, and decide it again from its record.

    The exit code is 1 if a policy would not decide as it did.
    """
    from fedsz.training.decisions import decisions

    decided = list(decisions(run_dir))
    if json:
        import msgspec

        for one in decided:
            print(
                msgspec.json.encode(
                    {"round": one.record.round, "decision": one.decision, "again": one.again}
                ).decode()
            )
    else:
        from rich.console import Console
        from rich.table import Table

        # No frame: reasons are long, and terminals have 80 columns.
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in ("round", "update", "bound", "downlink", "accuracy", "up", "why"):
            right = name in ("round", "accuracy", "up")
            table.add_column(name, justify="right" if right else "left", overflow="fold")
        for one in decided:
            config, row = one.decision.config, one.record
            table.add_row(
                str(row.round),
                config.update,
                config.error_bound,
                config.downlink,
                "-" if row.accuracy is None else f"{100 * row.accuracy:.2f} %",
                f"{row.ratio:.1f}x" if row.ratio else "-",
                one.decision.why or "as the options say",
            )
        console = Console()
        console.print(table, markup=False)
        differ = [str(one.record.round) for one in decided if not one.same]
        verdict = f"differ in round {', '.join(differ)}" if differ else "the same again"
        console.print(f"{len(decided)} decisions: {verdict}", highlight=False)
    if not all(one.same for one in decided):
        raise typer.Exit(1)


command.__name__ = "decisions"
