"""``fedsz client``: a device of a fleet."""

from __future__ import annotations

from fedsz.cli.options import Json, configured
from fedsz.cli.output import failure_as_json
from fedsz.training.option import CLIENT
from fedsz.training.options import RunConfig


@configured(CLIENT)
def command(config: RunConfig, *, json: Json = False) -> None:
    """Train on this device for a server, until the run ends."""
    from contextlib import nullcontext

    from fedsz.cli.client_lines import ClientLines

    # Machines see that the process ends.
    screen = nullcontext() if json else ClientLines(config.server)
    with failure_as_json(json=json), screen as lines:
        from fedsz.training.fleet import join  # takes seconds, of which the screen tells

        join(config, lines.show if lines else None)
