"""``fedsz client``: a device of a fleet."""

from __future__ import annotations

from fedsz.cli.options import Json, configured
from fedsz.cli.output import failure_as_json
from fedsz.training.options import CLIENT, RunConfig


@configured(CLIENT)
def command(config: RunConfig, *, json: Json = False) -> None:
    """Train on this device for a server, until its run is over."""
    from fedsz.training.fleet import join

    with failure_as_json(json=json):
        join(config)
