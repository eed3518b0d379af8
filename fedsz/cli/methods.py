"""``fedsz methods``: the parts that chains of updates are made of."""

from __future__ import annotations

from typing import Any

from fedsz.cli.options import Json
from fedsz.cli.output import print_json


def command(*, json: Json = False) -> None:
    """List the methods that --update composes, their settings, and the chains that have names."""
    from fedsz.methods import METHODS, PRESETS
    from fedsz.spec_strings import settings_of

    rows: list[dict[str, Any]] = [
        {
            "name": method.name,
            "settings": {name: str(value) for name, value in settings_of(method).items()},
            "summary": method.summary,
        }
        for method in METHODS
    ]
    rows += [{"name": p.name, "chain": p.chain, "summary": p.summary} for p in PRESETS]
    if json:
        print_json(rows)
        return
    for row in rows:
        settings = ",".join(f"{name}={value}" for name, value in row.get("settings", {}).items())
        print(f"{row['name']:12}{row.get('chain', settings):45}{row['summary']}".rstrip())
    print("Any of `fedsz codecs` may come last: a lossy one with its bound, such as uniform@std:1.")
