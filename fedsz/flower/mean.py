"""A weighted mean of updates that are decoded as they are added."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord

from fedsz.arrays import Layout, NDArray, add_scaled, saturate, sum_dtype
from fedsz.errors import RefusedReply
from fedsz.flower.records import to_array
from fedsz.flower.refusal import Refusal
from fedsz.flower.update import Term, Update, popped
from fedsz.flower_compat import make_record
from fedsz.threads import side_by_side


class Mean:
    """A weighted mean of updates that are added one at a time, decoded as they are added.

    Of tensors that came as differences it adds up the differences alone; the server's model, which
    they are put onto, is added once, in the end. The sums are of smaller numbers so, too.

    All of an update is decoded as far as that can fail, and checked, before any of it is added. Of
    tensors that `uniform` has coded, a byte an element is kept meanwhile. So an update that is
    refused half-way changes no bit of the sums.

    Args:
        onto: a model by name, if the mean is of steps alone and goes onto that. What is not finite
            there stays: a mask of -inf.
    """

    def __init__(self, onto: Mapping[str, NDArray] | None = None) -> None:
        self._onto = onto
        self._sums: dict[str, NDArray] = {}
        # By tensor and id(), arrays that are added in the end, and their weights.
        self._constants: dict[str, dict[int, tuple[NDArray, float]]] = {}
        self._template: Layout | None = None
        self.weight = 0.0

    def add(self, update: Update, terms: list[Term], weight: float, scale: float) -> None:
        """Add an update, or nothing of it.

        Args:
            update: with its shapes.
            terms: its tensors; emptied of what has been added.
            weight: of the update.
            scale: what its steps count times.

        Raises:
            FedszError: it has other names or shapes than the first one, or no arrays; or steps are
                added up, and it is none. Nothing has been added.
        """
        if not update.shapes:
            raise RefusedReply(Refusal.MODEL, "it holds no arrays")
        if self._template:
            self._template.check(dict(update.shapes))
            if update.shapes != self._template.shapes:
                raise RefusedReply(Refusal.MODEL, "its bytes have another length than others'")
        known = all(term.onto is not None or term.dtype.kind in "iub" for term in terms)
        if self._onto is not None and not (known or update.is_step):
            raise RefusedReply(Refusal.MODEL, "its reference model is not known")
        if not weight:
            return  # or an infinite element would make NaN of a sum
        if self._template is None:
            dtypes = {term.name: term.dtype for term in terms}
            self._template = Layout(dict(update.shapes), dtypes)
        with update.clock:
            side_by_side(  # what is added is freed
                lambda term: self._add_term(term, weight, scale),
                popped(terms),
                lambda term: term.nbytes,
                update.raw_bytes,
            )
        self.weight += weight

    def _add_term(self, term: Term, weight: float, scale: float) -> None:
        assert self._template is not None
        name, whole = term.name, term.dtype.kind in "iub"
        if name not in self._sums:
            shape = self._template.shapes[name]
            self._sums[name] = np.zeros(shape, sum_dtype(term.dtype))
        scale = 1.0 if whole else scale
        sums, own = self._sums[name], sum_dtype(term.dtype)
        part = sums if own == sums.dtype else np.zeros(sums.shape, own)
        term.values.add(part, weight * scale)
        if part is not sums:  # this client's tensor has another dtype than the first one's
            add_scaled(part, 1.0, sums)
        if term.start is term.onto and scale == 1 and self._onto is None:
            return  # to the bit
        if term.start is not None:
            self._add_constant(name, term.start, -weight * scale)
        if term.onto is not None and self._onto is None:
            self._add_constant(name, term.onto, weight)

    def _add_constant(self, name: str, x: NDArray, weight: float) -> None:
        known = self._constants.setdefault(name, {})
        _, before = known.get(id(x), (x, 0.0))
        known[id(x)] = x, before + weight

    def result(self, *, rounds: bool = True) -> ArrayRecord:
        """Return the mean, in the dtypes of the updates; the sums are given up on the way.

        What is beyond the range of its dtype becomes the end of that range.

        Args:
            rounds: whether means of integers and bools are rounded to such; else float64.
        """
        assert self._template is not None
        record: dict[str, Array] = {}
        for name in self._template.shapes:
            mean = self._sums.pop(name)
            dtype = self._template.dtypes[name]
            mean /= self.weight
            for x, weight in self._constants.pop(name, {}).values():
                if weight:
                    add_scaled(x, weight / self.weight, mean)
            if self._onto is not None and dtype.kind not in "iub":
                onto = self._onto[name]
                add_scaled(onto, 1.0, mean)
                np.copyto(mean, onto, casting="unsafe", where=~np.isfinite(onto))
            if rounds or dtype.kind not in "iub":
                saturate(mean, dtype)
            else:
                dtype = mean.dtype
            record[name] = to_array(mean, dtype)
        return make_record(record)
