"""What travels beside the streams: a request to a client, and a note beside its reply."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Self

import msgspec

from fedsz.core.settings import Settings
from fedsz.errors import ConfigError

# The most that a client may say of a number; a larger one counts as that.
_MOST: Final = {
    "encode_seconds": 3600.0,
    "max_error": 1.0,
    "tensors": 1e6,
    "lossy": 1e6,
    "energy_fraction": 1.0,
    "residual_ratio": 1000.0,
    "moved": 1.0,
}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """How a client gets its reference model from a message, and how it compresses its reply.

    Attributes:
        run: tells apart the runs of one client, so that none gets the residual of another. It
            begins with the seed.
        round: counts the rounds of training of a run, from 1; a residual counts in later rounds.
        trains: whether the reply goes into an average; others leave the residual alone.
        base: by the key of a model (of Flower's ArrayRecord), the digest of the model that its
            stream starts from; not there for a key frame.
        reference: by key, the digest of the model after the stream; not there for models that
            clients need not keep.
        settings: of the reply; its downlink says nothing.
    """

    run: bytes
    round: int
    trains: bool
    base: dict[str, bytes]
    reference: dict[str, bytes]
    settings: Settings

    @property
    def seed(self) -> int:
        """The seed of the run's random numbers, the same for all clients."""
        return int.from_bytes(self.run[:8], "little")

    @property
    def identity(self) -> bytes:
        """A digest that tells this request apart from others; the way to the model is no part."""
        plain = msgspec.structs.replace(self, base={})
        return hashlib.sha256(msgspec.msgpack.encode(plain)).digest()

    def encode(self) -> bytes:
        """Return it as bytes."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: Any) -> Self:
        """Return the request that `encode` has written.

        Raises:
            ConfigError: it is none, or asks for something that does not exist.
            CodecUnavailable: this machine lacks the codec that the server chose.
        """
        try:
            found = msgspec.msgpack.decode(data, type=cls)
        except (msgspec.MsgspecError, TypeError) as err:
            raise ConfigError(f"the server's request is not valid: {err}") from None
        found.settings.require()
        return found


class ReplyNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says of a reply that it has compressed.

    Attributes:
        is_step: whether the app replied with a step in place of a model.
        had: by key, the digest of the model that the client had when the request came; not there
            if it had none.
        encode_seconds: compressing took.
        max_error: the largest error as a fraction of its bound, 0 to 1.
        tensors, lossy: how many there are, and how many of them are lossy.
        energy_fraction: of the update's energy, what arrives; None where that is not known.
        residual_ratio: the norm of the residual over that of the step, likewise.
        moved: 1 if training changed any tensor that may be lossy, 0 if not; likewise.
    """

    is_step: bool = False
    had: dict[str, bytes] = {}
    encode_seconds: float = 0.0
    max_error: float = 0.0
    tensors: float = 0
    lossy: float = 0
    energy_fraction: float | None = None
    residual_ratio: float | None = None
    moved: float | None = None

    def encode(self) -> bytes:
        """Return it as bytes."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: Any) -> Self:
        """Return what a client says, within limits; what cannot be read says nothing."""
        try:
            found = msgspec.msgpack.decode(data, type=cls)
        except (msgspec.MsgspecError, TypeError):
            return cls()
        within = {
            name: _within(getattr(found, name), getattr(cls(), name), most)
            for name, most in _MOST.items()
        }
        return msgspec.structs.replace(found, **within)


def _within(value: float | None, default: float | None, most: float) -> float | None:
    """Return a number from 0 to ``most``; the default for one below 0, or none."""
    return min(value, most) if value is not None and value >= 0 else default


# msgspec learns a type on its first use. Another thread that uses it meanwhile ends the process.
msgspec.msgpack.Decoder(Request), msgspec.msgpack.Decoder(ReplyNote)
