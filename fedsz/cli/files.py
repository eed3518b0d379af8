"""state_dicts and streams in files."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsz.errors import ConfigError
from fedsz.whole_files import write_whole

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")


def read_bytes(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as err:
        raise ConfigError(f"cannot read {path}: {err.strerror}") from err


def check_free(path: Path, *, force: bool) -> None:
    """Refuse to write over a file that nobody said may go.

    Raises:
        ConfigError: it exists.
    """
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; --force writes over it")


def read_state_dict(path: Path) -> Mapping[str, Any]:
    """Return the state_dict in a file of tensors; a ``.pt`` is read with ``weights_only=True``.

    Raises:
        ConfigError: it cannot be read, is of another kind, or holds no state_dict.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: a state_dict is a file in {', '.join(SUFFIXES)}")
    try:
        state = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    except OSError as err:
        raise ConfigError(f"cannot read {path}: {err.strerror or err}") from err
    # Checkpoints often hold more than the model.
    for key in ("state_dict", "model_state_dict"):
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping):
        raise ConfigError(f"{path} holds a {type(state).__name__}, not a state_dict")
    return state


def write_state_dict(path: Path, state: dict[str, Any], *, force: bool) -> None:
    """Write tensors as a ``.pt`` or ``.safetensors`` file.

    Raises:
        ConfigError: the suffix is another, the file exists, or its format lacks one of the dtypes.
    """
    check_free(path, force=force)
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: a state_dict is a file in {', '.join(SUFFIXES)}")
    if path.suffix == ".safetensors":
        from safetensors.torch import save

        try:
            data = save(state)
        except (KeyError, ValueError) as err:
            raise ConfigError(f"{path}: safetensors cannot hold {err}") from err
    else:
        import torch

        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
    write_whole(path, data)


def _read_torch(path: Path) -> Any:
    import torch

    with path.open("rb") as file, warnings.catch_warnings(action="ignore"):
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as err:  # of any kind, whose text may advise to run what the file holds
            what = "it is damaged, or holds other objects than tensors"
            raise ConfigError(f"{path} is not a file of tensors: {what}") from err


def _read_safetensors(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as err:
        raise ConfigError(f"{path} is not a safetensors file: {err}") from err
