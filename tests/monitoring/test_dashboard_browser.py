"""The live page in a browser, with a thousand clients and a thousand rounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

from fedsz.monitoring.live_page import Dashboard, served
from fedsz.training.events import to_json
from fedsz.training.run_folder import ROUNDS
from tests.chromium import Page, browser, executable
from tests.monitoring.watched_runs import record, write_run

pytestmark = [pytest.mark.release, pytest.mark.slow]
CHARTS = ["accuracy", "loss", "traffic", "energy_fraction", "time"]
TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"
DRAWN = """[...document.querySelectorAll('figure')].map(f => {
  const canvas = f.querySelector('canvas');
  if (!canvas) return [f.id, 0];
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] == 255)
    colours.add(pixels[i] * 65536 + pixels[i + 1] * 256 + pixels[i + 2]);
  return [f.id, colours.size];
})"""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    path = executable()
    if path is None:
        pytest.skip("there is no chromium here")
    with browser(path) as opened:
        yield opened


def opened(page: Page, folder: Path, rounds: int) -> Iterator[Path]:
    with served(Dashboard(folder), "0") as url:
        page.open(url)
        page.wait_until(f"rows.length === {rounds}")
        yield folder


@pytest.fixture(scope="module")
def large(page: Page, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = write_run(tmp_path_factory.mktemp("large") / "run", 1000, 1000, finished=False)
    yield from opened(page, folder, 1001)


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_large_run_is_seen_on_any_screen(
    page: Page, large: Path, width: int, scheme: str
) -> None:
    page.show(width, scheme)
    page.open(page.value("location.href"))
    page.wait_until("rows.length >= 1001")

    drawn = dict(page.value(DRAWN))
    assert list(drawn) == CHARTS
    assert min(drawn.values()) >= 2, drawn
    assert not page.value(TOO_WIDE)
    assert page.value("byId('decisions').tBodies[0].rows.length") == 200
    assert page.value("byId('clients').tBodies[0].rows.length") == 200
    assert page.value("byId('clients-title').textContent") == "Clients (1000)"
    assert page.value("byId('facts').textContent").startswith("Round1000 of 1000")
    dark = page.value("getComputedStyle(document.body).backgroundColor") == "rgb(21, 22, 26)"
    assert dark == (scheme == "dark")
    assert not troubles(page)


def test_rounds_are_drawn_as_they_end(page: Page, large: Path) -> None:
    with (large / ROUNDS).open("a") as file:
        file.write(to_json(record(1001, 1000)) + "\n")

    page.wait_until("rows.length === 1002 && charts.every(c => c.data[0].length === 1002)")
    assert page.value("byId('status').textContent") == "round 1001 was the last to end"


def test_a_run_without_rounds_says_so(page: Page, tmp_path: Path) -> None:
    for _ in opened(page, write_run(tmp_path / "run", -1), 0):
        page.wait_until("byId('status').textContent === 'no rounds yet'")
        assert not troubles(page)


def test_what_clients_say_is_text(page: Page, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 2)
    name = "<img src=x onerror=document.title='taken'>"
    text = (folder / ROUNDS).read_text().replace("pi-0001", name)
    (folder / ROUNDS).write_text(text)

    for _ in opened(page, folder, 3):
        page.wait_until("byId('clients').tBodies[0].rows.length === 4")
        assert name in page.value("byId('clients').innerText")
        assert page.value("document.querySelector('img')") is None
        assert not troubles(page)


def troubles(page: Page) -> list[object]:
    """Errors in scripts, what the content security policy has blocked, and files not found."""
    return [
        event
        for event in page.events
        if event.get("method") == "Runtime.exceptionThrown"
        or (
            event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"
        )
    ]
