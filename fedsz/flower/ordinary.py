"""What is ordinary among clients: the weights and moves of recent replies, and limits by them.

Medians are of the rounds before, so a round's limits do not depend on the order of its replies. In
the first round they are of the first replies; see `fedsz.flower.admission.Admission.settled`. Each
client counts once, by its latest reply: in rounds that overlap, fast clients reply more often, and
are not more. Replies that were refused for their norm are among them: where all clients begin to
move further, the limit follows, and as long as most are honest it follows nobody else.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

from fedsz.arrays import CHUNK, LOSSY_DTYPES, NDArray
from fedsz.errors import ConfigError
from fedsz.flower.received_update import ReceivedUpdate
from fedsz.flower.refusal import Norm
from fedsz.flower.reply_form import Form, usual_form

ROUNDS: Final = 3  # that medians are of,
CLIENTS: Final = 50  # or of the last replies of so many clients, if there were fewer,
LONGEST: Final = 20  # in so many rounds
MOST_WEIGHT: Final = 1e12  # no client has more examples
FEW: Final = 5  # clients below which a share says little,
MOST_OF_FEW: Final = 10.0  # and one may weigh as much as so many ordinary ones
NO_LIMIT: Final = "none"
REFUSE: Final = "refuse:"  # before a limit: updates above it are refused, not clipped

T = TypeVar("T")


@dataclass(frozen=True)
class NormLimit:
    """The most that the norm of an update may be.

    Attributes:
        factor: times the median of recent norms, or
        fixed: in the unit of the weights; the other is infinite.
        clips: whether an update above it is scaled down to it, in place of refused.
    """

    factor: float = math.inf
    fixed: float = math.inf
    clips: bool = True

    @classmethod
    def of(cls, text: float | str) -> NormLimit:
        """Return what ``"10x"``, a number, ``"refuse:10x"`` or ``"none"`` says.

        Raises:
            ConfigError: it is none of these, or not above 0.
        """
        if text == NO_LIMIT:
            return cls()
        digits = str(text).removeprefix(REFUSE)
        clips = digits == str(text)
        try:
            value = float(digits.removesuffix("x"))
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf:
            raise ConfigError(
                f"a norm's limit is a number above 0, one with x for times the median of recent"
                f" norms, such as 10x, either after {REFUSE}, or {NO_LIMIT}; got {text!r}"
            )
        if digits.endswith("x"):
            return cls(factor=value, clips=clips)
        return cls(fixed=value, clips=clips)

    def over(self, ordinary: Norm | None) -> Norm:
        """Return the limit where ``ordinary`` norms are known, or None.

        Where whole numbers ordinarily do not move, none may.
        """
        if ordinary is None or self == NormLimit():
            return Norm(self.fixed, math.inf)
        floats = self.factor * ordinary.floats if ordinary.floats else math.inf
        whole = self.factor * ordinary.whole if ordinary.whole else 0.0
        return Norm(min(self.fixed, floats), whole)


class Latest(Generic[T]):
    """The latest value of each client that has replied lately.

    Of the last `ROUNDS` rounds; and, so that slow clients count among fast ones, of the `CLIENTS`
    that have replied last, if that was in the last `LONGEST` rounds.

    Args:
        known: what ``known`` of another was: by client, its node, the round, and the value.
    """

    def __init__(self, known: Iterable[tuple[int, int, T]] = ()) -> None:
        self._known = {node: (number, value) for node, number, value in known}
        self._new: dict[int, T] = {}  # of this round
        self._round = max((number for number, _ in self._known.values()), default=0)

    @property
    def known(self) -> list[tuple[int, int, T]]:
        """What another is made of that goes on from here."""
        return [(node, number, value) for node, (number, value) in self._known.items()]

    @property
    def values(self) -> list[T]:
        """The values of the rounds before, one of each client."""
        return [value for _, value in self._known.values()]

    def add(self, node: int, value: T) -> None:
        """Take that of a client's reply in this round."""
        self._new[node] = value

    def end_round(self) -> None:
        """Count what is added from now on to the next round."""
        if not self._new:
            return
        self._round += 1
        for node in sorted(self._new):  # whatever order they came in
            self._known.pop(node, None)
            self._known[node] = self._round, self._new[node]
        self._new = {}
        for place, node in enumerate(reversed(list(self._known))):
            age = self._round - self._known[node][0]
            if age >= (ROUNDS if place >= CLIENTS else LONGEST):
                del self._known[node]


class Move(NamedTuple):
    """What a client's update has done to the model that it started from.

    Attributes:
        norm: how far it has moved.
        above: tensors that were nowhere below 0, and that it has left so.
    """

    norm: Norm
    above: frozenset[str] = frozenset()

    @classmethod
    def of(cls, update: ReceivedUpdate) -> Move | None:
        """Return that of an update that has been decoded; None if that has failed."""
        norm = update.norm
        finite = norm is not None and all(map(math.isfinite, norm))
        above = update.watched - update.below
        return cls(norm, above) if norm is not None and finite else None


