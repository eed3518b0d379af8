"""`eigen`: coefficients of a tensor in a basis that sender and receiver know from broadcasts.

A gradient is a sum of products of what comes into a layer and what comes back through it. Both live
in few directions, which are nearly the same for all clients and change slowly (so K-FAC, Martens
and Grosse 2015; Shampoo, Gupta et al. 2018; SOAP, Vyas et al. 2024). The models that a server has
sent show these directions to all that have received them, so that the basis costs no bytes. In it
most coefficients of an update are small. It is the Karhunen-Loeve transform along each axis of a
tensor, the higher-order SVD of Lathauwer et al. (2000).

Sender and receiver compute the basis by themselves, equal to the bit: compressors/eigen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import numpy as np

from fedsz.arrays import NDArray, flat
from fedsz.codecs import _eigen, _stream
from fedsz.errors import ReferenceMismatch
from fedsz.methods.base import (
    VALUES,
    Kind,
    Part,
    Planes,
    Shared,
    State,
    TensorSpec,
    require_count,
)
from fedsz.methods.combinators import ByLayer, Chain, Transform, Wrapper
from fedsz.spec_strings import SENT

DECAY: Final = 0.9  # of what earlier broadcasts have shown, for each later one
BLOCK: Final = 64  # of an axis: larger ones take more time and memory, and save 1 % more at most
SINGLE: Final = np.dtype(np.float32)
TRENDING: Final = b"trend"  # the digest of a history that keeps a trend, and has seen nothing
TREND: Final = "trend"  # its arrays' place, before their tensors' names
COUNT: Final = "count"  # likewise, of the steps that a trend is of
_KEPT: Final = 0.8  # of a trend, after another step, at most
OTHERS: Final = "iubc"  # kinds of dtypes that have no basis
SHOWN: Final = 8  # bytes of a history's digest in a chain's text


class Axis(NamedTuple):
    """A tensor as ``outer`` x ``length`` x ``inner`` elements, the middle in blocks."""

    outer: int
    length: int
    inner: int
    block: int

    @property
    def sizes(self) -> list[int]:
        """Elements of each of its blocks."""
        count = -(-self.length // self.block)
        narrow, wider = divmod(self.length, count)
        return wider * [narrow + 1] + (count - wider) * [narrow]

    @property
    def squares(self) -> int:
        """Elements of all its blocks' square matrices, one after the other."""
        return sum(size**2 for size in self.sizes)


def axes_of(shape: tuple[int, ...]) -> list[Axis]:
    """Return the axes along which a tensor has bases: of none with fewer than two dimensions.

    Those of a convolution's weights [O, I, ...] are outputs, inputs and all positions in the
    kernel.
    """
    size = math.prod(shape)
    if len(shape) < 2 or not size:
        return []
    sides = (*shape[:2], math.prod(shape[2:]))
    axes = []
    for i, length in enumerate(sides):
        outer, inner = math.prod(sides[:i]), math.prod(sides[i + 1 :])
        # One step has no more directions than columns, and products take no more than the tensor.
        block = min(BLOCK, outer * inner)
        if length > 1 and block > 1:
            axes.append(Axis(outer, length, inner, block))
    return axes


@dataclass(frozen=True, eq=False)
class Basis:
    """Orthonormal vectors along each axis of a tensor."""

    axes: tuple[Axis, ...]
    vectors: tuple[NDArray, ...]

    @classmethod
    def of(cls, axes: Sequence[Axis], products: Sequence[NDArray]) -> Basis:
        """Return the eigenvectors of products along the axes of a tensor."""
        vectors = tuple(np.empty_like(p) for p in products)
        for axis, product, to in zip(axes, products, vectors, strict=True):
            _eigen.eigenvectors(product, axis.length, axis.block, to)
        return cls(tuple(axes), vectors)

    def coefficients(self, x: NDArray) -> NDArray:
        """Return those of a flat tensor, likewise flat."""
        y = flat(x).copy()
        for axis, vectors in zip(self.axes, self.vectors, strict=True):
            _eigen.rotate(y, *axis, vectors, back=False)
        return y

    def tensor(self, coefficients: NDArray) -> NDArray:
        """Return what has these coefficients, flat."""
        y = flat(coefficients).copy()
        for axis, vectors in reversed(list(zip(self.axes, self.vectors, strict=True))):
            _eigen.rotate(y, *axis, vectors, back=True)
        return y


