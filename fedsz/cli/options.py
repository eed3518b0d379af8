"""`RunConfig` as command-line options: names, defaults and help come from there."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from fedsz.errors import FedszError
from fedsz.training.options import RunConfig

Handler = Callable[..., None]

PANELS: Final = {
    "What is learned": (
        "dataset", "data_dir", "samples", "image_size", "test_samples", "model", "initial",
        "partitioner", "alpha", "seed",
    ),
    "How it is learned": (
        "rounds", "epochs", "batch_size", "learning_rate", "momentum", "device", "min_clients",
        "clients", "round_timeout",
    ),
    "How updates are compressed": (
        "policy", "tolerance", "update", "error_bound", "downlink", "codec", "lossless",
        "threshold", "rule",
    ),
    "How they travel": (
        "host", "port", "server", "partition", "client_id", "max_wait", "reconnect_grace",
        "insecure", "tls_cert", "tls_key", "tls_ca",
    ),
    "Results": ("run_dir",),
}  # fmt: skip
SWEPT: Final = (
    "models", "datasets", "partitions", "codecs", "error_bounds", "ways", "seeds", "grid", "jobs",
    "results",
)  # fmt: skip
PANEL_OF: Final = {
    **{name: panel for panel, names in PANELS.items() for name in names},
    **dict.fromkeys(SWEPT, "What is swept"),
}

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="TOML file with any of these options. FEDSZ_NAME in the environment and flags win.",
    ),
]


def configured(*names: str, of: type[RunConfig] = RunConfig) -> Callable[[Handler], Handler]:
    """Give a command the named options of ``of``, and ``--config``.

    The command is called with one of these first; options of its own follow as keywords.
    """

    def decorate(command: Handler) -> Handler:
        fields = {field.name: field for field in dataclasses.fields(of)}
        kinds = get_type_hints(of)
        options = {"config": Config}
        for name in names:
            kind = str if kinds[name] == float | str else kinds[name]
            default, says = fields[name].default, fields[name].metadata["help"]
            options[name] = Annotated[  # type: ignore[assignment]
                kind | None,
                typer.Option(
                    f"--{name.replace('_', '-')}",
                    help=says if default in ("", False) else f"{says} [dim]Default: {default}.[/]",
                    envvar=f"FEDSZ_{name.upper()}",  # what containers are told
                    show_envvar=False,
                    rich_help_panel=PANEL_OF[name],
                ),
            ]
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def wrapper(config: Path | None = None, **given: Any) -> None:
            own_values = {parameter.name: given.pop(parameter.name) for parameter in own}
            flags = {name: value for name, value in given.items() if value is not None}
            run = of.read(config, **flags) if config else of.of(flags)
            command(run, **own_values)

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter(name, keyword, default=None, annotation=annotation)
            for name, annotation in options.items()
        ]
        signature = inspect.Signature(parameters + [p.replace(kind=keyword) for p in own])
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__module__.rpartition(".")[2]
        return wrapper

    return decorate


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@contextmanager
def failure_as_json() -> Iterator[None]:
    """Tell of a `FedszError` on stdout too, as an event, for the process that started this one."""
    from fedsz.training.events import Failed, to_json

    try:
        yield
    except FedszError as err:
        print(to_json(Failed(str(err))), flush=True)
        raise
