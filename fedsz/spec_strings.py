"""Names with settings, as users write them: ``zfp:precision=14``, ``auto``, ``dc2:seconds=10``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from fedsz.errors import ConfigError

T = TypeVar("T")


def written(rest: str) -> dict[str, str]:
    """Return what stands behind the colon, by the names of the settings."""
    return dict(item.partition("=")[::2] for item in rest.split(",") if item)


def configured(kind: str, name: str, default: T, settings: Mapping[str, Any]) -> T:
    """Return ``default``, a frozen dataclass, with these settings in the types of its fields.

    Args:
        kind: of thing, for the message.
        name: of the thing.
        default: whose fields are the settings there are.
        settings: what to change.

    Raises:
        ConfigError: no such setting, or a value it cannot have.
    """
    thing: Any = default
    fields = {field.name: type(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
    chosen: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in fields:
            have = ", ".join(fields) or "none"
            raise ConfigError(f"{kind} {name!r} has no setting {key!r}; have {have}")
        try:
            chosen[key] = fields[key](value)
        except ValueError:
            raise ConfigError(
                f"{name} {key} must be {fields[key].__name__}, got {value!r}"
            ) from None
    changed: T = dataclasses.replace(thing, **chosen)
    return changed
