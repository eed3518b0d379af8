"""``fedsz server``: the server of a fleet."""

from __future__ import annotations

from fedsz.cli.options import Json, configured
from fedsz.cli.output import failure_as_json, warn_of_update
from fedsz.training.option import SERVER
from fedsz.training.options import RunConfig


@configured(SERVER)
def command(config: RunConfig, *, json: Json = False) -> None:
    """Serve a training run to clients on other machines, over gRPC."""
    from fedsz.cli.table import events_shown
    from fedsz.monitoring.watchers import watched
    from fedsz.training.fleet import serve

    warn_of_update(config)
    with failure_as_json(json=json), events_shown(json=json) as show, watched(config, show) as tell:
        serve(config, tell)
