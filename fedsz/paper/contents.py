"""Every table and figure there is, by name."""

from __future__ import annotations

from typing import Final

from fedsz.paper import runs, tables, times, weights
from fedsz.paper.workshop import Make

MAKERS: Final[dict[str, Make]] = {
    "table 1": tables.table_1,
    "table 2": tables.table_2,
    "table 3": tables.table_3,
    "table 5": tables.table_5,
    "figure 2": weights.figure_2,
    "figure 3": weights.figure_3,
    "figure 4": runs.figure_4,
    "figure 5": runs.figure_5,
    "figure 6": times.figure_6,
    "figure 7": times.figure_7,
    "figure 8": times.figure_8,
    "figure 9": runs.figure_9,
    "figure 10": weights.figure_10,
}
