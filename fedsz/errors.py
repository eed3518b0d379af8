"""Every exception fedsz raises on purpose.

    FedszError
    ├── ConfigError            you asked for something that does not exist or cannot be
    ├── CodecError             a codec was given input it cannot take
    │   └── CodecUnavailable   its library is not installed here; a MissingPackage too
    ├── CorruptStream          the bytes are not a fedsz stream, or no longer are
    │   ├── TruncatedStream    the bytes end too early
    │   ├── ChecksumMismatch   the bytes changed on the way
    │   ├── UnsupportedStream  a version or feature this release does not know
    │   └── LimitExceeded      the stream asks for more than the caller's `Limits` allow
    ├── ModelMismatch          two state_dicts that should agree do not
    │   └── ReferenceMismatch  a stream's differences refer to another state_dict than is at hand
    │       └── NeedsKeyFrame  a client lacks the model that a broadcast starts from
    ├── RefusedReply           a client's reply that must not count
    ├── RefusedRequest         a client of a secure sum does not do what the server asks
    ├── AbortedRound           a secure sum that cannot be had; nobody's secrets are revealed
    ├── DivergedUpdate         training has made NaN or infinities of finite weights
    ├── TooFewReplies          rounds in a row got fewer replies than they need
    ├── TaskError              a task of somebody's own failed, or returned what it must not
    ├── DataError              a data set is absent, or not what it should be
    ├── MissingPackage         what is asked for needs a package that is not installed here
    └── LinkError              the other end of a connection is absent or refuses

Anything else that escapes fedsz is a bug.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from fedsz.formatting import one_line


class FedszError(Exception):
    """Base of every error raised by fedsz.

    Examples:
        >>> import fedsz
        >>> try:
        ...     fedsz.decompress(b"anything")
        ... except fedsz.FedszError as err:
        ...     print(f"{type(err).__name__}: {err}")
        CorruptStream: not a fedsz stream: wrong magic (at byte 0)
    """


class ConfigError(FedszError, ValueError):
    """An option, name or value that fedsz does not have."""


class CodecError(FedszError):
    """A codec was given input it cannot take."""


class MissingPackage(FedszError, ImportError):
    """A package that is missing here or does not work; names the extra that brings it."""


class CodecUnavailable(CodecError, MissingPackage):
    """A codec whose library is missing on this machine."""


class CorruptStream(FedszError, ValueError):
    """Bytes that fedsz did not write, or that changed on the way.

    Attributes:
        what: is wrong with them, on one line, for names in it are whatever the bytes say.
        offset: where in the stream it was noticed, in bytes from its start.
    """

    def __init__(self, what: str, *, offset: int = 0) -> None:
        self.what = one_line(what)
        super().__init__(f"{self.what} (at byte {offset})")
        self.offset = offset


class TruncatedStream(CorruptStream):
    """The stream ends before a field does."""


class ChecksumMismatch(CorruptStream):
    """A checksum does not fit the bytes it covers."""


class UnsupportedStream(CorruptStream):
    """A stream version, codec or feature this release does not know."""


class LimitExceeded(CorruptStream):
    """A stream that asks for more memory than the caller allows, or a chain of too much work."""


class ModelMismatch(FedszError, ValueError):
    """Two state_dicts that should agree differ in names, shapes or dtypes."""

    def __init__(self, what: str) -> None:
        super().__init__(one_line(what))  # names in it may be somebody else's


class ReferenceMismatch(ModelMismatch):
    """Differences from a state_dict that is not at hand, or not the one that they refer to."""


class NeedsKeyFrame(ReferenceMismatch):
    """A client lacks the model that a broadcast starts from: it needs the whole model."""


class RefusedReply(FedszError):
    """A client's reply that is whole, and must not count all the same.

    Attributes:
        kind: a `fedsz.flower.refusal.Refusal`.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind


class RefusedRequest(FedszError):
    """What a server asks a client of a secure sum for, and the client does not do."""


class AbortedRound(FedszError):
    """A secure sum that cannot be had: the round does not count."""


class DivergedUpdate(FedszError):
    """An update that would turn the average into NaN or infinities."""


class TooFewReplies(FedszError):
    """Rounds in a row that got fewer usable replies than they need."""


class TaskError(FedszError):
    """A `fedsz.training.task.Task` that failed, or returned what it must not."""


class DataError(FedszError):
    """A data set that is absent, incomplete or not what it should be."""


class LinkError(FedszError, ConnectionError):
    """A server or client that is absent, busy or refuses the connection."""


@contextmanager
def cannot(what: str, error: type[FedszError] = ConfigError) -> Iterator[None]:
    """Within the block, a file that fails raises ``error``: that fedsz cannot ``what``, and why.

    ``what`` is such as "read model.pt".
    """
    try:
        yield
    except (OSError, UnicodeDecodeError) as err:
        why = getattr(err, "strerror", None) or err
        raise error(f"cannot {what}: {why}") from err


def first_line(err: Exception) -> str:
    """Return the first line of what an exception says; its type if it says nothing."""
    return str(err).partition("\n")[0] or type(err).__name__


def log_failure(logger: logging.Logger, what: str, err: Exception) -> None:
    """Log that ``what`` happened: a `FedszError` in one line, anything else with its traceback."""
    told = f"{what}: {type(err).__name__}: {err}"
    if isinstance(err, FedszError):
        logger.warning("%s", told)
    else:
        logger.error("%s", told, exc_info=err)
