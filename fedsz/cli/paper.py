"""``fedsz paper``: hands over to ``benchmarks/paper/``, which only a checkout has."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click
import typer

from fedsz.errors import ConfigError

CHECKOUT: Final = Path(__file__).parents[2]

# All that is typed, --help too, is for the command in benchmarks/.
HANDED_OVER: Final = {
    "allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": [],
}  # fmt: skip


def command(context: typer.Context) -> None:
    """Make the FedSZ paper's tables and figures, and print our numbers beside its own.

    It needs a checkout of fedsz.
    """
    whole().main(context.args, prog_name=context.command_path, standalone_mode=False)


def whole() -> click.Command:
    """Return the command with all of its options.

    Raises:
        ConfigError: this is no checkout.
    """
    if not (CHECKOUT / "benchmarks" / "paper").is_dir():
        raise ConfigError(
            "the paper's tables and figures are in benchmarks/paper of fedsz's source and not in"
            " the package: run python -m benchmarks.paper in a checkout"
        )
    sys.path.insert(0, str(CHECKOUT))
    from benchmarks.paper.command import app

    found: click.Command = typer.main.get_command(app)
    return found
