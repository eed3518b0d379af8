"""NVFlare's DXOs <-> fedsz streams.

A sealed DXO keeps its kind. Its data are streams, each of differences from what the one before it
decodes to, and beside them what no stream can hold. Its meta names the algorithm, as those of
NVFlare's own quantisers do, and has a note of ours: on the way to a client it says how to compress
the reply (`fedsz.core.protocol`), on the way back what that took.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from nvflare.apis.dxo import DXO, MetaKey

from fedsz.arrays import NDArray, as_array, as_tensor
from fedsz.errors import ConfigError, CorruptStream

NAME: Final = "fedsz"  # of the algorithm, and the key of the note
VERSION: Final = 1  # of the note, and of what a DXO's data are
_STREAMS: Final = "streams"
_BESIDE: Final = "beside"


class Content(NamedTuple):
    """What a plain DXO holds.

    Attributes:
        arrays: those that streams can hold.
        beside: everything else, by the same names.
        as_tensors: whether the arrays were tensors of torch.
    """

    arrays: dict[str, NDArray]
    beside: dict[Any, Any]
    as_tensors: bool

    @property
    def nbytes(self) -> int:
        """Size of the arrays."""
        return sum(x.nbytes for x in self.arrays.values())


class Sealed(NamedTuple):
    """What a sealed DXO holds: streams, what goes beside them, and the note.

    A client that holds the model already is sent none.
    """

    streams: list[bytes]
    beside: dict[Any, Any]
    note: dict[str, Any]


def content_of(dxo: DXO) -> Content | None:
    """Return what a DXO holds that fedsz can compress; None for one that is processed already."""
    if dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM):
        return None  # encrypted, quantised
    torch = sys.modules.get("torch")
    arrays, beside, as_tensors = dict[str, NDArray](), dict[Any, Any](), False
    for name, value in dxo.data.items():
        is_tensor = torch is not None and isinstance(value, torch.Tensor)
        try:
            if not (is_tensor or isinstance(value, np.ndarray)):
                raise ConfigError(f"{name!r} is no array")
            arrays[name] = as_array(name, value)
            as_tensors |= is_tensor
        except ConfigError:
            beside[name] = value
    return Content(arrays, beside, as_tensors)


def sealed(dxo: DXO, streams: Sequence[bytes], beside: Mapping[Any, Any], **note: Any) -> DXO:
    """Return a DXO of streams in the place of ``dxo``, which is not changed."""
    data = {_STREAMS: list(streams), _BESIDE: dict(beside)}
    return _in_place_of(
        dxo, data, {MetaKey.PROCESSED_ALGORITHM: NAME, NAME: {"version": VERSION, **note}}
    )


def opened(dxo: DXO) -> Sealed | None:
    """Return what a sealed DXO holds; None for one that is not sealed.

    Raises:
        ConfigError: it is of another version.
        CorruptStream: it is not what `sealed` makes.
    """
    if dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM) != NAME:
        return None
    note, streams, beside = dxo.get_meta_prop(NAME), dxo.data.get(_STREAMS), dxo.data.get(_BESIDE)
    if not isinstance(note, dict):
        raise CorruptStream("a sealed DXO has no note", offset=0)
    if note.get("version") != VERSION:
        raise ConfigError(f"a DXO of version {note.get('version')!r}; this release has {VERSION}")
    if not (isinstance(streams, list) and all(isinstance(s, bytes) for s in streams)):
        raise CorruptStream("a sealed DXO holds no streams", offset=0)
    return Sealed(streams, beside if isinstance(beside, dict) else {}, note)


def plain(
    dxo: DXO, arrays: Mapping[str, NDArray], beside: Mapping[Any, Any], *, as_tensors: bool
) -> DXO:
    """Return a DXO of arrays in the place of a sealed one, which is not changed."""
    values = {name: as_tensor(x) if as_tensors else x for name, x in arrays.items()}
    return _in_place_of(dxo, {**values, **beside}, {})


def _in_place_of(dxo: DXO, data: dict[Any, Any], meta: Mapping[str, Any]) -> DXO:
    # Filters note themselves in the history, a list that DXOs must not share.
    ours = (MetaKey.PROCESSED_ALGORITHM, NAME, MetaKey.FILTER_HISTORY)
    kept = {key: value for key, value in (dxo.meta or {}).items() if key not in ours}
    return DXO(dxo.data_kind, data, {**kept, **meta})
