"""fedsz for Flower: compress any app's traffic, one line each side.

    app = ClientApp(mods=[fedsz.flower.FedSZMod()])
    strategy.start(grid=fedsz.flower.FedSZGrid(grid, error_bound=1e-2), ...)

`StreamingFedAvg` averages in memory that does not grow with the number of clients; `GrpcGrid` and
`run_client` carry Flower's messages over gRPC, `LocalGrid` within a process.
"""

import os

# Flower reads these on import: a federation on a closed network has nobody to call home to, and
# what a device runs is for its owner to install.
for _name, _value in (
    ("FLWR_TELEMETRY_ENABLED", "0"),
    ("FLWR_DISABLE_UPDATE_CHECK", "1"),
    ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1"),
):
    os.environ.setdefault(_name, _value)

from fedsz.flower.apps import make_client_app, make_server_app  # noqa: E402
from fedsz.flower.fedavg import StreamingFedAvg  # noqa: E402
from fedsz.flower.grid import FedSZGrid, Traffic  # noqa: E402
from fedsz.flower.grpc_client import run_client  # noqa: E402
from fedsz.flower.grpc_grid import GrpcGrid  # noqa: E402
from fedsz.flower.local import LocalGrid  # noqa: E402
from fedsz.flower.mod import FedSZMod  # noqa: E402

__all__ = [
    "FedSZGrid",
    "FedSZMod",
    "GrpcGrid",
    "LocalGrid",
    "StreamingFedAvg",
    "Traffic",
    "make_client_app",
    "make_server_app",
    "run_client",
]
