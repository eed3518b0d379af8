"""Figures of reports: colours, lines, axes, scaling."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from fedsz.errors import ConfigError
from fedsz.experiments.results import SCALING, Results
from fedsz.palette import COLOURS, GROUNDS
from fedsz.report import write_report
from fedsz.report.chart import Chart, Omitted
from fedsz.report.series import log_axis
from fedsz.report.style import files, line_styles
from fedsz.report.times import scaling_figure
from tests.reports import trial
from tests.sweeps import written


@pytest.mark.parametrize("column", [0, 1])
def test_colours_stand_out(column: int) -> None:
    def luminance(colour: str) -> float:  # WCAG 2.1
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    ground = luminance(GROUNDS["card"][column])
    for name, pair in COLOURS.items():
        high, low = sorted((luminance(pair[column]), ground), reverse=True)
        least = {"ink": 7, "soft": 4.5, "rule": 1}.get(name, 3)
        assert (high + 0.05) / (low + 0.05) >= least, name


def test_looks_tell_many_lines_apart() -> None:
    names = [f"uniform:effort={i}" for i in range(30)]
    found = line_styles(names)

    assert len({(look.colour, str(look.dashes), look.marker) for look in found.values()}) == 31
    assert line_styles(reversed(names)) == found


def point(kind: str, how: str, workers: int, clients: int, seconds: float) -> dict[str, Any]:
    return {
        "kind": kind, "how": how, "workers": workers, "clients": clients, "seconds": seconds,
        "model": "cnn", "link": "own" if how == "calculated" else "none", "machine": "a machine",
    }  # fmt: skip


def test_scaling(tmp_path: Path) -> None:
    points = [point("weak", "measured", min(n, 2), n, 1.0 + n) for n in (1, 2, 4)]
    points += [point("weak", "calculated", n, n, 1.0 + n) for n in (1, 100, 10_000)]
    points += [point("strong", "measured", w, 8, 9.0 / w) for w in (1, 2)]
    path = tmp_path / "scaling.parquet"
    with Results(path, SCALING) as results:
        results.add(points)
    sweep = written(tmp_path / "x.parquet", [row for row in trial() if row.get("error")])

    page = write_report(sweep, tmp_path / "x.html", scaling=path).read_text("utf-8")

    assert page.count("<figure id=") == page.count('<figure id="scaling"') == 1
    assert "at most 2 workers" in page
    chart = scaling_figure(points)
    assert isinstance(chart, Chart)
    weak, strong = chart.panels
    assert (weak.title[:4], strong.title[:6]) == ("Weak", "Strong")
    assert "measured 2 s at 1, 5 s at 4" in weak.says
    assert "calculated, a link each 2 s at 1, 10,001 s at 10,000" in weak.says
    assert set(files(chart)) == {"svg", "png"}
    for none in ([], [point("weak", "measured", 1, 1, math.nan)]):
        assert isinstance(scaling_figure(none), Omitted)
    with pytest.raises(ConfigError, match="no scaling 'odd'; have weak, strong"):
        scaling_figure([point("odd", "measured", 1, 1, 1.0)])
    with pytest.raises(ConfigError, match="holds table 'scaling' of version 1; this takes 'sweep'"):
        write_report(path, tmp_path / "y.html")


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        ((13, 34), ["15", "20", "25", "30"]),  # neither 10 nor 50
        ((0.8, 30), ["1", "2", "5", "10", "20"]),
        ((0.5, 5000), ["1", "10", "100", "1,000"]),
    ],
)
def test_a_logarithmic_axis_has_two_names_at_least(
    limits: tuple[float, float], named: list[str]
) -> None:
    figure = Figure()
    ax = figure.subplots()
    ax.set_xscale("log")
    ax.set_xlim(*limits)

    log_axis(ax.xaxis, lambda value: f"{value:,g}")
    figure.draw_without_rendering()

    shown = [
        x.get_text() for x in ax.get_xticklabels() if limits[0] <= x.get_position()[0] <= limits[1]
    ]
    assert shown == named
