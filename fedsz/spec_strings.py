"""Names with settings, as users write them: ``zfp:precision=14``, ``auto``, ``dc2:seconds=10``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from fedsz.errors import ConfigError

T = TypeVar("T")

NO_SETTING: Final = {"setting": False}  # the metadata of a field that nobody writes


def setting(default: Any, low: float, high: float) -> Any:
    """Return a field of a frozen dataclass that `check_settings` wants in ``low..high``."""
    return dataclasses.field(default=default, metadata={"range": (low, high)})


def check_settings(thing: Any) -> None:
    """Raise `ConfigError` for a `setting` of a dataclass with a ``name`` that is out of range."""
    for f in dataclasses.fields(thing):
        if "range" not in f.metadata:
            continue
        (low, high), value = f.metadata["range"], getattr(thing, f.name)
        if not low <= value <= high:
            raise ConfigError(f"{thing.name} {f.name} must lie in {low:g}..{high:g}, got {value:g}")


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
    kind: str, spec: str, things: Iterable[T], settings: Mapping[str, Any] = MappingProxyType({})
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
