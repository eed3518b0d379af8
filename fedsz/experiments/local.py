"""A whole federation on this machine: one server process, N client processes, real gRPC."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from fedsz.config import RunConfig
from fedsz.errors import FedszError
from fedsz.experiments.events import Done, Event, Listening, from_json

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
            "server", *flags(config, SERVER), "--json", "--insecure",
            "--host", "127.0.0.1", "--port", "0", "--min-clients", str(config.clients),
            log=server_log, share=1,
        ))  # fmt: skip
        assert server.stdout is not None
        finished = False
        for line in server.stdout:
            event = from_json(line)
            if isinstance(event, Listening):
                for i in range(config.clients):
                    stack.enter_context(process(
                        "client", "--server", f"127.0.0.1:{event.port}", "--insecure",
                        "--partition", f"{i}/{config.clients}", "--max-wait", str(CLIENT_WAIT),
                        *flags(config, ("dataset", "data_dir")),
                        log=client_log, share=config.clients,
                    ))  # fmt: skip
            finished = finished or isinstance(event, Done)
            yield event
        server.wait(PATIENCE)
        if not finished:
            raise FedszError(_last_line(server_log) or f"the server ended with {server.returncode}")


# What the server process is told; the rest has no meaning for it, or is set here.
SERVER: Final = (
    "dataset", "data_dir", "samples", "model", "partitioner", "alpha", "seed",
    "rounds", "epochs", "batch_size", "learning_rate", "momentum", "round_timeout",
    "error_bound", "codec", "lossless", "threshold", "rule", "reconnect_grace", "run_dir",
)  # fmt: skip


def flags(config: RunConfig, names: tuple[str, ...]) -> list[str]:
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
