"""All that watches a server's run, as its options say."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from fedsz.monitoring.live_round import LiveRound
from fedsz.training.events import Event, Watched
from fedsz.training.options import RunConfig
from fedsz.transport.address import Address

logger = logging.getLogger(__name__)

OnEvent = Callable[[Event], None]


@contextmanager
def watched(config: RunConfig, show: OnEvent) -> Iterator[OnEvent]:
    """Give a function for a server's events, which tells ``show`` and all that watches the run.

    A mistake of what watches is logged, and never ends the run.

    Raises:
        ConfigError: an option is wrong.
        MissingPackage: a package is not installed.
        LinkError: a port is in use.
    """
    watchers: list[OnEvent] = []
    with ExitStack() as stack:
        if config.dashboard:
            from fedsz.monitoring.live_page import Dashboard, served

            tls = (config.tls_cert, config.tls_key) if config.tls_cert and config.tls_key else None
            dashboard = Dashboard(live=LiveRound())
            page = served(dashboard, config.dashboard, config.dashboard_token, tls)
            show(Watched("dashboard", stack.enter_context(page)))
            watchers.append(dashboard.show)
        if config.metrics_port:
            from fedsz.monitoring.metrics import Metrics
            from fedsz.monitoring.web_server import WebServer

            metrics = Metrics()
            address = Address(config.metrics_host, config.metrics_port)
            server = stack.enter_context(WebServer(metrics.app(), address))
            show(Watched("metrics", f"{server.url}metrics"))
            watchers.append(metrics.show)
        if config.track:
            from fedsz.monitoring.tracking import Tracking

            tracking = Tracking(config.track, options=config.as_dict())
            watchers.append(stack.enter_context(tracking).show)

        def tell(event: Event) -> None:
            for watcher in watchers:
                try:
                    watcher(event)
                except Exception:
                    logger.exception("the run goes on, but what watches it failed")
            show(event)

        yield tell
