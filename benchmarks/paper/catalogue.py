"""Every table and figure there is; to add one, write its function and name its module here."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fedsz.errors import ConfigError

if TYPE_CHECKING:
    from benchmarks.paper.comparison import Comparison
    from benchmarks.paper.measurements import Measurements

# Names, and the modules of this package with a function of each, `table_1` and so on. They are
# imported when they are made: they need packages that `fedsz --help` does without.
CATALOGUE: Final = {
    **dict.fromkeys(("table 1", "table 2", "table 3", "table 5"), "tables"),
    **{f"figure {number}": "figures" for number in range(2, 11)},
    **dict.fromkeys(("figure 4", "figure 5", "figure 6"), "run_figures"),
    "figure 9": "scaling_figure",
}
NOTES: Final = tomllib.loads(Path(__file__).with_name("notes.toml").read_text("utf-8"))["notes"]
ABSENT: Final = {  # what there is no table or figure of ours for
    "table 4": "it describes the data sets",
    "figure 1": "it is a drawing of the pipeline; docs/pipeline.svg is ours",
}


def numbers(kind: str) -> list[int]:
    """Return the numbers of all tables (``kind="table"``) or of all figures ("figure")."""
    return [int(name.split()[1]) for name in CATALOGUE if name.startswith(kind)]


def select(table_numbers: Iterable[int], figure_numbers: Iterable[int]) -> list[str]:
    """Return the names of the tables and figures with these numbers, in the paper's order.

    Raises:
        ConfigError: there is none of a number, or none was asked for.
    """
    names = [f"table {n}" for n in table_numbers] + [f"figure {n}" for n in figure_numbers]
    for name in names:
        if name not in CATALOGUE:
            have = ", ".join(map(str, numbers(name.split()[0])))
            raise ConfigError(f"no {name}: {ABSENT.get(name, 'the paper has none')}; have {have}")
    if not names:
        raise ConfigError(
            f"give --table {'|'.join(map(str, numbers('table')))},"
            f" --figure {min(numbers('figure'))}..{max(numbers('figure'))} or --all"
        )
    return [name for name in CATALOGUE if name in names]


def notes_on(name: str) -> list[str]:
    """Return the notes on a table or figure, such as "table 1"."""
    return [note["text"] for note in NOTES if name in note["on"]]


def make(name: str, measurements: Measurements) -> Comparison:
    """Make one of `CATALOGUE`, add what is to be known about it, and write the figure's files.

    Raises:
        FedszError: something could not be measured, trained or written.
    """
    from benchmarks.paper.comparison import write

    module = import_module(f"benchmarks.paper.{CATALOGUE[name]}")
    made: Comparison = getattr(module, name.replace(" ", "_"))(measurements)
    here = [measurements.machine] if made.here else []
    made_from, notes = [*here, *made.made_from], [*notes_on(name), *made.notes]
    made = msgspec.structs.replace(made, name=name, made_from=made_from, notes=notes)
    written = write(made, measurements.options.folder) if made.panels else []
    return msgspec.structs.replace(made, files=[*written, *made.files])
