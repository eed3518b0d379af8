"""Draw the rooms of fedsz/ and the imports between them: ``python docs/draw_rooms.py``.

The arrows are read from the source. An arrow that follows from others is left out: a room may use
all rooms that arrows lead to.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PICTURE: Final = ROOT / "docs" / "rooms.svg"
SHARED: Final = "shared"  # the modules of fedsz/ itself
# The doors of the house, which lead everywhere. `fedsz.flower` also names what stands above it, and
# `fedsz.plugins` finds contrib and privacy.
DOORS: Final = ("fedsz", "fedsz.__main__", "fedsz.flower", "fedsz.plugins")

# From top to bottom: a room imports none that stands above it.
ROOMS: Final = {
    "cli": "a command: its options, what it prints",
    "report": "a chart or table of the HTML report",
    "monitoring": "a run that is watched: the live page, metrics, trackers",
    "experiments": "sweeps, benchmarks, advice; the columns of result files",
    "training": "the application: run options, data sets, models, rounds",
    "nvflare": "compression for any NVFlare job: filters of both ends",
    "contrib": "methods, policies and strategies that one paper has",
    "privacy": "secure sums and differential privacy, Flower's side too",
    "flower": "compression for any Flower app: mod, grid, strategy",
    "transport": "Flower's messages over gRPC: frames, sessions, TLS",
    "control": "the record of a round; policies that decide the next one",
    "core": "a state_dict compressed: differences, error feedback",
    "stream": "the bytes of docs/format.md: written, checked, inspected",
    "methods": "sparsifiers, quantisers, error feedback: stages of a pipeline",
    "codecs": "one array within one bound, by name and wire id",
    SHARED: "errors, error bounds, arrays, names with settings",
}


def module_name(path: Path) -> str:
    """Return the import name of a source file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the names within fedsz that a piece of source imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "fedsz has no relative imports"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == "fedsz")


def room_of(name: str) -> str:
    """Return the room that a dotted name below fedsz lies in."""
    room = name.split(".")[1]
    return room if room in ROOMS else SHARED


def imports() -> dict[str, set[str]]:
    """Return, by room, the rooms that its modules import, within functions too."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for path in sorted((ROOT / "fedsz").rglob("*.py")):
        name = module_name(path)
        if name in DOORS:
            continue
        below = {room_of(target) for target in imported(ast.parse(path.read_text("utf-8")))
                 if target != "fedsz"}  # fmt: skip
        found[room_of(name)] |= below - {room_of(name)}
    return found


def reachable(arrows: dict[str, set[str]], room: str) -> set[str]:
    """Return all rooms that arrows lead to from ``room``."""
    found: set[str] = set()
    ahead = set(arrows[room])
    while ahead:
        found |= ahead
        ahead = set().union(*(arrows[other] for other in ahead)) - found
    return found


def reduced(arrows: dict[str, set[str]]) -> dict[str, list[str]]:
    """Return the arrows that do not follow from others, from top to bottom."""
    return {
        room: [
            other
            for other in ROOMS
            if other in below and not any(other in reachable(arrows, via) for via in below)
        ]
        for room, below in arrows.items()
    }


WIDTH, HEIGHT, GAP, LEFT, MARGIN = 640, 40, 22, 40, 8  # of a room, in pixels; around all
STEP: Final = HEIGHT + GAP


def draw(arrows: dict[str, list[str]]) -> str:
    """Return the SVG: a column of rooms, arrows to the next one down, others around the side."""
    top = {room: MARGIN + i * STEP for i, room in enumerate(ROOMS)}
    right, height = LEFT + WIDTH, MARGIN + len(ROOMS) * STEP - GAP + MARGIN
    boxes, lines, lanes = [], [], 0
    for room, purpose in ROOMS.items():
        y, middle = top[room], top[room] + 25
        boxes += [
            f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
            f'<text x="{LEFT + 16}" y="{middle}" class="room">{room}</text>',
            f'<text x="{LEFT + 140}" y="{middle}">{purpose}</text>',
        ]
        for below in arrows[room]:
            if top[below] == y + STEP:
                lines.append(f"M{LEFT + 60} {y + HEIGHT}V{top[below] - 2}")
                continue
            side, lanes = lanes % 2, lanes + 1  # right and left in turn
            edge, out = (LEFT, 8) if side else (right, right + LEFT - 8)
            tip = edge - 2 if side else edge + 2
            lines.append(f"M{edge} {y + HEIGHT / 2:g}H{out}V{top[below] + HEIGHT / 2:g}H{tip}")
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + LEFT} {height}"'
            ' role="img" aria-labelledby="title" font-family="system-ui, sans-serif"'
            ' font-size="15">',
            '<title id="title">The rooms of fedsz and what they import</title>',
            "<style>rect{fill:#f3f6fa;stroke:#8a9bb0}text{fill:#222}.room{font-weight:600}"
            "path{fill:none;stroke:#808890;stroke-width:1.6;marker-end:url(#tip)}</style>",
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7"'
            ' markerHeight="7" orient="auto"><polygon points="0,0 10,5 0,10" fill="#808890"/>'
            "</marker></defs>",
            *boxes,
            *(f'<path d="{line}"/>' for line in lines),
            "</svg>\n",
        )
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(reduced(imports())), "utf-8")
