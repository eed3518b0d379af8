"""state_dicts and streams in files."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedsz import extras
from fedsz.arrays import NDArray, as_tensor
from fedsz.errors import ConfigError, cannot
from fedsz.safetensors_file import read_safetensors
from fedsz.whole_files import write_whole

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors", ".npz")
# Under which checkpoints hold the model beside other things.
MODEL_KEYS = ("state_dict", "model_state_dict", "model")


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
    readers = {".safetensors": read_safetensors, ".npz": _read_numpy}
    read: Callable[[Path], Any] = readers.get(path.suffix, _read_torch)
    with cannot(f"read {path}"):
        state = read(path)
    for key in MODEL_KEYS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping):
        raise ConfigError(f"{path} holds a {type(state).__name__}, not a state_dict")
    return state


def write_state_dict(path: Path, state: dict[str, NDArray]) -> None:
    """Write arrays as a file of tensors, of the kind that its suffix says; over one that is there.

    Raises:
        ConfigError: the suffix is another, or its format lacks one of the dtypes.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: a state_dict is a file in {', '.join(SUFFIXES)}")
    buffer = io.BytesIO()
    if path.suffix == ".npz":
        for name, x in state.items():
            if x.dtype.kind == "V":  # what numpy has through ml_dtypes alone comes back as bytes
                raise ConfigError(f"{path}: .npz cannot hold {x.dtype}, the dtype of {name!r}")
        # As numpy.savez does, which takes some names for its own arguments.
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, x in state.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, x, allow_pickle=False)
        write_whole(path, buffer.getvalue())
        return
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.numpy import save

        try:
            buffer.write(save(state))
        except SafetensorError as err:
            raise ConfigError(f"{path}: safetensors cannot hold it: {err}") from err
    else:
        tensors = {name: as_tensor(x) for name, x in state.items()}
        import torch

        torch.save(tensors, buffer)
    write_whole(path, buffer.getvalue())


def _read_numpy(path: Path) -> dict[str, NDArray]:
    with path.open("rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                return dict(archive)
        except Exception as err:  # of any kind: numpy, zipfile and zlib have their own
            what = "it is damaged, or holds other objects than arrays"
            raise ConfigError(f"{path} is not a .npz file: {what}") from err


def _read_torch(path: Path) -> Any:
    with extras.explained():
        import torch

    with path.open("rb") as file, warnings.catch_warnings(action="ignore"):
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as err:  # of any kind, whose text may advise to run what the file holds
            what = "it is damaged, or holds other objects than tensors"
            raise ConfigError(f"{path} is not a file of tensors: {what}") from err
