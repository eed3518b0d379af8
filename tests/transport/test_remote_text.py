"""What the other end writes is one line of printable text, wherever it goes."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedsz
from fedsz.arrays import Layout
from fedsz.errors import CorruptStream, ModelMismatch
from fedsz.formatting import LINE, one_line
from fedsz.stream import Reader
from fedsz.transport.frames import Begin, Bye, ByeKind, Hello, frames, pack, unpack
from fedsz.transport.link_events import EventKind
from fedsz.transport.local_grid import LocalGrid
from fedsz.transport.message_format import decode_message, encode_message
from tests.hostile_headers import header_of, sealed_header
from tests.links import LONG, RawClient

if TYPE_CHECKING:
    from tests.links import Serve

# A new line of a log; a colour; the clipboard of a terminal; a title; text from right to left.
FORGED = "x\nINFO: all is well\r\x1b[31m\x1b]52;c;cm0gLXJm\x07\x9b2J\u2028\u202egnp.exe\x00"


def is_line(text: str) -> bool:
    return text.isprintable() and len(text) <= LINE + 100  # what we say around it


def sent(content: RecordDict | None = None, error: Error | None = None) -> Message:
    LocalGrid(ClientApp(), [])  # Flower's messages have a sender, which a Grid says
    request = Message(RecordDict(), dst_node_id=2, message_type="train")
    message = Message(content or error, reply_to=request)
    encoded = encode_message(message, "id")
    return decode_message(io.BytesIO(b"".join(map(bytes, encoded.segments))), encoded.size)


def test_one_line_escapes_and_cuts() -> None:
    assert one_line("plain: ü 漢 '\\'") == "plain: ü 漢 '\\'"
    assert one_line("a\nb\x1b[0m\u202e\ud800") == "a\\nb\\x1b[0m\\u202e\\ud800"
    assert is_line(one_line(FORGED))
    assert one_line("x" * LINE) == "x" * LINE
    assert one_line("x" * 1_000_000) == "x" * (LINE - 1) + "…"
    assert len(one_line("\0" * 1_000_000)) == LINE


def test_the_reason_of_an_error_and_of_a_goodbye_is_a_line() -> None:
    assert sent(error=Error(7, FORGED)).error.reason == one_line(FORGED)
    assert len(sent(error=Error(7, "long " * 180_000)).error.reason or "") == LINE
    bye = unpack(pack(Bye(ByeKind.REFUSED, FORGED * 1000)))
    assert isinstance(bye, Bye)
    assert is_line(bye.reason)


@pytest.mark.parametrize("name", [FORGED, "n" * (LINE + 1)])
def test_records_arrays_and_metrics_have_names_that_can_be_shown(name: str) -> None:
    for content in (
        RecordDict({name: MetricRecord({})}),
        RecordDict({"metrics": MetricRecord({name: 1})}),
        RecordDict({"config": ConfigRecord({name: "x"})}),
        RecordDict({"arrays": ArrayRecord({name: Array(np.zeros(1))})}),
    ):
        with pytest.raises(CorruptStream, match="no name") as caught:
            sent(content)
        assert is_line(str(caught.value))
    content = RecordDict({"config": ConfigRecord({"prompt": name})})  # values may be anything
    assert sent(content).content.config_records["config"]["prompt"] == name


def test_what_a_client_says_of_itself() -> None:
    hello = Hello(1, "c", {FORGED: FORGED, "number": 7}, [])

    config = unpack(pack(hello)).node_config  # type: ignore[union-attr]

    assert config == {one_line(FORGED): one_line(FORGED), "number": 7}
    with pytest.raises(CorruptStream, match="cannot be printed") as caught:
        unpack(pack(Hello(1, FORGED, {}, [])))
    assert is_line(str(caught.value))
    for frame in (Begin(FORGED, 100), Hello(1, "c", {str(i): i for i in range(65)}, [])):
        with pytest.raises(CorruptStream):
            unpack(pack(frame))


def tensors_named(name: str) -> bytes:
    payloads = [[0, 0, 0, 0, None, [0]]]
    return sealed_header(header_of([[name, 0, [0]]], payloads))


@pytest.mark.parametrize("name", [FORGED, "n" * 100_000])
def test_names_of_tensors_in_errors(name: str) -> None:
    layout = Layout.of({"weight": np.zeros(3, np.float32)})
    shapes = {tensor.name: tensor.shape for tensor in Reader(tensors_named(name)).header.tensors}
    with pytest.raises(ModelMismatch) as mismatch:
        layout.check({"weight": (3,), **shapes})
    with pytest.raises(CorruptStream) as corrupt:
        Reader(sealed_header(header_of([[name, 99, [0]]], [])))

    assert is_line(str(mismatch.value))
    assert is_line(str(corrupt.value))
    assert fedsz.decompress(tensors_named(name), as_numpy=True).keys() == {name}


def test_a_client_cannot_write_into_the_servers_log(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = serve()
    with RawClient(server.address, pack(Hello(1, FORGED, {}, []))) as client:
        (bye,) = client.hear_out()
    with RawClient(server.address, pack(Hello(1, "liar", {"a": FORGED}, []))) as client:
        server.events.wait(EventKind.JOINED, "liar")
        (request,) = server.requests()
        replies = server.grid.stream_replies([request], timeout=LONG)
        message_id = request.metadata.message_id
        failed = Message(Error(1, FORGED * 10_000), reply_to=request)
        client.say(*frames(encode_message(failed, message_id)))
        (reply,) = replies

    said: list[Any] = [bye.reason, reply.error.reason, *(e.detail for e in server.events.seen)]
    said += [value for e in server.events.seen for value in e.node_config.values()]
    said += [record.getMessage() for record in caplog.records if record.name.startswith("fedsz")]
    assert all(map(is_line, said)), said
