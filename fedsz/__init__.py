"""fedsz: error-bounded compression for federated learning.

    blob = fedsz.compress(model.state_dict(), error_bound=1e-2)
    model.load_state_dict(fedsz.decompress(blob))

docs/format.md in the repository describes the bytes; `fedsz.flower` puts them into Flower apps.
"""

from importlib import import_module
from types import ModuleType

from fedsz import codecs
from fedsz.bounds import ErrorBound
from fedsz.errors import FedszError
from fedsz.stream import Limits
from fedsz.stream.inspection import inspect
from fedsz.update.compress import compress
from fedsz.update.decompress import decompress

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


def __getattr__(name: str) -> ModuleType:
    # Flower takes half a second to import; only those who use it pay for it.
    if name == "flower":
        return import_module("fedsz.flower")
    raise AttributeError(f"module 'fedsz' has no attribute {name!r}")
