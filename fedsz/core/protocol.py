"""What a server tells a client about compression, beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from fedsz.core.settings import Settings
from fedsz.errors import ConfigError

_HOLDS: Final = "holds."  # and the key of a model
_SHIFTS: Final = "shift."  # likewise
_HISTORIES: Final = "history."  # likewise

# Flower's ConfigRecord holds no mapping, and how the model comes to clients is not their concern.
_PLAIN: Final = {
    name: name.replace("_", "-")
    for name in Settings.__struct_fields__
    if name not in ("factors", "downlink")
}

_LATER: Final = ("ahead",)  # fields that older servers do not tell of

# msgspec learns a type on its first use. Another thread that uses it meanwhile ends the process.
msgspec.msgpack.Decoder(Settings)


@dataclass(frozen=True)
class Instructions:
    """How a client compresses its reply, and what it holds once it has received the message.

    Attributes:
        config: all but its downlink.
        turn: counts the messages of a server, so that a residual has an age.
        holds: by the key of a model (of Flower's ArrayRecord), the digest of what its streams lead
            to; of models that clients need not keep, nothing.
        run: tells apart the runs of one client, so that none gets the residual of another. It
            begins with the seed.
        trains: whether the reply goes into an average; others leave the residual alone.
        counted: the last turn in which a reply of this client counted, where it has been asked
            since, and that did not: the reply was late, refused, or of a round that does not count.
            None where the last one counted.
        shifts: by the key of a model, the digest of the shift that the server has of this
            client; see `fedsz.core.shift`. None where the client is to start anew.
        histories: by the key of a model, the digest of the history of broadcasts that the
            server has for this client once it has received the message; see `fedsz.methods.eigen`.
        replied: whether a reply of this client has counted in this run.
    """

    config: Settings
    turn: int = 0
    holds: Mapping[str, bytes] = field(default_factory=dict)
    run: bytes = b""
    trains: bool = True
    counted: int | None = None
    shifts: Mapping[str, bytes] = field(default_factory=dict)
    histories: Mapping[str, bytes] = field(default_factory=dict)
    replied: bool = False

    @property
    def last_counted(self) -> int:
        """The last turn in which a reply of this client may have counted."""
        return self.turn - 1 if self.counted is None else self.counted

    @property
    def seed(self) -> int:
        """What random numbers of the run are drawn from, the same for all clients."""
        return int.from_bytes(self.run[:8], "little")

    def written(self) -> dict[str, Any]:
        """Return them as texts, numbers, bytes and lists of such."""
        told: dict[str, Any] = {key: getattr(self.config, name) for name, key in _PLAIN.items()}
        factors = self.config.factors
        told |= {"factor-names": list(factors), "factors": list(factors.values())}
        held = {_HOLDS + key: digest for key, digest in self.holds.items()}
        told |= {"turn": self.turn, "run": self.run, "trains": self.trains}
        if self.counted is not None:
            told["counted"] = self.counted
        if self.replied:
            told["replied"] = True
        shifts = {_SHIFTS + key: digest for key, digest in self.shifts.items()}
        histories = {_HISTORIES + key: digest for key, digest in self.histories.items()}
        return {**told, **held, **shifts, **histories}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Instructions:
        """Return the instructions that `written` has made, also in another release.

        Raises:
            ConfigError: they are incomplete, or not ones that this release knows.
            CodecUnavailable: this machine lacks the codec that the server chose.
        """
        told: dict[str, Any] = dict(record)
        try:
            config: dict[str, Any] = {
                name: told[key] for name, key in _PLAIN.items() if key in told or name not in _LATER
            }
            config["factors"] = dict(zip(told["factor-names"], told["factors"], strict=True))
            turn = int(told["turn"])
            counted = int(told["counted"]) if "counted" in told else None
            read = msgspec.convert(config, Settings)
        except KeyError as err:
            raise ConfigError(f"the server's instructions lack {err}") from None
        except (TypeError, ValueError) as err:  # msgspec's own are ValueErrors
            raise ConfigError(f"the server's instructions are not valid: {err}") from None
        holds, shifts, histories = (
            {key.removeprefix(name): told[key] for key in told if key.startswith(name)}
            for name in (_HOLDS, _SHIFTS, _HISTORIES)
        )
        # Older servers say none of these.
        run, trains = told.get("run", b""), bool(told.get("trains", True))
        replied = bool(told.get("replied", False))
        return cls(read.require(), turn, holds, run, trains, counted, shifts, histories, replied)
