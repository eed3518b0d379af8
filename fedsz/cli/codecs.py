"""``fedsz codecs``: what there is to choose from."""

from __future__ import annotations

from typing import Any

from fedsz.cli.options import Json
from fedsz.cli.output import print_json


def command(*, json: Json = False) -> None:
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
