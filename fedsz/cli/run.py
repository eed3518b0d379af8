"""``fedsz run``: a whole federation on this machine."""

from __future__ import annotations

from fedsz.cli.options import Json, configured
from fedsz.cli.output import warn, warn_of_update
from fedsz.training.option import RUN
from fedsz.training.options import RunConfig


@configured(RUN)
def command(config: RunConfig, *, json: Json = False) -> None:
    """Train on this machine: a server and N clients, each a process, over gRPC on loopback."""
    from contextlib import closing

    from fedsz.cli.table import events_shown
    from fedsz.monitoring.watchers import watched
    from fedsz.training.local_fleet import run_local, why_too_many

    warn_of_update(config)
    warn(why_too_many(config.clients))
    with (
        closing(run_local(config)) as events,
        events_shown(json=json) as show,
        watched(config, show) as tell,
    ):
        for event in events:
            tell(event)
