"""A whole federation on this machine: one server process, N client processes, real gRPC."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Generator, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from fedsz.child_process import PATIENCE, Child
from fedsz.control.record import RoundRecord
from fedsz.errors import FedszError
from fedsz.training.events import Done, Event, Failed, Listening, from_json
from fedsz.training.options import CLIENT, RUN, SERVER, RunConfig, options_of

_CLIENT_WAIT: Final = 60.0  # seconds a client looks for its server, which has just been there


def run_local(config: RunConfig) -> Generator[Event, None, None]:
    """Run a federation on loopback and yield what its server tells.

    Server and clients are processes of their own, as in a fleet. All of them have ended when the
    generator has, however it ends.

    Raises:
        FedszError: the server failed; the message says why.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedsz-")))
        server = stack.enter_context(_command(
            "server", *_flags(config, options_of(RUN, SERVER)), "--json", "--insecure",
            "--host", "127.0.0.1", "--port", "0", "--min-clients", str(config.clients),
            log=folder / "server.log", share=1,
        ))  # fmt: skip
        clients: list[Child] = []
        begun, finished = threading.Event(), threading.Event()
        stack.callback(finished.set)
        for line in server.lines():
            event = from_json(line)
            if isinstance(event, Failed):
                raise FedszError(event.error)
            if isinstance(event, Listening):
                for i in range(config.clients):
                    child = _client(config, i, event.port, folder / f"{i}.log")
                    clients.append(stack.enter_context(child))
                watched = (server, clients, begun, finished)
                threading.Thread(target=_watch, args=watched, daemon=True).start()
            elif isinstance(event, RoundRecord):
                begun.set()
            elif isinstance(event, Done):
                finished.set()
            yield event
        status = server.wait(PATIENCE)
        if not finished.is_set():
            raise FedszError(
                _why_they_ended([server, *clients]) or f"the server ended with {status}"
            )


def _client(config: RunConfig, i: int, port: int, log: Path) -> Child:
    """Start the client with share ``i`` of the data."""
    return _command(
        "client", "--json", "--server", f"127.0.0.1:{port}", "--insecure",
        "--partition", f"{i}/{config.clients}", "--max-wait", str(_CLIENT_WAIT),
        *_flags(config, options_of(RUN, CLIENT)), log=log, share=config.clients,
    )  # fmt: skip


def _why_they_ended(processes: list[Child]) -> str:
    """Return the first error that one of these told, or else the last words that one left."""
    ended = [process for process in processes if not process.is_running]
    told = (from_json(line) for process in ended for line in process.lines())
    errors = [event.error for event in told if isinstance(event, Failed)]
    words = [process.last_words() for process in ended]
    return next(filter(None, [*errors, *words]), "")


def _watch(
    server: Child, clients: list[Child], begun: threading.Event, finished: threading.Event
) -> None:
    """End a server that waits for clients who will not come.

    A client that fails before the first round, or the last one to go, leaves it waiting for ever.
    """
    while not finished.wait(0.2):
        ended = [not process.is_running for process in clients]
        if (any(ended) and not begun.is_set()) or all(ended):
            if not finished.wait(PATIENCE):
                server.terminate()
            return


def _flags(config: RunConfig, names: Iterable[str]) -> list[str]:
    """Return options as the command line has them."""
    given = {name: str(getattr(config, name)) for name in names}
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value]


def _command(*arguments: str, log: Path, share: int) -> Child:
    """Start a fedsz command, one of ``share`` that share this machine's processors."""
    # Each would take all processors otherwise, and wait for the others.
    threads = max(1, (os.cpu_count() or 1) // share)
    return Child("fedsz", *arguments, log=log, threads=threads)
