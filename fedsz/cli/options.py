"""Command-line options, made of the schema in `fedsz.training.options`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

from fedsz.errors import ConfigError
from fedsz.threads import allow
from fedsz.training.options import Option, RunConfig, options, options_of, read_toml

PREFIX: Final = "FEDSZ_"  # of variables in the environment that stand for options
SERVICE: Final = ("tcp://", "udp://")  # FEDSZ_PORT, by Kubernetes, for a service called fedsz
PATH: Final = click.Path(path_type=Path)

Handler = Callable[..., None]
Decorator = Callable[[Handler], Handler]

json_option: Final = click.option("--json", is_flag=True, help="Print JSON, for machines.")
force_option: Final = click.option("--force", "-f", is_flag=True, help="Replace existing files.")


class SchemaOption(click.Option):
    """An option of the schema, in its section of ``--help``."""

    def __init__(self, *declared: Any, panel: str, **attributes: Any) -> None:
        super().__init__(*declared, **attributes)
        self.panel = panel

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Return the value of the option's variable, unless Kubernetes has set it."""
        value = super().resolve_envvar_value(ctx)
        return None if value and value.startswith(SERVICE) else value


class Command(click.Command):
    """A command whose ``--help`` has a section for each subject."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, the command's own options last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            if record := option.get_help_record(ctx):
                title = option.panel if isinstance(option, SchemaOption) else "Options"
                sections.setdefault(title, []).append(record)
        own = sections.pop("Options", [])
        for title, records in [*sections.items(), ("Options", own)]:
            with formatter.section(title):
                formatter.write_dl(records)


def configured(name: str, of: type[RunConfig] = RunConfig) -> Decorator:
    """Give a command ``--config`` and the options of ``of`` that name it.

    The command is called with the configuration first; its own options follow as keywords.
    """
    config = click.option(
        "--config",
        "-c",
        type=PATH,
        help="TOML file with any of these options. Variables FEDSZ_NAME and flags win.",
    )
    taken = {option: options(of)[option] for option in options_of(name, of=of)}

    def decorate(command: Handler) -> Handler:
        @wraps(command)
        def wrapper(config: Path | None, **values: Any) -> None:
            named = {option: values.pop(option) for option in taken}
            chosen = {option: value for option, value in named.items() if value is not None}
            run = _resumed(config, chosen) if "resume" in taken else None
            if run is None:
                run = of.read(config, **chosen) if config else of.of(chosen)
            with allow(run.threads):
                command(run, **values)

        decorators: list[Decorator] = [config]
        decorators += [_flag(name, about, getattr(of, name)) for name, about in taken.items()]
        for decorator in reversed(decorators):
            decorator(wrapper)
        return wrapper

    return decorate


def _flag(name: str, about: Option, default: Any) -> Decorator:
    """Return the decorator of an option."""
    flag = f"--{name.replace('_', '-')}"
    if about.kind is bool:
        flag += f"/--no-{name.replace('_', '-')}"
    return click.option(
        flag,
        cls=SchemaOption,
        panel=about.panel,
        default=None,
        type=about.kind if about.kind in (bool, int, float) else str,
        help=about.says + ("" if default in ("", False) else f" Default: {default}."),
        envvar=f"{PREFIX}{name.upper()}",
        **({"is_flag": False, "flag_value": about.alone} if about.alone else {}),
    )


def _resumed(file: Path | None, chosen: dict[str, Any]) -> RunConfig | None:
    """Return the options of the run that is to be continued; None for a new run."""
    named = read_toml(file) if file else {}
    values = {name.replace("-", "_"): value for name, value in named.items()} | chosen
    if not (values.get("resume") or values.get("or_resume")):
        return None
    from fedsz.training.run_folder import holds_run, resumed_config

    folder = str(values.pop("resume", "") or values.get("run_dir", ""))
    if not folder:
        raise ConfigError("--or-resume needs --run-dir, the folder of the run")
    if values.get("or_resume") and not holds_run(Path(folder)):
        return None
    return resumed_config(Path(folder), values)
