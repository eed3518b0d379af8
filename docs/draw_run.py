"""Draw what a run prints, by running it: ``python docs/draw_run.py`` writes docs/run.svg."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "run.svg"
COMMAND: Final = ("run", "--config", "configs/quickstart.toml")
WIDTH: Final = 80  # columns
# Fonts from elsewhere, which a picture in a page cannot load, and Rich's own address.
FOREIGN: Final = re.compile(r"\s*(@font-face \{.*?\n    \}|<!--.*?-->)", re.DOTALL)


def printed() -> str:
    """Return what the run prints, without the lines in which it waits for clients."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "configs").symlink_to(ROOT / "configs")
        command = [sys.executable, "-m", "fedsz", *COMMAND, "--run-dir", "runs/quickstart"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return "\n".join(x for x in done.stdout.splitlines() if not x.startswith("waiting for clients"))


def draw(text: str) -> str:
    """Return a terminal with a command and what it printed, as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text(f"$ fedsz {' '.join(COMMAND)}", style="bold"))
    console.print(Text(text))
    return FOREIGN.sub("", console.export_svg(title="fedsz", unique_id="run"))


if __name__ == "__main__":
    PICTURE.write_text(draw(printed()), "utf-8")
