"""Secure sums: what a client refuses to do for a server, and a server to take from a client."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from fedsz.errors import (
    AbortedRound,
    ConfigError,
    CorruptStream,
    FedszError,
    LimitExceeded,
    RefusedRequest,
)
from fedsz.privacy.client import Demands, SecureClient
from fedsz.privacy.graph import Assumptions
from fedsz.privacy.identity import Identity
from fedsz.privacy.messages import (
    Advert,
    Consents,
    MaskedInput,
    Roster,
    SealedShares,
    Survivors,
    Terms,
    decode,
    encode,
)
from fedsz.privacy.server import Stage
from fedsz.transport.authority import Authority
from tests.fuzz import SPECIAL
from tests.privacy.secure_rounds import Round, changed

STAGES = [Stage.ADVERTS, Stage.SHARES, Stage.INPUTS, Stage.REVEALED]
KEYS = 32
N = 5
Edit = Callable[[int, bytes], bytes]


# What a client refuses: requests to the first client of a round of five, at a stage.


def roster(change: Callable[[list[Advert], int], object]) -> Edit:
    """Change the adverts of a roster; ``mine`` is where the client's own is."""

    def edit(client: int, data: bytes) -> bytes:
        told = decode(data, Roster)
        adverts = list(told.adverts)
        change(adverts, next(i for i, advert in enumerate(adverts) if advert.client == client))
        return encode(Roster(told.round_id, tuple(adverts)))

    return edit


def put(adverts: list[Advert], place: int, **fields: object) -> None:
    adverts[place] = msgspec.structs.replace(adverts[place], **fields)


def survivors(change: Callable[[int, tuple[int, ...]], tuple[int, ...]]) -> Edit:
    def edit(client: int, data: bytes) -> bytes:
        ids = decode(data, Survivors).clients
        return changed(data, Survivors, clients=change(client, ids))

    return edit


def shares(keep: int) -> Edit:
    def edit(client: int, data: bytes) -> bytes:
        told = list(decode(data, SealedShares).shares.items())
        return changed(data, SealedShares, shares=dict(told[:keep]))

    return edit


def of_another_round(stage: Stage) -> Edit:
    return lambda client, data: next(iter(Round(N).until(stage).sent.values()))


ABUSES: list[tuple[Stage, Edit, str]] = [
    *((stage, of_another_round(stage), "of another round") for stage in STAGES[1:]),
    *((at, of_another_round(of), "not a message|to a client that|of another round")
      for at, of in product(STAGES[1:], STAGES[1:]) if at is not of),
    (Stage.SHARES, roster(lambda a, mine: put(a, mine - 1, cipher=a[mine].cipher)), "repeats"),
    (Stage.SHARES, roster(lambda a, mine: put(a, mine - 1, mask=a[mine].cipher)), "repeats"),
    (Stage.SHARES, roster(lambda a, mine: put(a, mine - 1, commitment=a[mine].commitment)),
     "repeats"),
    (Stage.SHARES, roster(lambda a, mine: a.append(a[1])), "repeats"),
    (Stage.SHARES, roster(lambda a, mine: put(a, mine - 1, cipher=bytes(KEYS))), "low order"),
    (Stage.SHARES, roster(lambda a, mine: put(a, mine - 1, round_id=bytes(32))), "another round"),
    (Stage.SHARES, roster(lambda a, mine: a.clear()), "not the keys of this client"),
    (Stage.SHARES, roster(lambda a, mine: put(a, mine, mask=b"m" * KEYS)), "not the keys"),
    (Stage.INPUTS, shares(1), "the threshold is"),
    (Stage.REVEALED, survivors(lambda c, ids: ids[:-3]), "survivors; the round needs"),
    (Stage.REVEALED, survivors(lambda c, ids: ids[:-1] + ids[:1]), "ascending"),
    (Stage.REVEALED, survivors(lambda c, ids: ids[::-1]), "ascending"),
    (Stage.REVEALED, survivors(lambda c, ids: (*ids, ids[-1])), "ascending"),
    (Stage.REVEALED, survivors(lambda c, ids: (*ids[:-1], ids[-1] + 1)), "not some of the members"),
    (Stage.REVEALED, survivors(lambda c, ids: tuple(i for i in ids if i != c)), "not among"),
]  # fmt: skip


@pytest.mark.parametrize("abuse", range(len(ABUSES)))
def test_a_client_refuses_and_forgets_the_round(abuse: int) -> None:
    stage, edit, match = ABUSES[abuse]
    round_ = Round(N).until(stage)
    client = next(iter(round_.sent))

    with pytest.raises(FedszError, match=match):
        round_.answer(client, edit(client, round_.sent[client]))

    assert round_.clients[client].to_bytes() == b""
    with pytest.raises(RefusedRequest, match="remembers no round"):
        round_.answer(client, round_.sent[client])


@pytest.mark.parametrize("stage", STAGES)
def test_no_request_is_answered_twice(stage: Stage) -> None:
    """So of a client's two secrets, each neighbour reveals one, whatever it is told then."""
    round_ = Round(N).until(stage)
    client = next(iter(round_.sent))
    round_.answer(client, round_.sent[client])

    again = round_.sent[client]
    if stage is Stage.REVEALED:
        again = survivors(lambda c, ids: ids[:-1])(client, again)
    with pytest.raises(RefusedRequest):
        round_.answer(client, again)
    assert round_.clients[client].to_bytes() == b""


