"""fedsz: error-bounded compression for federated learning.

    blob = fedsz.compress(model.state_dict(), error_bound=1e-2)
    model.load_state_dict(fedsz.decompress(blob))

docs/format.md in the repository describes the bytes; `fedsz.flower` puts them into Flower apps.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsz.extras import explained

if TYPE_CHECKING:
    from fedsz import codecs, flower
    from fedsz.bounds import ErrorBound
    from fedsz.core.decode import decompress
    from fedsz.core.encode import compress
    from fedsz.errors import FedszError
    from fedsz.stream import Limits
    from fedsz.stream.inspection import inspect

    __version__: str

__all__ = [
    "ErrorBound",
    "FedszError",
    "Limits",
    "codecs",
    "compress",
    "decompress",
    "flower",
    "inspect",
]

_HOMES = {
    "ErrorBound": "fedsz.bounds",
    "FedszError": "fedsz.errors",
    "Limits": "fedsz.stream",
    "compress": "fedsz.core.encode",
    "decompress": "fedsz.core.decode",
    "inspect": "fedsz.stream.inspection",
}


def __getattr__(name: str) -> Any:
    # Each name is imported when it is first used: the command line needs no numpy to print its
    # help, and Flower takes half a second.
    if name == "__version__":
        from importlib.metadata import version  # of what is installed; it reads a file

        return version("fedsz")
    if name not in __all__:
        raise AttributeError(f"module 'fedsz' has no attribute {name!r}")
    home = _HOMES.get(name)
    with explained():
        value = getattr(import_module(home), name) if home else import_module(f"fedsz.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
