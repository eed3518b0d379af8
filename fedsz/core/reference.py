"""A model that both sides hold, by which updates are coded as differences.

The step from the model a client was sent to the one it sends back is small: within the same error
bound it takes far fewer bytes. A stream of differences names what they refer to by a digest, so
that nothing is ever added to the wrong model.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Final

from fedsz.arrays import DTYPE_NAMES, Layout, NDArray, StateDict, as_arrays, raw, require_state_dict
from fedsz.codecs import _stream
from fedsz.errors import ConfigError, ReferenceMismatch

if TYPE_CHECKING:
    from fedsz.methods import History

SHOWN: Final = 8  # bytes of a digest in messages


class Reference:
    """A state_dict, of torch tensors or numpy arrays, that others are coded as differences from.

    It keeps the arrays, not copies: they must not change while it is in use.

    Attributes:
        history: what broadcasts have shown on the way to it, if that is known.
        begun: by tensor, what training begins with in its place; see `fedsz.core.ahead`.

    Raises:
        ConfigError: it holds something that streams do not.
    """

    def __init__(self, state_dict: StateDict, history: History | None = None) -> None:
        self.arrays: dict[str, NDArray] = as_arrays(state_dict)
        self.history = history
        self.begun: Mapping[str, NDArray] = {}

    @classmethod
    def of(cls, given: Reference | StateDict | None) -> Reference | None:
        """Return a reference to what a caller gave, if anything."""
        if given is None or isinstance(given, Reference):
            return given
        return cls(require_state_dict(given))

    def again(self, arrays: StateDict) -> Reference:
        """Return this model as other arrays hold it, whose digest is known then."""
        other = Reference(arrays, self.history)
        other.__dict__.update((k, v) for k, v in self.__dict__.items() if k == "digest")
        return other

    def with_history(self, history: History | None) -> Reference:
        """Return this model with what broadcasts have shown on another way to it."""
        other = copy(self)  # its arrays are known to be some, and its digest may be
        other.history = history
        return other

    @cached_property
    def digest(self) -> bytes:
        """XXH3 (128 bits) over every tensor's name, dtype, shape and bytes, in order.

        It tells models apart that differ by accident. Whoever could make two of equal digest could
        send any model in the first place.
        """
        hashed = _stream.Xxh3()
        for name, x in self.arrays.items():
            head = f"{name}\0{DTYPE_NAMES[x.dtype]}\0{','.join(map(str, x.shape))}\0"
            hashed.update(head.encode("utf-8", "surrogatepass"))
            hashed.update(raw(x))
        return hashed.digest()

    def tensor(self, name: str, like: NDArray) -> NDArray:
        """Return a tensor, or raise `ConfigError` if it has not the dtype and shape of ``like``."""
        found = self.arrays.get(name)
        if found is None or found.shape != like.shape or found.dtype != like.dtype:
            have = "none" if found is None else f"{found.dtype} {found.shape}"
            raise ConfigError(f"the reference has {have} for {name!r}: {like.dtype} {like.shape}")
        return found

    def fits(self, layout: Layout) -> bool:
        """Say whether it has all tensors of a layout, in the same dtypes and shapes."""
        return all(
            name in self.arrays
            and (self.arrays[name].shape, self.arrays[name].dtype) == (shape, layout.dtypes[name])
            for name, shape in layout.shapes.items()
        )


def require_reference(digest: bytes, reference: Reference | None) -> None:
    """Raise `ReferenceMismatch` unless ``reference`` is the model of this digest."""
    if reference is None:
        raise ReferenceMismatch(f"the stream holds differences from model {shown(digest)}: pass it")
    if digest != reference.digest:
        raise ReferenceMismatch(
            f"the stream's differences refer to model {shown(digest)}; this is model"
            f" {shown(reference.digest)}"
        )


def shown(digest: bytes) -> str:
    """Return a digest for people."""
    return digest.hex()[: 2 * SHOWN]
