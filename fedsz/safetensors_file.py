"""Arrays in a .safetensors file."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedsz.arrays import NDArray
from fedsz.errors import ConfigError


def read_safetensors(path: Path) -> dict[str, NDArray]:
    """Return the arrays of a file by name.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as err:
        raise ConfigError(f"cannot read the initial weights {path}: {err}") from err
