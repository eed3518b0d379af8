"""A run's metrics for Prometheus, and whether its server is alive and ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fedsz.control.record import RoundRecord
from fedsz.monitoring.live_round import LiveRound
from fedsz.monitoring.run_summary import FAILED
from fedsz.monitoring.web_server import require
from fedsz.training.events import Event

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

PACKAGES: Final = ("prometheus_client", "starlette", "uvicorn")

# Of the last round: the field of its record, and the metric with its unit.
GAUGES: Final = {
    "round": ("fedsz_round", "Number of the last round that ended"),
    "accuracy": ("fedsz_accuracy_ratio", "Accuracy of the averaged model, 0 to 1"),
    "loss": ("fedsz_loss", "Loss of the averaged model"),
    "kept": ("fedsz_kept_energy_ratio", "Share of an update's energy that arrived, the median's"),
    "lag": ("fedsz_lag_rounds", "Rounds that clients are behind, the median's"),
    "max_error": ("fedsz_max_error_ratio", "Largest error as a share of its bound"),
    "replies": ("fedsz_round_replies", "Updates that counted in the last round"),
    "seconds": ("fedsz_round_seconds", "Seconds that the last round took"),
    "train_seconds": ("fedsz_round_train_seconds", "Training in it, all clients added up"),
    "encode_seconds": ("fedsz_round_encode_seconds", "Compressing in it, all clients added up"),
    "decode_seconds": ("fedsz_round_decode_seconds", "Decoding in it, on the server"),
    "test_seconds": ("fedsz_round_test_seconds", "Testing the averaged model, on the server"),
}
DIRECTIONS: Final = ("up", "down")


class Metrics:
    """Numbers of a server's run, of bounded number whatever clients call themselves.

    Raises:
        ConfigError: a package is not installed.
    """

    def __init__(self) -> None:
        require(PACKAGES, "metrics")
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self.registry = registry = CollectorRegistry()
        self._live = LiveRound()
        self._gauges = {
            field: Gauge(name, says, registry=registry) for field, (name, says) in GAUGES.items()
        }
        for name in ("accuracy", "loss", "kept", "lag"):
            self._gauges[name].set(float("nan"))  # until it is measured
        clients = Gauge("fedsz_clients", "Clients that are connected", registry=registry)
        clients.set_function(lambda: len(self._live.connected))
        ready = Gauge("fedsz_ready", "1 while clients are served", registry=registry)
        ready.set_function(lambda: float(self._live.ready))
        way = ["direction"]
        self._sent = Counter(
            "fedsz_sent_bytes", "Bytes of streams, after compression", way, registry=registry
        )
        self._raw = Counter(
            "fedsz_raw_bytes", "Bytes of the same, before compression", way, registry=registry
        )
        self._rounds = Counter("fedsz_rounds", "Rounds that ended", registry=registry)
        self._uncounted = Counter(
            "fedsz_uncounted_rounds", "Rounds that do not count", registry=registry
        )
        self._failures = Counter(
            "fedsz_failures", "Clients that rounds went on without", ["kind"], registry=registry
        )

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

        async def metrics(_: Request) -> Response:
            return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)

        async def healthy(_: Request) -> Response:
            return PlainTextResponse("alive\n")

        async def ready(_: Request) -> Response:
            text = self._live.text()
            return PlainTextResponse(f"{text}\n", 200 if self._live.ready else 503)

        return Starlette(
            routes=[
                Route("/metrics", metrics),
                Route("/healthz", healthy),
                Route("/readyz", ready),
            ]
        )

    def _count(self, record: RoundRecord) -> None:
        for name, gauge in self._gauges.items():
            value = getattr(record, name)
            if value is not None:
                gauge.set(value)
        for direction in DIRECTIONS:
            self._sent.labels(direction).inc(getattr(record, f"sent_{direction}"))
            self._raw.labels(direction).inc(getattr(record, f"raw_{direction}"))
        for failure in record.failures:
            self._failures.labels(failure.kind or FAILED).inc()
        self._rounds.inc(bool(record.round))
        self._uncounted.inc(bool(record.uncounted))
