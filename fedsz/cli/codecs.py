"""``fedsz codecs``: what there is to choose from."""

from __future__ import annotations

from fedsz.cli.options import Json
from fedsz.cli.output import print_json


def command(*, json: Json = False) -> None:
    """List the codecs, their settings, and what this machine lacks."""
    import dataclasses

    from fedsz.codecs import CODECS

    settings = {
        codec.name: {field.name: getattr(codec, field.name) for field in dataclasses.fields(codec)}
        for codec in CODECS
    }
    if json:
        rows = [
            {
                "name": codec.name,
                "lossy": codec.lossy,
                "settings": settings[codec.name],
                "missing": codec.missing(),
            }
            for codec in CODECS
        ]
        print_json(rows)
        return
    for codec in CODECS:
        chosen = ",".join(f"{name}={value}" for name, value in settings[codec.name].items())
        kind = "lossy" if codec.lossy else "lossless"
        print(f"{codec.name:10}{kind:10}{chosen:26}{codec.missing() or ''}".rstrip())