def test_a_survivor_that_has_shared_nothing() -> None:
    round_ = Round(5).until(Stage.INPUTS)
    client, *others = round_.sent
    told = decode(round_.sent[client], SealedShares)
    kept = {c: share for c, share in told.shares.items() if c != others[0]}
    round_.sent[client] = encode(SealedShares(told.round_id, kept))
    round_.until(Stage.REVEALED)

    with pytest.raises(RefusedRequest, match="has sent this client no shares"):
        round_.answer(client, round_.sent[client])


def test_clients_that_are_shown_different_rosters_share_nothing() -> None:
    """Shares are sealed about the whole roster: who has seen another opens none, and masks nothing;
    nor has anybody a share of its secrets, with which its masks could be taken off.
    """
    round_ = Round(5).until(Stage.SHARES)
    other, *_ = round_.sent
    forge = roster(lambda a, mine: put(a, mine - 1, commitment=b"c" * KEYS))
    round_.sent[other] = forge(other, round_.sent[other])
    round_.until(Stage.INPUTS)
    answers = {c: round_.answer(c, round_.sent[c]) for c in round_.sent}

    said = decode(answers.pop(other), MaskedInput)

    assert not said.tokens
    assert len(said.unopened) == 4
    assert {decode(answer, MaskedInput).unopened for answer in answers.values()} == {(other,)}
    for client, answer in answers.items():
        with pytest.raises(CorruptStream, match="shares do not open"):
            round_.server.receive(client, answer)
    with pytest.raises(AbortedRound, match="0 clients have sent their tokens"):
        round_.server.advance()


@pytest.mark.parametrize(
    ("demands", "match"),
    [
        (Demands(corrupt=0.2), "corrupt is 0.1"),
        (Demands(clients=5), "a sum of 4 clients or more; this one asks for 5"),
    ],
)
def test_terms_that_are_less_than_demanded(demands: Demands, match: str) -> None:
    round_ = Round(5)
    client = next(iter(round_.sent))
    round_.clients[client].demands = demands

    round_.until(Stage.OVER)

    assert isinstance(round_.refusals[client], RefusedRequest)
    assert match in str(round_.refusals[client])


def test_terms_of_which_nobody_may_collude() -> None:
    """With an honest majority of five alone, two sets of survivors could be signed by one liar."""
    round_ = Round(5, assumed=Assumptions(corrupt=0))

    with pytest.raises(AbortedRound):
        round_.step()

    assert {type(err) for err in round_.refusals.values()} == {RefusedRequest}
    assert Round(5, assumed=Assumptions(dropout=0)).until(Stage.OVER).server.total is not None


def test_keys_that_are_not_signed(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)
    file = authority.certify_client("client", 1)
    pair = file.read_bytes(), file.with_suffix(".key").read_bytes()
    demanding = SecureClient(1, Identity(*pair, authority.ca.read_bytes()))
    (terms,) = set(Round(5).sent.values())
    with pytest.raises(RefusedRequest, match="keys are not signed"):
        demanding.answer(terms)
    signed = changed(terms, Terms, assumed=Assumptions(signed=True))
    with pytest.raises(RefusedRequest, match="no certificate"):
        SecureClient(1).answer(signed)
    with pytest.raises(ConfigError):
        Round(5, assumed=Assumptions(signed=True))


def test_tokens_of_another_plan_are_masked_for_nobody() -> None:
    """Not even a server that takes them, and knows all that is revealed, sees a sum of them."""
    round_ = Round(5).until(Stage.INPUTS)
    victim, *others = sorted(round_.sent)
    answers = {}
    for client in round_.sent:
        about = bytes([client == victim]) * 32
        it, tokens = round_.clients[client], round_.tokens[client]
        answers[client] = it.mask(round_.sent[client], tokens, about)
    with pytest.raises(CorruptStream, match="another plan or model"):
        round_.server.receive(victim, answers[victim])
    honest = changed(answers[victim], MaskedInput, about=bytes(32))
    round_.server._asked.add(victim)
    for client, answer in ({victim: honest} | {c: answers[c] for c in others}).items():
        round_.server.receive(client, answer)
    round_.sent = round_.server.advance()

    total = round_.until(Stage.OVER).server.total

    assert total is not None
    assert np.mean(total.tokens == round_.plain_sum(total.survivors)) < 0.2


# What a client remembers between messages.


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_client_goes_on_from_its_state(stage: Stage) -> None:
    round_ = Round(5).until(stage)
    for client, before in list(round_.clients.items()):
        round_.clients[client] = SecureClient(client).restored(before.to_bytes())

    total = round_.until(Stage.OVER).server.total

    assert total is not None
    np.testing.assert_array_equal(total.tokens, round_.plain_sum(total.survivors))
    assert not any(client.to_bytes() for client in round_.clients.values())


