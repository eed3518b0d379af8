"""Rules: pure checks and limits of an update, by what is typical among clients.

Without ``rules``, only replies that cannot be updates are refused: damaged bytes, names and shapes
of another model, values that are not finite, a weight that is not a finite number of at least 0.
"fleet" also limits how far one client can pull the mean. A client counts at most as much as
`Rules.max_update_norm` typical clients: its weight times its norm is limited, not each alone.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedsz.errors import ConfigError, RefusedReply
from fedsz.flower.records import passthrough_of
from fedsz.flower.refusal import Refusal
from fedsz.flower.update import Update
from fedsz.flower_compat import records_in

EXAMPLES: Final = "num-examples"  # as Flower's strategies weight replies
FLEET: Final = "fleet"  # rules for clients that may fail or lie
NO_LIMIT: Final = "none"
REFUSE: Final = "refuse:"  # before a limit: updates above it are refused, not clipped
GROWTH: Final = 2.0  # times, that the typical norm and weight may grow from one round to the next
FEW: Final = 5  # clients below which a share of the weight says little,
MOST_OF_FEW: Final = 10.0  # and one may weigh as much as so many typical ones


class Move(NamedTuple):
    """What is known of a client's update.

    Attributes:
        node: of the client.
        norm: of its step.
        weight: in the average.
    """

    node: int
    norm: float
    weight: float


class Typical(NamedTuple):
    """The median over the clients that have replied lately; 0 where it is not known.

    Attributes:
        norm: of their updates.
        weight: of their replies.
        clients: that were asked in this round.
    """

    norm: float = 0.0
    weight: float = 0.0
    clients: int = 0

    def after(self, latest: Iterable[Move]) -> Typical:
        """Return it after a round, at most `GROWTH` times as large as before.

        Of two in the middle the smaller counts. Updates that have not moved say nothing of others.

        Args:
            latest: one of each client.
        """
        moves, medians = list(latest), dict[str, float]()
        for name, before in (("norm", self.norm), ("weight", self.weight)):
            known = [x for move in moves if 0 < (x := getattr(move, name)) < math.inf]
            now = statistics.median_low(known) if known else before
            medians[name] = min(now, GROWTH * before) if before else now
        return Typical(medians["norm"], medians["weight"], self.clients)


@dataclass(frozen=True)
class Rules:
    """What a reply must keep to before it counts.

    Attributes:
        max_client_share: the most that one client's weight may be of a round's, if all others have
            the typical weight; a larger one is lowered to that. 1 for no limit.
        max_update_norm: the norm that an update may have: times the typical one, such as ``"3x"``;
            a number; or ``"none"``. A client of a larger weight than the typical one may move less
            in proportion. Updates above are scaled down, or refused after ``"refuse:"``.
        weighted_by: the metric that is the weight of a reply.
        tolerant: whether a reply may have no weight, other records or metrics than most of its
            round, or metrics that are not finite. Flower's own strategies do not take such replies.

    Raises:
        ConfigError: a limit is out of range.

    Examples:
        >>> from fedsz.flower import FedSZGrid, LocalGrid, Rules, make_client_app
        >>> rules = Rules(max_client_share=0.3, max_update_norm="refuse:5x")
        >>> grid = FedSZGrid(LocalGrid(make_client_app(), [{}]), rules=rules)
    """

    max_client_share: float = 0.2
    max_update_norm: float | str = "3x"
    weighted_by: str = EXAMPLES
    tolerant: bool = False

    @classmethod
    def of(cls, rules: Rules | str | None) -> Rules:
        """Return ``rules``, those that "fleet" names, or for None those that make an update.

        Raises:
            ConfigError: it is another word.
        """
        if isinstance(rules, Rules):
            return rules
        if rules is None:
            return cls(1.0, NO_LIMIT, tolerant=True)
        if rules != FLEET:
            raise ConfigError(f"rules must be {FLEET!r}, Rules or None, got {rules!r}")
        return cls()

    def __post_init__(self) -> None:
        if not 0 < self.max_client_share <= 1:
            raise ConfigError(f"max_client_share must lie in (0, 1], got {self.max_client_share}")
        _ = self._norm_limit

    @property
    def needs_typical(self) -> bool:
        """Whether a rule compares a client with others."""
        return self.max_client_share < 1 or self._norm_limit[0] < math.inf

    @property
    def _norm_limit(self) -> tuple[float, float, bool]:
        """Times the typical norm, a fixed norm, and whether updates above are scaled down."""
        text = str(self.max_update_norm)
        if text == NO_LIMIT:
            return math.inf, math.inf, True
        digits = text.removeprefix(REFUSE)
        try:
            value = float(digits.removesuffix("x"))
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise ConfigError(
                f"a norm's limit is a number above 0, one with x for times the typical norm, such"
                f" as 3x, either after {REFUSE}, or {NO_LIMIT}; got {text!r}"
            )
        times, fixed = (value, math.inf) if digits.endswith("x") else (math.inf, value)
        return times, fixed, digits == text

    def check(self, update: Update, typical: Typical) -> Update:
        """Return an update that keeps to all rules, scaled down if it has to be.

        Args:
            update: with its norm.
            typical: of the clients.

        Raises:
            RefusedReply: it must not count.
        """
        for rule in (require_finite, self.limit_weight, self.limit_norm):
            update = rule(update, typical)
        return update

    def limit_weight(self, update: Update, typical: Typical) -> Update:
        """Lower a weight to the largest share that one client may have."""
        most, share = math.inf, self.max_client_share
        if share < 1 and typical.clients > 1 and typical.weight:
            most = MOST_OF_FEW * typical.weight
            if typical.clients >= FEW:
                most = share / (1 - share) * (typical.clients - 1) * typical.weight
        return update if update.weight <= most else update.weighted(most)

    def limit_norm(self, update: Update, typical: Typical) -> Update:
        """Scale a step down to the largest norm that it may have, or refuse it."""
        times, most, scales = self._norm_limit
        if typical.norm and times < math.inf:
            most = times * typical.norm
            if typical.clients >= FEW and typical.weight < update.weight:
                most *= typical.weight / update.weight if typical.weight else 1.0
        assert update.norm is not None
        if update.norm <= most:
            return update
        if not scales:
            text = f"the norm of its update is {update.norm:.4g}; the most is {most:.4g}"
            raise RefusedReply(Refusal.NORM, text)
        return update.scaled(most / update.norm)


def require_finite(update: Update, _: Typical) -> Update:
    """Refuse an update with NaN, infinities or values whose squares are."""
    if update.norm is None or not math.isfinite(update.norm):
        raise RefusedReply(Refusal.NOT_FINITE, "it holds NaN, infinities or values near them")
    return update


def weight_of(content: RecordDict, name: str) -> float | None:
    """Return the weight of a reply; None if it has none.

    Raises:
        RefusedReply: it is not a finite number of at least 0.
    """
    for record in records_in(content, MetricRecord).values():
        if (weight := record.get(name)) is not None:
            if isinstance(weight, list) or not 0 <= weight < math.inf:
                text = f"{name!r} must be a finite number of at least 0, got {weight!r}"
                raise RefusedReply(Refusal.WEIGHT, text)
            return float(weight)
    return None


Schema = frozenset[str]  # of a reply in words, to be compared and shown


def schema_of(content: RecordDict) -> Schema:
    """Return which records, passthrough arrays and metrics a reply holds; lists have a length."""
    schema = set()
    for key, arrays in records_in(content, ArrayRecord).items():
        schema.add(f"ArrayRecord {key!r}")
        schema |= {f"array {name!r} of {key!r}" for name, _ in passthrough_of(arrays).values()}
    for key, metrics in records_in(content, MetricRecord).items():
        schema.add(f"MetricRecord {key!r}")
        for name, value in metrics.items():
            length = f" of {len(value)} numbers" if isinstance(value, list) else ""
            schema.add(f"metric {name!r} of {key!r}{length}")
    return frozenset(schema)


def check_schemas(replies: Mapping[int, Message]) -> dict[int, RefusedReply]:
    """Return, by the keys of replies of one round, why some do not fit the others.

    Flower averages replies of one schema, or raises. So that of most counts, the first among
    equals; and every metric must be finite.
    """
    found: dict[int, Schema] = {}
    refused: dict[int, RefusedReply] = {}
    for i, reply in replies.items():
        try:
            _check_finite_metrics(reply.content)
            found[i] = schema_of(reply.content)
        except RefusedReply as err:
            refused[i] = err
    most = next((schema for schema, _ in Counter(found.values()).most_common(1)), None)
    for i, schema in found.items():
        if most is not None and schema != most:
            lacks, has = (", ".join(sorted(x)) or "nothing" for x in (most - schema, schema - most))
            text = f"it lacks {lacks} and has {has} that others have not"
            refused[i] = RefusedReply(Refusal.RECORDS, text)
    return refused


def _check_finite_metrics(content: RecordDict) -> None:
    for record in records_in(content, MetricRecord).values():
        for name, value in record.items():
            numbers = value if isinstance(value, list) else [value]
            if not all(math.isfinite(number) for number in numbers):
                raise RefusedReply(Refusal.METRIC, f"{name!r} is not finite")
