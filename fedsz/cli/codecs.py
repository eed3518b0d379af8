"""``fedsz codecs`` and ``fedsz methods``: the choices for --codec and --update."""

from __future__ import annotations

from typing import Any

import click

from fedsz.cli.options import json_option
from fedsz.cli.output import print_json


@click.command("codecs")
@json_option
def codecs(*, json: bool) -> None:
    """List the codecs with their settings, and what this machine lacks for them."""
    import dataclasses

    from fedsz import system
    from fedsz.codecs import CODECS, sandbox

    rows: list[dict[str, Any]] = [
        {
            "name": codec.name,
            "lossy": codec.lossy,
            "settings": {x.name: getattr(codec, x.name) for x in dataclasses.fields(codec)},
            "missing": codec.missing(),
        }
        for codec in CODECS
    ]
    if json:
        print_json(rows)
        return
    for row in rows:
        chosen = ",".join(f"{name}={value}" for name, value in row["settings"].items())
        kind = "lossy" if row["lossy"] else "lossless"
        print(f"{row['name']:10}{kind:10}{chosen:26}{row['missing'] or ''}".rstrip())
    for line in (*system.lacking(), *sandbox.lacking()):
        print(f"on this system {line}")


@click.command("methods")
@json_option
def methods(*, json: bool) -> None:
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
