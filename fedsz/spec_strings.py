"""Names with settings, as users write them: ``zfp:precision=14``, ``auto``, ``dc2:seconds=10``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from fedsz.errors import ConfigError

T = TypeVar("T")


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
    fields = {f.name: type(getattr(named[name], f.name)) for f in dataclasses.fields(named[name])}
    written = dict(item.partition("=")[::2] for item in rest.split(",") if item)
    changes: dict[str, Any] = {}
    for key, value in {**written, **settings}.items():
        if key not in fields:
            have = ", ".join(fields) or "none"
            raise ConfigError(f"{kind} {name!r} has no setting {key!r}; have {have}")
        try:
            changes[key] = fields[key](value)
        except ValueError:
            raise ConfigError(
                f"{name} {key} must be {fields[key].__name__}, got {value!r}"
            ) from None
    changed: T = dataclasses.replace(named[name], **changes)
    return changed
