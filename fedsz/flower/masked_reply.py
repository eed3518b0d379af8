"""Replies of secure sums: what is read of those with masked tokens, and what strategies get.

A strategy gets the mean of all survivors from each of them, with the same weight. So whatever
weighted average it takes is that mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedsz import flower_compat as compat
from fedsz.arrays import NDArray
from fedsz.errors import CorruptStream
from fedsz.flower.secure_member import ANSWER, SECURE
from fedsz.flower.update import Update


def masked_update(reply: Message, model: Mapping[str, NDArray]) -> Update:
    """Return what is counted of a reply that cannot be read, to a message with this model."""
    answer, raw = answer_in(reply), sum(x.nbytes for x in model.values())
    digest = hashlib.sha256(answer).digest()
    return Update(ArrayRecord(), {}, None, {}, {}, raw, len(answer), digest)


def answer_in(reply: Message) -> bytes:
    """Return what a reply has for `SecureServer`; raise `CorruptStream` if it has nothing."""
    record: Any = reply.content.get(SECURE, {})
    if not isinstance(answer := record.get(ANSWER), bytes):
        raise CorruptStream("no answer in a secure sum: is FedSZMod() there?")
    return answer


def check_beside(reply: Message, key: str) -> None:
    """Raise `CorruptStream` unless masked tokens have metrics, and nothing in a model's place."""
    models = compat.records_in(reply.content, ArrayRecord)
    metrics = compat.records_in(reply.content, MetricRecord)
    if models or len(metrics) != 1 or key in metrics:
        what = f"{len(models)} ArrayRecords and {len(metrics)} MetricRecords, {sorted(metrics)}"
        raise CorruptStream(f"{what}, beside masked tokens; a reply has 0 and 1, not {key!r}")


def without_tokens(reply: Message) -> Message:
    """Take the tokens out of a reply that has been added up, and return it."""
    reply.content = RecordDict({key: r for key, r in reply.content.items() if key != SECURE})
    return reply


def with_mean(
    reply: Message, key: str, record: ArrayRecord, weighted_by: str, weight: float
) -> Message:
    """Return a survivor's reply with the mean and its weight in place of what it has sent."""
    content: dict[str, Any] = dict(reply.content)
    ((metrics, said),) = compat.records_in(reply.content, MetricRecord).items()
    content[metrics] = MetricRecord({**said, weighted_by: max(round(weight), 1)})
    reply.content = RecordDict({**content, key: compat.make_record(dict(record))})
    return reply


def error_of(message: Message, reason: str) -> Message:
    """Return an error reply to a message."""
    code = compat.ErrorCode.MOD_FAILED_PRECONDITION
    return compat.error_reply(message.metadata, code, reason)
