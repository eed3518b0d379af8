"""A model's arrays: out of it, into it, and from a file; `Task` says what a model is."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord

from fedsz.arrays import Layout, NDArray, as_arrays, as_tensor
from fedsz.errors import ConfigError
from fedsz.flower.records import layout_of, to_record, views_of
from fedsz.safetensors_file import INITIAL, read_safetensors


def arrays_of(model: Any) -> dict[str, NDArray]:
    """Return a model's arrays by name; those of a torch model on the CPU share its memory.

    Raises:
        ConfigError: it is no model, or has an array that streams do not have.
    """
    if isinstance(model, MutableMapping):
        return as_arrays(model)
    if not (hasattr(model, "state_dict") and hasattr(model, "load_state_dict")):
        kinds = "a torch module, a dict of arrays, or state_dict() and load_state_dict(state)"
        raise ConfigError(f"a {type(model).__name__} is no model; fedsz takes {kinds}")
    return as_arrays(model.state_dict())


def set_arrays(model: Any, arrays: Mapping[str, NDArray]) -> None:
    """Give a model other values for all of its arrays, of their shapes and dtypes."""
    torch = sys.modules.get("torch")
    if isinstance(model, MutableMapping):
        model.update(arrays)
    elif torch is not None and isinstance(model, torch.nn.Module):
        model.load_state_dict({name: as_tensor(x) for name, x in arrays.items()})
    else:
        model.load_state_dict(dict(arrays))


def load(model: Any, record: ArrayRecord) -> Mapping[str, NDArray]:
    """Load plain arrays into a model, and return them in its dtypes.

    Raises:
        ModelMismatch: names or shapes differ; the first of them is named.
    """
    template = Layout.of(arrays_of(model))
    template.check(layout_of(record).shapes)
    arrays = {name: x.copy() for name, x in views_of(record, template).items()}
    set_arrays(model, arrays)
    return arrays


def start_from(model: Any, path: Path) -> None:
    """Load weights that a run, or anybody, has saved.

    Raises:
        ConfigError: the file cannot be read.
        ModelMismatch: it holds another model.
    """
    load(model, to_record(as_arrays(read_safetensors(path, INITIAL))))
