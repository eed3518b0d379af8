"""``fedsz run``, ``server`` and ``client``, and what shows a run: ``decisions``, ``dashboard``."""

from __future__ import annotations

import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fedsz.cli.options import PATH, Command, configured, json_option
from fedsz.cli.output import failure_as_json, print_table, say, warn_of_update
from fedsz.core.settings import EXACT, Settings
from fedsz.extras import require
from fedsz.training.options import CLIENT, RUN, SERVER, RunConfig

if TYPE_CHECKING:
    from fedsz.control.record import RoundRecord


@click.command(RUN, cls=Command)
@configured(RUN)
@json_option
def run(config: RunConfig, *, json: bool) -> None:
    """Train on this machine: a server and N clients, each a process, over gRPC on loopback."""
    from fedsz.cli.screen import events_shown
    from fedsz.monitoring.watchers import watched
    from fedsz.training.local_fleet import run_local

    require("flwr")  # here: each process that is started would say so

    warn_of_update(config)
    with (
        closing(run_local(config)) as events,
        events_shown(json=json) as show,
        watched(config, show) as tell,
    ):
        for event in events:
            tell(event)


@click.command(SERVER, cls=Command)
@configured(SERVER)
@json_option
def server(config: RunConfig, *, json: bool) -> None:
    """Serve a training run to clients on other machines, over gRPC."""
    from fedsz.cli.screen import events_shown
    from fedsz.monitoring.watchers import watched
    from fedsz.training.fleet import serve
    from fedsz.training.run_folder import has_finished

    warn_of_update(config)
    if config.or_resume and has_finished(Path(config.run_dir)):
        click.echo(f"the run in {config.run_dir} has finished; another --run-dir begins another")
        return
    with failure_as_json(json=json), events_shown(json=json) as show, watched(config, show) as tell:
        serve(config, tell)


@click.command(CLIENT, cls=Command)
@configured(CLIENT)
@json_option
def client(config: RunConfig, *, json: bool) -> None:
    """Train on this device for a server, until the run ends."""
    from fedsz.cli.screen import ClientLines

    # Machines see that the process ends.
    screen = nullcontext() if json else ClientLines(config.server)
    with failure_as_json(json=json), screen as lines:
        from fedsz.training.fleet import join  # takes seconds, which the screen accounts for

        join(config, lines.show if lines else None)


@click.command("decisions")
@click.argument("run_dir", type=PATH)
def decisions(run_dir: Path) -> None:
    """Show how each round of a run was compressed, and why.

    RUN_DIR is the folder of a run.
    """
    from fedsz.training.run_folder import read_rounds

    rows, reasons = [], []  # and no records: those of a long run are gigabytes
    for record in read_rounds(run_dir):
        if decision := record.decision:
            rows.append(_cells(record, decision.config))
            reasons.append(f"round {record.round}: {decision.why or 'as the options say'}")
    heads = (">accuracy", ">up", ">energy", ">residual")
    print_table((">round", "update", "bound", "downlink", *heads), rows)
    for reason in reasons:
        say(reason)


def _cells(row: RoundRecord, config: Settings) -> tuple[str, ...]:
    from fedsz.control.round_numbers import NUMBERS  # brings numpy, which --help needs not

    sent = (config.update, _short(config.error_bound), _short(config.downlink))
    numbers = ("accuracy", "ratio", "energy_fraction", "residual_ratio")
    return (str(row.round), *sent, *(NUMBERS[name].text(row) for name in numbers))


def _short(bound: str) -> str:
    """Return a bound to four digits, and any other downlink as it is: rounds.jsonl has them all."""
    kind, colon, number = bound.rpartition(":")
    return f"{kind}{colon}{float(number):.4g}" if bound != EXACT else bound


@click.command("dashboard")
@click.argument("run_dir", type=PATH)
@click.option(
    "--listen",
    default="",
    help="HOST:PORT to serve on, or one of the two. Default: 127.0.0.1:8265.",
)
@click.option(
    "--token",
    default="",
    help="File with the token that browsers need; not required on loopback.",
)
def dashboard(run_dir: Path, *, listen: str, token: str) -> None:
    """Show a run in a browser: its rounds as they end, its decisions and its clients.

    RUN_DIR is the folder of a run, finished or not. The page loads nothing but from this machine.
    """
    from fedsz.monitoring.live_page import Dashboard, served

    with served(Dashboard(run_dir), listen, token) as url:
        click.echo(f"dashboard at {url}")
        while True:
            time.sleep(3600)
