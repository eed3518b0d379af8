"""A whole federation on this machine: one server process, N client processes, real gRPC."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from fedsz.child_process import PATIENCE, Child
from fedsz.control.record import RoundRecord
from fedsz.errors import ConfigError, FedszError
from fedsz.formatting import WARNING
from fedsz.system import cores
from fedsz.training.events import Done, Event, Failed, Listening, from_json
from fedsz.training.options import (
    CAPPED,
    CLIENT,
    RUN,
    SERVER,
    WATCHING,
    RunConfig,
    options,
    options_of,
)
from fedsz.whole_files import LOCK

STATES: Final = "client-states"  # the folder of their states in that of the results
_PATIENTLY: Final = "--max-wait=60"  # seconds for a server that has just been there


def run_local(config: RunConfig) -> Generator[Event, None, None]:
    """Run a federation on loopback and yield what its server tells.

    Server and clients are processes of their own, as in a fleet. All of them have ended when the
    generator has, however it ends; if this process is killed, they end by themselves. Clients keep
    their states in the folder of results, so that the run can be resumed; they empty it when the
    run has finished.

    Raises:
        ConfigError: no round could ask as many clients, or have as many replies, as it needs.
        FedszError: the server failed; the message says why.
    """
    asked = config.clients_per_round or config.clients
    if asked > config.clients:
        few = f"--clients-per-round {asked} is more than {config.clients} clients"
        raise ConfigError(f"{few}: start as many by --clients")
    if config.min_replies > asked:
        raise ConfigError(f"{asked} clients a round cannot give --min-replies {config.min_replies}")
    results = Path()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_temporary_folder()))
        place = ("--host=127.0.0.1", "--port=0", f"--min-clients={config.clients}")
        # Whoever starts both sides asks for what is wanted.
        most = {name: int(options()[f"max_{name}"].high) for name in (*CAPPED, "message_mb")}
        trusted = [f"--max-{name.replace('_', '-')}={value}" for name, value in most.items()]
        clients: list[Child] = []
        begun, finished = threading.Event(), threading.Event()
        stack.callback(finished.set)
        # It ends before its clients: in between it would average what fewer of them send.
        with _command(SERVER, config, *place, log=folder / "server.log", share=1) as server:
            for line in server.lines():
                event = from_json(line)
                if isinstance(event, Failed):
                    raise FedszError(event.error)
                if isinstance(event, Listening):
                    for i in range(config.clients):
                        link = (
                            f"--server=127.0.0.1:{event.port}",
                            f"--partition={i}/{config.clients}",
                            f"--state-dir={Path(event.run_dir, STATES, str(i))}",
                            _PATIENTLY,
                            *trusted,
                        )
                        log = folder / f"{i}.log"
                        child = _command(CLIENT, config, *link, log=log, share=config.clients)
                        clients.append(stack.enter_context(child))
                    watched = (server, clients, begun, finished)
                    threading.Thread(target=_watch, args=watched, daemon=True).start()
                elif isinstance(event, RoundRecord):
                    begun.set()
                elif isinstance(event, Done):
                    finished.set()
                    results = Path(event.run_dir)
                yield event
            status = server.wait(2 * PATIENCE)
            if not finished.is_set():
                why = _why_they_ended([server, *clients])
                raise FedszError(why or f"the server ended with {status}")
        for client in clients:  # they empty their states before they end
            client.wait(PATIENCE)
    _remove_states(results / STATES, config.clients)


def _remove_states(folder: Path, count: int) -> None:
    """Remove the folders that clients have emptied, and nothing that somebody else put there."""
    with suppress(OSError):
        for i in range(count):
            (folder / str(i) / LOCK).unlink()
            (folder / str(i)).rmdir()
        folder.rmdir()


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="fedsz-")
    except OSError as err:
        raise FedszError(f"no temporary folder can be made (TMPDIR): {err.strerror}") from err


def _why_they_ended(processes: list[Child]) -> str:
    """Return the first error that one of these told, or else the last words that one left."""
    ended = [process for process in processes if not process.is_running]
    told = (from_json(line) for process in ended for line in process.lines())
    errors = [event.error for event in told if isinstance(event, Failed)]
    words = [process.last_words() for process in ended]
    said = [word for word in words if not word.startswith(WARNING)]
    return next(filter(None, [*errors, *said]), "")


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


def _command(name: str, config: RunConfig, *flags: str, log: Path, share: int) -> Child:
    """Start a fedsz command, one of ``share`` that share this machine's processors."""
    # Whoever shows the run is told by us, not by the server's process.
    passed = [option for option in options_of(RUN, name) if options()[option].panel != WATCHING]
    values = {option.replace("_", "-"): getattr(config, option) for option in passed}
    given = [
        f"--{option}" if value is True else f"--{option}={value}"
        for option, value in values.items()
        if value is not False and value != ""
    ]
    # Each would take all processors otherwise, and wait for the others.
    threads = max(1, cores() // share)
    # If this process is killed, they end with it: their states are then free to be resumed from.
    command = ("--end-with-stdin", name, *given, "--json", "--insecure", *flags)
    return Child("fedsz", *command, log=log, threads=threads)
