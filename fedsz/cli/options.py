"""`RunConfig` as command-line options: names, defaults and help come from there."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import click
import typer
from typer.core import TyperCommand

from fedsz.errors import ConfigError
from fedsz.training.options import RunConfig, options, options_of

PREFIX: Final = "FEDSZ_"  # of variables in the environment that stand for options

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
        kinds = get_type_hints(of)  # once: asking for each flag takes a third of --help
        flags = {option: _flag(option, of, kinds) for option in options_of(name, of=of)}
        keyword = inspect.Parameter.KEYWORD_ONLY
        taken = [
            inspect.Parameter(flag, keyword, default=None, annotation=annotation)
            for flag, annotation in {"config": Config, **flags}.items()
        ]
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

        def wrapper(config: Path | None = None, **given: Any) -> None:
            own_values = {parameter.name: given.pop(parameter.name) for parameter in own}
            chosen = {option: value for option, value in given.items() if value is not None}
            command(_configuration(of, config, chosen), **own_values)

        signature = inspect.Signature([*taken, *(p.replace(kind=keyword) for p in own)])
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
        wrapper.__doc__ = command.__doc__
        return wrapper

    return decorate


def _configuration(of: type[RunConfig], config: Path | None, chosen: dict[str, Any]) -> RunConfig:
    """Return the options of a command, from a file, the environment and flags."""
    if chosen.get("resume"):
        from fedsz.training.run_folder import resumed_config

        folder = Path(chosen.pop("resume"))
        if config:
            raise ConfigError(f"leave out --config: --resume takes the options of {folder}")
        return resumed_config(folder, chosen)
    return of.read(config, **chosen) if config else of.of(chosen)


def _flag(option: str, of: type[RunConfig], kinds: dict[str, Any]) -> Any:
    """Return the type of a command-line option, with all that typer is told of it."""
    kind, about, default = kinds[option], options(of)[option], getattr(of, option)
    shown = "" if default in ("", False) else f" [dim]Default: {default}.[/]"
    return Annotated[
        (str if kind == float | str else kind) | None,
        typer.Option(
            f"--{option.replace('_', '-')}",
            help=about.says + shown,
            envvar=f"{PREFIX}{option.upper()}",  # what containers are told
            show_envvar=False,
            rich_help_panel=about.panel,
        ),
    ]


class Command(TyperCommand):
    """A command, some of whose options may stand without a value (`Option.alone`)."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give such options the values that they then have."""
        named = options().items()
        alone = {f"--{name.replace('_', '-')}": about.alone for name, about in named if about.alone}
        after = [*args[1:], "-"][: len(args)]
        filled = [
            f"{arg}={alone[arg]}" if arg in alone and following.startswith("-") else arg
            for arg, following in zip(args, after, strict=True)
        ]
        return super().parse_args(ctx, filled)


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
