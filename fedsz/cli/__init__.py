"""The ``fedsz`` command: each command parses, calls the library and prints.

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
from types import FrameType
from typing import Any, Final

import click

from fedsz import extras, system
from fedsz.child_process import PATIENCE
from fedsz.cli import bench, check, codecs, files, keys, report, runs, sweep
from fedsz.cli.options import PREFIX, SERVICE
from fedsz.cli.output import COMMAND, close_stdout, log_errors, set_up_logs, warn
from fedsz.errors import FedszError
from fedsz.formatting import did_you_mean, printable

TEST_DATA: Final = "FEDSZ_TEST_DATA"  # where the tests find data sets; commands do not read it

# A full disk is no bug: it is one line, wherever it was noticed.
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

# What a library in Rust raises where it cannot go on; each has such a class of its own.
RUST_PANIC: Final = "PanicException"


class Group(click.Group):
    """The commands in the order in which they are added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's method
        """Return the names of the commands."""
        return list(self.commands)


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--verbose", "-v", is_flag=True, help="Log what happens.")
@click.option("--log-json", is_flag=True, help="Log in lines of JSON.", envvar=f"{PREFIX}LOG_JSON")
@click.option("--end-with-stdin", is_flag=True, hidden=True)
@click.version_option(package_name="fedsz", message="%(package)s %(version)s")
@click.pass_context
def app(context: click.Context, *, verbose: bool, log_json: bool, end_with_stdin: bool) -> None:
    """Error-bounded compression for federated learning."""
    set_up_logs(verbose=verbose, as_json=log_json)
    _check_environment(context.command)
    if end_with_stdin:  # the parent holds the other end, and this process ends with it
        threading.Thread(target=_end_with_stdin, daemon=True).start()


for command in (
    *(runs.run, runs.server, runs.client, sweep.sweep, bench.bench, bench.advise, report.report),
    *(files.compress, files.decompress, files.inspect, codecs.codecs, codecs.methods),
    *(check.check, runs.decisions, runs.dashboard, report.paper, keys.keys),
):
    command.short_help = (command.help or "").partition("\n\n")[0]  # which click would cut short
    app.add_command(command)
COMMANDS: Final = tuple(app.commands)


def _check_environment(group: click.Command) -> None:
    """Warn of variables that look like an option's and are none's."""
    assert isinstance(group, click.Group)
    commands = [group, *group.commands.values()]
    options = (option for command in commands for option in command.params)
    known = {str(option.envvar) for option in options if option.envvar} | {TEST_DATA}
    for name, value in os.environ.items():
        if name.startswith(PREFIX) and name not in known:
            hint = did_you_mean(name, known)
            warn(f"no option is called {name}, which is in the environment{hint}")
        elif name.startswith(PREFIX) and value.startswith(SERVICE):
            warn(f"{name}={value} in the environment is ignored: it is the address of a service")


def main() -> None:
    """Run the command line; the exit code is 0, 2 for a mistake, 130 after Ctrl-C."""
    log_errors()  # until the options have been read
    # What gRPC's core says of failed handshakes, we say in one line.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # A container is stopped by SIGTERM: end as on Ctrl-C, with everything closed.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = app.main(prog_name="fedsz", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as err:
        click.echo(err.format_message())
        code = err.exit_code
    except (FedszError, click.ClickException) as err:
        code = _complain(err.format_message() if isinstance(err, click.ClickException) else err)
    except ImportError as err:
        if (explained := extras.explain(err)) is None:
            raise
        code = _complain(explained)
    except (KeyboardInterrupt, click.Abort):
        code = 130
    except MemoryError as err:
        code = _complain(" ".join(("out of memory:", str(err))).rstrip(": "))
    except BrokenPipeError:
        close_stdout()
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


def _complain(why: Any) -> int:
    logging.getLogger(COMMAND).error("%s", " ".join(printable(str(why)).split()))
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
