"""How to compress: every choice there is, once, as text and numbers that any file can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fedsz.bounds import ErrorBound
from fedsz.core.partition import check_rule
from fedsz.errors import ConfigError

if TYPE_CHECKING:
    from fedsz.codecs import Codec, LosslessCodec
    from fedsz.methods import Difference, Transform

WEIGHTS: Final = "weights"
DELTA: Final = "delta"
DELTA_EF: Final = "delta+ef"  # with error feedback
UPDATES: Final = (WEIGHTS, DELTA, DELTA_EF)

EXACT: Final = "exact"  # a broadcast without any error
LEAST_BYTES: Final = 1 << 10  # of a message's arrays: fewer are not worth any error
DIFFERENCE: Final = "difference"  # what a broadcast by a chain begins with
STAGGERED: Final = "staggered:"  # and before the bound of one to lattices that are


def _codec(text: str) -> Codec:
    from fedsz import codecs  # numpy and native libraries

    return codecs.parse(text)


def _update(text: str) -> str | Transform:
    """Return one of `UPDATES` as it is, and else the chain that clients send differences by."""
    if text in UPDATES:
        return text
    from fedsz import methods  # likewise

    try:
        return methods.parse(text)
    except ConfigError as err:
        have = f"{', '.join(UPDATES)} and chains of methods"
        raise ConfigError(f"no update {text!r}; have {have}: {err}") from None


def is_bound(downlink: str) -> bool:
    """Say whether a downlink is within an error bound: neither exact nor by a chain."""
    return downlink != EXACT and not downlink.startswith(DIFFERENCE)


def _downlink(text: str) -> str | ErrorBound | Difference:
    """Return `EXACT`, an error bound, or a chain that a server can send models by."""
    if text == EXACT:
        return text
    if text.startswith(STAGGERED):
        try:
            bound = ErrorBound.of(text.removeprefix(STAGGERED))
        except ConfigError as err:
            raise ConfigError(f"downlink {text!r}: {err}") from None
        if bound.kind != "step":
            raise ConfigError(
                f"downlink {text!r}: lattices are staggered by bounds of a step alone"
            )
        return f"{STAGGERED}{bound}"
    if is_bound(text):
        return ErrorBound.of(text)
    from fedsz import methods  # likewise
    from fedsz.methods.base import Part

    transform = methods.parse(text)
    if not isinstance(transform, methods.Difference) or transform.rate != 1:
        raise ConfigError(f"downlink {text!r} must be {DIFFERENCE!r} of rate 1, for all tensors")
    for part in methods.parts_of(transform.inner):
        if not isinstance(part, Part) or part.leads:
            raise ConfigError(f"a downlink has no {part.name}, which keeps state of its own")
        if not part.contracts:
            hint = f": write {part.name}:unbiased=0" if hasattr(part, "unbiased") else ""
            raise ConfigError(f"a downlink by {part} moves away from the model{hint}")
    return transform


# What a field's text means; its ``str`` is the text in its one form.
_MEANINGS: Final[dict[str, Callable[[str], Any]]] = {
    "error_bound": ErrorBound.of,
    "codec": _codec,
    "lossless": _codec,
    "update": _update,
    "downlink": _downlink,
}


@lru_cache(maxsize=32)  # a policy may bring new bounds with each round
def _meant(name: str, text: str) -> Any:
    """Return what the text of a field means, or raise `ConfigError`; each is read once."""
    return _MEANINGS[name](text)


def codec_text(text: str) -> str:
    """Return a codec with its settings in its one form, or raise `ConfigError`."""
    return str(_meant("codec", text))


def codec_told(text: str) -> str:
    """Return a codec without the settings that only senders need, which older ones do not know."""
    told: str = _meant("codec", text).told
    return told


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How updates and models are compressed.

    Every field is text or a number, and is written and read without loss: by the command line, in
    TOML, in JSON, and in the messages that tell clients. Texts are brought into one form, so that
    equal configurations compare equal.

    Attributes:
        error_bound: the largest error of an element, as `ErrorBound.of` reads it.
        codec: for tensors that may be lossy, with its settings.
        lossless: codec for everything else.
        threshold: tensors of up to this many elements stay lossless.
        rule: which other tensors stay lossless; see `fedsz.core.partition.is_lossy`.
        factors: by the names of tensors, what to multiply their bounds with; 1 for all others.
        update: what clients send: "weights", "delta" (how they differ from the model that clients
            were sent), "delta+ef" (with error feedback) or that difference by a chain of methods,
            as `fedsz.methods.parse` reads it, in place of bound and codec.
        decay: what a residual is multiplied with for each round that it waits, in [0, 1].
        ahead: whether clients begin to train with part of what they have not sent yet added to the
            model, where they feed that back; see `fedsz.core.ahead`.
        downlink: "exact", the error bound of the model that clients are sent, or the chain that
            codes how it differs from the one that they hold, such as "difference>topk". With
            "staggered:" before a bound of a step it is of what clients are sent on average; see
            `fedsz.core.staggered`.

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
    ahead: bool = False
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
        for name in _MEANINGS:
            text = getattr(self, name)
            # A default is in its form, and so needs no codecs: options have it in --help.
            if text != _DEFAULTS.get(name):
                msgspec.structs.force_setattr(self, name, str(_meant(name, text)))

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
        bound: ErrorBound = _meant("error_bound", self.error_bound)
        return bound

    @property
    def lossy_codec(self) -> Codec:
        """The codec for tensors that may be lossy."""
        codec: Codec = _meant("codec", self.codec)
        codec.require()
        return codec

    @property
    def lossless_codec(self) -> LosslessCodec:
        """The codec for everything else."""
        from fedsz import codecs

        return codecs.get_lossless(_meant("lossless", self.lossless))

    @property
    def sends_differences(self) -> bool:
        """Whether clients send how they differ from the model that they were sent."""
        return self.update != WEIGHTS

    @property
    def chain(self) -> Transform | None:
        """The chain of methods that codes what clients send, if any."""
        return None if self.update in UPDATES else _meant("update", self.update)

    @property
    def uses_history(self) -> bool:
        """Whether clients may code their updates by what broadcasts have shown."""
        from fedsz.methods import Eigen

        return self._has(Eigen)

    @property
    def without_history(self) -> Settings:
        """What clients are told whose release cannot code by a history: the rest of the chain.

        Of feedback and a bound of the whole step, which such releases do not take in chains, that
        is "delta+ef"; where nothing is left that compresses, differences without loss. Nor do they
        know of settings that only senders need, such as those by which `uniform` shrinks.
        """
        from fedsz.methods import Bounded, Feedback, parts_of, with_history

        if self.chain is None:
            told = codec_told(self.codec)
            return self if told == self.codec else self.replace(codec=told)
        rest = with_history(self.chain, None)
        match parts_of(rest) if self.uses_history else []:
            case [Feedback(decay=decay), Bounded(codec, bound)] if bound and bound.kind == "step":
                by = {"codec": codec.told, "error_bound": str(bound)}
                return self.replace(update=DELTA_EF, decay=decay, **by)
        try:
            return self.replace(update=rest.told)
        except ConfigError:
            return self.replace(update=DELTA, codec=self.lossless)

    @property
    def downlink_chain(self) -> Transform | None:
        """The chain that codes how a model differs from the one that clients hold, if any."""
        by_chain = self.downlink.startswith(DIFFERENCE)
        return _meant("downlink", self.downlink).inner if by_chain else None

    @property
    def downlink_bound(self) -> ErrorBound | None:
        """The bound of the model that clients are sent, if it has one.

        Of staggered lattices it is the bound of what clients hold on average.
        """
        text = self.downlink
        return ErrorBound.of(text.removeprefix(STAGGERED)) if is_bound(text) else None

    @property
    def staggers(self) -> bool:
        """Whether clients may be sent models on different lattices."""
        return self.downlink.startswith(STAGGERED)

    @property
    def not_staggered(self) -> Settings:
        """The same with one model for all clients."""
        return self.replace(downlink=self.downlink.removeprefix(STAGGERED))

    @property
    def aside(self) -> Settings:
        """The same for replies that do not train: exactly, and without residuals."""
        changes = self.chain is not None or self.feeds_back
        return self.replace(update=DELTA if changes else self.update, codec=self.lossless)

    @property
    def learns_shifts(self) -> bool:
        """Whether clients send how their steps differ from what the server has learnt of them."""
        from fedsz.methods import Difference

        return self._has(Difference)

    @property
    def feeds_back(self) -> bool:
        """Whether clients keep what their codec or chain leaves out, for the next round."""
        from fedsz.methods import Feedback

        return self.update == DELTA_EF or self._has(Feedback)

    @property
    def begins_ahead(self) -> bool:
        """Whether clients begin with what they have not sent: of plain error feedback alone.

        A chain's residuals have an age each, so that it may not decay.
        """
        from fedsz.methods import Feedback, parts_of
        from fedsz.methods.combinators import Wrapper

        if not self.ahead or self.chain is None:
            return self.ahead and self.update == DELTA_EF
        wrappers = [part for part in parts_of(self.chain) if isinstance(part, Wrapper)]
        if len(wrappers) != 1 or type(wrappers[0]) is not Feedback:
            return False
        return wrappers[0].decay == 1

    @property
    def keeps_state(self) -> bool:
        """Whether clients keep anything from one round to the next."""
        from fedsz.methods import keeps_state

        return keeps_state(self.chain) if self.chain else self.feeds_back

    def _has(self, kind: type) -> bool:
        """Say whether a part of the chain is of a kind."""
        from fedsz.methods import parts_of

        return self.chain is not None and any(isinstance(p, kind) for p in parts_of(self.chain))

    def with_factors(self, factors: Mapping[str, float]) -> Settings:
        """Return the same whose bounds of some tensors are multiplied with these once more."""
        both = {name: factor * self.factors.get(name, 1.0) for name, factor in factors.items()}
        return self.replace(factors={**self.factors, **both}) if both else self

    def bound_of(self, name: str) -> ErrorBound:
        """Return a tensor's error bound; raise `ConfigError` if it is not finite or not above 0."""
        return self.bound.scaled(self.factors.get(name, 1.0))


_DEFAULTS: Final = {f.name: f.default for f in msgspec.structs.fields(Settings)}
DEFAULT: Final = Settings()