class Model(Protocol):
    """A state_dict as numpy arrays, and what tells it apart from others."""

    arrays: dict[str, NDArray]

    @property
    def digest(self) -> bytes: ...


class History:
    """What broadcasts have shown of the steps of a model's tensors.

    After each broadcast, with G its step along an axis as a matrix over its norm, the products
    P <- 0.9 P + G G^T. A tensor's basis along that axis are the eigenvectors of P, block by block.

    Args:
        products: by tensor, those along each of its axes, float32 and flat.
        digest: of all models that have gone in, in their order; b"" of none. Of a history that
            keeps a trend it begins with `TRENDING`.
        trend: by tensor, the moving average of its steps, float32 and flat; kept by `trending`.
        count: of the steps that it is of.
    """

    def __init__(
        self,
        products: Mapping[str, tuple[NDArray, ...]] = MappingProxyType({}),
        digest: bytes = b"",
        trend: Mapping[str, NDArray] = MappingProxyType({}),
        count: int = 0,
    ) -> None:
        self.products, self.digest, self.trend = dict(products), digest, dict(trend)
        self.count = count
        self._bases: dict[str, Basis] = {}

    @classmethod
    def trending(cls) -> History:
        """Return one that has seen nothing, and keeps a trend."""
        return cls(digest=TRENDING)

    @property
    def _trends(self) -> bool:
        return self.count > 0 or self.digest == TRENDING

    def digest_after(self, digests: bytes) -> bytes:
        """Return the digest of the history after a broadcast, given those of both its models."""
        return _stream.xxh3(self.digest + digests)

    def beyond(self, before: Model, now: Model) -> History:
        """Return the history after a broadcast that led a receiver from one model to another.

        A tensor that the new one alone has, or in another shape, has shown nothing; one whose step
        is 0 or not finite stays as it is.
        """
        products, trend = dict(self.products), dict(self.trend)
        for name, x in now.arrays.items():
            base, axes = before.arrays.get(name), axes_of(x.shape)
            if base is None or base.shape != x.shape:
                # What it has shown is of other axes, although there may be as many numbers.
                products.pop(name, None)
                trend.pop(name, None)
                continue
            if x.dtype.kind in OTHERS:
                continue
            if not (axes or self._trends):
                continue
            wide = np.float64 if x.dtype == np.float64 else np.float32
            with np.errstate(over="ignore", invalid="ignore"):
                step = flat(np.subtract(x, base, dtype=wide))
            if self._trends and np.isfinite(step).all():
                share = min(self.count / (self.count + 2), _KEPT)
                trend[name] = _averaged(trend.get(name), step.astype(SINGLE), share)
            if not axes:
                continue
            kept = products.get(name, ())
            if _sizes(kept) == [axis.squares for axis in axes]:
                grown = [p.copy() for p in kept]
            else:
                grown = [np.zeros(axis.squares, SINGLE) for axis in axes]
            moved = [
                _eigen.add_products(step, *axis, DECAY, p)
                for axis, p in zip(axes, grown, strict=True)
            ]
            if all(moved):
                products[name] = tuple(grown)
        digest = self.digest_after(before.digest + now.digest)
        return History(products, digest, trend, self.count + self._trends)

    def basis(self, name: str, shape: tuple[int, ...]) -> Basis | None:
        """Return that of a tensor; None where nothing has shown any."""
        products, axes = self.products.get(name, ()), axes_of(shape)
        if not products or _sizes(products) != [axis.squares for axis in axes]:
            return None
        if name not in self._bases:
            self._bases[name] = Basis.of(axes, products)
        return self._bases[name]

    def arrays(self) -> dict[str, NDArray]:
        """Return its products under names of their own, for records of arrays; see `read`."""
        found = {f"{i}.{name}": p for name, of in self.products.items() for i, p in enumerate(of)}
        found |= {f"{TREND}.{name}": x for name, x in self.trend.items()}
        return found | ({f"{COUNT}.": np.array(self.count)} if self.count else {})

    @classmethod
    def read(cls, arrays: Mapping[str, NDArray], digest: bytes) -> History:
        """Return the history that `arrays` told."""
        products: dict[str, tuple[NDArray, ...]] = {}
        trend: dict[str, NDArray] = {}
        count = 0
        for key, x in sorted(arrays.items()):
            place, _, name = key.partition(".")
            if place == COUNT:
                count = int(x)
            elif place == TREND:
                trend[name] = x
            else:
                products[name] = (*products.get(name, ()), x)
        return cls(products, digest, trend, count)

    @property
    def shown(self) -> str:
        """Its digest as chains say it."""
        return self.digest[:SHOWN].hex()


