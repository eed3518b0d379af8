"""`basis`: codes updates in a basis that both sides know from earlier broadcasts (docs/eigen.md).

It takes the bound and the codec of the rules before, and so comes after all that decide on those:
``auto+basis``.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedsz.control.record import Decision
from fedsz.control.rule import NextRound, Rule, because
from fedsz.core.settings import DELTA_EF, EXACT
from fedsz.errors import ConfigError


@dataclass
class InBasis(Rule):
    """Sends, in place of differences with error feedback, these in the basis, within their bound.

    Fewer bytes go up, at some more time of server and clients.
    """

    name = "basis"

    def refine(self, decision: Decision, _coming: NextRound, /) -> Decision:
        """Return ``decision`` with updates in the basis.

        Raises:
            ConfigError: updates are not differences with error feedback, clients are sent exact
                models, and so keep none, or the codec keeps no bound.
        """
        config = decision.config
        if config.update != DELTA_EF:
            raise ConfigError(f"basis needs update {DELTA_EF}, as auto has it; got {config.update}")
        if config.downlink == EXACT:
            raise ConfigError(
                "basis needs a downlink with a bound, as auto before it has; got exact"
            )
        codec = config.lossy_codec
        if not (codec.lossy and codec.keeps_bound):
            raise ConfigError(f"basis needs a codec that keeps a bound; got {config.codec}")
        chain = f"feedback:decay={config.decay}>eigen>{config.codec}@{config.error_bound}"
        # A chain has one bound for all tensors.
        told = "in the basis of broadcasts" + (", without factors" if config.factors else "")
        return because(decision, told, update=chain, factors={})
