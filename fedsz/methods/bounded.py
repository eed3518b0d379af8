"""A codec of fedsz as the last stage of a chain: ``uniform@std:1``, ``fp16``, ``zstd``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsz import codecs
from fedsz.arrays import NDArray, raw
from fedsz.bounds import ErrorBound
from fedsz.codecs import Codec, LosslessCodec
from fedsz.codecs.spread import half_ulp
from fedsz.errors import CodecError, ConfigError
from fedsz.methods.base import Kind, Shared, Stage, State, Symbols

AT = "@"  # between a codec and its bound
SINGLE = np.dtype(np.float32)


@dataclass(frozen=True)
class Bounded(Stage):
    """Values within an error bound, by a codec of fedsz.

    Attributes:
        codec: that codes them.
        bound: of their range for ``rel``, their standard deviation for ``std``, the root mean
            square of the sender's whole step for ``step``; None for codecs that no bound steers.

    Raises:
        ConfigError: the codec needs a bound and has none, has one and needs none, or it is of a
            kind that values alone do not have.
    """

    name = "codec"
    summary = "values within an error bound, by any codec of `fedsz codecs`"
    symbols = {"payload": Kind.PAYLOAD}

    codec: Codec
    bound: ErrorBound | None = None

    def __post_init__(self) -> None:
        steered = self.codec.lossy and self.codec.keeps_bound
        if steered and self.bound is None:
            raise ConfigError(f"{self.codec} needs a bound: write {self.codec}{AT}std:1")
        if self.bound and not steered:
            raise ConfigError(f"codec {self.codec} takes no bound: leave {AT}{self.bound} out")

    @classmethod
    def of(cls, text: str) -> Bounded:
        """Return what a codec with its bound says; raises `ConfigError` as the class does."""
        codec, at, bound = text.partition(AT)
        return cls(codecs.parse(codec), ErrorBound.of(bound) if at else None)

    def __str__(self) -> str:
        """Return it as users write it."""
        return f"{self.codec}{AT}{self.bound}" if self.bound else str(self.codec)

    @property
    def biased(self) -> bool:
        """Whether elements may move: to the nearest that can be told."""
        return self.codec.lossy

    @property
    def contracts(self) -> bool:
        """Always: without loss there is no error."""
        return True

    def encode(self, x: NDArray, state: State, shared: Shared) -> tuple[Symbols, State]:
        self.codec.require()
        if isinstance(self.codec, LosslessCodec):
            payload = self.codec.pack(x.tobytes(), x.itemsize)
        else:
            bound = self._absolute(x, shared) if self.bound else 0.0
            payload = self.codec.encode(*self._narrow(x, bound))
        return {"payload": np.frombuffer(payload, np.uint8)}, state

    def decode(self, symbols: Symbols, shared: Shared) -> NDArray:
        self.codec.require()
        payload, spec = raw(symbols["payload"]), shared.spec
        if isinstance(self.codec, LosslessCodec):
            data = self.codec.unpack(payload, spec.size * spec.dtype.itemsize)
            return np.frombuffer(data, spec.dtype).reshape(spec.shape)
        dtype = spec.dtype if spec.dtype in self.codec.dtypes else SINGLE
        return self.codec.decode(payload, spec.shape, dtype).astype(spec.dtype, copy=False)

    def _absolute(self, x: NDArray, shared: Shared) -> float:
        assert self.bound is not None
        if self.bound.kind != "step":
            return self.bound.absolute(x)
        if not shared.scale:
            raise CodecError(f"{self} is of the step of an update, and there is none")
        return self.bound.value * shared.scale

    def _narrow(self, x: NDArray, bound: float) -> tuple[NDArray, float]:
        """Return values in a dtype that the codec takes, and what is left of the bound."""
        if x.dtype in self.codec.dtypes:
            return x, bound
        with np.errstate(over="ignore"):
            single = x.astype(SINGLE)
        spare = bound - half_ulp(float(np.abs(x).max(initial=0)) + bound, SINGLE)
        if (self.bound and not spare > 0) or not np.isfinite(single).all():
            raise CodecError(f"{self} cannot code {x.dtype} of this range")
        return single, max(spare, 0.0)
