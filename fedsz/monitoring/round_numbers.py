"""The numbers of a round, by the names that trackers have them under."""

from __future__ import annotations

from typing import Final

from fedsz.control.record import RoundRecord

NUMBERS: Final = (
    *("accuracy", "loss", "kept", "lag", "max_error", "ratio"),
    *("replies", "raw_up", "sent_up", "raw_down", "sent_down", "wire_up", "wire_down"),
    *("seconds", "train_seconds", "encode_seconds", "decode_seconds", "test_seconds"),
)


def numbers_of(record: RoundRecord) -> dict[str, float]:
    """Return the numbers of a round that were measured; `RoundRecord` says what each is."""
    found = {name: getattr(record, name) for name in NUMBERS}
    told = {name: float(value) for name, value in found.items() if value is not None}
    return {**told, "failures": float(len(record.failures))}
