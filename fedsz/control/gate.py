"""`gate`: is compressing worth it for this client, and with which codec?

`fedsz.control.transfer_time` has the formula, Eqn 1 of the FedSZ paper.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from fedsz import codecs as codec_list
from fedsz.control.record import ClientRecord, Decision, RoundRecord
from fedsz.control.rule import NextRound, Rule, because
from fedsz.control.transfer_time import UpdateCost
from fedsz.errors import ConfigError
from fedsz.spec_strings import setting

RAW: Final = codec_list.Raw.name
DEFAULT: Final = ""  # the codec of the run, whichever it is
RECENT: Final = 3  # measurements whose median counts


@dataclass
class Gate(Rule):
    """Chooses a codec for each client, or none.

    A client is asked to compress until its bandwidth and all candidates are known; each candidate
    is tried once. What is known of a codec stays known while the client sends its updates as they
    are; after ``again`` such rounds it compresses once more, to see whether that still holds.

    Attributes:
        codecs: candidates, separated by slashes, ``uniform/szx``; empty is the run's codec.
        again: rounds after which a client that sends its updates as they are is asked again.

    Raises:
        ConfigError: no such codec, or ``again`` is below 1.
        CodecUnavailable: a codec's library is not installed here.
    """

    name = "gate"

    codecs: str = DEFAULT
    again: int = setting(10, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for candidate in self.candidates:
            if candidate != DEFAULT:
                codec_list.get(candidate)
        if RAW in self.candidates:
            raise ConfigError(f"gate chooses {RAW!r} by itself; leave it out of codecs")
        self._clients: dict[str, _Client] = {}
        self._chosen: dict[str, str] = {}

    @property
    def candidates(self) -> tuple[str, ...]:
        """The codecs to choose from."""
        return tuple(self.codecs.split("/"))

    def observe(self, seen: RoundRecord, /) -> None:
        """Choose anew for the clients of a round."""
        told = seen.decision.codecs if seen.decision is not None else {}
        for client in seen.clients:
            known = self._clients.setdefault(client.node, _Client(self.candidates, self.again))
            known.add(self._used(told.get(client.node)), client)
        for node in {client.node for client in seen.clients}:
            self._chosen[node] = self._clients[node].choose()

    def refine(self, decision: Decision, _coming: NextRound, /) -> Decision:
        """Return ``decision`` with a codec for each client that has replied so far."""
        chosen = sorted(self._chosen.items())
        listed = {node: codec for node, codec in chosen if codec != DEFAULT}
        raw = sum(codec == RAW for _, codec in chosen)
        told = f"gate: {raw} of {len(chosen)} clients send as it is"
        return because(decision, told, codecs=listed)

    def _used(self, told: str | None) -> str:
        """Return which candidate a client used that was told so."""
        return told if told == RAW or (told and told in self.candidates) else DEFAULT


class _Client:
    """What a client's last rounds say of it and of the codecs that it used."""

    def __init__(self, candidates: Sequence[str], again: int) -> None:
        self._candidates, self._again = candidates, again
        self._known: dict[str, deque[ClientRecord]] = {}  # by codec
        self._rates: deque[float] = deque(maxlen=RECENT)  # bandwidths, in bits a second
        self._raw = 0  # how many of its last rounds in a row it sent its updates as they are

    def add(self, codec: str, seen: ClientRecord) -> None:
        """Take in a round, and the codec that was used in it."""
        self._raw = self._raw + 1 if codec == RAW else 0
        if _is_known(seen):
            self._known.setdefault(codec, deque(maxlen=RECENT)).append(seen)
        if 0 < seen.bandwidth < math.inf:
            self._rates.append(seen.bandwidth)

    def choose(self) -> str:
        """Return the codec to use next."""
        measured = {}
        for candidate in self._candidates:
            if candidate not in self._known:
                return candidate
            measured[candidate] = _measured(self._known[candidate])
        if not self._rates:
            return self._candidates[0]
        bandwidth = statistics.median(self._rates)
        best = min(measured, key=lambda codec: measured[codec].seconds(bandwidth))
        if measured[best].is_worth(bandwidth) or self._raw >= self._again:
            return best
        return RAW


def _measured(recent: Collection[ClientRecord]) -> UpdateCost:
    """Return what a codec does for a client: medians of its last rounds."""
    coding = statistics.median(client.encode_seconds + client.decode_seconds for client in recent)
    raw, sent = (statistics.median(of) for of in zip(*map(_sizes, recent), strict=True))
    return UpdateCost(raw, sent, coding, 0.0)


def _sizes(client: ClientRecord) -> tuple[int, int]:
    return client.raw_bytes, client.sent_bytes


def _is_known(client: ClientRecord) -> bool:
    """Say whether a client's round tells of the codec it used."""
    coding = client.encode_seconds + client.decode_seconds
    return client.raw_bytes > 0 and client.sent_bytes > 0 and 0 <= coding < math.inf
