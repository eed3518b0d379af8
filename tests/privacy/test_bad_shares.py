"""Shares that are garbage: a round that they spoil does not count, and three end the run."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedsz.errors import AbortedRound, TooFewReplies
from fedsz.flower import StreamingFedAvg
from fedsz.flower.records import SECURE
from fedsz.privacy import keys
from fedsz.privacy.flower_client import ANSWER
from fedsz.privacy.messages import MaskedInput, Revealed, SealedShares, decode
from fedsz.privacy.server import Stage
from tests.privacy.secure_apps import DropOut, asked
from tests.privacy.secure_rounds import Round, changed
from tests.privacy.test_secure_sum import check, grid_of, local, run

N = 5


def garbage(data: bytes, count: int | None = None) -> bytes:
    """Return shares of which the first few, or all, are not sealed for anybody."""
    sealed = decode(data, SealedShares).shares
    spoilt = {other: secrets.token_bytes(len(share)) for other, share in sealed.items()}
    return changed(data, SealedShares, shares=sealed | dict(list(spoilt.items())[:count]))


def swapped(data: bytes) -> bytes:
    """Return shares each of which is sealed for another neighbour."""
    sealed = decode(data, SealedShares).shares
    others = [*sealed][1:] + [*sealed][:1]
    return changed(data, SealedShares, shares=dict(zip(others, sealed.values(), strict=True)))


def accusing(data: bytes, others: list[int]) -> bytes:
    """Return an answer whose sender says that nobody's share has opened."""
    return changed(data, MaskedInput, unopened=tuple(others), tokens=memoryview(b""))


def suspects(round_: Round) -> set[int]:
    """Return who had a part in most shares that are garbage."""
    counts = round_.server.suspects
    return {client for client, count in counts.items() if count == max(counts.values())}


@pytest.mark.parametrize("spoil", [garbage, swapped])
@pytest.mark.parametrize("n", [N, 40])
def test_shares_that_do_not_open(n: int, spoil: Callable[[bytes], bytes]) -> None:
    round_ = Round(n).until(Stage.SHARES)
    liar = min(round_.sent)
    round_.step(meddle=lambda _, c, data: spoil(data) if c == liar else data)

    with pytest.raises(AbortedRound, match="clients have sent their tokens; the round needs"):
        round_.until(Stage.OVER)

    assert suspects(round_) == {liar}


@pytest.mark.parametrize("n", [N, 40])
def test_whom_one_share_does_not_open_drops_out(n: int) -> None:
    round_ = Round(n).until(Stage.SHARES)
    liar = min(round_.sent)
    round_.step(meddle=lambda _, c, data: garbage(data, 1) if c == liar else data)

    total = round_.until(Stage.OVER).server.total

    assert total is not None
    assert len(total.survivors) == n - 1
    np.testing.assert_array_equal(total.tokens, round_.plain_sum(total.survivors))
    assert liar in suspects(round_)


@pytest.mark.parametrize("n", [N, 40])
def test_shares_that_open_and_are_of_nothing(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_nothing(secret: int, places: list[int], threshold: int) -> dict[int, int]:
        return {place: secrets.randbelow(keys.PRIME) for place in places}

    round_ = Round(n).until(Stage.SHARES)
    liar = min(round_.sent)
    with monkeypatch.context() as patched:
        patched.setattr(keys, "split", of_nothing)
        round_.server.receive(liar, round_.answer(liar, round_.sent.pop(liar)))
    round_.step()

    with pytest.raises(AbortedRound, match="a secret cannot be recovered, of 1 clients"):
        round_.until(Stage.OVER)

    assert liar in suspects(round_)


@pytest.mark.parametrize("n", [N, 40])
def test_who_accuses_everybody_drops_out(n: int) -> None:
    round_ = Round(n).until(Stage.INPUTS)
    liar = min(round_.sent)
    others = round_.server.members.neighbours(liar)
    round_.step(meddle=lambda _, c, data: accusing(data, others) if c == liar else data)

    total = round_.until(Stage.OVER).server.total

    assert total is not None
    np.testing.assert_array_equal(total.tokens, round_.plain_sum(total.survivors))
    assert suspects(round_) == {liar}


def test_a_share_that_is_revealed_and_wrong_ends_the_round() -> None:
    round_ = Round(N).until(Stage.REVEALED)
    liar, victim, *_ = sorted(round_.sent)

    def lie(_: Stage, client: int, data: bytes) -> bytes:
        own = decode(data, Revealed).own
        wrong = secrets.token_bytes(keys.SHARE_BYTES - 1) + b"\0"
        return changed(data, Revealed, own=own | {victim: wrong}) if client == liar else data

    with pytest.raises(AbortedRound, match="a secret cannot be recovered, of 1 clients"):
        round_.step(meddle=lie)

    assert {liar, victim} <= suspects(round_)


# Through Flower.


class Meddler(DropOut):
    """A client whose answers to a kind of message are changed."""

    def __init__(self, kind: str, change: Callable[[bytes], bytes]) -> None:
        super().__init__(kind, (2,))
        self._change = change

    def __call__(self, message: Any, context: Any, call_next: Any) -> Any:
        kind, _ = asked(message)
        reply = call_next(message, context)
        if kind == self.stage and context.node_config["i"] in self.clients:
            record: Any = reply.content[SECURE]
            record[ANSWER] = self._change(record[ANSWER])
        return reply


def test_three_rounds_with_a_bad_client_end_the_run_with_its_name() -> None:
    grid = grid_of(local(Meddler("Roster", garbage)))
    liar = list(grid.get_node_ids())[2]

    with pytest.raises(
        TooFewReplies, match=f"spoilt 3 secure sums in a row; most of them: node {liar}$"
    ):
        run(grid, StreamingFedAvg, rounds=4)


def test_a_round_that_counts_begins_the_count_anew() -> None:
    drop = Meddler("Roster", garbage)
    grid = grid_of(local(drop))
    with pytest.raises(TooFewReplies):
        run(grid, StreamingFedAvg, rounds=3)
    drop.clients = ()

    check(run(grid, StreamingFedAvg, rounds=2), list(range(N)), rounds=2)
