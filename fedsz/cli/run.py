"""``fedsz run``: a whole federation on this machine."""

from __future__ import annotations

from fedsz.cli.options import Json, configured
from fedsz.training.options import RUN, RunConfig


@configured(RUN)
def command(config: RunConfig, *, json: Json = False) -> None:
    """Train on this machine: a server and N clients, each a process, over gRPC on loopback."""
    from contextlib import closing

    from fedsz.cli.table import RunTable
    from fedsz.training.events import to_json
    from fedsz.training.local_fleet import run_local

    with closing(run_local(config)) as events:
        if json:
            for event in events:
                print(to_json(event), flush=True)
            return
        with RunTable() as table:
            for event in events:
                table.show(event)
