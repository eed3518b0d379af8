"""Which records and metrics a reply holds. Flower averages replies of one form, or raises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from fedsz.errors import RefusedReply
from fedsz.flower.records import aside_of
from fedsz.flower.refusal import Refusal
from fedsz.flower_compat import records_in

SCALAR = -1  # in place of a list's length


class Form(NamedTuple):
    """The form of a reply; equal forms can be averaged.

    Attributes:
        records: the keys of its ArrayRecords, each with the names of arrays that no stream holds.
        metrics: the keys of its MetricRecords, each with the names of its metrics and their
            lengths, `SCALAR` for a number.
    """

    records: frozenset[tuple[str, frozenset[str]]]
    metrics: frozenset[tuple[str, frozenset[tuple[str, int]]]]

    @classmethod
    def of(cls, content: RecordDict) -> Form:
        """Return that of a reply's content."""
        records = (
            (key, frozenset(name for name, _ in aside_of(record).values()))
            for key, record in records_in(content, ArrayRecord).items()
        )
        metrics = (
            (
                key,
                frozenset(
                    (name, len(value) if isinstance(value, list) else SCALAR)
                    for name, value in record.items()
                ),
            )
            for key, record in records_in(content, MetricRecord).items()
        )
        return cls(frozenset(records), frozenset(metrics))

    def check(self, other: Form) -> None:
        """Raise `RefusedReply` unless a reply's form is this one."""
        if other == self:
            return
        ours, theirs = _shown(self), _shown(other)
        raise RefusedReply(
            Refusal.RECORDS,
            f"it lacks {', '.join(sorted(ours - theirs)) or 'nothing'} and has"
            f" {', '.join(sorted(theirs - ours)) or 'nothing'} that others have not",
        )


def check_finite_metrics(content: RecordDict) -> None:
    """Raise `RefusedReply` if a metric is NaN or infinite."""
    for record in records_in(content, MetricRecord).values():
        for name, value in record.items():
            numbers = value if isinstance(value, list) else [value]
            if not all(math.isfinite(number) for number in numbers):
                raise RefusedReply(Refusal.METRIC, f"{name!r} is not finite")


def usual_form(forms: Iterable[Form]) -> Form | None:
    """Return the form that most replies have, the first among equals; None if there is none."""
    return next((form for form, _ in Counter(forms).most_common(1)), None)


def _shown(form: Form) -> set[str]:
    records = {f"record {key!r}" for key, _ in form.records}
    records |= {f"array {name!r}" for _, names in form.records for name in names}
    for key, metrics in form.metrics:
        records |= {
            f"metric {name!r} of {key!r}" + ("" if length == SCALAR else f" of {length} numbers")
            for name, length in metrics
        }
        records.add(f"record {key!r}")
    return records
