"""The colours of reports and of the dashboard."""

from __future__ import annotations

from typing import Final

# Name -> colour on white, colour on dark. The hues are Okabe and Ito's, which people who see few
# colours tell apart, made darker or lighter until they stand out from the background by 3 to 1.
COLOURS: Final = {
    "blue": ("#0072b2", "#56b4e9"),
    "red": ("#d55e00", "#ff8f4a"),
    "green": ("#00805f", "#2fcc9e"),
    "purple": ("#a8437d", "#e79ac8"),
    "gold": ("#806600", "#f0c94b"),
    "indigo": ("#5b4fc7", "#aaa3ff"),
    "brown": ("#7a4b3a", "#d9a690"),
    "ink": ("#1c1d22", "#ececf2"),
    "soft": ("#5d626e", "#a5abb8"),
    "rule": ("#d5d8df", "#3b3f49"),
}
GROUNDS: Final = {"page": ("#ffffff", "#15161a"), "card": ("#f6f7f9", "#1e2026")}


def css() -> str:
    """Return all of these as variables of a style sheet: on white, and on dark screens."""
    light, dark = (
        " ".join(f"--{name}: {pair[i]};" for name, pair in {**GROUNDS, **COLOURS}.items())
        for i in (0, 1)
    )
    return (
        f":root {{ {light} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{\n  :root {{ {dark} }}\n}}\n"
    )