def test_a_new_round_forgets_the_one_before() -> None:
    """As after a server has gone on from a checkpoint: it knows of the round before no more."""
    before = Round(5).until(Stage.REVEALED)
    after = Round(5)
    after.clients = before.clients

    assert after.until(Stage.OVER).server.total is not None
    with pytest.raises(AbortedRound):
        before.step()
    assert len(before.refusals) == 5
    assert all(isinstance(err, RefusedRequest) for err in before.refusals.values())


# What a server refuses: an answer of one client of five, which then drops out.

WRONG: list[tuple[Stage, dict[str, Any], str]] = [
    (Stage.ADVERTS, {"mask": bytes(32)}, "low order"),
    (Stage.ADVERTS, {"client": 7}, "has sent keys of client 7"),
    (Stage.SHARES, {"shares": {}}, "one share for each neighbour"),
    (Stage.INPUTS, {"tokens": memoryview(bytes(32))}, "packed tokens"),
    (Stage.INPUTS, {"tokens": memoryview(bytes(34))}, "packed tokens"),
    (Stage.INPUTS, {"tokens": memoryview(b"\xff" * 33)}, "packed tokens"),
    (Stage.INPUTS, {"about": b"a" * 32}, "another plan or model"),
    (Stage.INPUTS, {"tokens": memoryview(bytes(1000))}, "limit"),
]


@pytest.mark.parametrize(("stage", "fields", "match"), WRONG)
def test_a_server_refuses_and_goes_on_without(
    stage: Stage, fields: dict[str, Any], match: str
) -> None:
    kinds = {Stage.ADVERTS: Advert, Stage.SHARES: SealedShares, Stage.INPUTS: MaskedInput}
    round_ = Round(5).until(stage)
    client = next(iter(round_.sent))
    answer = round_.answer(client, round_.sent.pop(client))

    with pytest.raises((CorruptStream, LimitExceeded), match=match):
        round_.server.receive(client, changed(answer, kinds[stage], **fields))

    total = round_.until(Stage.OVER).server.total
    assert total is not None
    assert client not in total.survivors
    np.testing.assert_array_equal(total.tokens, round_.plain_sum(total.survivors))


@pytest.mark.parametrize("stage", STAGES)
def test_answers_that_nobody_has_asked_for(stage: Stage) -> None:
    round_ = Round(5).until(stage)
    client, *_ = round_.sent
    answer = round_.answer(client, round_.sent[client])
    round_.server.receive(client, answer)

    for sender in (client, max(round_.clients) + 1):
        with pytest.raises(CorruptStream, match="has not been asked"):
            round_.server.receive(sender, answer)


# Damaged bytes.


@pytest.mark.parametrize("stage", STAGES)
def test_damaged_bytes_are_refused_on_both_sides(stage: Stage) -> None:
    """Cut, flipped, lengthened, or with lengths that nobody has; never another error."""
    drawn = random.Random(7)  # noqa: S311
    round_ = Round(4).until(stage)
    client = next(iter(round_.sent))
    kept, request = round_.clients[client].to_bytes(), round_.sent[client]
    answer = round_.answer(client, request)

    def ask(data: bytes) -> None:
        round_.clients[client] = SecureClient(client).restored(kept)
        try:
            round_.answer(client, data)
        except FedszError:
            assert round_.clients[client].to_bytes() == b""

    def receive(data: bytes) -> None:
        round_.server._asked.add(client)
        try:
            round_.server.receive(client, data)
        except FedszError:
            return

    for whole, take in ((request, ask), (answer, receive)):
        places = [drawn.randrange(len(whole)) for _ in range(60)]
        wrong = [whole[:place] for place in places]
        wrong += [whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in places]
        wrong += [whole[:i] + special + whole[i + 1 :] for i in range(3) for special in SPECIAL]
        for data in [*wrong, whole + b"\0", b""]:
            take(data)


def test_damaged_signatures() -> None:
    assert decode(encode(Consents(bytes(32), {1: b"x"})), Consents).signatures == {1: b"x"}
    with pytest.raises(CorruptStream):
        decode(encode(Consents(bytes(32), {1: bytes(2000)})), Consents)


# Of what a fresh process does first, in eight threads at once.
FIRST = """
import sys, threading
from fedsz.privacy.graph import Assumptions
from fedsz.privacy.messages import *

sys.setswitchinterval(1e-6)
x, one = bytes(32), Advert(bytes(32), 1, bytes(32), bytes(32), bytes(32))
told = [
    Terms(x, 8, 10, Assumptions()), Roster(x, (one,)), SealedShares(x, {1: bytes(94)}), one,
    MaskedInput(x, x, (1,), memoryview(b"x")), Survivors(x, (1, 2)), Consent(x, b"x"),
    Consents(x, {1: b"x"}), Revealed(x, {1: bytes(33)}, {}),
]
together = threading.Barrier(8)

def read():
    for message in told:
        together.wait()
        assert decode(encode(message), type(message)) == message

threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_clients_in_threads_read_their_first_messages_at_once() -> None:
    """Types that msgspec learned meanwhile ended the process, three times in eight."""
    assert subprocess.run([sys.executable, "-c", FIRST], check=False).returncode == 0
