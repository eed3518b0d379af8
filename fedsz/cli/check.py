"""``fedsz check``: a dry round of a Flower app, with and without the two lines."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fedsz.cli.files import read_state_dict
from fedsz.cli.output import say
from fedsz.errors import ConfigError, cannot
from fedsz.formatting import one_line

if TYPE_CHECKING:
    from fedsz.arrays import NDArray

PROJECT: Final = Path("pyproject.toml")  # of a Flower app, with the defaults of its run config


@click.command("check")
@click.argument("app")
@click.option(
    "--initial",
    required=True,
    help="The app's first model: a file of weights, or MODULE:NAME of a function or class that"
    " makes a state_dict, a list of arrays or a PyTorch module.",
)
@click.option("--run-config", default="", help='As of flwr run, such as "lr=0.1 batch-size=8".')
@click.option(
    "--node-config",
    default="partition-id=0 num-partitions=2",
    show_default=True,
    help="Likewise, of the one client.",
)
def check(app: str, *, initial: str, run_config: str, node_config: str) -> None:
    """Try a Flower app for one round, with and without the two lines.

    APP is MODULE:APP, a ClientApp. Each line says what the app will meet; the exit code is 1 if
    something fails. Config values of pyproject.toml in this folder are used.
    """
    from fedsz.flower import check as dry

    found, model = _found(app, "app"), _initial(initial)
    config = _project_config() | _values(run_config)
    logging.disable()  # what fails is a line of the report
    try:
        findings = dry.check_app(found, model, _values(node_config), config)
    finally:
        logging.disable(logging.NOTSET)
    for finding in findings:
        say(f"{finding.kind:7}{finding.text}")
    if any(finding.kind == dry.FAILS for finding in findings):
        raise SystemExit(1)


def _found(text: str, what: str) -> Any:
    from fedsz.training.task import find_object

    module, colon, name = text.partition(":")
    if not (colon and module and name):
        raise ConfigError(f"{what} {text!r} is not MODULE:NAME")
    return find_object(module, name, f"{what} {text!r}")


def _initial(text: str) -> dict[str, NDArray]:
    """Return the first model; lists have the names that Flower's records give them."""
    from fedsz.arrays import as_arrays
    from fedsz.training.model_state import arrays_of

    if ":" not in text:
        return as_arrays(read_state_dict(Path(text)))
    made = _found(text, "--initial")
    try:
        model = made() if callable(made) else made
    except Exception as err:  # of the user's function
        why = one_line(f"{type(err).__name__}: {err}")
        raise ConfigError(f"--initial {text!r}, called without arguments: {why}") from err
    if isinstance(model, list | tuple):
        model = {str(i): x for i, x in enumerate(model)}
    return arrays_of(model)


def _values(text: str) -> dict[str, Any]:
    """Return the values of a run config, as in TOML; anything else is text."""
    values: dict[str, Any] = {}
    for entry in text.split():
        name, equals, value = entry.partition("=")
        if not equals:
            raise ConfigError(f"a config is NAME=VALUE, not {entry!r}")
        try:
            values[name] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            values[name] = value
    return values


def _project_config() -> dict[str, Any]:
    """Return the run config of the app in the current folder; nested names have dots."""
    if not PROJECT.exists():
        return {}
    with cannot(f"read {PROJECT}"):
        text = PROJECT.read_text()
    try:
        config = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    except tomllib.TOMLDecodeError as err:
        raise ConfigError(f"{PROJECT} is no TOML file: {err}") from err
    except (KeyError, TypeError):
        return {}
    return dict(_flat(config))


def _flat(config: dict[str, Any], start: str = "") -> Any:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{start}{name}.")
        else:
            yield f"{start}{name}", value
