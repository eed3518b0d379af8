"""What a reply must keep to before anything of it counts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from fedsz import codecs
from fedsz.errors import ConfigError
from fedsz.flower.ordinary import NO_LIMIT, NormLimit

EXAMPLES: Final = "num-examples"  # as Flower's strategies weight replies
FLEET: Final = "fleet"  # rules for clients that may fail or lie


@dataclass(frozen=True)
class AdmissionRules:
    """What a reply must keep to.

    Attributes:
        max_client_share: the most that one client's weight may be of a round's, if all others have
            the median weight; what is above is lowered to that. 1 for no limit.
        max_update_norm: as `NormLimit.of` reads it; updates above are scaled down to it, or refused
            where it says so; see `fedsz.flower.received_update.ReceivedUpdate.judge`. Unless it is
            none, 0 takes the place of what a reply has below 0 in tensors that were nowhere below
            it, and that most clients leave there.
        allow_codecs: names of codecs that clients may use besides those that they were told to.
        weighted_by: the metric that is the weight of a reply.
        same_model: whether replies must be of the model that was sent.
        same_metrics: whether all replies must hold the same records and metrics, as Flower's own
            strategies want them.
        checks_metrics: whether metrics must be finite, and weights be in range.
        benches: whether clients that keep failing sit out rounds.

    Raises:
        ConfigError: a limit is out of range, or there is no such codec.

    Examples:
        >>> from fedsz.flower import AdmissionRules, FedSZGrid, LocalGrid, make_client_app
        >>> rules = AdmissionRules(max_client_share=0.2, max_update_norm="refuse:5x")
        >>> grid = FedSZGrid(LocalGrid(make_client_app(), [{}]), rules=rules)
    """

    max_client_share: float = 0.5
    max_update_norm: float | str = "10x"
    allow_codecs: Collection[str] = ()
    weighted_by: str = EXAMPLES
    same_model: bool = True
    same_metrics: bool = True
    checks_metrics: bool = True
    benches: bool = True

    @classmethod
    def of(cls, rules: AdmissionRules | str | None) -> AdmissionRules:
        """Return ``rules``, those that "fleet" names, or for None those of compression alone.

        Raises:
            ConfigError: it is another word.
        """
        if isinstance(rules, AdmissionRules):
            return rules
        if rules is None:
            return cls(
                max_client_share=1,
                max_update_norm=NO_LIMIT,
                same_metrics=False,
                checks_metrics=False,
                benches=False,
            )
        if rules != FLEET:
            raise ConfigError(f"rules must be {FLEET!r}, AdmissionRules or None, got {rules!r}")
        return cls()

    @property
    def learns(self) -> bool:
        """Whether a reply is held to what is ordinary among others."""
        return self.same_metrics or self.max_client_share < 1 or self.norm_limit != NormLimit()

    def __post_init__(self) -> None:
        if not 0 < self.max_client_share <= 1:
            raise ConfigError(f"max_client_share must lie in (0, 1], got {self.max_client_share}")
        _ = self.norm_limit, [codecs.get(name) for name in self.allow_codecs]

    @property
    def norm_limit(self) -> NormLimit:
        """The most that an update's norm may be."""
        return NormLimit.of(self.max_update_norm)
