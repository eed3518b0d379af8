"""A server or a client of a fleet, in this process."""

from __future__ import annotations

import dataclasses
import gc
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError
from fedsz.training.events import Client, Done, Event, Listening
from fedsz.training.options import RunConfig
from fedsz.training.run_folder import RunFolder

if TYPE_CHECKING:
    from fedsz.transport.events import LinkEvent

OnEvent = Callable[[Event], None]

SPARE = 1 << 20  # bytes of a reply beside its arrays


def serve(config: RunConfig, on_event: OnEvent) -> None:
    """Serve one training run over gRPC, from the first client to the saved model.

    Args:
        config: the run.
        on_event: told of everything that happens, from any thread.

    Raises:
        ConfigError: an option is wrong, or neither TLS files nor `insecure` are given.
        CodecUnavailable: the codec's library is not installed here.
        DataError: the held-out set is not there.
        LinkError: the port is in use.
    """
    from fedsz.flower import GrpcGrid
    from fedsz.training.federation import federate, prepare
    from fedsz.transport.events import EventKind
    from fedsz.transport.tls import server_credentials

    def tell_link(event: LinkEvent) -> None:
        told = (EventKind.JOINED, EventKind.LEFT, EventKind.REFUSED, EventKind.FAILED)
        if event.kind in told:
            on_event(Client(event.client_id, str(event.kind), event.detail))

    def tell_round(done: RoundRecord) -> None:
        folder.save(problem.model)  # what a server that is restarted goes on from
        folder.add(done)
        on_event(done)

    check_secured(config)
    problem = prepare(config)
    # Each round collects garbage; it need not look through all that torch has brought.
    gc.freeze()
    credentials = None
    if not config.insecure:
        _require(config, "tls_cert", "tls_key")
        credentials = server_credentials(config.tls_cert, config.tls_key, config.tls_ca or None)
    grid = GrpcGrid(
        config.host,
        config.port,
        credentials=credentials,
        # What a client can make the server store: its model, twice over for wider dtypes, and talk.
        max_message_bytes=2 * sum(x.nbytes for x in problem.model.state_dict().values()) + SPARE,
        reconnect_grace=config.reconnect_grace,
        on_event=tell_link,
    )
    with grid:
        folder = RunFolder(repeatable(config))
        on_event(Listening(grid.port, str(folder.path), config.min_clients))
        start = time.monotonic()
        federate(grid, config, problem, tell_round)
        on_event(Done(str(folder.path), time.monotonic() - start))


def join(config: RunConfig) -> None:
    """Take part in a server's run, from this process, until it is over.

    Raises:
        ConfigError: an option is wrong, or neither TLS files nor `insecure` are given.
        DataError: the data folder lacks the training set.
        LinkError: the server cannot be reached for `max_wait` seconds, or refuses this client.
    """
    from fedsz.flower import make_client_app, run_client
    from fedsz.training import datasets
    from fedsz.transport.tls import channel_credentials

    index, count = config.share
    spec = datasets.get(config.dataset)
    if config.data_dir and spec.hub_id:
        # Better now than in the first round.
        datasets.find_parquet(spec, "train", Path(config.data_dir))
    credentials = None
    if not config.insecure:
        credentials = channel_credentials(
            config.tls_ca or None, config.tls_cert or None, config.tls_key or None
        )
    run_client(
        make_client_app(),
        config.server,
        client_id=config.client_id or f"{socket.gethostname()}/{config.partition}",
        node_config={
            "partition-id": index,
            "num-partitions": count,
            "dataset": config.dataset,
            "data-dir": config.data_dir,
            "device": config.device,
        },
        credentials=credentials,
        max_wait=config.max_wait,
    )


def repeatable(config: RunConfig) -> RunConfig:
    """Return what repeats a run on one machine, from any folder: as many clients, the same data."""
    return dataclasses.replace(
        config,
        clients=config.min_clients,
        data_dir=str(Path(config.data_dir).resolve()) if config.data_dir else "",
        initial=str(Path(config.initial).resolve()) if config.initial else "",
    )


def check_secured(config: RunConfig) -> None:
    """Refuse plaintext that nobody asked for.

    Raises:
        ConfigError: there is neither a certificate nor `insecure`.
    """
    if not config.insecure and not config.tls_cert:
        raise ConfigError("give --tls-cert and --tls-key, or ask for plaintext by --insecure")


def _require(config: RunConfig, *names: str) -> None:
    for name in names:
        if not getattr(config, name):
            raise ConfigError(f"TLS needs --{name.replace('_', '-')} as well")
