"""``fedsz dashboard``: the live page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    run_dir: Annotated[Path, typer.Argument(help="The folder of a run, finished or not.")],
    *,
    listen: Annotated[
        str,
        typer.Option(
            help="HOST:PORT to serve on, or one of the two. [dim]Default: 127.0.0.1:8265.[/]",
            show_default=False,
        ),
    ] = "",
    token: Annotated[
        str, typer.Option(help="File with the token that browsers need; not required on loopback.")
    ] = "",
) -> None:
    """Show a run in a browser: its rounds as they end, its decisions and its clients.

    The page loads nothing but from this machine.
    """
    import time

    from fedsz.monitoring.live_page import Dashboard, served

    with served(Dashboard(run_dir), listen, token) as url:
        print(f"dashboard at {url}", flush=True)
        while True:
            time.sleep(3600)
