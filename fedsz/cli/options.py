"""`RunConfig` as command-line options: names, defaults and help come from there."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from fedsz.errors import FedszError
from fedsz.training.options import RunConfig, options, options_of

Handler = Callable[..., None]

Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        help="TOML file with any of these options. FEDSZ_NAME in the environment and flags win.",
    ),
]


def configured(name: str, of: type[RunConfig] = RunConfig) -> Callable[[Handler], Handler]:
    """Give a command the options of ``of`` that are its, and ``--config``.

    The command is called with one of these first; options of its own follow as keywords.
    """

    def decorate(command: Handler) -> Handler:
        defaults = {field.name: field.default for field in dataclasses.fields(of)}
        kinds = get_type_hints(of)
        flags = {"config": Config}
        for option in options_of(name, of=of):
            kind = str if kinds[option] == float | str else kinds[option]
            default, about = defaults[option], options(of)[option]
            shown = "" if default in ("", False) else f" [dim]Default: {default}.[/]"
            flags[option] = Annotated[  # type: ignore[assignment]
                kind | None,
                typer.Option(
                    f"--{option.replace('_', '-')}",
                    help=about.says + shown,
                    envvar=f"FEDSZ_{option.upper()}",  # what containers are told
                    show_envvar=False,
                    rich_help_panel=about.panel,
                ),
            ]
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def wrapper(config: Path | None = None, **given: Any) -> None:
            own_values = {parameter.name: given.pop(parameter.name) for parameter in own}
            chosen = {name: value for name, value in given.items() if value is not None}
            run = of.read(config, **chosen) if config else of.of(chosen)
            command(run, **own_values)

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter(name, keyword, default=None, annotation=annotation)
            for name, annotation in flags.items()
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
