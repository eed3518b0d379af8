"""Arrays in a .safetensors file, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
from safetensors import SafetensorError, deserialize, safe_open

from fedsz.arrays import DTYPES, NDArray
from fedsz.errors import ConfigError, cannot

# What the format calls the dtypes of streams. It has no complex128.
_NAMES: Final = (
    "F32", "F64", "F16", "BF16", "BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64",
    "C64", "", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
)  # fmt: skip
_DTYPES: Final = dict(zip(_NAMES, DTYPES, strict=True))
INITIAL: Final = "the initial weights "  # of a run


def read_safetensors(path: Path, what: str = "") -> dict[str, NDArray]:
    """Return the arrays of a file by name, in their order in it; bfloat16 and float8 by ml_dtypes.

    An error calls the file ``what``, such as `INITIAL`, and its path.

    Raises:
        ConfigError: it cannot be read, is no such file, or has a dtype that streams do not have.
    """
    try:
        with cannot(f"read {what}{path}"):
            with safe_open(path, framework="np") as file:
                names = file.offset_keys()
            tensors = dict(deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    except SafetensorError as err:
        raise ConfigError(f"{what}{path} is not a safetensors file: {err}") from err
    arrays = {}
    for name in names:
        tensor = tensors[name]
        dtype = _DTYPES.get(tensor["dtype"])
        if dtype is None:
            raise ConfigError(f"{path}: {name!r} has dtype {tensor['dtype']}, which is not read")
        arrays[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return arrays
