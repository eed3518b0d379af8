"""How to compress: every choice there is, once, as text and numbers that any file can hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fedsz.bounds import ErrorBound
from fedsz.errors import ConfigError
from fedsz.update.partition import check_rule

if TYPE_CHECKING:
    from fedsz.codecs import Codec, LosslessCodec
    from fedsz.methods import Transform

WEIGHTS: Final = "weights"
DELTA: Final = "delta"
DELTA_EF: Final = "delta+ef"  # with error feedback
UPDATES: Final = (WEIGHTS, DELTA, DELTA_EF)

EXACT: Final = "exact"  # a broadcast without any error
DIFFERENCE: Final = "difference"  # what a broadcast by a chain begins with


def codec_text(text: str) -> str:
    """Return a codec with its settings in its one form, or raise `ConfigError`."""
    from fedsz import codecs  # numpy and native libraries

    return str(codecs.parse(text))


def update_text(text: str) -> str:
    """Return what clients send in its one form: one of `UPDATES`, or a chain of methods.

    Raises:
        ConfigError: it is neither.
    """
    if text in UPDATES:
        return text
    from fedsz import methods  # numpy and native libraries

    try:
        return str(methods.parse(text))
    except ConfigError as err:
        have = f"{', '.join(UPDATES)} and chains of methods"
        raise ConfigError(f"no update {text!r}; have {have}: {err}") from None


def is_bound(downlink: str) -> bool:
    """Say whether a downlink is within an error bound: neither exact nor by a chain."""
    return downlink != EXACT and not downlink.startswith(DIFFERENCE)


def downlink_text(text: str) -> str:
    """Return how the model is sent in its one form: `EXACT`, an error bound, or a chain.

    Raises:
        ConfigError: it is none of these, or a chain that a server cannot send models by.
    """
    if text == EXACT:
        return text
    if is_bound(text):
        return str(ErrorBound.of(text))
    from fedsz import methods  # likewise
    from fedsz.methods.base import Part

    transform = methods.parse(text)
    inner = transform.inner if isinstance(transform, methods.Difference) else None
    if inner is None or transform != methods.Difference(inner):
        raise ConfigError(f"downlink {text!r} must be {DIFFERENCE!r} of rate 1, for all tensors")
    for part in methods.parts_of(inner):
        if not isinstance(part, Part) or part.stateful:
            raise ConfigError(f"a downlink has no {part.name}, which keeps state of its own")
        if not part.contracts:
            hint = f": write {part.name}:unbiased=0" if hasattr(part, "unbiased") else ""
            raise ConfigError(f"a downlink by {part} moves away from the model{hint}")
    return str(transform)


# What brings a field's text into its one form, or raises a ConfigError.
_FORMS: Final[dict[str, Callable[[str], str]]] = {
    "error_bound": lambda text: str(ErrorBound.of(text)),
    "codec": codec_text,
    "lossless": codec_text,
    "update": update_text,
    "downlink": downlink_text,
}


class CompressionConfig(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How updates and models are compressed.

    Every field is text or a number, and is written and read without loss: by the command line, in
    TOML, in JSON, and in the messages that tell clients. Texts are brought into one form, so that
    equal configurations compare equal. What a text means is read once, when it is asked for.

    Attributes:
        error_bound: the largest error of an element, as `ErrorBound.of` reads it.
        codec: for tensors that may be lossy, with its settings.
        lossless: codec for everything else.
        threshold: tensors of up to this many elements stay lossless.
        rule: which other tensors stay lossless; see `fedsz.update.partition.is_lossy`.
        factors: by the names of tensors, what to multiply their bounds with; 1 for all others.
        update: what clients send: "weights", "delta" (how they differ from the model that clients
            were sent), "delta+ef" (with error feedback) or that difference by a chain of methods,
            as `fedsz.methods.parse` reads it, in place of bound and codec.
        decay: what a residual is multiplied with for each round that it waits, in [0, 1].
        downlink: "exact", the error bound of the model that clients are sent, or the chain that
            codes how it differs from the one that they hold, such as "difference>topk".

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
        for name, form in _FORMS.items():
            text = getattr(self, name)
            # A default is in its form, and so needs no codecs: options have it in --help.
            if text != _DEFAULTS.get(name):
                msgspec.structs.force_setattr(self, name, form(text))

    @classmethod
    def of(
        cls,
        error_bound: ErrorBound | float | str,
        *,
        codec: str | Codec = "uniform",
        lossless: str | Codec = "blosclz",
        downlink: ErrorBound | float | str = EXACT,
        **more: Any,
    ) -> CompressionConfig:
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

    def replace(self, **changes: Any) -> CompressionConfig:
        """Return it with other values of some fields; raises as the class does."""
        return msgspec.structs.replace(self, **changes)

    def require(self) -> CompressionConfig:
        """Return it, or raise why its codecs cannot be used: `ConfigError`, `CodecUnavailable`."""
        _ = self.lossy_codec, self.lossless_codec
        return self

    @cached_property
    def bound(self) -> ErrorBound:
        """The error bound of what clients send."""
        return ErrorBound.of(self.error_bound)

    @cached_property
    def lossy_codec(self) -> Codec:
        """The codec for tensors that may be lossy."""
        from fedsz import codecs

        return codecs.get(self.codec)

    @cached_property
    def lossless_codec(self) -> LosslessCodec:
        """The codec for everything else."""
        from fedsz import codecs

        return codecs.get_lossless(self.lossless)

    @property
    def sends_differences(self) -> bool:
        """Whether clients send how they differ from the model that they were sent."""
        return self.update != WEIGHTS

    @cached_property
    def chain(self) -> Transform | None:
        """The chain of methods that codes what clients send, if any."""
        if self.update in UPDATES:
            return None
        from fedsz import methods

        return methods.parse(self.update)

    @cached_property
    def downlink_chain(self) -> Transform | None:
        """The chain that codes how a model differs from the one that clients hold, if any."""
        if self.downlink == EXACT or is_bound(self.downlink):
            return None
        from fedsz import methods

        difference = methods.parse(self.downlink)
        return difference.inner if isinstance(difference, methods.Difference) else difference

    @property
    def learns_shifts(self) -> bool:
        """Whether clients send how their steps differ from what the server has learnt of them."""
        if self.chain is None:
            return False
        from fedsz.methods import Difference, parts_of

        return any(isinstance(part, Difference) for part in parts_of(self.chain))

    @property
    def feeds_back(self) -> bool:
        """Whether clients keep what their codec or chain leaves out, for the next round."""
        if self.chain is None:
            return self.update == DELTA_EF
        from fedsz.methods import Feedback, parts_of

        return any(isinstance(part, Feedback) for part in parts_of(self.chain))

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep anything from one round to the next."""
        if self.chain is None:
            return self.update == DELTA_EF
        from fedsz.methods import keeps_state

        return keeps_state(self.chain)

    def bound_of(self, name: str) -> ErrorBound:
        """Return a tensor's error bound; raise `ConfigError` if it is not finite or not above 0."""
        return self.bound.scaled(self.factors.get(name, 1.0))


_DEFAULTS: Final = {f.name: f.default for f in msgspec.structs.fields(CompressionConfig)}
DEFAULT: Final = CompressionConfig()
