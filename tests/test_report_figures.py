"""Figures of reports: colours, lines, what they say in words, scaling."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from fedsz.errors import ConfigError
from fedsz.experiments.results import SCALING, Results
from fedsz.report.chart import Chart, Omitted
from fedsz.report.runs import settings_of
from fedsz.report.scaling import scaling_figure
from fedsz.report.series import log_axis
from fedsz.report.source import read_source
from fedsz.report.style import COLOURS, files, inline, line_styles
from tests.reports import few, ids, report, rows, told
from tests.sweeps import written


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("sweep") / "trial.parquet", rows())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("small") / "trial.parquet", few())


def test_figures_follow_the_colours_of_the_page(sweep: Path, tmp_path: Path) -> None:
    page = report(sweep, tmp_path)

    body = page.split("<body>")[1]
    assert set(re.findall(r"#[0-9a-f]{6}", body)) <= {"#ffffff"}  # of masks, if any
    assert {f"var(--{name})" for name in ("ink", "blue", "rule")} <= set(
        re.findall(r"var\(--[a-z]+\)", body)
    )
    for _, dark in COLOURS.values():
        assert dark in page.split("<body>")[0]


@pytest.mark.parametrize(("column", "ground"), [(0, "#f6f7f9"), (1, "#1e2026")])
def test_colours_stand_out(column: int, ground: str) -> None:
    def luminance(colour: str) -> float:  # WCAG 2.1
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for name, pair in COLOURS.items():
        high, low = sorted((luminance(pair[column]), luminance(ground)), reverse=True)
        least = {"ink": 7, "soft": 4.5, "rule": 1}.get(name, 3)
        assert (high + 0.05) / (low + 0.05) >= least, name


def test_looks_tell_many_lines_apart() -> None:
    names = [f"uniform:effort={i}" for i in range(30)]
    found = line_styles(names)

    assert len({(look.colour, str(look.dashes), look.marker) for look in found.values()}) == 31
    assert line_styles(reversed(names)) == found


def test_an_svg_says_what_it_shows(sweep: Path) -> None:
    from fedsz.report import accuracy

    (setting,) = settings_of(read_source(sweep))
    chart = accuracy.rounds_chart(setting, line_styles(group.label for group in setting.groups))
    assert isinstance(chart, Chart)
    for svg, panel in zip(inline(chart), chart.panels, strict=True):
        root = ET.fromstring(svg)  # noqa: S314
        assert root.attrib["aria-label"] == panel.says
        assert "uniform" in panel.says


def point(kind: str, how: str, workers: int, clients: int, seconds: float) -> dict[str, Any]:
    return {
        "kind": kind, "how": how, "workers": workers, "clients": clients, "seconds": seconds,
        "model": "cnn", "link": "own" if how == "calculated" else "none", "machine": "a machine",
    }  # fmt: skip


def test_scaling(small: Path, tmp_path: Path) -> None:
    points_ = [point("weak", "measured", min(n, 2), n, 1.0 + n) for n in (1, 2, 4)]
    points_ += [point("weak", "calculated", n, n, 1.0 + n) for n in (1, 100, 10_000)]
    points_ += [point("strong", "measured", w, 8, 9.0 / w) for w in (1, 2)]
    path = tmp_path / "scaling.parquet"
    with Results(path, SCALING) as results:
        results.add(points_)

    page = told(small, tmp_path, scaling=path)

    assert ids(page, "figure")[-1] == "scaling"
    assert "at most 2 workers" in page
    chart = scaling_figure(points_)
    assert isinstance(chart, Chart)
    assert [panel.title[:4] for panel in chart.panels] == ["Weak", "Stro"]
    assert set(files(chart)) == {"svg", "png"}
    assert isinstance(scaling_figure([]), Omitted)
    assert isinstance(scaling_figure([point("weak", "measured", 1, 1, math.nan)]), Omitted)
    with pytest.raises(ConfigError, match="no scaling 'odd'; have weak, strong"):
        scaling_figure([point("odd", "measured", 1, 1, 1.0)])
    with pytest.raises(ConfigError, match="sweep"):
        report(small, tmp_path, scaling=small)
    with pytest.raises(ConfigError, match="scaling"):
        report(path, tmp_path)


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
