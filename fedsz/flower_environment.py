"""What Flower reads from the environment when it is imported; imported before it is.

A federation on a closed network has nobody to call home to, and what a device runs is for its owner
to install.
"""

import os

VARIABLES = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
for name, value in VARIABLES.items():
    os.environ.setdefault(name, value)
