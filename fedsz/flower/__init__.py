"""fedsz for Flower: compress any app's traffic, one line each side.

The client's line is ``ClientApp(mods=[FedSZMod()])``, and the server's is ``FedSZGrid(grid)``. If
Flower starts the strategy, as in apps with a ``server_fn``, the server's is ``compressed(app)``.

`StreamingFedAvg` averages in memory that does not grow with the number of clients; `GrpcGrid` and
`run_client` carry Flower's messages over gRPC, `LocalGrid` within a process.

Examples:
    >>> from flwr.clientapp import ClientApp
    >>> from fedsz.flower import FedSZGrid, FedSZMod, LocalGrid
    >>> app = ClientApp(mods=[FedSZMod()])
    >>> grid = FedSZGrid(LocalGrid(app, [{"partition-id": 0}, {"partition-id": 1}]))
    >>> len(list(grid.get_node_ids()))
    2
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsz import flower_environment  # noqa: F401 - before Flower is imported
from fedsz.control.record import Traffic
from fedsz.extras import explained

with explained():
    from fedsz import flower_compat  # noqa: F401 - first, for it knows which releases fit
    from fedsz.flower.fedbuff import FedBuff
    from fedsz.flower.grid import FedSZGrid, compressed
    from fedsz.flower.liveness import Deadlines
    from fedsz.flower.mod import FedSZMod
    from fedsz.flower.records import record_of, state_dict_of
    from fedsz.flower.rules import Rules
    from fedsz.flower.strategy import StreamingFedAvg
    from fedsz.transport.grpc_client import run_client
    from fedsz.transport.grpc_grid import GrpcGrid
    from fedsz.transport.local_grid import LocalGrid

if TYPE_CHECKING:  # at run time they import this package
    from fedsz.privacy.flower_average import PrivateFedAvg
    from fedsz.privacy.flower_client import SecureMember
    from fedsz.privacy.flower_server import SecureSum

__all__ = [
    "Deadlines",
    "FedBuff",
    "FedSZGrid",
    "FedSZMod",
    "GrpcGrid",
    "LocalGrid",
    "PrivateFedAvg",
    "Rules",
    "SecureMember",
    "SecureSum",
    "StreamingFedAvg",
    "Traffic",
    "compressed",
    "make_client_app",
    "make_server_app",
    "record_of",
    "run_client",
    "state_dict_of",
]


# Packages that stand above this one, and are made of it.
_ABOVE = {
    "make_client_app": "fedsz.training.apps",
    "make_server_app": "fedsz.training.apps",
    "PrivateFedAvg": "fedsz.privacy.flower_average",
    "SecureMember": "fedsz.privacy.flower_client",
    "SecureSum": "fedsz.privacy.flower_server",
}


def __getattr__(name: str) -> Any:
    if name in _ABOVE:
        with explained():
            return getattr(import_module(_ABOVE[name]), name)
    raise AttributeError(f"module 'fedsz.flower' has no attribute {name!r}")
