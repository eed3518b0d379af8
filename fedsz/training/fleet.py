"""A server or a client of a fleet, in this process."""

from __future__ import annotations

import dataclasses
import gc
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc

from fedsz.arrays import Layout
from fedsz.control.record import Traffic, count_failures
from fedsz.errors import ConfigError
from fedsz.privacy.client import Demands
from fedsz.privacy.flower_client import SecureMember
from fedsz.privacy.identity import Identity
from fedsz.training.apps import make_client_app, require_fit
from fedsz.training.events import Client, Done, Event, Listening, Requested
from fedsz.training.federation import Problem, federate, prepare, privacy_of
from fedsz.training.model_state import arrays_of
from fedsz.training.options import CAPPED, RunConfig, is_own_task, options
from fedsz.training.run_folder import RunFolder
from fedsz.training.task import load_task
from fedsz.transport.channel import security
from fedsz.transport.credentials import (
    channel_credentials,
    own_id,
    read_private,
    server_credentials,
)
from fedsz.transport.grpc_client import LAST_DELAY, run_client
from fedsz.transport.grpc_grid import GrpcGrid
from fedsz.transport.link_events import EventKind, LinkEvent, NodeConfig, OnEvent
from fedsz.whole_files import read_bytes

_TOLD = (
    *(EventKind.JOINED, EventKind.LEFT, EventKind.REFUSED),
    *(EventKind.RECEIVED, EventKind.FAILED),
)
_SPARE = 1 << 20  # bytes of a message beside its arrays


def serve(config: RunConfig, on_event: Callable[[Event], None]) -> None:
    """Serve one training run over gRPC, from the first client to the saved model.

    With `resume`, the run goes on after the last round of its folder; its options are then those
    that `fedsz.training.run_folder.resumed_config` returns.

    ``on_event`` is told of everything that happens, from any thread.

    Raises:
        ConfigError: an option is wrong, neither TLS files nor `insecure` are given, the folder of
            a run cannot be resumed, or the disk is full.
        CodecUnavailable: the codec's library is not installed here.
        DataError: the held-out set is not there.
        LinkError: the port is in use.
    """
    _require_options(config)
    folder = RunFolder.resume(Path(config.resume), config) if config.resume else None
    checkpoint = folder.checkpoint if folder else None
    # The weights to start from are in the checkpoint, if there is one.
    problem = prepare(dataclasses.replace(config, initial="") if checkpoint else config)
    # Each round collects garbage; it need not look through all that torch has brought.
    gc.freeze()
    grid = _grid_of(config, problem, checkpoint.run_id if checkpoint else None, on_event)
    with grid:
        folder = folder or RunFolder.create(_repeatable(config))
        path, first = str(folder.path), checkpoint.done.round + 1 if checkpoint else 0
        clients, privacy = config.min_clients, str(privacy_of(config) or "")
        on_event(Listening(grid.port, path, clients, first, config.rounds, privacy))
        start = time.monotonic()
        federate(
            grid,
            config,
            problem,
            on_event,
            on_request=lambda nodes: on_event(Requested(list(map(grid.client_name, nodes)))),
            folder=folder,
        )
        if first > config.rounds:
            _await_clients(grid, config)
        on_event(_done(folder, time.monotonic() - start))
    folder.finish()


def _done(folder: RunFolder, seconds: float) -> Done:
    """Return what there is to say of all rounds of a run that is over."""
    failures: dict[str, dict[str, int]] = {}
    totals, last, took = Traffic(), 0, 0.0
    for record in folder.history():
        failures = count_failures(record.failures, failures)
        totals = totals.plus(record, most=0)
        last, took = record.round, took + record.seconds
    return Done(str(folder.path), seconds, failures, last, took, totals)


def _require_options(config: RunConfig) -> None:
    """Raise `ConfigError` for options of the link that do not go together."""
    if not config.insecure and not config.tls_cert:
        raise ConfigError("give --tls-cert and --tls-key, or --insecure for plaintext")
    if not config.insecure and not config.tls_key:
        raise ConfigError("TLS needs --tls-key as well")
    if 0 < config.shares < config.min_clients:
        few = f"--shares {config.shares} is less than --min-clients {config.min_clients}"
        raise ConfigError(f"{few}: a client beyond the shares is refused, so no round would start")


def _grid_of(
    config: RunConfig,
    problem: Problem,
    run_id: int | None,
    on_event: Callable[[Event], None],
) -> GrpcGrid:
    """Return the Grid of a run, which listens already; ``run_id`` is that of a resumed run.

    Raises:
        ConfigError: a file of TLS, or that of clients, cannot be used.
        LinkError: the port is in use.
    """

    def tell_link(event: LinkEvent) -> None:
        if event.kind in _TOLD:
            on_event(Client(event.client_id, str(event.kind), event.detail))

    credentials = None
    if not config.insecure:
        credentials = server_credentials(config.tls_cert, config.tls_key, config.tls_ca or None)
    grid = GrpcGrid(
        config.host,
        config.port,
        credentials=credentials,
        # What a client can make the server store: its model, twice over for wider dtypes, and talk.
        max_message_bytes=2 * sum(x.nbytes for x in arrays_of(problem.model).values()) + _SPARE,
        reconnect_grace=config.reconnect_grace,
        client_file=config.client_file or None,
        run_id=run_id,
        on_event=tell_link,
        shares=config.shares or config.min_clients,
        why_unfit=partial(_why_unfit, config),
    )
    if grid.max_connections < config.min_clients:
        have = f"{grid.max_connections} connections, --min-clients {config.min_clients}"
        security.warning("too few file descriptors: enough for %s; raise ulimit -Hn", have)
    return grid