def _averaged(last: NDArray | None, step: NDArray, kept: float) -> NDArray:
    """Return the moving average after a step, which the first one begins."""
    if last is None or last.size != step.size:
        return step
    return np.asarray(SINGLE.type(kept) * last + SINGLE.type(1 - kept) * step)


def _sizes(arrays: Iterable[NDArray]) -> list[int]:
    return [x.size for x in arrays]


@dataclass(frozen=True)
class Eigen(Part):
    """Coefficients in the basis of a `History` of broadcasts, as many as elements.

    Lengths stay, so that an error is as large in the basis as out of it. Tensors that have no
    basis are left as they are: vectors, and those that no broadcast has moved.

    Attributes:
        of: tells the history apart, the first half of its digest in hexadecimal digits; only
            streams have it.
    """

    name = "eigen"
    summary = "coefficients in the eigenbasis of earlier broadcasts, which both sides know"
    planes = {VALUES: Kind.VALUES}
    linear = True
    biased = False
    contracts = True
    leads = True
    work = 6.0  # some 200 products and sums, several at a time

    of: str = field(default="", metadata=SENT)

    def gain(self, shared: Shared) -> float:
        """Return 1: lengths stay, to a few millionths."""
        return 1.0

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Planes, State]:
        basis = shared.basis if self.of else None
        values = x if basis is None else basis.coefficients(x).reshape(x.shape)
        return {VALUES: values}, state

    def values_spec(self, planes: Planes, spec: TensorSpec) -> TensorSpec:
        """Return that of the tensor: coefficients lie along the same axes."""
        return replace(spec, name=f"{spec.name}>")

    def decode(self, planes: Planes, shared: Shared) -> NDArray:
        values, spec = planes[VALUES], shared.spec
        require_count("values", values, spec.size)
        basis = shared.basis if self.of else None
        return (values if basis is None else basis.tensor(values)).reshape(spec.shape)


def with_history(transform: Transform, history: History | None) -> Transform:
    """Return a transform whose `Eigen` parts are of a history, or are not there without one."""
    if isinstance(transform, Chain):
        if history is None:
            return Chain(tuple(part for part in transform.parts if not isinstance(part, Eigen)))
        named = (
            replace(p, of=history.shown) if isinstance(p, Eigen) else p for p in transform.parts
        )
        return Chain(tuple(named))
    if isinstance(transform, ByLayer):
        return ByLayer(tuple((rule, with_history(t, history)) for rule, t in transform.choices))
    assert isinstance(transform, Wrapper)
    return replace(transform, inner=with_history(transform.inner, history))


def basis_for(chain: Chain, history: History | None, spec: TensorSpec) -> Basis | None:
    """Return the basis that a chain codes a tensor in, if any."""
    first = chain.parts[0] if chain.parts else None
    if history is None or not isinstance(first, Eigen):
        return None
    return history.basis(spec.name, spec.shape)


def require_history(transform: Chain, history: History | None) -> None:
    """Raise `ReferenceMismatch` unless ``history`` is the one that a chain's parts are of."""
    for part in transform.parts:
        if isinstance(part, Eigen) and part.of and (history is None or history.shown != part.of):
            have = f"this is {history.shown}" if history else "there is none here"
            raise ReferenceMismatch(f"coefficients are in the basis of history {part.of}; {have}")
