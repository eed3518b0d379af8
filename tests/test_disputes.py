"""Shares that are garbage: who has sent them is found out, or whoever says so without reason."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fedsz.errors import AbortedRound, CorruptStream
from fedsz.flower import StreamingFedAvg
from fedsz.flower.secure_member import ANSWER, SECURE, STAGE
from fedsz.secagg import client as client_module
from fedsz.secagg.disputes import Disputes
from fedsz.secagg.keys import MASK, OWN, share_commitment
from fedsz.secagg.messages import MaskedInput, Revealed, SealedPair, SealedShares, decode
from fedsz.secagg.server import Stage
from fedsz.secagg.shamir import PRIME, SHARE_BYTES
from tests.secure_apps import DropOut
from tests.secure_rounds import Round, changed
from tests.test_secure_sum import check, grid_of, local, run

N = 5


def garbage(data: bytes, count: int | None = None) -> bytes:
    """Return shares of which the first few, or all, are not sealed for anybody."""
    told = decode(data, SealedShares).shares
    spoilt = {
        other: replace(pair, sealed=secrets.token_bytes(len(pair.sealed)))
        for other, pair in told.items()
    }
    return changed(data, SealedShares, shares=told | dict(list(spoilt.items())[:count]))


def swapped(data: bytes) -> bytes:
    """Return shares each of which is sealed for another neighbour."""
    told = decode(data, SealedShares).shares
    others = [*told][1:] + [*told][:1]
    return changed(data, SealedShares, shares=dict(zip(others, told.values(), strict=True)))


def committing(data: bytes) -> bytes:
    """Return shares that open, and are others than what is committed to."""
    told = decode(data, SealedShares).shares
    forged = {
        other: replace(pair, commitments=(pair.commitments[0], secrets.token_bytes(32)))
        for other, pair in told.items()
    }
    return changed(data, SealedShares, shares=forged)


def accusing(data: bytes, others: list[int]) -> bytes:
    """Return masked tokens whose sender says that nobody's share has opened."""
    return changed(data, MaskedInput, unopened=tuple(others))


def named(round_: Round) -> set[int]:
    plan, total = round_.server.members.plan, round_.server.total
    return Disputes().judge(
        round_.server.disputes,
        plan.corrupt,
        counts=total is not None,
        liars=round_.server.liars,
    )


@pytest.mark.parametrize("spoil", [garbage, swapped, committing])
@pytest.mark.parametrize("n", [N, 40])
def test_shares_that_do_not_open(n: int, spoil: Callable[[bytes], bytes]) -> None:
    round_ = Round(n).until(Stage.SHARES)
    liar = min(round_.sent)
    round_.step(meddle=lambda _, c, data: spoil(data) if c == liar else data)

    with pytest.raises(AbortedRound, match="a secret cannot be recovered, of 1 clients"):
        round_.until(Stage.OVER)

    assert {owner for owner, _ in round_.server.disputes} == {liar}
    assert named(round_) == {liar}


@pytest.mark.parametrize("n", [N, 40])
def test_few_that_do_not_open_cost_nothing(n: int) -> None:
    """Both take part, and nobody can tell who of them has lied."""
    round_ = Round(n).until(Stage.SHARES)
    liar = min(round_.sent)
    round_.step(meddle=lambda _, c, data: garbage(data, 1) if c == liar else data)

    total = round_.until(Stage.OVER).server.total

    assert total is not None
    assert len(total.survivors) == n
    np.testing.assert_array_equal(total.tokens, round_.plain_sum(total.survivors))
    ((owner, _),) = round_.server.disputes
    assert owner == liar
    assert not named(round_)


