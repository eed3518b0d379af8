"""NVFlare's DXOs <-> fedsz streams, and what a client announces with each request for a task.

A sealed DXO keeps its kind. Its data are the fields of `Sealed`; its meta names the algorithm, as
those of NVFlare's own quantisers do.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from nvflare.apis.dxo import DXO, MetaKey

from fedsz.arrays import NDArray, as_array, as_tensor
from fedsz.errors import ConfigError, CorruptStream

NAME: Final = "fedsz"  # of the algorithm, and of a client's public property


class Task(NamedTuple):
    """A task of one client: its name, its id, the number of its round if there is one."""

    name: str
    id: str
    number: int | None = None


class Announcement(msgspec.Struct, frozen=True, tag=1):
    """What a client tells the server beside a request for a task. The tag is the version of it.

    Attributes:
        digests: by task, of the reference model that it has.
        has_initial: whether it says that it has the first model.
        is_new: whether its process has sent no result yet.
    """

    digests: dict[str, bytes] = {}
    has_initial: bool = False
    is_new: bool = True


# msgspec learns a type on its first use. Another thread that uses it meanwhile ends the process.
_ANNOUNCEMENT: Final = msgspec.msgpack.Decoder(Announcement)


def announced(data: Any) -> Announcement | None:
    """Return an `Announcement` from its bytes; None for anything else."""
    try:
        return _ANNOUNCEMENT.decode(data)
    except (msgspec.MsgspecError, TypeError):
        return None


class Sealed(msgspec.Struct):
    """The data of a sealed DXO.

    Attributes:
        stream: of the arrays; b"" for a client that has the model already.
        note: a `Request` on the way to a client, a `ReplyNote` on the way back.
        as_tensors: whether the arrays are to be tensors of torch.
        passthrough: all other values, by name.
    """

    stream: bytes
    note: bytes
    as_tensors: bool
    passthrough: dict  # type: ignore[type-arg]  # of anything, which msgspec leaves alone

    def check_names(self, names: Iterable[str]) -> None:
        """Raise `CorruptStream` if a value would take the place of an array of these names."""
        for name in names:
            if name in self.passthrough:
                raise CorruptStream(f"{name!r} is in the stream and beside it", offset=0)


def arrays_in(dxo: DXO) -> dict[str, NDArray]:
    """Return the arrays that fedsz can compress; none of a DXO that is encrypted or quantised."""
    found: dict[str, NDArray] = {}
    if not dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM):
        for name, value in dxo.data.items():
            if isinstance(value, np.ndarray) or _is_tensor(value):
                with suppress(ConfigError):
                    found[name] = as_array(name, value)
    return found


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def sealed(dxo: DXO, arrays: Container[str], stream: bytes, note: bytes) -> DXO:
    """Return a DXO with a stream in the place of some arrays; ``dxo`` is not changed."""
    rest = {name: value for name, value in dxo.data.items() if name not in arrays}
    as_tensors = any(_is_tensor(value) for name, value in dxo.data.items() if name in arrays)
    data = msgspec.structs.asdict(Sealed(stream, note, as_tensors, rest))
    return _in_place_of(dxo, data, {MetaKey.PROCESSED_ALGORITHM: NAME})


def opened(dxo: DXO) -> Sealed | None:
    """Return what a sealed DXO holds; None for one that is not sealed.

    Raises:
        CorruptStream: it is not what `sealed` makes.
    """
    if dxo.get_meta_prop(MetaKey.PROCESSED_ALGORITHM) != NAME:
        return None
    try:
        return msgspec.convert(dxo.data, Sealed)
    except msgspec.ValidationError as err:
        raise CorruptStream(f"a sealed DXO is not valid: {err}", offset=0) from None


def plain(dxo: DXO, arrays: Mapping[str, NDArray], content: Sealed) -> DXO:
    """Return a DXO of arrays in the place of a sealed one, which is not changed.

    Raises:
        CorruptStream: as `Sealed.check_names`.
    """
    content.check_names(arrays)
    values = {name: as_tensor(x) if content.as_tensors else x for name, x in arrays.items()}
    return _in_place_of(dxo, {**values, **content.passthrough}, {})


def _in_place_of(dxo: DXO, data: dict[Any, Any], meta: Mapping[str, Any]) -> DXO:
    # Filters note themselves in the history, a list that DXOs must not share.
    ours = (MetaKey.PROCESSED_ALGORITHM, MetaKey.FILTER_HISTORY)
    kept = {key: value for key, value in (dxo.meta or {}).items() if key not in ours}
    return DXO(dxo.data_kind, data, {**kept, **meta})
