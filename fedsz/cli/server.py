"""``fedsz server``: the server of a fleet."""

from __future__ import annotations

from fedsz.cli.options import Json, configured, failure_as_json
from fedsz.training.options import SERVER, RunConfig


@configured(SERVER)
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
