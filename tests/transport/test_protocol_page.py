"""docs/session.txt is what both ends say to each other, and docs/protocol.md what they may."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, Metadata, MetricRecord, RecordDict

from fedsz import flower_compat as compat
from fedsz.core.decode import decompress
from fedsz.core.protocol import ReplyNote
from fedsz.core.protocol import Request as FedszRequest
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.flower.mod import NEEDS_KEY_FRAME
from fedsz.flower.outgoing import FALLBACKS
from fedsz.flower.records import KEY, STYPE, replaced, sealed
from fedsz.stream.format import MAGIC
from fedsz.transport import frames
from fedsz.transport.channel import METHOD, SERVICE
from fedsz.transport.client_session import ClientSession
from fedsz.transport.grid_base import Outgoing
from fedsz.transport.message_format import (
    MAX_ENVELOPE_BYTES,
    MAX_HEAD_BYTES,
    decode_message,
    encode_message,
    reply_head,
)
from fedsz.transport.node import node_id
from fedsz.transport.server_session import Delivery, ServerSession
from tests.conftest import ROOT
from tests.transport.sessions import Line

pytestmark = pytest.mark.repository

PAGE = (ROOT / "docs" / "protocol.md").read_text("utf-8")
SESSION = (ROOT / "docs" / "session.txt").read_text("utf-8")
CLIENT, REQUEST, RUN, KIND = "pi-1", "m1", 7, "train"
SERVER = compat.SUPERLINK_NODE_ID


def metadata(message_id: str, reply_to: str = "") -> Metadata:
    ends = (node_id(CLIENT), SERVER) if reply_to else (SERVER, node_id(CLIENT))
    return Metadata(RUN, message_id, *ends, reply_to, "", 0.0, 3600.0, KIND)


def blocks() -> list[tuple[str, list[tuple[bytes, str]]]]:
    """Return the frames of the session: who sends each, and its parts with what is said of them."""
    found: list[tuple[str, list[tuple[bytes, str]]]] = []
    for line in SESSION.splitlines():
        if not line.startswith(" "):
            found.append((line.rstrip(":"), []))
            continue
        text, _, says = line.strip().partition("  ")
        found[-1][1].append((bytes.fromhex(text), says.strip()))
    return found


def streams() -> list[bytes]:
    """Return the streams of the session, whose headers another zlib may deflate otherwise."""
    whole = (b"".join(part for part, _ in parts) for _, parts in blocks())
    starts = ((frame, frame.index(MAGIC)) for frame in whole if MAGIC in frame)
    return [frame[start : start + 94] for frame, start in starts]


def request() -> Message:
    (model, _), settings = streams(), Settings(update="delta", error_bound="step:1")
    reference = Reference(decompress(model, as_numpy=True)).digest
    asked = FedszRequest(
        run=bytes(8) + b"run-7777", round=1, trains=True, base={},
        reference={"arrays": reference}, settings=settings,
    )  # fmt: skip
    plain = RecordDict({"arrays": sealed(b""), "config": ConfigRecord({"server-round": 1})})
    content = replaced(plain, {"arrays": sealed(model)}, asked.encode())
    return compat.make_message(metadata(REQUEST), content=content)


def reply() -> Message:
    note = ReplyNote(tensors=1.0, moved=1.0)
    plain = RecordDict({"arrays": sealed(b""), "metrics": MetricRecord({"num-examples": 5})})
    content = replaced(plain, {"arrays": sealed(streams()[1])}, note.encode())
    return compat.make_message(metadata("r1", REQUEST), content=content)


def session() -> Iterator[tuple[str, bytes]]:
    """Yield each frame of one client's exchange, and who sends it."""
    line, owed = Line(), list[Any]()
    server = ServerSession(max_message_bytes=1 << 20, reconnect_grace=10.0, open_sink=io.BytesIO)
    client = ClientSession(
        frames.Hello(frames.PROTOCOL, CLIENT, {"partition-id": 0}, [], bytes(range(8))),
        max_message_bytes=1 << 20,
        send=owed.append,
        tell=lambda _: None,
    )

    def up(frame: bytes) -> tuple[str, bytes]:
        server.receive(line, frame, 0.0)
        return "client", frame

    def down() -> Iterator[tuple[str, bytes]]:
        while line.heard:
            item = line.heard.pop(0)
            sent = frames.frames(item.out.encoded) if isinstance(item, Delivery) else [
                frames.pack(item)]  # fmt: skip
            for frame in sent:
                client.receive(frame)
                yield "server", frame

    server.connect(line)
    yield up(client.connect())
    yield from down()
    outgoing = Outgoing(encode_message(request(), REQUEST), metadata(REQUEST))
    outcomes: list[Any] = []
    server.post([Delivery(outgoing, 60.0, lambda _, outcome: outcomes.append(outcome))], 0.0)
    yield from down()
    asked = client.take()
    assert asked is not None
    assert decode_message(asked.source, asked.size).metadata.message_id == REQUEST
    client.hand_in(encode_message(reply(), REQUEST))
    for frame in frames.frames(owed.pop()):
        yield up(frame)
    yield from down()
    assert len(outcomes) == 1
    server.shut("the run is over")
    yield from down()
    assert client.bye is not None


