"""How to compress: every choice, once, as text and numbers that any file can hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fedsz.bounds import ErrorBound
from fedsz.core.partition import check_rule
from fedsz.errors import ConfigError

if TYPE_CHECKING:
    from fedsz.codecs import Codec, LosslessCodec
    from fedsz.methods import Chain

WEIGHTS: Final = "weights"
DELTA: Final = "delta"
DELTA_EF: Final = "delta+ef"  # with error feedback
UPDATES: Final = (WEIGHTS, DELTA, DELTA_EF)

EXACT: Final = "exact"  # a broadcast without any error
LEAST_BYTES: Final = 1 << 10  # of a message's arrays: fewer are not worth any error

# Root mean squares of a step: what a bound of kind ``step`` loses for good within it costs nothing
# that shows. So it is the bound of clients without error feedback.
WITHOUT_FEEDBACK: Final = 0.5


def _codec(text: str) -> Codec:
    from fedsz import codecs  # numpy and native libraries

    return codecs.parse(text)


def _update(text: str) -> str | Chain:
    """Return one of `UPDATES` as it is, and else the pipeline that codes differences."""
    if text in UPDATES:
        return text
    from fedsz import methods  # likewise

    try:
        return methods.parse(text)
    except ConfigError as err:
        have = f"{', '.join(UPDATES)} and pipelines of methods"
        raise ConfigError(f"no update {text!r}; have {have}: {err}") from None


def _downlink(text: str) -> str | ErrorBound:
    return text if text == EXACT else ErrorBound.of(text)


# By field, what reads its text; ``str`` of the result is the text in its one form.
_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "error_bound": ErrorBound.of,
    "codec": _codec,
    "lossless": _codec,
    "update": _update,
    "downlink": _downlink,
}


@lru_cache(maxsize=64)  # a policy may bring new bounds with each round
def _read(name: str, text: str) -> Any:
    """Return the object that the text of a field describes, or raise `ConfigError`."""
    return _READERS[name](text)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How updates and models are compressed.

    Every field is text or a number, and is written and read without loss: by the command line, in
    TOML, in JSON, and in requests to clients. Texts are brought into one form, so that equal
    settings compare equal.

    Attributes:
        error_bound: the largest error of an element, as `ErrorBound.of` reads it.
        codec: for tensors that may be lossy, with its settings.
        lossless: codec for everything else.
        threshold: tensors of up to this many elements stay lossless.
        rule: which other tensors stay lossless; see `fedsz.core.partition.is_lossy`.
        factors: by the names of tensors, what to multiply their bounds with; 1 for all others.
        update: what clients send: "weights", "delta" (the difference from the reference model),
            "delta+ef" (with error feedback) or that difference by a pipeline of methods, as
            `fedsz.methods.parse` reads it, in place of bound and codec.
        decay: what a residual is multiplied with for each round that it waits, in [0, 1].
        downlink: "exact", or the error bound of the reference model.

    Raises:
        ConfigError: a value is out of range or does not exist.
    """

    error_bound: str = "0.01"
    codec: str = "uniform"
    lossless: str = "blosclz"
    threshold: int = 1024
    rule: str = "shape"
    factors: dict[str, float] = {}
    update: str = DELTA_EF
    decay: float = 1.0
    downlink: str = EXACT

    def __post_init__(self) -> None:
        check_rule(self.rule, self.threshold)
        if self.update == WEIGHTS and self.error_bound.startswith("step:"):
            raise ConfigError(f"{self.error_bound} is of a step: it needs update delta or delta+ef")
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"decay must lie in [0, 1], got {self.decay}")
        for name, factor in self.factors.items():
            if not 0 < factor < math.inf:
                raise ConfigError(f"the factor of {name!r} must be above 0, got {factor}")
        for name in _READERS:
            text = getattr(self, name)
            # A default is in its form, and so needs no codecs: options have it in --help.
            if text != _DEFAULTS.get(name):
                msgspec.structs.force_setattr(self, name, str(_read(name, text)))

    @classmethod
    def of(
        cls,
        error_bound: ErrorBound | float | str,
        *,
        codec: str | Codec = "uniform",
        lossless: str | Codec = "blosclz",
        downlink: ErrorBound | float | str = EXACT,
        **more: Any,
    ) -> Settings:
        """Return what a caller asked for, to be used here: bounds and codecs may be objects, too.

        Raises:
            ConfigError: as the class does.
            CodecUnavailable: a codec's library is not installed here.
        """
        return cls(
            error_bound=str(ErrorBound.of(error_bound)),
            codec=str(codec),
            lossless=str(lossless),
            downlink=str(downlink),
            **more,
        ).require()

    def replace(self, **changes: Any) -> Settings:
        """Return it with other values of some fields; raises as the class does."""
        return msgspec.structs.replace(self, **changes)

    def require(self) -> Settings:
        """Return it, or raise why its codecs cannot be used: `ConfigError`, `CodecUnavailable`."""
        _ = self.lossy_codec, self.lossless_codec
        return self

    @property
    def bound(self) -> ErrorBound:
        """The error bound of what clients send."""
        bound: ErrorBound = _read("error_bound", self.error_bound)
        return bound

    @property
    def downlink_bound(self) -> ErrorBound | None:
        """The error bound of the reference model; None where the downlink is exact."""
        return None if self.downlink == EXACT else _read("downlink", self.downlink)

    @property
    def lossy_codec(self) -> Codec:
        """The codec for tensors that may be lossy."""
        codec: Codec = _read("codec", self.codec)
        codec.require()
        return codec

    @property
    def lossless_codec(self) -> LosslessCodec:
        """The codec for everything else."""
        from fedsz import codecs

        return codecs.get_lossless(_read("lossless", self.lossless))

    @property
    def sends_differences(self) -> bool:
        """Whether clients send the difference from the reference model."""
        return self.update != WEIGHTS

    @property
    def pipeline(self) -> Chain | None:
        """The pipeline of methods that codes what clients send, if any."""
        return None if self.update in UPDATES else _read("update", self.update)

    @property
    def feedback_decay(self) -> float | None:
        """What a residual is multiplied with for each round; None without error feedback."""
        if self.pipeline is None:
            return self.decay if self.update == DELTA_EF else None
        return self.pipeline.feedback_decay

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep a residual, or the state of a method, for the next round."""
        return self.update == DELTA_EF if self.pipeline is None else self.pipeline.keeps_state

    @property
    def lossless_only(self) -> Settings:
        """The same without any error: for replies that do not train, or have no reference."""
        return self.replace(
            update=WEIGHTS, error_bound=_DEFAULTS["error_bound"], codec=self.lossless
        )

    @property
    def without_feedback(self) -> Settings:
        """The same for clients whose residual is lost, or must not be sent.

        A bound of a step is `WITHOUT_FEEDBACK` steps at most; other bounds hold as they are. A
        pipeline with feedback becomes differences within that bound.
        """
        if not self.keeps_state:
            return self
        bound = self.bound
        if bound.kind == "step" or self.pipeline:
            value = min(bound.value, WITHOUT_FEEDBACK) if bound.kind == "step" else WITHOUT_FEEDBACK
            bound = ErrorBound.step(value)
        return self.replace(update=DELTA, error_bound=str(bound))

    def bound_of(self, name: str) -> ErrorBound:
        """Return a tensor's error bound; raise `ConfigError` if it is not finite or not above 0."""
        return self.bound.scaled(self.factors.get(name, 1.0))


_DEFAULTS: Final = {f.name: f.default for f in msgspec.structs.fields(Settings)}
DEFAULT: Final = Settings()
