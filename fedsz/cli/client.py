"""``fedsz client``: a device of a fleet."""

from __future__ import annotations

from fedsz.cli.options import configured
from fedsz.training.options import RunConfig


@configured(
    "server", "dataset", "data_dir", "device", "partition", "client_id", "max_wait",
    "insecure", "tls_ca", "tls_cert", "tls_key",
)  # fmt: skip
def command(config: RunConfig) -> None:
    """Train on this device for a server, until its run is over."""
    from fedsz.training.fleet import join

    join(config)