def test_the_session_is_what_both_ends_send() -> None:
    said = [(who, b"".join(part for part, _ in parts)) for who, parts in blocks()]

    assert said == list(session())
    for stream, start in zip(streams(), (0, 1), strict=True):
        (x,) = decompress(stream, as_numpy=True).values()
        np.testing.assert_array_equal(x, np.arange(start, start + 4, dtype=np.float32))


def test_the_lengths_and_the_node_that_the_session_names_are_those_of_its_bytes() -> None:
    parts = [part for _, frame in blocks() for part in frame]
    for part, says in parts:
        for known in re.findall(r"^(?:envelope: |head: )(\d+) bytes$", says):
            assert int.from_bytes(part, "little") == int(known)
        for known in re.findall(r"^(\d+) bytes$|RecordDict, (\d+) bytes", says):
            assert int.from_bytes(part[1:], "big") == int("".join(known))
    (node,) = (part for part, says in parts if says == "node id")
    assert int.from_bytes(node[1:], "big") == node_id(CLIENT)


def table(head: str) -> list[list[str]]:
    """Return the rows of the table on the page whose first line begins so."""
    lines = PAGE[PAGE.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_frames_are_those_of_the_code() -> None:
    rows = {row[1]: row for row in table("| type | frame |")}
    kinds = {"HELLO": frames.Hello, "WELCOME": frames.Welcome, "BEGIN": frames.Begin}
    kinds |= {"ACK": frames.Ack, "BYE": frames.Bye}
    assert rows.keys() == {*kinds, "DATA"}
    for name, kind in kinds.items():
        number, _, _, fields = rows[name]
        assert int(number) == kind.TYPE
        told = re.findall(r"(\[)?([a-z][a-z ]+) \(", fields)
        optional = [bool(bracket) for bracket, _ in told]
        defaults = [
            field.default is not msgspec.NODEFAULT for field in msgspec.structs.fields(kind)
        ]
        assert optional == defaults, name
    kinds_of_bye = [kind for row in table("| BYE | what") for kind in row[0].split(", ")]
    assert {kind.strip("`") for kind in kinds_of_bye} == set(frames.ByeKind)


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ("| field of a request |", FedszRequest),
        ("| field of `settings` |", Settings),
        ("| field of a note |", ReplyNote),
    ],
)
def test_requests_and_notes_have_the_keys_of_the_page(head: str, kind: type) -> None:
    keys = [name for row in table(head) for name in re.findall(r"`([^`]+)`", row[0])]

    assert keys == [field.encode_name for field in msgspec.structs.fields(kind)]


def test_a_request_of_the_session_is_one_that_clients_take() -> None:
    """A client reads what this page describes, and nothing else."""
    for content, kind in ((request().content, FedszRequest), (reply().content, ReplyNote)):
        note: Any = content.config_records[KEY]["note"]
        again = msgspec.msgpack.decode(kind.decode(note).encode())
        assert again == msgspec.msgpack.decode(note)
        assert msgspec.msgpack.decode(note).keys() == set(kind.__struct_fields__)


def test_names_and_limits_are_those_of_the_code() -> None:
    said = [f"`/{SERVICE}/{METHOD}`", f"`{STYPE}`", f"`{KEY}`", NEEDS_KEY_FRAME]
    said += [f"`{codec}`" for codec in FALLBACKS]
    assert [text for text in said if text not in PAGE] == []
    assert frames.MAX_FRAME_BYTES == 1 << 20
    assert frames.MAX_CONFIG == 64
    assert frames.MAX_UNANSWERED == 2
    assert (MAX_ENVELOPE_BYTES, MAX_HEAD_BYTES) == (1 << 20, 2 << 20)
    assert reply_head(1) == (256 << 10) + 512
    codes = [int(row[0]) for row in table("| error code | when |")]
    code = compat.ErrorCode
    assert codes == [code.CLIENT_APP_RAISED_EXCEPTION, code.MOD_FAILED_PRECONDITION]
