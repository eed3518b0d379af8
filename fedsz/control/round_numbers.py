"""The numbers of a round, each once: what it is, how people read it, and who reads it.

The table on the screen, the live page, metrics, trackers and the columns of result files are made
from `NUMBERS`. A number that is added to `RoundRecord` is a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from fedsz.control.record import RoundRecord
from fedsz.formatting import metric, share, size


class Number(NamedTuple):
    """A number of a round."""

    name: str  # in JSON, in result files and in trackers
    kind: type[int] | type[float]
    says: str  # what it is, with its unit
    gauge: str = ""  # its name in Prometheus, of the last round; "" where it has none
    on_page: bool = True  # whether the live page has it
    tracked: bool = True  # whether trackers have it
    heads: tuple[str, str] = ("", "")  # of its column on the screen, one line above the other
    show: Callable[[float], str] = str

    def of(self, record: RoundRecord) -> float | None:
        """Return its value in a round; None if it was not measured."""
        value = getattr(record, self.name)
        if self.name == "failures":
            return len(value)
        # Clients without bounds report no error, and those of secure sums neither.
        return None if self.name == "max_error" and not value else value

    def text(self, record: RoundRecord) -> str:
        """Return its value in a round as people read it; "-" if it was not measured."""
        value = self.of(record)
        return "-" if value is None else self.show(value)


def measured(error: float) -> str:
    """Return a largest error; "-" for none, as of runs without bounds and of secure sums."""
    return f"{error:.4f}" if error > 0 else "-"


# fmt: off
# Two lines a number: what it is; where it is shown, and how.
NUMBERS: Final = {number.name: number for number in (
    Number("replies", int, "Updates that counted in the last round",
        "fedsz_round_replies"),
    Number("raw_up", int, "Bytes of the updates, before compression",
        heads=("raw", "up"), show=size),
    Number("sent_up", int, "Bytes of the updates, after compression",
        heads=("sent", "up"), show=size),
    Number("raw_down", int, "Bytes of the model, for all clients, before compression"),
    Number("sent_down", int, "Bytes of the model, for all clients, after compression"),
    Number("wire_up", int, "Bytes of gRPC messages from clients", on_page=False),
    Number("wire_down", int, "Bytes of gRPC messages to clients", on_page=False),
    Number("encode_seconds", float, "Compressing in it, all clients added up",
        "fedsz_round_encode_seconds"),
    Number("decode_seconds", float, "Decoding in it, on the server",
        "fedsz_round_decode_seconds"),
    Number("max_error", float, "Largest error as a share of its bound",
        "fedsz_max_error_ratio", on_page=False, heads=("error/", "bound"), show=measured),
    Number("tensors", int, "Tensors of an update", on_page=False, tracked=False),
    Number("lossy", int, "Tensors of it that were lossy", on_page=False, tracked=False),
    Number("energy_fraction", float, "Share of an update's energy that arrived, the median's",
        "fedsz_energy_ratio", heads=("energy", "frac."), show=share),
    Number("residual_ratio", float, "Norm of a client's residual over that of its step, the median",
        "fedsz_residual_ratio", heads=("resid.", "ratio"), show="{:.2f}".format),
    Number("raw_other", int, "Bytes of replies that are not for training, before compression",
        on_page=False, tracked=False),
    Number("sent_other", int, "Bytes of the same, after compression",
        on_page=False, tracked=False),
    Number("round", int, "Number of the last round that ended",
        "fedsz_round", tracked=False, heads=("", "round")),
    Number("accuracy", float, "Accuracy of the averaged model, 0 to 1",
        "fedsz_accuracy_ratio", heads=("", "accuracy"), show=metric),
    Number("loss", float, "Loss of the averaged model",
        "fedsz_loss", heads=("", "loss"), show=metric),
    Number("seconds", float, "Seconds that the last round took",
        "fedsz_round_seconds", heads=("round", "s"), show="{:.1f}".format),
    Number("train_seconds", float, "Training in it, all clients added up",
        "fedsz_round_train_seconds"),
    Number("test_seconds", float, "Testing the averaged model, on the server",
        "fedsz_round_test_seconds"),
    Number("epsilon", float, "Epsilon that differential privacy has spent, at delta",
        "fedsz_privacy_epsilon", heads=("eps.", "spent"), show="{:.3g}".format),
    Number("delta", float, "Delta of that",
        "fedsz_privacy_delta"),
    Number("clipping_norm", float, "Norm that each update was clipped to, for privacy",
        "fedsz_clipping_norm"),
    Number("failures", int, "Clients that the last round went on without", on_page=False),
    Number("ratio", float, "How many times smaller compression made the updates",
        on_page=False, heads=("", "ratio"), show="{:.2f}".format),
)}
# fmt: on


def numbers(record: RoundRecord) -> dict[str, float | None]:
    """Return all numbers of a round by name; None for what was not measured."""
    return {name: number.of(record) for name, number in NUMBERS.items()}
