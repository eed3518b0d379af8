"""Shares of the data: each is of one live client, and comes back with it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import example, given
from hypothesis import strategies as st

from fedsz.data_share import Share
from fedsz.errors import LinkError
from fedsz.transport.frames import PROTOCOL, Bye, ByeKind, Hello, Welcome
from fedsz.transport.link_events import EventKind
from fedsz.transport.node import CLIENT, StateFolder
from tests.links import Client
from tests.session_links import GRACE, Door

if TYPE_CHECKING:
    from tests.links import Serve

COUNT = 3

reporter = ClientApp()


@reporter.train()
def report_share(message: Message, context: Context) -> Message:
    """Reply with the share of the data that this client has."""
    share = Share.of(context.node_config)
    assert share is not None
    return Message(RecordDict({"share": MetricRecord(share._asdict())}), reply_to=message)


def shares_of(server: Any) -> dict[str, tuple[int, int]]:
    """Ask all clients for their shares."""
    replies = server.grid.send_and_receive(server.requests())
    told_shares = {}
    for reply in replies:
        metrics = reply.content["share"]
        name = server.grid.client_name(reply.metadata.src_node_id)
        told_shares[name] = (metrics["partition"], metrics["num_partitions"])
    return told_shares


class Desk(Door):
    """A door that gives shares of the data, and waits for those who leave no longer than told."""

    def __init__(self) -> None:
        super().__init__(shares=COUNT)
        self.links = itertools.count()

    def come(self, client_id: str, named: Share | None = None) -> tuple[int, Any]:
        """Return a connection of a client and the answer to its HELLO."""
        config = {} if named is None else dict(named.as_config())
        key = client_id.encode()
        hello = Hello(PROTOCOL, client_id, config, [], key, wants_share=named is None)
        link = next(self.links)
        return link, self.knock(link, hello)[0]

    def leave_for_good(self, link: int) -> None:
        self.lose(link)
        self.wait(GRACE)


steps = st.lists(
    st.tuples(
        st.sampled_from(["comes", "leaves", "waits"]),
        st.sampled_from("abcde"),
        st.none() | st.integers(0, COUNT - 1),
    ),
    max_size=40,
)


def history(*clients: str) -> list[tuple[str, str, int | None]]:
    """Return steps: ``a1`` comes for share 1, ``a?`` for any; ``-a`` leaves for good."""
    steps: list[tuple[str, str, int | None]] = []
    for client in clients:
        if client[0] == "-":
            steps += [("leaves", client[1], None), *[("waits", "", None)] * 2]
        else:
            steps.append(("comes", client[0], int(client[1]) if client[1] != "?" else None))
    return steps


# Anybody may name any share, where clients need no proof: that of one that is away, too.
@example(history("a0", "b1", "c2", "-b", "d1", "b1", "d1"))
@example(history("a0", "b1", "c2", "-b", "d?", "b1", "d1"))
@given(steps)
def test_no_two_live_clients_have_one_share(done: list[tuple[str, str, int | None]]) -> None:
    desk, links, shares = Desk(), {}, {}  # type: ignore[var-annotated]
    last: dict[Share, str] = {}  # the client that had each share last
    for what, client_id, number in done:
        if what == "waits":
            desk.wait(GRACE / 2)
        elif what == "leaves" and client_id in links:
            desk.lose(links.pop(client_id))
        elif what == "comes":
            named = None if number is None else Share(number, COUNT)
            link, answer = desk.come(client_id, named)
            if isinstance(answer, Welcome):
                links[client_id] = link
                assert (answer.share is None) == (named is not None)
                shares[client_id] = mine = named or answer.share
                last = {share: name for share, name in last.items() if name != client_id}
                last[mine] = client_id
            else:
                assert answer.kind == ByeKind.TAKEN
                wanted = last.values() if named is None else [last[named]]
                assert client_id not in wanted, "one that was away lost its share"
        connected = [shares[client_id] for client_id in links]
        assert len(connected) == len(set(connected))


def test_a_client_gets_its_share_back_and_others_are_told_whose_it_is() -> None:
    desk = Desk()
    links = {name: desk.come(name) for name in "abc"}
    assert [answer.share for _, answer in links.values()] == [Share(i, COUNT) for i in range(COUNT)]

    desk.lose(links["b"][0])
    none_free = Bye(ByeKind.TAKEN, f"all {COUNT} shares of the data are taken")
    assert desk.come("spare")[1] == none_free
    assert desk.come("b")[1].share == Share(1, COUNT)

    desk.leave_for_good(links["c"][0])
    link, answer = desk.come("spare")
    assert answer.share == Share(2, COUNT)
    assert desk.come("c")[1] == none_free  # it asks again
    desk.leave_for_good(link)
    assert desk.come("c")[1].share == Share(2, COUNT)

    _, named = desk.come("d", Share(1, COUNT))
    assert named == Bye(ByeKind.TAKEN, "share 1/3 of the data is client 'b''s")
    assert isinstance(desk.come("e", Share(1, 2))[1], Welcome)  # shares of another count are free
    assert isinstance(desk.come("f", Share(0, 1))[1], Welcome)  # all of its own data
    assert isinstance(desk.come("g", Share(0, 1))[1], Welcome)


@pytest.mark.parametrize("config", [{"partition-id": "0"}, {"partition-id": True}, {}])
def test_what_is_no_share_is_none(config: dict[str, Any]) -> None:
    assert Share.of({"num-partitions": 3, **config}) is None


def test_a_process_has_the_share_and_the_name_of_the_one_before(
    serve: Serve, tmp_path: Path
) -> None:
    server = serve(shares=2, reconnect_grace=0.0)
    options: dict[str, Any] = {"wants_share": True, "state_dir": tmp_path}
    before = Client(server.address, "", reporter, **options)
    name = server.events.wait(EventKind.JOINED).client_id
    assert shares_of(server) == {name: (0, 2)}
    before.stop.set()
    assert before.ended() is None

    # Another server, which knows of nobody: all that is known is in the folder.
    other = serve(shares=2)
    other.client("first to come", reporter, node_config={"partition-id": 1, "num-partitions": 2})
    after = Client(other.address, "", reporter, **options)
    other.clients.append(after)
    other.events.wait(EventKind.JOINED, name)

    assert shares_of(other) == {"first to come": (1, 2), name: (0, 2)}


def test_clients_train_on_the_shares_they_were_given_anew(serve: Serve, tmp_path: Path) -> None:
    asks = Hello(PROTOCOL, "b", {}, [], bytes(16), wants_share=True)
    with StateFolder(tmp_path) as folder:
        folder.remember(asks, named=True)
        folder.keep_share({"partition-id": 1, "num-partitions": 2})
    server = serve(shares=2)
    server.client("a", reporter, node_config={"partition-id": 1, "num-partitions": 2})
    server.client("b", reporter, wants_share=True, state_dir=tmp_path)

    assert shares_of(server) == {"a": (1, 2), "b": (0, 2)}
    assert json.loads((tmp_path / CLIENT).read_text())["share"] == [0, 2]


def test_a_server_that_gives_no_shares_is_no_use_to_a_client_without(serve: Serve) -> None:
    server = serve()
    error = Client(server.address, "a", reporter, wants_share=True).ended()

    assert isinstance(error, LinkError)
    assert str(error) == "the server gives no shares of the data: name one by --partition I/N"
