"""Names with settings, as users write them: ``zfp:precision=14``, ``auto``, ``dc2:seconds=10``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, cast

from fedsz.errors import ConfigError

T = TypeVar("T")

NO_SETTING: Final = {"setting": False}  # the metadata of a field that nobody writes


class Choice(StrEnum):
    """A setting that is one of a few words.

    Raises:
        ConfigError: it is none of them.
    """

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ConfigError(f"must be one of {', '.join(cls)}, got {value!r}")


class _Range(NamedTuple):
    low: float
    high: float
    above: bool
    below: bool

    def __contains__(self, value: object) -> bool:
        number = cast(float, value)
        return (
            self.low <= number <= self.high
            and math.isfinite(number)
            and not (self.above and number == self.low)
            and not (self.below and number == self.high)
        )

    def __str__(self) -> str:
        """Say what a value must do."""
        if self.high == math.inf:
            return f"be finite and {'above' if self.above else 'at least'} {self.low:g}"
        if not (self.above or self.below):
            return f"lie in {self.low:g}..{self.high:g}"
        begin, end = "above" if self.above else "from", "below" if self.below else "up to"
        return f"lie {begin} {self.low:g}, {end} {self.high:g}"


def setting(
    default: Any, low: float, high: float = math.inf, *, above: bool = False, below: bool = False
) -> Any:
    """Return a field of a dataclass, a finite number that `check_settings` wants in ``low..high``.

    ``above`` leaves ``low`` itself out, and ``below`` leaves ``high`` out.
    """
    return dataclasses.field(default=default, metadata={"range": _Range(low, high, above, below)})


def check_settings(thing: Any) -> None:
    """Raise `ConfigError` for a `setting` of a dataclass with a ``name`` that is out of range."""
    for f in dataclasses.fields(thing):
        if "range" not in f.metadata:
            continue
        wanted, value = f.metadata["range"], getattr(thing, f.name)
        if value not in wanted:
            raise ConfigError(f"{thing.name} {f.name} must {wanted}, got {value:g}")


def settings_of(thing: Any) -> dict[str, Any]:
    """Return the settings of a frozen dataclass, by name: its fields, but for `NO_SETTING`."""
    return {
        f.name: getattr(thing, f.name)
        for f in dataclasses.fields(thing)
        if f.metadata.get("setting", True)
    }


def spelled(thing: Any) -> str:
    """Return a thing as users write it: its name, and the settings that are not defaults."""
    defaults = {f.name: f.default for f in dataclasses.fields(thing)}
    settings = settings_of(thing).items()
    changed = ",".join(f"{name}={value}" for name, value in settings if value != defaults[name])
    return f"{thing.name}:{changed}" if changed else str(thing.name)


def chosen(
    kind: str,
    spec: str,
    things: Iterable[T],
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> T:
    """Return the one of ``things`` that ``spec`` names, with its settings.

    Args:
        kind: of thing, for messages.
        spec: a name, or a name with settings.
        things: frozen dataclasses with a ``name``, whose fields are the settings there are.
        settings: others, which win.

    Raises:
        ConfigError: no such thing or setting, or a value it cannot have.
    """
    name, _, rest = spec.partition(":")
    named: dict[str, Any] = {thing.name: thing for thing in things}  # type: ignore[attr-defined]
    if name not in named:
        raise ConfigError(f"no {kind} {name!r}; have {', '.join(named)}")
    types = {key: type(value) for key, value in settings_of(named[name]).items()}
    written = dict(item.partition("=")[::2] for item in rest.split(",") if item)
    changes: dict[str, Any] = {}
    for key, value in {**written, **settings}.items():
        if key not in types:
            have = ", ".join(types) or "none"
            raise ConfigError(f"{kind} {name!r} has no setting {key!r}; have {have}")
        try:
            changes[key] = types[key](value)
        except ConfigError as err:
            raise ConfigError(f"{name} {key} {err}") from None
        except ValueError:
            raise ConfigError(
                f"{name} {key} must be {types[key].__name__}, got {value!r}"
            ) from None
    changed: T = dataclasses.replace(named[name], **changes)
    return changed
