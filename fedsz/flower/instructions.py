"""What a server tells a client about compression, beside the model: a ConfigRecord under `KEY`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flwr.app import ConfigRecord

from fedsz.errors import ConfigError
from fedsz.flower.records import KEY
from fedsz.update.config import DELTA, DELTA_EF, WEIGHTS, Settings, check_update

_SETTINGS: Final = ("error-bound", "codec", "lossless", "threshold", "rule")
_HOLDS: Final = "holds."  # and the key of an ArrayRecord


@dataclass(frozen=True)
class Orders:
    """How a client compresses its reply, and what it holds once it has received the message.

    Attributes:
        settings: of the codec, the bound and so on.
        update: "weights", "delta" or "delta+ef".
        decay: of the residual, for each round that it waits.
        turn: counts the messages of a server, so that a residual has an age.
        holds: by the key of an ArrayRecord, the digest of the model that the record's streams lead
            to; of models that clients need not keep, nothing.
    """

    settings: Settings
    update: str = WEIGHTS
    decay: float = 1.0
    turn: int = 0
    holds: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def differences(self) -> bool:
        """Whether the reply is coded by what it differs from the model in the message."""
        return self.update in (DELTA, DELTA_EF)

    @property
    def feedback(self) -> bool:
        """Whether the client keeps what its codec leaves out, for the next round."""
        return self.update == DELTA_EF

    def record(self) -> ConfigRecord:
        """Return the record that carries them."""
        settings = self.settings
        return ConfigRecord(
            {
                "error-bound": str(settings.bound),
                "codec": str(settings.lossy_codec),
                "lossless": str(settings.lossless_codec),
                "threshold": settings.threshold,
                "rule": settings.rule,
                "factor-names": list(settings.factors),
                "factors": [float(factor) for factor in settings.factors.values()],
                "update": self.update,
                "decay": self.decay,
                "turn": self.turn,
                **{_HOLDS + key: digest for key, digest in self.holds.items()},
            }
        )

    @classmethod
    def read(cls, record: ConfigRecord) -> Orders:
        """Return the orders in a record.

        Raises:
            ConfigError: they are incomplete, or not ones that this release knows.
            CodecUnavailable: this machine lacks the codec that the server chose.
        """
        told: dict[str, Any] = dict(record)
        try:
            bound, codec, lossless, threshold, rule = (told[key] for key in _SETTINGS)
            factors = dict(zip(told["factor-names"], told["factors"], strict=True))
            update, decay, turn = told["update"], float(told["decay"]), int(told["turn"])
        except KeyError as err:
            raise ConfigError(f"the server sent no {err} to compress by") from None
        except (TypeError, ValueError) as err:
            raise ConfigError(f"the server sent orders that make no sense: {err}") from None
        check_update(update)
        return cls(
            Settings(
                str(bound), str(codec), str(lossless), int(str(threshold)), str(rule), factors
            ),
            update,
            decay,
            turn,
            {key.removeprefix(_HOLDS): told[key] for key in told if key.startswith(_HOLDS)},
        )


def orders_in(records: Mapping[str, ConfigRecord]) -> Orders | None:
    """Return the orders among the ConfigRecords of a message, if a `FedSZGrid` has sent it.

    Raises:
        ConfigError, CodecUnavailable: as `Orders.read`.
    """
    record = records.get(KEY)
    return Orders.read(record) if isinstance(record, ConfigRecord) else None
