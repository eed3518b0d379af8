"""The shift of a sender: what both sides have learnt of its steps, see `fedsz.methods.Difference`.

Steps of one sender are alike from round to round. So the model that its stream refers to is the one
that it was sent, moved by the shift. The stream names that model by its digest: if one side has
another shift, the stream is refused and nothing is added to the wrong model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from fedsz.arrays import Buffer, NDArray, wide
from fedsz.core.chained import ChainDecoder
from fedsz.core.decode import unpack
from fedsz.core.lossy import CodedTensor, moved
from fedsz.core.reference import Reference
from fedsz.methods import Difference, TensorSpec, Transform
from fedsz.methods.state import SHIFT, by_tensor, flat
from fedsz.stream import Reader

Shift = Mapping[str, NDArray]  # by tensor, of its shape; float64 for float64, float32 for others
NO_SHIFT: Final[Shift] = {}


def shifted(sent: Reference, shift: Shift) -> Reference:
    """Return a model moved by a shift; tensors that this does not fit stay where they are."""
    moves = {
        name: moved(sent.arrays[name], h)
        for name, h in shift.items()
        if _fits(h, sent.arrays.get(name))
    }
    return Reference({**sent.arrays, **moves}, sent.history) if moves else sent


def shift_after(stream: Buffer, base: Reference, shift: Shift, transform: Transform) -> Shift:
    """Return the shift after a stream, which both sides compute from its bytes.

    Args:
        stream: of an update.
        base: the model that it refers to.
        shift: by which that has been moved; nothing if it has not.
        transform: what codes tensors; those without a `Difference` have no shift. The shift of
            those that were sent exactly stays.

    Raises:
        CorruptStream: a tensor does not decode.
        CodecUnavailable: a codec's library is not installed here.
    """
    after = {name: h for name, h in shift.items() if _fits(h, base.arrays.get(name))}
    for name, x in unpack(Reader(stream), base):
        if not isinstance(x, CodedTensor) or not isinstance(x.codec, ChainDecoder):
            continue
        spec = TensorSpec(x.shape, wide(x.dtype), name)
        difference = transform.of(spec)
        if not isinstance(difference, Difference) or x.reference is None:
            continue
        before = after.get(name, np.zeros(spec.shape, spec.dtype))
        decoded = x.codec.decode(x.payload, spec.shape, spec.dtype)
        after[name] = difference.moved(before, decoded)
    return after


def with_shift(kept: Mapping[str, NDArray], shift: Shift) -> dict[str, NDArray]:
    """Return what a sender keeps, with its shift; see `fedsz.methods.state.flat`."""
    return {**kept, **flat({name: {SHIFT: x} for name, x in shift.items()})}


def agreed_shift(kept: Mapping[str, NDArray], digest: bytes | None) -> Shift:
    """Return the shift that a sender has kept; nothing if the receiver has another or none."""
    shift = {name: state[SHIFT] for name, state in by_tensor(kept).items() if SHIFT in state}
    return shift if digest and digest_of(shift) == digest else {}


def digest_of(shift: Shift) -> bytes:
    """Return the digest of a shift; b"" of none."""
    return Reference(dict(sorted(shift.items()))).digest if shift else b""


def _fits(shift: NDArray, x: NDArray | None) -> bool:
    return x is not None and (shift.shape, shift.dtype) == (x.shape, wide(x.dtype))
