"""``fedsz client``: a device of a fleet."""

from __future__ import annotations

from fedsz.cli.options import configured
from fedsz.training.options import CLIENT, RunConfig


@configured(CLIENT)
def command(config: RunConfig) -> None:
    """Train on this device for a server, until its run is over."""
    from fedsz.training.fleet import join

    join(config)
