"""ServerApps whose strategy is not started by hand, and so is not handed a Grid."""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsz.flower.grid import FedSZGrid


def compressed(app: ServerApp, *args: Any, **options: Any) -> ServerApp:
    """Return an app that does what ``app`` does on a `FedSZGrid`.

    For apps made of a ``server_fn``, or of a strategy and a config, which Flower itself starts.

    Args:
        app: any ServerApp.
        *args: of `FedSZGrid`, after its Grid.
        **options: likewise.

    Raises:
        ConfigError: as `FedSZGrid`, when the app runs.

    Examples:
        >>> from flwr.serverapp import ServerApp
        >>> from fedsz.flower import compressed
        >>> app = compressed(ServerApp(), error_bound="std:1")
    """
    outer = ServerApp()

    @outer.main()
    def main(grid: Grid, context: Context) -> None:
        app(FedSZGrid(grid, *args, **options), context)

    return outer
