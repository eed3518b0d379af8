"""Draw one round, and the module of each part: ``python docs/draw_round.py``."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final, NamedTuple

PICTURE: Final = Path(__file__).with_name("round.svg")
WIDTH, HEIGHT = 980, 430
BOX_WIDTH, BOX_HEIGHT = 210, 62


class Box(NamedTuple):
    """A part of a round: its corner, the module, and what that does."""

    x: int
    y: int
    module: str
    does: str


BOXES: Final = {
    "strategy": Box(20, 40, "any strategy", "the server's own model"),
    "control": Box(20, 195, "control/", "settings by the rounds before"),
    "statistics": Box(20, 350, "flower/round_statistics.py", "record and log line of a round"),
    "outgoing": Box(270, 40, "flower/outgoing.py", "encode once, a stream a client"),
    "broadcast": Box(270, 120, "core/broadcast.py", "key frame, or integer deltas"),
    "update": Box(270, 270, "flower/update.py", "step onto the server's model"),
    "incoming": Box(270, 350, "flower/incoming.py, rules.py", "checks, then limits"),
    "requests": Box(520, 195, "flower/requests.py", "one message, one outcome each"),
    "receive": Box(750, 40, "flower/mod.py, store.py", "reference, apart from the app"),
    "client": Box(750, 120, "core/client.py", "receive: compare digests"),
    "app": Box(750, 195, "any Flower app", "trains on plain arrays"),
    "reply": Box(750, 270, "core/client.py, feedback.py", "reply: add the residual"),
    "coders": Box(750, 350, "core/coders.py, codecs/", "the difference, within a bound"),
}
ARROWS: Final = (
    ("strategy", "outgoing"), ("control", "outgoing"), ("outgoing", "broadcast"),
    ("broadcast", "requests"), ("requests", "receive"), ("receive", "client"), ("client", "app"),
    ("app", "reply"), ("reply", "coders"), ("coders", "requests"), ("requests", "incoming"),
    ("incoming", "update"), ("update", "strategy"), ("incoming", "statistics"),
    ("statistics", "control"),
)  # fmt: skip


def _ends(a: Box, b: Box) -> tuple[float, float, float, float]:
    """Return where an arrow leaves one box and reaches the other: at the sides that face."""
    if a.x == b.x:
        x, down = a.x + BOX_WIDTH / 2, a.y < b.y
        return x, a.y + BOX_HEIGHT * down, x, b.y + BOX_HEIGHT * (not down)
    right, middle = a.x < b.x, BOX_HEIGHT / 2
    return a.x + BOX_WIDTH * right, a.y + middle, b.x + BOX_WIDTH * (not right), b.y + middle


def draw() -> str:
    """Return the picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="13">',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<rect x="8" y="8" width="484" height="{HEIGHT - 16}" rx="10" fill="#f3f6fb"/>',
        f'<rect x="738" y="8" width="234" height="{HEIGHT - 16}" rx="10" fill="#f6f3fb"/>',
        '<text x="20" y="28" fill="#555">server</text>',
        '<text x="750" y="28" fill="#555">client</text>',
    ]
    for start, end in ARROWS:
        x, y, to_x, to_y = _ends(BOXES[start], BOXES[end])
        parts.append(
            f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{to_x:.0f}" y2="{to_y:.0f}" stroke="#555"'
            ' marker-end="url(#end)"/>'
        )
    for box in BOXES.values():
        middle = box.x + BOX_WIDTH / 2
        parts += [
            f'<rect x="{box.x}" y="{box.y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"'
            ' fill="#fff" stroke="#8090b0"/>',
            f'<text x="{middle:.0f}" y="{box.y + 26}" text-anchor="middle" fill="#111">'
            f"{escape(box.module)}</text>",
            f'<text x="{middle:.0f}" y="{box.y + 46}" text-anchor="middle" fill="#555"'
            f' font-size="12">{escape(box.does)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
