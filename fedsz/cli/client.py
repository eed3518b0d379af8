"""``fedsz client``: a device of a fleet."""

from __future__ import annotations

from fedsz.cli.options import Json, configured
from fedsz.cli.output import failure_as_json
from fedsz.training.options import CLIENT, RunConfig


@configured(CLIENT)
def command(config: RunConfig, *, json: Json = False) -> None:
    """Train on this device for a server, until the run ends."""
    from fedsz.cli.client_lines import lines_shown

    with failure_as_json(json=json), lines_shown(config.server, json=json) as on_event:
        from fedsz.training.fleet import join  # takes seconds, of which the screen tells

        join(config, on_event)
