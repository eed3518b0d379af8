"""`gate`: is compressing worth it for this client, and with which codec?

`fedsz.control.transfer_time` has the formula, Eqn 1 of the FedSZ paper.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Final

from fedsz import codecs as codec_list
from fedsz.control.policy import NextRound, Policy, changed
from fedsz.control.record import ClientRecord, Decision, RoundRecord
from fedsz.control.transfer_time import UpdateCost
from fedsz.errors import ConfigError
from fedsz.spec_strings import setting

RAW: Final = codec_list.Raw.name
DEFAULT: Final = ""  # the codec of the run, whichever it is
RECENT: Final = 3  # measurements whose median counts
LISTED: Final = 10_000  # clients that are remembered: a node that restarts is another client


@dataclass(frozen=True)
class Client:
    """Measurements of a client.

    Attributes:
        known: the last `RECENT` costs of an update by codec; encoding counts with decoding.
        rates: its last `RECENT` bandwidths, in bits a second.
        raw: the last rounds in a row in which it sent its updates as they are.
    """

    known: Mapping[str, tuple[UpdateCost, ...]] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    raw: int = 0

    def added(self, codec: str, record: ClientRecord) -> Client:
        """Return the client after a round in which it used ``codec``."""
        client = replace(self, raw=self.raw + 1 if codec == RAW else 0)
        coding = record.encode_seconds + record.decode_seconds
        if record.raw_bytes > 0 and record.sent_bytes > 0 and 0 <= coding < math.inf:
            cost = UpdateCost(record.raw_bytes, record.sent_bytes, coding, 0.0)
            last = (*self.known.get(codec, ()), cost)[-RECENT:]
            client = replace(client, known={**self.known, codec: last})
        if 0 < record.bandwidth < math.inf:
            client = replace(client, rates=(*self.rates, record.bandwidth)[-RECENT:])
        return client

    def fastest(self, candidates: Sequence[str], again: int) -> str:
        """Return the codec to use next: a candidate or `RAW`."""
        measured = {}
        for candidate in candidates:
            if candidate not in self.known:
                return candidate
            numbers = zip(*map(astuple, self.known[candidate]), strict=True)
            measured[candidate] = UpdateCost(*map(statistics.median, numbers))
        if not self.rates:
            return candidates[0]
        bandwidth = statistics.median(self.rates)
        best = min(measured, key=lambda codec: measured[codec].seconds(bandwidth))
        if measured[best].is_worth(bandwidth) or self.raw >= again:
            return best
        return RAW


@dataclass(frozen=True)
class Gate(Policy):
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
        """Check the settings."""
        super().__post_init__()
        for candidate in self.candidates:
            if candidate != DEFAULT:
                codec_list.get(candidate)
        if RAW in self.candidates:
            raise ConfigError(f"gate chooses {RAW!r} by itself; leave it out of codecs")

    @property
    def candidates(self) -> tuple[str, ...]:
        """The codecs to choose from."""
        return tuple(self.codecs.split("/"))

    def init(self) -> Mapping[str, Client]:
        """Return no clients."""
        return {}

    def observe(self, state: Mapping[str, Client], record: RoundRecord, /) -> Mapping[str, Client]:
        """Return the clients by node, the last to reply at the end, at most `LISTED`."""
        codecs = record.decision.codecs if record.decision is not None else {}
        clients = dict(state)
        for seen in record.clients:
            client = clients.pop(seen.node, Client())
            clients[seen.node] = client.added(self._used(codecs.get(seen.node)), seen)
        return dict(list(clients.items())[-LISTED:])

    def decide(
        self, state: Mapping[str, Client], decision: Decision, _coming: NextRound, /
    ) -> Decision:
        """Return ``decision`` with a codec for each client that has replied so far."""
        chosen = {
            node: client.fastest(self.candidates, self.again)
            for node, client in sorted(state.items())
        }
        listed = {node: codec for node, codec in chosen.items() if codec != DEFAULT}
        raw = sum(codec == RAW for codec in chosen.values())
        reason = f"gate: {raw} of {len(chosen)} clients send as it is"
        return changed(decision, reason, codecs=listed)

    def _used(self, codec: str | None) -> str:
        """Return which candidate a client used, given the codec of its decision."""
        return codec if codec == RAW or (codec and codec in self.candidates) else DEFAULT
