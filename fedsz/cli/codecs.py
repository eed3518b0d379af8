"""``fedsz codecs`` and ``fedsz methods``: the choices for --codec and --update."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from fedsz.cli.output import print_table, say


@click.command("codecs")
def codecs() -> None:
    """List the codecs with their settings, and what this machine lacks for them."""
    from fedsz.codecs import CODECS, sandbox
    from fedsz.spec_strings import settings_of

    rows = [
        (x.name, "lossy" if x.lossy else "lossless", _written(settings_of(x)), x.missing() or "")
        for x in CODECS
    ]
    print_table(("codec", "kind", "settings", ""), rows)
    for line in sandbox.lacking():
        say(f"on this system {line}")


@click.command("methods")
def methods() -> None:
    """List the methods that --update composes, their settings, and the chains that have names."""
    from fedsz.methods import PRESETS, all_methods
    from fedsz.spec_strings import settings_of

    rows = [(x.name, _written(settings_of(x)), x.summary) for x in all_methods()]
    rows += [(preset.name, preset.chain, preset.summary) for preset in PRESETS]
    print_table(("method", "settings or chain", ""), rows)
    say("Any of `fedsz codecs` may come last: a lossy one with its bound, such as uniform@std:1.")


def _written(settings: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in settings.items())
