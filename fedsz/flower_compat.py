"""Flower names that have no public home; no other module imports Flower's insides.

Flower 1.38 to 1.42 have all of them (docs/flower.md). When a release moves one, this is the file to
change.
"""

# mypy: implicit-reexport
# ruff: noqa: E402, F401 - the release comes first; what is imported here is for others
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar
from uuid import uuid4

import flwr

from fedsz.errors import MissingPackage
from fedsz.formatting import one_line

OLDEST: Final = (1, 38)  # release of Flower; as in pyproject.toml

if tuple(map(int, flwr.__version__.split(".")[:2])) < OLDEST:
    raise MissingPackage(
        f"Flower {flwr.__version__} is too old: fedsz needs {'.'.join(map(str, OLDEST))} or later:"
        " pip install 'fedsz[flower]'"
    )

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

# What Flower's own server calls itself in the metadata of its messages; codes of error replies.
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode

# Of SecAgg+, the record that steers its steps.
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

# Records travel as Flower's protobufs: its types, its integer ranges.
from flwr.common.serde import recorddict_to_proto

# The envelope of a message: who sent what to whom, and the error if there was one.
from flwr.common.serde_utils import (
    error_from_proto,
    error_to_proto,
    metadata_from_proto,
    metadata_to_proto,
    record_value_dict_from_proto,
)
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

# Under which a server's differential privacy says to what clients' updates are to be clipped.
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

# Grid.run and Grid.set_run speak of it.
from flwr.supercore.run import Run

# Message() reads the sender's run and node from here and raises where nobody has set them.
from flwr.supercore.task_identity import TaskIdentity

# What reading and writing those protobufs raises.
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]

# The public constructor of Message cannot set metadata; a message off the wire has its own.
from flwr.app.message import make_message  # isort: skip


T = TypeVar("T")

_OF_VALUES: Final = {"metric_record": MetricRecord, "config_record": ConfigRecord}  # by protobuf's


def make_array(dtype: str, shape: tuple[int, ...], stype: str, data: bytes) -> Array:
    """Return an Array of these fields; Flower's constructor takes longer than a small tensor."""
    array = Array.__new__(Array)
    array.__dict__.update(dtype=dtype, shape=shape, stype=stype, data=data)
    return array


def make_record(arrays: dict[str, Array]) -> ArrayRecord:
    """Return a record of these very Arrays; Flower's constructor copies each."""
    record = ArrayRecord()
    record.__dict__["_data"] = arrays  # where all of Flower's methods find them
    return record


def make_content(records: Mapping[str, ArrayRecord | ConfigRecord | MetricRecord]) -> RecordDict:
    """Return a content of these records; Flower's constructor looks at each of them, twice."""
    content = RecordDict()
    content.__dict__["_data"] = dict(records)
    return content


def make_config(values: Mapping[str, Any]) -> ConfigRecord:
    """Return a ConfigRecord of values that it can hold; Flower's constructor checks each."""
    record = ConfigRecord()
    record.__dict__["_data"] = dict(values)
    return record


def recorddict_from_proto(proto: Any) -> RecordDict:
    """Return the content of a protobuf, which holds nothing that records do not.

    Flower's own reader looks at each record and each value anew.
    """
    records: dict[str, ArrayRecord | ConfigRecord | MetricRecord] = {}
    for item in proto.items:
        kind = item.WhichOneof("value")
        if kind == "array_record":
            records[item.key] = make_record(
                {
                    x.key: make_array(
                        x.value.dtype, tuple(x.value.shape), x.value.stype, x.value.data
                    )
                    for x in item.array_record.items
                }
            )
            continue
        if kind not in _OF_VALUES:
            raise ValueError(f"no kind of records: {kind}")
        record = _OF_VALUES[kind]()
        values = {x.key: x.value for x in getattr(item, kind).items}
        record.__dict__["_data"] = record_value_dict_from_proto(values)
        records[item.key] = record
    return make_content(records)


def data_of(content: RecordDict) -> dict[str, Any]:
    """Return the dict in a content: Flower's own methods look at each record that is put."""
    data: dict[str, Any] = content.__dict__["_data"]
    return data


def records_in(content: RecordDict, kind: type[T]) -> dict[str, T]:
    """Return the records of a kind in a message.

    Flower's own properties make a circle of references with the content, which would then stay
    until the garbage collector comes by.
    """
    return {key: record for key, record in data_of(content).items() if isinstance(record, kind)}


def is_legacy(app: ClientApp) -> bool:
    """Say whether an app is made of a ``client_fn``, whose messages have other keys."""
    return app._call is not None


def mods_of(app: ClientApp, kind: str) -> list[Any]:
    """Return the mods that a message of a kind passes, the first one first.

    Flower wraps them around each handler, in functions of these two free variables.
    """
    call: Any = app._call or app._registered_funcs.get(f"{kind}.default")
    mods = []
    while getattr(getattr(call, "__code__", None), "co_freevars", ()) == ("_ffn", "_mod"):
        call, mod = (cell.cell_contents for cell in call.__closure__)
        mods.append(mod)
    return mods


def new_message_id() -> str:
    """Return an id that no other message has."""
    return uuid4().hex


def error_reply(metadata: Metadata, code: int, reason: str) -> Message:
    """Return the reply that says why the message with ``metadata`` has no better one."""
    request = make_message(metadata, content=RecordDict())
    reply = Message(Error(code, one_line(reason)), reply_to=request)
    reply.metadata.__dict__["_message_id"] = new_message_id()
    return reply


def error_in_place_of(reply: Message, reason: str) -> Message:
    """Return an error reply with the metadata of one that must not be used."""
    error = error_reply(reply.metadata, ErrorCode.MOD_FAILED_PRECONDITION, reason).error
    return make_message(reply.metadata, error=error)
