"""Which records and metrics a reply holds. Flower averages replies of one form, or raises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from flwr.app import ArrayRecord, MetricRecord, RecordDict

from fedsz.errors import RefusedReply
from fedsz.flower.records import aside_of
from fedsz.flower.refusal import Refusal
from fedsz.flower_compat import records_in

# The form of a reply in words, to be compared and shown: equal forms can be averaged.
Form = frozenset[str]


def form_of(content: RecordDict) -> Form:
    """Return the form of a reply's content.

    That is its records, those arrays in them that no stream holds, and its metrics, of which lists
    have a length.
    """
    form = set()
    for key, arrays in records_in(content, ArrayRecord).items():
        form.add(f"ArrayRecord {key!r}")
        form |= {f"array {name!r} of {key!r}" for name, _ in aside_of(arrays).values()}
    for key, metrics in records_in(content, MetricRecord).items():
        form.add(f"MetricRecord {key!r}")
        for name, value in metrics.items():
            length = f" of {len(value)} numbers" if isinstance(value, list) else ""
            form.add(f"metric {name!r} of {key!r}{length}")
    return frozenset(form)


def check_form(form: Form, usual: Form) -> None:
    """Raise `RefusedReply` unless a reply's form is the usual one."""
    if form != usual:
        lacks, has = (", ".join(sorted(x)) or "nothing" for x in (usual - form, form - usual))
        raise RefusedReply(Refusal.RECORDS, f"it lacks {lacks} and has {has} that others have not")


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
