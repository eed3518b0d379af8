"""Secure sums: what a client refuses a server, what that refuses a client, and damaged bytes."""

from __future__ import annotations

import random
from collections.abc import Callable

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
from fedsz.secagg.client import Demands, SecureClient
from fedsz.secagg.graph import Assumptions
from fedsz.secagg.messages import (
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
from fedsz.secagg.server import Stage
from tests.fuzz import SPECIAL
from tests.secure_rounds import Round

STAGES = [Stage.ADVERTS, Stage.SHARES, Stage.INPUTS, Stage.REVEALED]
KINDS = {Stage.SHARES: Roster, Stage.INPUTS: SealedShares, Stage.REVEALED: Survivors}
KEYS = 32


def changed(data: bytes, kind: type, **fields: object) -> bytes:
    return encode(msgspec.structs.replace(decode(data, kind), **fields))


def refused(round_: Round, data: bytes, match: str) -> None:
    """Show that a client refuses a request, and has forgotten the round."""
    client = next(iter(round_.sent))
    with pytest.raises(FedszError, match=match):
        round_.answer(client, data)
    assert round_.clients[client].to_bytes() == b""
    with pytest.raises(RefusedRequest, match="remembers no round"):
        round_.answer(client, round_.sent[client])


# What a client refuses.


@pytest.mark.parametrize("stage", STAGES[1:])
def test_requests_out_of_order(stage: Stage) -> None:
    round_ = Round(5)
    told = {}
    while round_.server.stage is not Stage.OVER:
        told[round_.server.stage] = next(iter(round_.sent.values()))
        round_.step()
    for earlier in STAGES[1:]:
        if earlier is not stage:
            again = Round(5).until(stage)
            client = next(iter(again.clients.values()))
            ask = {Stage.SHARES: client.share, Stage.REVEALED: client.reveal}.get(earlier)
            ask = ask or (lambda data, client=client: client.mask(data, np.zeros(20, np.uint8)))
            with pytest.raises(RefusedRequest):
                ask(told[earlier])


@pytest.mark.parametrize("stage", STAGES[1:])
def test_requests_of_another_round(stage: Stage) -> None:
    other = next(iter(Round(5).until(stage).sent.values()))

    refused(Round(5).until(stage), other, "of another round")


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_request_again(stage: Stage) -> None:
    round_ = Round(5).until(stage)
    client = next(iter(round_.sent))
    round_.answer(client, round_.sent[client])

    with pytest.raises(RefusedRequest):
        round_.answer(client, round_.sent[client])


def test_terms_again() -> None:
    round_ = Round(5)
    client = next(iter(round_.sent))
    round_.answer(client, round_.sent[client])

    with pytest.raises(RefusedRequest, match="begun already"):
        round_.answer(client, round_.sent[client])


def test_both_secrets_of_a_client() -> None:
    """Whoever it is told has survived, or not, it says so once, and remembers nothing."""
    round_ = Round(10).until(Stage.REVEALED)
    client = next(iter(round_.sent))
    survivors = decode(round_.sent[client], Survivors).clients
    without = tuple(c for c in survivors if c != survivors[-1])
    round_.answer(client, round_.sent[client])

    assert round_.clients[client].to_bytes() == b""
    with pytest.raises(RefusedRequest):
        round_.answer(client, changed(round_.sent[client], Survivors, clients=without))


@pytest.mark.parametrize(
    ("others", "match"),
    [
        (lambda c, ids: ids[:-3], "survivors; the round needs"),
        (lambda c, ids: ids[:-1] + ids[:1], "ascending"),
        (lambda c, ids: ids[::-1], "ascending"),
        (lambda c, ids: (*ids[:-1], ids[-1] + 1), "not some of the members"),
        (lambda c, ids: (*ids, ids[-1]), "ascending"),
        (lambda c, ids: tuple(i for i in ids if i != c), "not among the survivors"),
    ],
)
def test_survivors_that_cannot_be(others: Callable[..., object], match: str) -> None:
    round_ = Round(10).until(Stage.REVEALED)
    client = next(iter(round_.sent))
    ids = decode(round_.sent[client], Survivors).clients

    refused(round_, changed(round_.sent[client], Survivors, clients=others(client, ids)), match)


def test_a_survivor_that_has_shared_nothing() -> None:
    round_ = Round(5).until(Stage.INPUTS)
    client, *others = round_.sent
    told = decode(round_.sent[client], SealedShares)
    kept = {c: share for c, share in told.shares.items() if c != others[0]}
    round_.sent[client] = encode(SealedShares(told.round_id, kept))
    round_.until(Stage.REVEALED)

    refused(round_, round_.sent[client], "has sent this client no shares")


def test_shares_of_too_few_neighbours() -> None:
    round_ = Round(10).until(Stage.INPUTS)
    told = next(iter(round_.sent.values()))
    one = dict(list(decode(told, SealedShares).shares.items())[:1])

    refused(round_, changed(told, SealedShares, shares=one), "the threshold is")


def _roster(round_: Round, change: Callable[[list[Advert]], object]) -> bytes:
    told = decode(next(iter(round_.sent.values())), Roster)
    adverts = list(told.adverts)
    change(adverts)
    return encode(Roster(told.round_id, tuple(adverts)))


def _with(adverts: list[Advert], place: int, **fields: object) -> None:
    adverts[place] = msgspec.structs.replace(adverts[place], **fields)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda a: _with(a, 2, cipher=a[1].cipher), "repeats"),
        (lambda a: _with(a, 2, mask=a[1].cipher), "repeats"),
        (lambda a: _with(a, 2, commitment=a[1].commitment), "repeats"),
        (lambda a: a.append(a[1]), "repeats"),
        (lambda a: _with(a, 2, cipher=bytes(KEYS)), "low order"),
        (lambda a: a.clear(), "no plan"),
        (lambda a: _with(a, 1, round_id=bytes(32)), "another round"),
    ],
)
def test_rosters_that_cannot_be(change: Callable[[list[Advert]], object], match: str) -> None:
    round_ = Round(5).until(Stage.SHARES)

    refused(round_, _roster(round_, change), match)


