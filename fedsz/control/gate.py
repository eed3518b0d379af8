"""`gate`: is compressing worth it for this client, and with which codec?

`fedsz.control.transfer_time` has the formula, Eqn 1 of the FedSZ paper.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fedsz import codecs as codec_list
from fedsz.control.record import ClientRecord, Decision
from fedsz.control.rule import Past, Rule, because
from fedsz.control.transfer_time import is_worth, transfer_seconds
from fedsz.errors import ConfigError

RAW: Final = codec_list.Raw.name
DEFAULT: Final = ""  # the codec of the run, whichever it is
RECENT: Final = 3  # measurements whose median counts


@dataclass(frozen=True)
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
    again: int = 10

    def __post_init__(self) -> None:
        for candidate in self.candidates:
            if candidate != DEFAULT:
                codec_list.get(candidate)
        if RAW in self.candidates:
            raise ConfigError(f"gate chooses {RAW!r} by itself; leave it out of codecs")
        if self.again < 1:
            raise ConfigError(f"gate again must be at least 1, got {self.again}")

    @property
    def candidates(self) -> tuple[str, ...]:
        """The codecs to choose from."""
        return tuple(self.codecs.split("/"))

    def refine(self, decision: Decision, past: Past, /) -> Decision:
        """Return ``decision`` with a codec for each client that has replied so far."""
        seen: dict[str, list[tuple[str, ClientRecord]]] = {}
        for row in past.history:
            used = row.decision.codecs if row.decision is not None else {}
            for client in row.clients:
                seen.setdefault(client.node, []).append((self._used(used.get(client.node)), client))
        chosen = {node: self.choose(uses) for node, uses in sorted(seen.items())}
        listed = {node: codec for node, codec in chosen.items() if codec != DEFAULT}
        raw = sum(codec == RAW for codec in chosen.values())
        told = f"gate: {raw} of {len(chosen)} clients send as it is"
        return because(decision, told, codecs=listed)

    def choose(self, uses: Sequence[tuple[str, ClientRecord]]) -> str:
        """Return the codec of a client, given what it used and what came of it in each round."""
        measured = {}
        for candidate in self.candidates:
            known = [client for codec, client in uses if codec == candidate and _is_known(client)]
            if not known:
                return candidate
            measured[candidate] = _Measured.of(known)
        rates = [client.bandwidth for _, client in uses if 0 < client.bandwidth < math.inf]
        if not rates:
            return self.candidates[0]
        bandwidth = statistics.median(rates[-RECENT:])
        best = min(measured, key=lambda codec: measured[codec].seconds(bandwidth))
        lately = [codec for codec, _ in uses[-self.again :]]
        if measured[best].is_worth(bandwidth) or lately == [RAW] * self.again:
            return best
        return RAW

    def _used(self, told: str | None) -> str:
        """Return which candidate a client used that was told so."""
        return told if told == RAW or (told and told in self.candidates) else DEFAULT


@dataclass(frozen=True)
class _Measured:
    """What a codec does for a client: medians of its last rounds."""

    coding_seconds: float
    raw_bytes: float
    sent_bytes: float

    @classmethod
    def of(cls, clients: Sequence[ClientRecord]) -> _Measured:
        recent = clients[-RECENT:]
        return cls(
            statistics.median(client.encode_seconds + client.decode_seconds for client in recent),
            statistics.median(client.raw_bytes for client in recent),
            statistics.median(client.sent_bytes for client in recent),
        )

    def seconds(self, bandwidth: float) -> float:
        return transfer_seconds(self.coding_seconds, self.sent_bytes, bandwidth)

    def is_worth(self, bandwidth: float) -> bool:
        return is_worth(self.coding_seconds, self.raw_bytes, self.sent_bytes, bandwidth)


def _is_known(client: ClientRecord) -> bool:
    """Say whether a client's round tells of the codec it used."""
    coding = client.encode_seconds + client.decode_seconds
    return client.raw_bytes > 0 and client.sent_bytes > 0 and 0 <= coding < math.inf
