"""A model that both sides hold, by which updates are coded as differences.

The step from the model a client was sent to the one it sends back is small: within the same error
bound it takes far fewer bytes. A stream of differences names its reference by a digest, so that
nothing is ever added to the wrong model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

from fedsz.arrays import DTYPE_NAMES, NDArray, StateDict, as_arrays, raw, require_state_dict
from fedsz.codecs import _stream
from fedsz.errors import ReferenceMismatch

SHOWN: Final = 8  # bytes of a digest in messages


class Reference:
    """A state_dict, of torch tensors or numpy arrays, that others are coded as differences from.

    It keeps the arrays, not copies: they must not change while it is in use.

    Args:
        state_dict: the model.
        digest: of the model, where it is known; else it is computed when it is first asked for.

    Raises:
        ConfigError: it holds something that streams do not.
    """

    def __init__(self, state_dict: StateDict, digest: bytes | None = None) -> None:
        self.arrays: dict[str, NDArray] = as_arrays(state_dict)
        if digest is not None:
            self.__dict__["digest"] = digest

    @classmethod
    def of(cls, model: Reference | StateDict | None) -> Reference | None:
        """Return a reference to what a caller gave, if anything."""
        if model is None or isinstance(model, Reference):
            return model
        return cls(require_state_dict(model))

    @cached_property
    def digest(self) -> bytes:
        """XXH3 (128 bits) over every tensor's name, dtype, shape and bytes, in order.

        It tells models apart that differ by accident. An attacker who can make two models of equal
        digest could send any model in the first place.
        """
        hashed = _stream.Xxh3()
        for name, x in self.arrays.items():
            head = f"{name}\0{DTYPE_NAMES[x.dtype]}\0{','.join(map(str, x.shape))}\0"
            hashed.update(head.encode("utf-8", "surrogatepass"))
            hashed.update(raw(x))
        return hashed.digest()

    def like(self, name: str, x: NDArray) -> NDArray | None:
        """Return its tensor of a name if that has the dtype and shape of ``x``, else None."""
        return like_in(self.arrays, name, x)

    @property
    def nbytes(self) -> int:
        """Size of all arrays, in bytes."""
        return sum(x.nbytes for x in self.arrays.values())


def like_in(arrays: Mapping[str, NDArray], name: str, like: NDArray) -> NDArray | None:
    """Return the array of a name if it has the dtype and shape of ``like``, else None."""
    found = arrays.get(name)
    fits = found is not None and (found.shape, found.dtype) == (like.shape, like.dtype)
    return found if fits else None


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