def test_a_roster_with_other_keys_of_ones_own() -> None:
    round_ = Round(4).until(Stage.SHARES)
    client = next(iter(round_.sent))

    def forge(adverts: list[Advert]) -> None:
        place = next(i for i, advert in enumerate(adverts) if advert.client == client)
        _with(adverts, place, mask=b"m" * KEYS)

    refused(round_, _roster(round_, forge), "not the keys of this client")


def test_clients_that_are_shown_different_rosters_share_nothing() -> None:
    """Shares are sealed about the whole roster: nobody masks for whoever has seen another."""
    round_ = Round(5).until(Stage.SHARES)
    other, *_ = round_.sent

    def forge(adverts: list[Advert]) -> None:
        place = next(i for i, advert in enumerate(adverts) if advert.client != other)
        _with(adverts, place, commitment=b"c" * KEYS)

    round_.sent[other] = _roster(round_, forge)
    round_.until(Stage.INPUTS)
    for client in list(round_.sent):
        with pytest.raises(FedszError):
            round_.answer(client, round_.sent[client])


@pytest.mark.parametrize(
    ("demands", "match"),
    [
        (Demands(corrupt=0.2), "corrupt is 0.1"),
        (Demands(security=80), "security is 40"),
        (Demands(clients=6), "this one asks for 6"),
    ],
)
def test_terms_that_are_less_than_demanded(demands: Demands, match: str) -> None:
    round_ = Round(5)
    client = next(iter(round_.sent))
    round_.clients[client].demands = demands

    round_.until(Stage.OVER)

    assert isinstance(round_.refusals[client], RefusedRequest)
    assert match in str(round_.refusals[client])


def test_keys_that_are_not_signed() -> None:
    class Anyone:
        certificate = b"me"

        def sign(self, message: bytes) -> bytes:
            return b""

        def check(self, certificate: bytes, message: bytes, signature: bytes) -> str:
            return "anyone"

    (terms,) = set(Round(5).sent.values())
    demanding = SecureClient(1, Anyone(), Anyone(), Demands(signed=True))
    with pytest.raises(RefusedRequest, match="keys are not signed"):
        demanding.advertise(terms)
    signed = changed(terms, Terms, assumed=Assumptions(signed=True))
    with pytest.raises(RefusedRequest, match="no certificate"):
        SecureClient(1).advertise(signed)
    with pytest.raises(ConfigError):
        SecureClient(1, demands=Demands(signed=True))
    with pytest.raises(ConfigError):
        Round(5, assumed=Assumptions(signed=True))


@pytest.mark.parametrize(
    "tokens",
    [
        np.full(20, 1 << 13, np.uint32),
        np.zeros(19, np.uint32),
        np.zeros((4, 5), np.uint32),
        np.zeros(20, np.int32),
        np.zeros(20, np.float32),
    ],
)
def test_tokens_that_are_not_the_rings(tokens: np.ndarray) -> None:
    round_ = Round(4).until(Stage.INPUTS)
    client = next(iter(round_.sent))
    round_.tokens[client] = tokens

    with pytest.raises(ConfigError):
        round_.answer(client, round_.sent[client])


