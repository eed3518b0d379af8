"""``fedsz methods``: the stages that chains of updates are made of."""

from __future__ import annotations

from typing import Any

from fedsz.cli.options import Json
from fedsz.cli.output import print_json


def command(*, json: Json = False) -> None:
    """List the methods that --update composes, their settings, and the chains that have names."""
    from fedsz.methods import PRESETS, all_methods
    from fedsz.spec_strings import settings_of

    rows: list[dict[str, Any]] = [
        {
            "name": method.name,
            "settings": {name: str(value) for name, value in settings_of(method).items()},
            "summary": method.summary,
        }
        for method in all_methods()
    ]
    rows += [{"name": p.name, "chain": p.chain, "summary": p.summary} for p in PRESETS]
    if json:
        print_json(rows)
        return
    lines = [(row["name"], row.get("chain") or _written(row), row["summary"]) for row in rows]
    names, chains = (max(len(line[column]) for line in lines) + 2 for column in (0, 1))
    for name, chain, summary in lines:
        print(f"{name:{names}}{chain:{chains}}{summary}")
    print("Any of `fedsz codecs` may come last: a lossy one with its bound, such as uniform@std:1.")


def _written(row: dict[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in row["settings"].items())
