"""Secure sums: what a client remembers, what a server refuses, and damaged bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fedsz.errors import (
    AbortedRound,
    CorruptStream,
    FedszError,
    LimitExceeded,
    RefusedRequest,
)
from fedsz.privacy.client import SecureClient
from fedsz.privacy.messages import (
    Advert,
    Consents,
    MaskedInput,
    Stage,
    decode,
    encode,
)
from tests.fuzz import SPECIAL
from tests.secure_rounds import Round, changed

STAGES = [Stage.ADVERTS, Stage.SHARES, Stage.INPUTS, Stage.REVEALED]


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
        round_.server.receive(client, changed(answer, Advert, mask=bytes(32)))


def test_keys_that_another_client_has() -> None:
    round_ = Round(5)
    first, second, *_ = round_.sent
    theirs = round_.answer(first, round_.sent[first])
    round_.server.receive(first, theirs)
    own = round_.answer(second, round_.sent[second])

    with pytest.raises(CorruptStream, match="repeats"):
        round_.server.receive(second, changed(own, Advert, mask=decode(theirs, Advert).mask))


@pytest.mark.parametrize("tokens", [bytes(32), bytes(34), b"\xff" * 33])
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
