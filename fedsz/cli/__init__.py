"""The ``fedsz`` command: one module per command, each parses, calls the library and prints.

Heavy imports happen inside the commands, so that ``--help`` is instant.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
import time
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, Final

import click
import typer

from fedsz import extras, system
from fedsz.child_process import PATIENCE
from fedsz.cli import keys, logs, paper
from fedsz.cli.options import PREFIX, Command
from fedsz.errors import ConfigError, FedszError
from fedsz.formatting import did_you_mean, printable

COMMANDS: Final = (
    *("run", "server", "client", "sweep", "bench", "advise", "report", "compress"),
    *("decompress", "inspect", "codecs", "methods", "decisions", "dashboard"),
)

TEST_DATA: Final = "FEDSZ_TEST_DATA"  # where the tests find data sets; commands do not read it

# A full disk is no bug: it is told in one line, wherever it was noticed.
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# What a library in Rust raises where it cannot go on; each has such a class of its own.
RUST_PANIC: Final = "PanicException"

app = typer.Typer(
    help="Error-bounded compression for federated learning.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for name in COMMANDS:
    app.command(name, cls=Command)(import_module(f"{__name__}.{name}").command)
app.command("paper", context_settings=paper.HANDED_OVER)(paper.command)
app.add_typer(keys.app, name="keys")


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"fedsz {version('fedsz')}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    *,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log what happens.")] = False,
    log_json: Annotated[
        bool, typer.Option("--log-json", help="Log in lines of JSON.", envvar=f"{PREFIX}LOG_JSON")
    ] = False,
    end_with_stdin: Annotated[bool, typer.Option("--end-with-stdin", hidden=True)] = False,
    version: Annotated[  # noqa: ARG001 - its callback has done all there is to do
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Error-bounded compression for federated learning."""
    _check_environment(context.command)
    logs.set_up(verbose=verbose, as_json=log_json)
    if end_with_stdin:  # whoever started this holds the other end, and takes it along to its death
        threading.Thread(target=_end_with_stdin, daemon=True).start()


def _check_environment(group: click.Command) -> None:
    """Raise ConfigError for a variable that looks like an option's and is none's."""
    assert isinstance(group, click.Group)
    commands = [group, *group.commands.values()]
    options = (option for command in commands for option in command.params)
    known = {str(option.envvar) for option in options if option.envvar} | {TEST_DATA}
    for name in os.environ:
        if name.startswith(PREFIX) and name not in known:
            hint = did_you_mean(name, known)
            raise ConfigError(f"no option is called {name}, which is in the environment{hint}")


def main() -> None:
    """Run the command line; the exit code is 0, 2 for a mistake, 130 after Ctrl-C."""
    logs.say_errors()  # until the options have been read
    # What gRPC's core says of failed handshakes, we say in one line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # A container is stopped by SIGTERM: end as on Ctrl-C, with everything closed.
    signal.signal(signal.SIGTERM, _interrupt)
    command: Any = typer.main.get_command(app)
    try:
        code = command.main(standalone_mode=False)
    except FedszError as err:
        code = _complain(str(err))
    except click.ClickException as err:
        why = _told(err)
        code = _complain(why) if why else err.exit_code  # help has been shown
    except ImportError as err:
        if (explained := extras.explain(err)) is None:
            raise
        code = _complain(explained)
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except MemoryError as err:
        code = _complain(" ".join(("out of memory:", str(err))).rstrip(": "))
    except BrokenPipeError:  # whoever read our output has gone
        sys.stderr.close()
        code = 1
    except OSError as err:
        if err.errno not in NO_ROOM:
            raise
        code = _complain(f"cannot write {err.filename or 'a file'}: {err.strerror}")
    except BaseException as err:
        if type(err).__name__ != RUST_PANIC:
            raise
        code = _complain(f"a library has failed, most likely for want of memory: {err}")
    sys.exit(code or 0)


def _told(err: click.ClickException) -> str:
    """Return a mistake as click tells it; typer's own suggestions need none of click's."""
    return err.message if "Did you mean" in err.message else err.format_message()


def _complain(text: str) -> int:
    logging.getLogger(logs.ERRORS).error("%s", " ".join(printable(text).split()))
    return 2


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not cut the end short
    raise KeyboardInterrupt


def _end_with_stdin() -> None:
    """End this process, as SIGTERM does, when its stdin has ended."""
    while os.read(0, 1 << 12):  # not `sys.stdin`, which would be locked when the process ends
        pass
    system.interrupt()
    time.sleep(2 * PATIENCE)
    os._exit(1)