def _why_unfit(config: RunConfig, node_config: NodeConfig) -> str:
    """Return why a client cannot take part in a run; "" if nothing is known against it."""
    try:
        require_fit(config, node_config)
    except ConfigError as err:
        return str(err)
    return ""


def _await_clients(grid: GrpcGrid, config: RunConfig) -> None:
    """Give clients that a crash kept from hearing that the run is over the time to come back."""
    deadline = time.monotonic() + LAST_DELAY + config.reconnect_grace
    while len(grid.get_node_ids()) < config.min_clients and time.monotonic() < deadline:
        time.sleep(0.1)


def join(config: RunConfig, on_event: OnEvent | None = None) -> None:
    """Take part in a server's run, from this process, until it is over.

    ``on_event`` is told of the link and of the work, from any thread.

    Raises:
        ConfigError: an option is wrong, or neither TLS files nor `insecure` are given.
        DataError: the data folder lacks the training set.
        TaskError: the task cannot be made here.
        LinkError: the server cannot be reached for `max_wait` seconds, or refuses this client.
    """
    share = config.share
    _check_task(config)
    credentials = client_credentials(config)
    named = own_id(config.tls_cert or None, config.token_file or None) if credentials else ""
    limit = _MessageLimit(int(1e6 * config.max_message_mb))
    default = "" if share is None else f"{socket.gethostname()}/{share}"
    caps = {f"max-{name}".replace("_", "-"): getattr(config, f"max_{name}") for name in CAPPED}
    run_client(
        make_client_app(limit.follow, _member_of(config)),
        config.server,
        client_id=config.client_id or named or default,
        wants_share=share is None,
        node_config={
            **({} if share is None else share.as_config()),
            "task": config.task,
            "dataset": config.dataset,
            "data-dir": config.data_dir,
            "device": config.device,
            "initial": config.initial,
            **caps,
        },
        credentials=credentials,
        max_wait=config.max_wait,
        max_message_bytes=limit,
        state_dir=Path(config.state_dir) if config.state_dir else None,
        on_event=on_event,
    )


def _member_of(config: RunConfig) -> SecureMember:
    """Return what a client asks of secure sums; it signs its keys if it has a certificate.

    Raises:
        ConfigError: a file is not what it should be.
    """
    identity = None
    if config.tls_cert and config.tls_key and config.tls_ca and not config.insecure:
        key = read_private(config.tls_key)
        identity = Identity(read_bytes(config.tls_cert), key, read_bytes(config.tls_ca))
    return SecureMember(
        Demands(clients=config.secure_only),
        identity,
        required=config.secure_only > 0,
        most_rounds=config.dp_most_rounds,
        most_epsilon=config.dp_most_epsilon,
    )


class _MessageLimit:
    """How large a message of the server may be: as an option says, then as the model implies."""

    def __init__(self, first: int) -> None:
        self._bytes = first

    def __call__(self) -> int:
        return self._bytes

    def follow(self, layout: Layout) -> None:
        """Allow twice the model, unless it has tensors of any length."""
        if not layout.holds_bytes:
            self._bytes = 2 * layout.nbytes + _SPARE


def client_credentials(config: RunConfig) -> grpc.ChannelCredentials | None:
    """Return what a client connects with; None for plaintext.

    Raises:
        ConfigError: a file is not what it should be, or a token was to go over plaintext, or beside
            a certificate.
    """
    if config.token_file and config.insecure:
        raise ConfigError("a token needs TLS: give --tls-ca in place of --insecure")
    if config.token_file and config.tls_cert:
        raise ConfigError("give --token-file or --tls-cert, not both: each proves a client id")
    if config.insecure:
        return None
    files = (config.tls_ca or None, config.tls_cert or None, config.tls_key or None)
    return channel_credentials(*files, token=config.token_file or None)


def _check_task(config: RunConfig) -> None:
    """Notice what is missing here now, and not in the first round."""
    if config.task == "images":
        from fedsz.training import datasets

        spec = datasets.get(config.dataset)
        if config.data_dir and not spec.embedded:
            datasets.find_parquet(spec, "train", Path(config.data_dir))
    elif config.task == "text" or is_own_task(config.task):
        load_task(config)


def _repeatable(config: RunConfig) -> RunConfig:
    """Return what repeats a run on one machine, from any folder: as many clients, the same data."""
    return dataclasses.replace(
        config,
        clients=min(config.min_clients, int(options()["clients"].high)),
        data_dir=str(Path(config.data_dir).resolve()) if config.data_dir else "",
        initial=str(Path(config.initial).resolve()) if config.initial else "",
    )
