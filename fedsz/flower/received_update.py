"""An update as its receiver has it: checked, and decoded tensor by tensor."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from flwr.app import ArrayRecord

from fedsz.arrays import Layout, NDArray
from fedsz.errors import CorruptStream
from fedsz.flower.records import from_array, is_sealed, layout_of, streams_of
from fedsz.stream import Limits, Reader
from fedsz.update.decompress import unpack
from fedsz.update.lossy import CodedTensor
from fedsz.update.reference import Reference, require_reference


class ReceivedUpdate:
    """The arrays of a record that somebody sent, sealed or plain; checked, not yet decoded.

    Iterating decodes them one at a time, in no particular order and as often as one likes. All
    that can be checked without decoding has been when this exists: structure, names, shapes,
    checksums.

    Args:
        record: from anybody.
        layout: what the arrays must look like, and the dtypes they are returned in.
        references: by their digests, the models that differences may refer to.

    Attributes:
        names: in the sender's order.
        raw_bytes: size of the arrays.
        sent_bytes: size of what was sent.
        digest: SHA-256 of it: the data of its Arrays, in their order.
        seconds: time spent on checking and decoding so far.
        refused: why whoever was to use it could not, or "".

    Raises:
        ModelMismatch: names or shapes are not the layout's.
        ReferenceMismatch: they are differences from a model that is not at hand.
        CorruptStream: the bytes are no stream.
    """

    def __init__(
        self,
        record: ArrayRecord,
        layout: Layout | None = None,
        references: Mapping[bytes, Reference] = MappingProxyType({}),
    ) -> None:
        start = time.perf_counter()
        self.refused = ""
        self.sent_bytes = sum(len(array.data) for array in record.values())
        hashed = hashlib.sha256()
        for array in record.values():
            hashed.update(array.data)
        self.digest = hashed.digest()
        self._record, self._layout = record, layout
        self._reader: Reader | None = None
        self._reference: Reference | None = None
        if is_sealed(record):
            streams = streams_of(record)
            if len(streams) != 1:
                raise CorruptStream(f"a reply of {len(streams)} streams, not one")
            self._reader = Reader(streams[0], Limits.of_model(layout) if layout else None)
            header = self._reader.header
            if header.reference is not None:
                self._reference = references.get(header.reference)
                require_reference(header.reference, self._reference)
            self.raw_bytes = header.decoded_bytes
            shapes = {tensor.name: tensor.shape for tensor in header.tensors}
        else:
            self.raw_bytes = self.sent_bytes
            shapes = dict(layout_of(record).shapes)
        self.names = list(shapes)
        if layout:
            layout.check(shapes)
        if self._reader:
            self._reader.check()
        self.seconds = time.perf_counter() - start

    def __iter__(self) -> Iterator[tuple[str, NDArray]]:
        """Yield name and array, each its receiver's own.

        Raises:
            CorruptStream: an array does not decode, or is not what it was said to be.
            CodecUnavailable: a codec's library is not installed here.
        """
        for name, x in self.unpacked():
            if isinstance(x, CodedTensor):
                with self.clock():
                    x = x.decode()
            yield name, x

    def unpacked(self) -> Iterator[tuple[str, NDArray | CodedTensor]]:
        """Do as iterating does, but leave coded what can be decoded one by one; see `clock`."""
        fitted = ((name, self._fitted(name, x)) for name, x in self._sent())
        while True:
            with self.clock():
                item = next(fitted, None)
            if item is None:
                return
            yield item

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Count the time spent inside as time spent on decoding."""
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start

    def arrays(self) -> dict[str, NDArray]:
        """Return all arrays, in the sender's order; raises as iterating does."""
        decoded = dict(self)
        return {name: decoded.pop(name) for name in self.names}

    def _fitted(self, name: str, x: NDArray | CodedTensor) -> NDArray | CodedTensor:
        if self._layout is None or x.dtype == self._layout.dtypes[name]:
            return x
        return self._layout.cast(name, x.decode() if isinstance(x, CodedTensor) else x)

    def _sent(self) -> Iterator[tuple[str, NDArray | CodedTensor]]:
        if self._reader:
            yield from unpack(self._reader, self._reference)
            return
        for name, shape in layout_of(self._record).shapes.items():
            x = from_array(name, self._record[name])
            if x.shape != shape:
                raise CorruptStream(f"array {name!r} has another shape than it says")
            yield name, x

    def release(self) -> None:
        """Free what was sent, the sender's record too; the numbers stay."""
        self._record.clear()  # circles of references would keep the bytes until a collection
        self.forget()

    def forget(self) -> None:
        """Keep nothing of what was sent but the numbers."""
        self._record, self._reader, self._reference = ArrayRecord(), None, None
        self.names = []