@pytest.mark.parametrize("n", [N, 40, 100])
def test_shares_that_open_and_are_of_nothing(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_nothing(secret: int, places: list[int], threshold: int) -> dict[int, int]:
        return {place: secrets.randbelow(PRIME) for place in places}

    round_ = Round(n).until(Stage.SHARES)
    liar = min(round_.sent)
    with monkeypatch.context() as patched:
        patched.setattr(client_module, "split", of_nothing)
        round_.server.receive(liar, round_.answer(liar, round_.sent.pop(liar)))
    round_.step()

    with pytest.raises(AbortedRound, match="a secret cannot be recovered, of 1 clients"):
        round_.until(Stage.OVER)

    assert not round_.server.disputes
    assert round_.server.liars == named(round_) == {liar}


@pytest.mark.parametrize("n", [N, 40])
def test_commitments_to_nothing(n: int) -> None:
    """What does not open is no share of nothing, whatever was committed to."""
    round_ = Round(n).until(Stage.SHARES)
    liar, members = min(round_.sent), round_.server.members

    def commit_to_nothing(_: Stage, client: int, data: bytes) -> bytes:
        if client != liar:
            return data
        forged = {
            other: SealedPair(
                bytes(len(pair.sealed)),
                (share_commitment(b"", OWN, about), share_commitment(b"", MASK, about)),
            )
            for other, pair in decode(data, SealedShares).shares.items()
            for about in [members.about(liar, other)]
        }
        return changed(data, SealedShares, shares=forged)

    round_.step(meddle=commit_to_nothing)
    with pytest.raises(AbortedRound, match="a secret cannot be recovered, of 1 clients"):
        round_.until(Stage.OVER)

    assert not round_.refusals
    assert {owner for owner, _ in round_.server.disputes} == {liar}
    assert named(round_) == {liar}


def test_a_client_that_opens_too_few_says_so_and_is_out() -> None:
    round_ = Round(3).until(Stage.SHARES)
    liar, victim, _ = round_.sent
    round_.step(meddle=lambda _, c, data: garbage(data) if c == liar else data)

    answer = round_.answer(victim, round_.sent[victim])

    assert not decode(answer, MaskedInput).tokens
    assert decode(answer, MaskedInput).unopened == (liar,)
    with pytest.raises(CorruptStream, match="1 shares for it do not open"):
        round_.server.receive(victim, answer)
    assert round_.server.disputes == {(liar, victim)}


@pytest.mark.parametrize("n", [N, 40])
def test_who_accuses_everybody_is_named(n: int) -> None:
    round_ = Round(n).until(Stage.INPUTS)
    liar = min(round_.sent)
    others = round_.server.members.neighbours(liar)
    round_.step(meddle=lambda _, c, data: accusing(data, others) if c == liar else data)

    total = round_.until(Stage.OVER).server.total

    assert total is not None
    np.testing.assert_array_equal(total.tokens, round_.plain_sum(total.survivors))
    assert named(round_) == {liar}


@pytest.mark.parametrize("whom", ["nobody there", "itself"])
def test_accusations_that_cannot_be(whom: str) -> None:
    round_ = Round(N).until(Stage.INPUTS)
    client = min(round_.sent)
    answer = round_.answer(client, round_.sent[client])

    with pytest.raises(CorruptStream, match="shares that it was not sent"):
        round_.server.receive(client, accusing(answer, [client if whom == "itself" else 7]))
    assert not round_.server.disputes


# Shares that are revealed, and wrong.


@pytest.mark.parametrize("lying", [1, 9, 16])
def test_liars_among_its_neighbours_cost_an_honest_client_nothing(lying: int) -> None:
    """Of 28 neighbours, 12 have the secret."""
    round_ = Round(100).until(Stage.REVEALED)
    members, victim = round_.server.members, min(round_.sent)
    liars = set(members.neighbours(victim)[:lying])

    def lie(_: Stage, client: int, data: bytes) -> bytes:
        own = decode(data, Revealed).own
        wrong = secrets.token_bytes(SHARE_BYTES - 1) + b"\0"
        return changed(data, Revealed, own=own | {victim: wrong}) if client in liars else data

    round_.step(meddle=lie)

    total = round_.server.total
    assert total is not None
    np.testing.assert_array_equal(total.tokens, round_.plain_sum(total.survivors))
    assert not round_.server.disputes
    assert round_.server.liars == named(round_) == liars
    assert {"another share than it had" in str(round_.refusals[liar]) for liar in liars} == {True}


def test_commitments_tell_shares_of_clients_and_secrets_apart() -> None:
    round_ = Round(5).until(Stage.SHARES)
    told = [
        one
        for client, data in round_.sent.items()
        for pair in decode(round_.answer(client, data), SealedShares).shares.values()
        for one in pair.commitments
    ]

    assert len(told) == len(set(told)) == 5 * 4 * 2
    of = [share_commitment(bytes(33), which, about) for which in (0, 1) for about in (b"a", b"b")]
    assert len(set(of)) == 4


# Who is left out.

ids = st.integers(0, 19)


@given(
    st.sets(ids, min_size=1, max_size=3),
    st.lists(st.tuples(st.lists(st.tuples(ids, ids)), st.booleans()), max_size=12),
)
def test_what_holds_for_honest_clients(
    liars: set[int], rounds: list[tuple[list[tuple[int, int]], bool]]
) -> None:
    """Whatever so many liars do, of whom each dispute has one."""
    disputes = Disputes()
    for pairs, counts in rounds:
        there = [(a, b) for a, b in pairs if a != b and not {a, b} & disputes.left_out]
        found = [pair for pair in there if liars.intersection(pair)]

        out = disputes.judge(found, 3, counts=counts)

        if counts:
            assert out <= liars
        elif found:
            assert out & liars
            assert len(out - liars) <= len(out & liars)
            assert out <= {client for pair in found for client in pair} | liars
        assert out <= disputes.left_out


def test_a_liar_that_meets_others_each_round_is_found() -> None:
    disputes = Disputes()

    found = [disputes.judge([(9, other)], 2, counts=True) for other in (1, 1, 2, 3)]

    assert found == [set(), set(), set(), {9}]
    assert not disputes.pairs


def test_both_go_where_nobody_is_told_and_the_round_did_not_count() -> None:
    assert Disputes().judge([(2, 1)], 1, counts=False) == {1, 2}
    assert Disputes().judge([(2, 1)], 1, counts=True) == set()


def test_of_a_rounds_few_members_all_liars_may_be_there() -> None:
    """Two of the ten liars of a hundred clients accuse the third member of their round."""
    assert Disputes().judge([(1, 8), (1, 9)], 10, counts=True) == set()


def test_who_has_lied_for_certain_takes_nobody_along() -> None:
    disputes = Disputes(pairs=[(3, 4)])

    out = disputes.judge([(9, 1), (2, 3)], 3, counts=True, liars=[9, 4])

    assert out == disputes.left_out == {4, 9}
    assert disputes.pairs == {(2, 3)}


def test_a_liar_takes_one_other_client_at_most() -> None:
    disputes = Disputes()

    out = disputes.judge([(honest, 9) for honest in range(3)], 3, counts=False)

    assert out == {0, 9}
    assert disputes.pairs == {(1, 9), (2, 9)}


# Through Flower.


class Meddler(DropOut):
    """A client whose answers at a stage are changed."""

    def __init__(self, stage: Stage, change: Callable[[bytes], bytes]) -> None:
        super().__init__(stage.name, (2,))
        self._change = change

    def __call__(self, message: Any, context: Any, call_next: Any) -> Any:
        asked: Any = message.content.get(SECURE, {})
        reply = call_next(message, context)
        if asked.get(STAGE) == self.stage and context.node_config["i"] in self.clients:
            record: Any = reply.content[SECURE]
            record[ANSWER] = self._change(record[ANSWER])
        return reply


def test_one_bad_client_ends_one_round(caplog: pytest.LogCaptureFixture) -> None:
    """It is named in a line, and the rounds that follow are of the others."""
    grid = grid_of(local(Meddler(Stage.SHARES, garbage)))
    liar = list(grid.get_node_ids())[2]

    result = run(grid, StreamingFedAvg, rounds=3)

    check(result, [0, 1, 3, 4], rounds=2)
    lines = [r.getMessage() for r in caplog.records if "wrong shares" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].endswith(f"left out of the rounds that follow: {liar}")
    failures = [f for f in grid.take_traffic().failures if f.client == str(liar)]
    assert [("lied about shares" in f.reason) for f in failures] == [False, True, True]


def test_a_client_that_accuses_all_others_ends_no_round() -> None:
    inner = local()
    others = [node for i, node in enumerate(inner.get_node_ids()) if i != 2]
    grid = grid_of(local(Meddler(Stage.INPUTS, lambda data: accusing(data, others))))
    liar = list(grid.get_node_ids())[2]

    run(grid, StreamingFedAvg, rounds=2)

    traffic = grid.take_traffic()
    assert traffic.replies == N + N - 1
    assert {f.client for f in traffic.failures} == {str(liar)}
    assert "lied about shares" in traffic.failures[-1].reason


def test_a_new_run_begins_without_old_disputes() -> None:
    drop = Meddler(Stage.SHARES, garbage)
    grid = grid_of(local(drop))
    run(grid, StreamingFedAvg, rounds=2)
    drop.clients = ()

    check(run(grid, StreamingFedAvg, rounds=2), list(range(N)), rounds=2)
