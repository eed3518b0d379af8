"""A whole federation on this machine: one server process, N client processes, real gRPC."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from fedsz.control.record import RoundRecord
from fedsz.errors import FedszError
from fedsz.training.events import Done, Event, Listening, from_json
from fedsz.training.options import CLIENT, RUN, SERVER, RunConfig, options_of

PATIENCE: Final = 5.0  # seconds that processes get to end by themselves
CLIENT_WAIT: Final = 60.0  # seconds a client looks for its server, which has just been there


def run_local(config: RunConfig) -> Generator[Event, None, None]:
    """Run a federation on loopback and yield what its server tells.

    Server and clients are processes of their own, as in a fleet. All of them have ended when the
    generator has, however it ends.

    Raises:
        FedszError: the server failed; its own last line says why.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedsz-")))
        server_log, client_log = folder / "server.log", folder / "clients.log"
        server = stack.enter_context(process(
            "server", *flags(config, options_of(RUN, SERVER)), "--json", "--insecure",
            "--host", "127.0.0.1", "--port", "0", "--min-clients", str(config.clients),
            log=server_log, share=1,
        ))  # fmt: skip
        assert server.stdout is not None
        clients: list[subprocess.Popen[str]] = []
        begun, finished = threading.Event(), threading.Event()
        stack.callback(finished.set)
        for line in server.stdout:
            event = from_json(line)
            if isinstance(event, Listening):
                clients += [
                    stack.enter_context(client(config, i, event.port, client_log))
                    for i in range(config.clients)
                ]
                threading.Thread(
                    target=watch, args=(server, clients, begun, finished), daemon=True
                ).start()
            elif isinstance(event, RoundRecord):
                begun.set()
            elif isinstance(event, Done):
                finished.set()
            yield event
        server.wait(PATIENCE)
        if not finished.is_set():
            says = _last_line(server_log) or _last_line(client_log)
            raise FedszError(says or f"the server ended with {server.returncode}")


def client(
    config: RunConfig, i: int, port: int, log: Path
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start the client with share ``i`` of the data."""
    return process(
        "client", "--server", f"127.0.0.1:{port}", "--insecure",
        "--partition", f"{i}/{config.clients}", "--max-wait", str(CLIENT_WAIT),
        *flags(config, options_of(RUN, CLIENT)),
        log=log, share=config.clients,
    )  # fmt: skip


def watch(
    server: subprocess.Popen[str],
    clients: list[subprocess.Popen[str]],
    begun: threading.Event,
    finished: threading.Event,
) -> None:
    """End a server that waits for clients who will not come.

    A client that fails before the first round, or the last one to go, leaves it waiting for ever.
    """
    while not finished.wait(0.2):
        ended = [process.poll() is not None for process in clients]
        if (any(ended) and not begun.is_set()) or all(ended):
            if not finished.wait(PATIENCE):
                server.terminate()
            return


def flags(config: RunConfig, names: Iterable[str]) -> list[str]:
    """Return options as the command line has them."""
    return [
        word
        for name in names
        if str(value := getattr(config, name)) != ""
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]


@contextmanager
def process(*arguments: str, log: Path, share: int) -> Iterator[subprocess.Popen[str]]:
    """Run a fedsz command; it has ended when the block has.

    Args:
        arguments: of the command.
        log: the file its stderr is appended to.
        share: how many such processes share this machine's processors.
    """
    threads = max(1, (os.cpu_count() or 1) // share)
    with log.open("ab") as stderr:
        started = subprocess.Popen(
            [sys.executable, "-m", "fedsz", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            # Each would take all processors otherwise, and wait for the others.
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            # Ctrl-C comes to us alone, and we tell them.
            start_new_session=True,
        )
    clean = False
    try:
        yield started
        clean = True
    finally:
        end(started, wait=PATIENCE if clean else 0.0)


def end(started: subprocess.Popen[str], *, wait: float) -> None:
    """Wait for a process that should be ending, then make it end."""
    for ask, patience in ((None, wait), (started.terminate, PATIENCE), (started.kill, None)):
        if ask:
            ask()
        try:
            started.wait(patience)
            break
        except subprocess.TimeoutExpired:
            continue
    if started.stdout:
        started.stdout.close()


def _last_line(log: Path) -> str:
    """Return what a process said last, without the program's name."""
    lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    return lines[-1].removeprefix("fedsz: ") if lines else ""
