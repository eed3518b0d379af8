"""A tensor that has arrived and is not decoded yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fedsz.arrays import Buffer, NDArray
from fedsz.codecs import Codec
from fedsz.errors import CorruptStream
from fedsz.update.difference import moved, wide


@dataclass(frozen=True)
class CodedTensor:
    """A lossy tensor of a stream that has arrived and is not decoded yet.

    Attributes:
        dtype: its dtype, one of those of its codec.
        shape: its shape.
        codec: that of its payload.
        payload: the bytes, whose checksum fits.
        offset: where in the stream they are.
        reference: what the payload's numbers are to be added to; None if they are the tensor.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    codec: Codec
    payload: Buffer
    offset: int
    reference: NDArray | None = None

    def decode(self) -> NDArray:
        """Return it as an array.

        Raises:
            CorruptStream: the payload is not what the header says.
            CodecUnavailable: the codec's library is not installed here.
        """
        with located(self.offset):
            if self.reference is not None and self._coded_dtype == self.dtype:
                return self.codec.decode_onto(self.payload, self.reference)
            y = self.codec.decode_as(self.payload, self.shape, self._coded_dtype)
        return y if self.reference is None else moved(self.reference, y)

    def accumulate(self, sums: NDArray, weight: float) -> None:
        """Add ``weight`` times what the payload holds to ``sums``, but not of the reference.

        See `Codec.accumulate`, which may need no array.

        Raises:
            CorruptStream, CodecUnavailable: as `decode`. The sums are as before, but for rounding.
        """
        with located(self.offset):
            self.codec.accumulate(self.payload, sums, weight, self._coded_dtype)

    @property
    def _coded_dtype(self) -> np.dtype:
        """The dtype that the codec sees."""
        return self.dtype if self.reference is None else wide(self.dtype)


@contextmanager
def located(offset: int) -> Iterator[None]:
    """Count the place of a `CorruptStream` from the start of the stream, not of the payload."""
    try:
        yield
    except CorruptStream as err:
        raise type(err)(err.what, offset=offset + err.offset) from err
