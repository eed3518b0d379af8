"""Secure sums: what a client refuses to do for a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedsz.errors import (
    AbortedRound,
    ConfigError,
    CorruptStream,
    FedszError,
    RefusedRequest,
)
from fedsz.privacy.client import Demands, SecureClient
from fedsz.privacy.graph import Assumptions
from fedsz.privacy.identity import Identity
from fedsz.privacy.messages import (
    Advert,
    MaskedInput,
    Roster,
    SealedShares,
    Stage,
    Survivors,
    Terms,
    decode,
    encode,
)
from fedsz.transport.authority import Authority
from tests.secure_rounds import Round, changed

STAGES = [Stage.ADVERTS, Stage.SHARES, Stage.INPUTS, Stage.REVEALED]
KEYS = 32


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
        (lambda a: a.clear(), "not the keys"),
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
    """Shares are sealed about the whole roster: who has seen another opens none, and masks nothing;
    nor has anybody a share of its secrets, with which its masks could be taken off.
    """
    round_ = Round(5).until(Stage.SHARES)
    other, *_ = round_.sent

    def forge(adverts: list[Advert]) -> None:
        place = next(i for i, advert in enumerate(adverts) if advert.client != other)
        _with(adverts, place, commitment=b"c" * KEYS)

    round_.sent[other] = _roster(round_, forge)
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
    while round_.server.stage is not Stage.OVER:
        round_.step()

    total = round_.server.total
    assert total is not None
    assert np.mean(total.tokens == round_.plain_sum(total.survivors)) < 0.2


def test_keys_that_are_not_signed(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path)
    file = authority.certify_client("client", 1)
    pair = file.read_bytes(), file.with_suffix(".key").read_bytes()
    demanding = SecureClient(1, Identity(*pair, authority.ca.read_bytes()))
    (terms,) = set(Round(5).sent.values())
    with pytest.raises(RefusedRequest, match="keys are not signed"):
        demanding.advertise(terms)
    signed = changed(terms, Terms, assumed=Assumptions(signed=True))
    with pytest.raises(RefusedRequest, match="no certificate"):
        SecureClient(1).advertise(signed)
    with pytest.raises(ConfigError):
        Round(5, assumed=Assumptions(signed=True))
