"""What the core finds by name: methods and policies of other packages, and `fedsz.privacy`.

`fedsz.contrib` has methods and policies too.

A package registers its own by entry points, in its ``pyproject.toml``::

    [project.entry-points."fedsz.methods"]
    mine = "my_package.methods:Mine"
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from fedsz.errors import ConfigError

METHODS: Final = "fedsz.methods"
POLICIES: Final = "fedsz.policies"


@cache
def loaded(group: str) -> tuple[Any, ...]:
    """Return the objects of a group, those of `fedsz.contrib` first; each is loaded once.

    Args:
        group: `METHODS` or `POLICIES`. An entry names an object with a ``name``, or a
            class of such objects, which is called without arguments.

    Raises:
        ConfigError: an entry does not load, or its name is in use; names the entry.
    """
    from fedsz import contrib  # which imports the other packages

    own = [EntryPoint(name, value, group) for name, value in contrib.ENTRY_POINTS.get(group, ())]
    found: dict[str, Any] = {}
    for entry in (*own, *entry_points(group=group)):
        try:
            thing = entry.load()
            thing = thing() if isinstance(thing, type) else thing
            name = str(thing.name)
        except Exception as err:
            raise ConfigError(f"{group} plugin {entry.name!r} ({entry.value}): {err}") from err
        if name in found:
            raise ConfigError(f"{group} plugin {entry.name!r} ({entry.value}): {name!r} exists")
        found[name] = thing
    return tuple(found.values())


def client_guard() -> Any:
    """Return what a client does that asks nothing of secure sums: it takes part if it is asked."""
    from fedsz.privacy.flower_client import SecureMember  # which imports fedsz.flower

    return SecureMember(required=False)
