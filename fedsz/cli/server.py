"""``fedsz server``: the server of a fleet."""

from __future__ import annotations

from fedsz.cli.options import PANELS, Json, configured, failure_as_json
from fedsz.training.options import RunConfig

CLIENTS_OWN = {"server", "partition", "client_id", "max_wait", "clients"}
NAMES = [name for names in PANELS.values() for name in names if name not in CLIENTS_OWN]


@configured(*NAMES)
def command(config: RunConfig, *, json: Json = False) -> None:
    """Serve a training run to clients on other machines, over gRPC."""
    from fedsz.cli.table import RunTable
    from fedsz.training.events import to_json
    from fedsz.training.fleet import serve

    if json:
        with failure_as_json():
            serve(config, lambda event: print(to_json(event), flush=True))
        return
    with RunTable() as table:
        serve(config, table.show)