# State between messages.


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_client_goes_on_from_its_state(stage: Stage) -> None:
    round_ = Round(5).until(stage)
    for client, before in list(round_.clients.items()):
        round_.clients[client] = SecureClient(client).restored(before.to_bytes())

    total = round_.until(Stage.OVER).server.total

    assert total is not None
    np.testing.assert_array_equal(total.tokens, round_.plain_sum(total.survivors))
    assert not any(client.to_bytes() for client in round_.clients.values())


@pytest.mark.parametrize("stage", STAGES[1:])
def test_a_client_that_has_lost_its_state_says_so(stage: Stage) -> None:
    round_ = Round(5).until(stage)
    client = next(iter(round_.sent))
    round_.clients[client] = SecureClient(client).restored(b"")

    with pytest.raises(RefusedRequest, match="remembers no round"):
        round_.answer(client, round_.sent[client])


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


# What a server refuses.


@pytest.mark.parametrize("stage", STAGES)
def test_answers_that_nobody_has_asked_for(stage: Stage) -> None:
    round_ = Round(5).until(stage)
    client, *others = round_.sent
    answer = round_.answer(client, round_.sent[client])
    round_.server.receive(client, answer)

    with pytest.raises(CorruptStream, match="has not been asked"):
        round_.server.receive(client, answer)
    with pytest.raises(CorruptStream, match="has not been asked"):
        round_.server.receive(max(round_.clients) + 1, answer)
    if stage is Stage.ADVERTS:
        with pytest.raises(CorruptStream, match="keys of client"):
            round_.server.receive(others[0], answer)


def test_keys_that_make_every_secret_known() -> None:
    round_ = Round(5)
    client, *_ = round_.sent
    answer = round_.answer(client, round_.sent[client])

    with pytest.raises(CorruptStream, match="low order"):
        round_.server.receive(client, changed(answer, Advert, mask=bytes(KEYS)))


def test_keys_that_another_client_has() -> None:
    round_ = Round(5)
    first, second, *_ = round_.sent
    theirs = round_.answer(first, round_.sent[first])
    round_.server.receive(first, theirs)
    own = round_.answer(second, round_.sent[second])

    with pytest.raises(CorruptStream, match="repeats"):
        round_.server.receive(second, changed(own, Advert, mask=decode(theirs, Advert).mask))


@pytest.mark.parametrize("tokens", [bytes(39), bytes(41), b"\0\x20" * 20])
def test_tokens_out_of_range(tokens: bytes) -> None:
    round_ = Round(5).until(Stage.INPUTS)
    client = next(iter(round_.sent))
    answer = round_.answer(client, round_.sent[client])
    wrong = changed(answer, MaskedInput, tokens=memoryview(tokens))

    with pytest.raises(CorruptStream):
        round_.server.receive(client, wrong)
    total = round_.until(Stage.OVER, {}).server.total
    assert total is not None
    assert client not in total.survivors
    np.testing.assert_array_equal(total.tokens, round_.plain_sum(total.survivors))


def test_more_bytes_than_any_message_has() -> None:
    round_ = Round(5).until(Stage.INPUTS)

    with pytest.raises(LimitExceeded):
        round_.server.receive(next(iter(round_.sent)), bytes(1000))


@pytest.mark.parametrize("stage", STAGES)
def test_damaged_bytes_are_refused_on_both_sides(stage: Stage) -> None:
    """Cut, flipped, lengthened, or with lengths that nobody has; never another error."""
    drawn = random.Random(7)  # noqa: S311
    round_ = Round(4).until(stage)
    client = next(iter(round_.sent))
    kept = round_.clients[client].to_bytes()
    request = round_.sent[client]
    answer = round_.answer(client, request)
    for whole, take in (
        (request, lambda data: _asked(round_, client, kept, data)),
        (answer, lambda data: _received(round_, client, data)),
    ):
        places = [drawn.randrange(len(whole)) for _ in range(60)]
        wrong = [whole[:place] for place in places]
        wrong += [whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in places]
        wrong += [whole[:i] + special + whole[i + 1 :] for i in range(3) for special in SPECIAL]
        wrong += [whole + b"\0", b""]
        for data in wrong:
            take(data)


def _asked(round_: Round, client: int, kept: bytes, data: bytes) -> None:
    round_.clients[client] = SecureClient(client).restored(kept)
    try:
        round_.answer(client, data)
    except FedszError:
        assert round_.clients[client].to_bytes() == b""


def _received(round_: Round, client: int, data: bytes) -> None:
    round_.server._asked.add(client)
    try:
        round_.server.receive(client, data)
    except FedszError:
        return


def test_damaged_signatures() -> None:
    """Of adverts and consents: bytes of any kind are no signature."""
    assert decode(encode(Consents(bytes(32), {1: b"x"})), Consents).signatures == {1: b"x"}
    with pytest.raises(CorruptStream):
        decode(encode(Consents(bytes(32), {1: bytes(2000)})), Consents)