def ordinary_norm(moves: Sequence[Move]) -> Norm | None:
    """Return the median of how far updates have moved; None if none is known.

    Of two in the middle it is the larger, or half of the clients could freeze a model by moving
    nothing; of two clients, the smaller. Floats that have not moved say nothing of others. Whole
    numbers do: where most clients move none, 0 is ordinary.
    """
    if not moves:
        return None
    floats = [move.norm.floats for move in moves if move.norm.floats]
    whole = [move.norm.whole for move in moves if move.norm.whole]
    few = 2 * len(whole) < len(moves)
    return Norm(_median(floats), 0.0 if few else _median(whole))


def usually_above(moves: Sequence[Move]) -> frozenset[str]:
    """Return the tensors that half of the clients, or more, have left nowhere below 0.

    One that began at 0, or below it, is none of them: where it goes from there is not known yet.
    """
    times = Counter(name for move in moves for name in move.above)
    return frozenset(name for name, count in times.items() if 2 * count >= len(moves))


def _median(norms: Sequence[float]) -> float:
    if not norms:
        return 0.0
    return statistics.median_high(norms) if len(norms) > 2 else statistics.median_low(norms)


class Ordinary:
    """What admission has learned of a run's replies.

    Args:
        norm_limit: the most that updates may move.

    Attributes:
        forms: the one form of replies, by the type of messages.
        weights: of replies.
        moves: what updates have done, by the keys of records.
    """

    def __init__(self, norm_limit: NormLimit) -> None:
        self.forms: dict[str, Form] = {}
        self.weights = Latest[float]()
        self.moves: dict[str, Latest[Move]] = {}
        self._norm_limit = norm_limit
        # By the rounds before: the ordinary weight; by key, the limit, and what is seldom below 0.
        self._weight: float | None = None
        self._limits: dict[str, tuple[Norm, frozenset[str]]] = {}
        self._seen: dict[str, list[Form]] = {}  # in this round
        # By their id(), the models of this round, and their tensors that are nowhere below 0.
        self._watched: dict[int, tuple[Mapping[str, NDArray], frozenset[str]]] = {}

    @property
    def weight(self) -> float:
        """The median of weights; of two in the middle, the smaller; 0 if there is none."""
        if self._weight is None:
            self._weight = statistics.median_low(self.weights.values or [0.0])
        return self._weight

    def form(self, kind: str, form: Form) -> Form:
        """Return the form of a type's replies, having seen that of another; the first is theirs."""
        self._seen.setdefault(kind, []).append(form)
        return self.forms.setdefault(kind, form)

    def moved(self, key: str, node: int, move: Move | None) -> None:
        """Take note of what a client's update has done, if that is known."""
        if move is not None:
            self.moves.setdefault(key, Latest()).add(node, move)

    def weighs(self, node: int, weight: float) -> None:
        """Take note of a reply's weight; 0 says nothing of others."""
        if weight > 0:
            self.weights.add(node, weight)

    def watch(self, update: ReceivedUpdate) -> None:
        """Have an update note which tensors it takes below 0."""
        start = update.start
        if self._norm_limit != NormLimit() and id(start) not in self._watched:
            self._watched[id(start)] = start, frozenset(nowhere_below(start))
        _, update.watched = self._watched.get(id(start), (start, frozenset()))

    def limit(self, key: str, update: ReceivedUpdate) -> None:
        """Tell an update what it may do, by what others have done."""
        moves = self.moves.get(key, Latest[Move]()).values
        if key not in self._limits:
            self._limits[key] = self._norm_limit.over(ordinary_norm(moves)), usually_above(moves)
        update.limit, above = self._limits[key]
        update.clips = self._norm_limit.clips
        update.floors = update.watched & above

    def end_round(self) -> None:
        """Go by this round, too, from now on.

        Where most replies had another form than was asked for, theirs is asked for: the first
        replies of a run were not those of most clients, or all have changed theirs.
        """
        for kind, seen in self._seen.items():
            others = [form for form in seen if form != self.forms[kind]]
            if 2 * len(others) > len(seen):
                self.forms[kind] = usual_form(seen) or self.forms[kind]
        self._seen, self._watched = {}, {}
        self._weight, self._limits = None, {}
        self.weights.end_round()
        for moves in self.moves.values():
            moves.end_round()


def nowhere_below(model: Mapping[str, NDArray]) -> list[str]:
    """Return the floating tensors of a model that are nowhere below 0, and not 0 everywhere.

    Variances are, and scales; so are weights that begin at 0 or above, until they are trained.
    """
    return [
        name
        for name, x in model.items()
        if x.dtype in LOSSY_DTYPES
        and (x.reshape(-1)[:CHUNK] >= 0).all()
        and (x >= 0).all()
        and x.any()
    ]


def largest_weight(share: float, clients: int, ordinary: float) -> float:
    """Return the weight that has ``share`` of a round's, if all other clients' are ordinary.

    Of fewer than `FEW` clients it is `MOST_OF_FEW` times ``ordinary``: two honest ones are no
    measure of each other.
    """
    if share >= 1 or clients < 2 or ordinary <= 0:
        return math.inf
    if clients < FEW:
        return MOST_OF_FEW * ordinary
    return share / (1 - share) * (clients - 1) * ordinary
