"""A run's metrics for Prometheus, and whether its server is alive and ready."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from fedsz import extras
from fedsz.control.record import RoundRecord
from fedsz.control.round_numbers import NUMBERS
from fedsz.monitoring.live_round import LiveRound
from fedsz.monitoring.run_summary import FAILED
from fedsz.training.events import Event

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

DIRECTIONS: Final = ("up", "down")


class Metrics:
    """Numbers of a server's run, of bounded number whatever clients call themselves.

    Raises:
        MissingPackage: a package is not installed.
    """

    def __init__(self) -> None:
        extras.require(*extras.EXTRAS["metrics"], *extras.EXTRAS["dashboard"])
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self.registry = registry = CollectorRegistry()
        self._live = LiveRound()
        self._gauges = {}
        for number in (number for number in NUMBERS.values() if number.gauge):
            gauge = self._gauges[number] = Gauge(number.gauge, number.says, registry=registry)
            if number.of(RoundRecord(round=0)) is None:
                gauge.set(float("nan"))  # until it is measured
        clients = Gauge("fedsz_clients", "Clients that are connected", registry=registry)
        clients.set_function(lambda: self._live.connected)
        ready = Gauge("fedsz_ready", "1 while clients are served", registry=registry)
        ready.set_function(lambda: float(self._live.ready))
        counter, way = partial(Counter, registry=registry), ["direction"]
        self._sent = counter("fedsz_sent_bytes", "Bytes of streams, after compression", way)
        self._raw = counter("fedsz_raw_bytes", "Bytes of the same, before compression", way)
        self._rounds = counter("fedsz_rounds", "Rounds that ended")
        self._uncounted = counter("fedsz_uncounted_rounds", "Rounds that do not count")
        self._failures = counter("fedsz_failures", "Clients that rounds went on without", ["kind"])

    def show(self, event: Event) -> None:
        """Take an event of the run into the numbers; from any thread."""
        self._live.take(event)
        if isinstance(event, RoundRecord):
            self._count(event)

    def app(self) -> Starlette:
        """Return what answers /metrics, /healthz and /readyz."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
        from starlette.applications import Starlette
        from starlette.responses import PlainTextResponse, Response
        from starlette.routing import Route

        def metrics(_: Request) -> Response:
            return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

        def ready(_: Request) -> Response:
            return PlainTextResponse(f"{self._live.text()}\n", 200 if self._live.ready else 503)

        return Starlette(
            routes=[
                Route("/metrics", metrics),
                Route("/healthz", lambda _: PlainTextResponse("alive\n")),
                Route("/readyz", ready),
            ]
        )

    def _count(self, record: RoundRecord) -> None:
        for number, gauge in self._gauges.items():
            if (value := number.of(record)) is not None:
                gauge.set(value)
        for direction in DIRECTIONS:
            self._sent.labels(direction).inc(getattr(record, f"sent_{direction}"))
            self._raw.labels(direction).inc(getattr(record, f"raw_{direction}"))
        for failure in record.failures:
            self._failures.labels(failure.kind or FAILED).inc()
        self._rounds.inc(bool(record.round))
        self._uncounted.inc(bool(record.uncounted))
