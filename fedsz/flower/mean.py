"""A weighted mean of updates that are decoded as they are added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord

from fedsz.arrays import Layout, NDArray, add_scaled, saturate
from fedsz.codecs.base import Opened, OpenedArray
from fedsz.core.chained import ChainDecoder
from fedsz.core.lossy import CodedTensor, located
from fedsz.errors import RefusedReply
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.records import to_array
from fedsz.flower.refusal import Norm, Refusal, refusing_failures
from fedsz.flower_compat import make_record
from fedsz.methods.compressed_sum import CompressedSums


class Mean:
    """A weighted mean of updates that are added one at a time, decoded as they are added.

    Of tensors that came as differences it adds up the differences alone; what they refer to is
    added once, in the end, by the weight of all that do. The sums are of smaller numbers so, too.
    Of differences by chains of methods, what is linear is decoded once, in the end.

    All of an update is decoded as far as that can fail, and judged, before any of it is added. What
    is kept of it meanwhile is a byte an element, of tensors that `uniform` has coded, and else the
    decoded tensors. So an update that is refused half-way changes no bit of the sums.

    An update that is to be scaled counts as start + scale x (update - start). If it is clipped for
    differential privacy, all of it is decoded and scaled first, so that it keeps to the norm.

    Args:
        steps: whether to add up only what updates are above their starts; see `result`.
    """

    def __init__(self, *, steps: bool = False) -> None:
        self._steps = steps
        self._sums: dict[str, NDArray] = {}
        self._compressed: dict[str, CompressedSums] = {}
        # By tensor and id(), what differences refer to, and the weight of these.
        self._bases: dict[str, dict[int, tuple[NDArray, float]]] = {}
        self._floors: set[str] = set()  # tensors that no update takes below 0
        self._template: Layout | None = None
        self.weight = 0.0

    def add(self, update: ReceivedUpdate, weight: float) -> None:
        """Add ``update``, or nothing of it.

        Raises:
            FedszError: one of its arrays does not decode, or has another shape than in the first
                update; it holds none; or it is judged too large. Nothing has been added.
        """
        if not update.shapes:
            raise RefusedReply(Refusal.MODEL, "it holds no arrays")
        if self._template:
            self._template.check(update.shapes)
            if update.shapes != self._template.shapes:
                raise RefusedReply(Refusal.MODEL, "its bytes have another length than others'")
        with refusing_failures():
            opened = self._opened(update)
        if self._steps and any(tensor.start is None for tensor in opened):
            raise RefusedReply(Refusal.MODEL, "what it starts from is not known")
        if not weight:
            return  # or an infinite element would make NaN of a sum
        if self._template is None:
            dtypes = {tensor.name: tensor.dtype for tensor in opened}
            self._template = Layout(dict(update.shapes), dtypes)
        with update.clock:
            while opened:
                tensor = opened.pop()  # what is added is freed
                if tensor.name not in self._sums:
                    shape = self._template.shapes[tensor.name]
                    self._sums[tensor.name] = np.zeros(shape, sum_dtype(tensor.dtype))
                is_scaled = update.clipping_norm is not None
                scale = 1.0 if is_scaled else update.scale_of(tensor.dtype)
                tensor.values.add(self._sums[tensor.name], weight * scale)
                self._add_start(tensor, weight, scale)
        self.weight += weight

    def _opened(self, update: ReceivedUpdate) -> list[_OpenedTensor]:
        """Decode an update as far as that can fail, and judge it."""
        opened: list[_OpenedTensor] = []
        clipped = update.clipping_norm is not None
        if clipped and self._steps:
            update.meant = {}  # of steps from what its sender had
        update.forget_meant_of_step()
        self._floors |= update.floors & update.meant.keys()
        for name, x in iter(update.arrays().items()) if clipped else update.unpacked():
            with update.clock:
                sums = self._sums.get(name)
                wide = sum_dtype(x.dtype) if sums is None else sums.dtype
                compressed = self._compressed.setdefault(name, CompressedSums())
                start, base = update.sent(name, x), None if clipped else update.base(name, x)
                tensor = _open(name, x, start, wide, compressed)
                opened.append(tensor._replace(base=base) if start is not None else tensor)
        if not clipped:
            with update.clock:
                norm = Norm.of((tensor.dtype, tensor.values.energy) for tensor in opened)
            update.judge(norm)
        return opened

    def _add_start(self, tensor: _OpenedTensor, weight: float, scale: float) -> None:
        """Add what a tensor's scaled step is above: all of its start, or what `scale` leaves."""
        if (start := tensor.start) is None:
            return
        share = 1.0 if tensor.is_difference else 1 - scale
        if self._steps or tensor.base is not None:
            share -= 1
        self._add_base(tensor.name, start, weight * share)
        if tensor.base is not None and not self._steps:
            self._add_base(tensor.name, tensor.base, weight)

    def _add_base(self, name: str, x: NDArray, weight: float) -> None:
        if weight:
            bases = self._bases.setdefault(name, {})
            _, before = bases.get(id(x), (x, 0.0))
            bases[id(x)] = x, before + weight

    def _add_compressed(self, compressed: CompressedSums, sums: NDArray) -> None:
        """Add to ``sums`` what has been added up compressed."""
        compressed.add_to(sums)

    def result(
        self, onto: Mapping[str, NDArray] | None = None, *, rounds: bool = True
    ) -> ArrayRecord:
        """Return the mean, in the dtypes of what was added; the sums are given up on the way.

        A mean of steps is added ``onto`` a model. What is not finite there stays: a mask of -inf.
        What is beyond the range of its dtype becomes the end of that range.

        Args:
            onto: that model.
            rounds: whether means of whole numbers and bools are rounded to such; else float64.
        """
        assert self._template is not None
        record: dict[str, Array] = {}
        for name in self._template.shapes:
            mean = self._sums.pop(name)
            self._add_compressed(self._compressed.pop(name), mean)
            mean /= self.weight
            for start, weight in self._bases.pop(name, {}).values():
                add_scaled(start, weight / self.weight, mean)
            if name in self._floors:
                np.maximum(mean, 0, out=mean)
            if onto is not None:
                add_scaled(onto[name], 1.0, mean)
                np.copyto(mean, onto[name], casting="unsafe", where=~np.isfinite(onto[name]))
            dtype = self._template.dtypes[name]
            if rounds or dtype.kind not in "iub":
                saturate(mean, dtype)
            else:
                dtype = mean.dtype
            record[name] = to_array(mean, dtype)
        return make_record(record)


class _OpenedTensor(NamedTuple):
    """A tensor that can be added, and what its sender started from, where that is known."""

    name: str
    dtype: np.dtype
    values: Opened
    start: NDArray | None
    is_difference: bool  # of it from its start
    base: NDArray | None = None  # what its step counts from in place of its start


def _open(
    name: str,
    x: NDArray | CodedTensor,
    sent: NDArray | None,
    wide: np.dtype,
    compressed: CompressedSums,
) -> _OpenedTensor:
    """Decode a tensor as far as that can fail, to be added to sums of dtype ``wide``."""
    # A difference from another model than was sent is no step: that would be kept for each client.
    apart = isinstance(x, CodedTensor) and x.is_of_another(sent)
    if isinstance(x, CodedTensor) and wide == sum_dtype(x.dtype) and not apart:
        if x.reference is not None:
            opened = _open_compressed(x, compressed) or x.open(sent)
            return _OpenedTensor(name, x.dtype, opened, x.reference, is_difference=True)
        return _OpenedTensor(name, x.dtype, x.open(sent), sent, is_difference=False)
    decoded = x.decode() if isinstance(x, CodedTensor) else x
    values = OpenedArray(decoded, sent)
    return _OpenedTensor(name, x.dtype, values, sent, is_difference=False)


def _open_compressed(x: CodedTensor, compressed: CompressedSums) -> Opened | None:
    """Decode a difference but for what is linear of its chain; None where nothing is."""
    if not isinstance(x.codec, ChainDecoder):
        return None
    with located(x.offset):
        return x.codec.open_compressed(x.payload, x.shape, x.dtype, compressed)


def sum_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which values of ``dtype`` are added up."""
    if dtype.kind == "c" or dtype == np.float64:
        return dtype
    # Counters reach beyond the 24 bits of a float32; weights of 16 bits need its range.
    return np.dtype(np.float64 if dtype.kind in "iub" else np.float32)
