"""`dc2`: updates of a size that fills the time given to uploads."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedsz.control.dc2 import Dc2, UploadTimes
from fedsz.control.record import RoundRecord
from tests.policies import client, factor_of, policy, row


def timed(number: int, upload: float, rho: float, **fields: Any) -> RoundRecord:
    """Make a round whose slowest upload took so long, with a faster one beside it."""
    sent = round(rho * 10**6)
    slow = client("1", sent_bytes=sent, bandwidth=8 * sent / upload)
    fast = client("2", sent_bytes=sent, bandwidth=16 * sent / upload)
    return row(number, sent_up=sent, clients=[slow, fast], **fields)


def test_controllers_are_as_written() -> None:
    rho, target = 0.2, 10.0
    for rule, (*before, now), asked in (
        ("mean", [8.0, 12.0], rho - 0.02 * (12 - 10) / 10),
        ("mean", [12.0, 8.0], rho + 0.02 * (10 - 8) / 10),
        ("aimd", [10.1], rho / 2),
        ("aimd", [10.0], rho + 0.01),
        ("aiad", [10.1], rho - 0.02),
        ("aiad", [9.0], rho + 0.01),
        ("trend", [8.0, 12.0], rho - 0.02 * (12 - 8) / 10),
        ("trend", [12.0], rho),
        ("band", [8.0, 12.0], rho - 0.02 * (12 - 8) / 10),
        ("band", [8.0, 13.0], rho / 2),
        ("band", [12.0, 7.0], rho + 0.01),
    ):
        times = UploadTimes(now, before[-1] if before else now, fmean([*before, now]))
        assert Dc2(rule=rule).step(rho, times, target) == pytest.approx(asked)


@given(
    st.sampled_from(["aimd", "aiad"]), st.floats(0.1, 1e3), st.floats(0.1, 1e3), st.floats(0.01, 1)
)
def test_uploads_that_are_late_are_made_smaller(
    rule: str, upload: float, target: float, rho: float
) -> None:
    assume(not math.isclose(upload, target))
    chosen = policy(f"dc2:rule={rule},seconds={target!r},low=1e-9,high=1e12")
    factor = factor_of(chosen.decide([row(0), timed(1, upload, rho)])) / 3
    times = UploadTimes(upload, upload, upload)
    asked = min(Dc2(rule=rule).step(round(rho * 1e6) / 1e6, times, target), 1.0)
    sent = max(asked, 0.001)

    assert factor == pytest.approx(2 ** (32 * (round(rho * 1e6) / 1e6 - sent)), rel=1e-4)
    assert (factor > 1) == (upload > target) or rho == 1 or sent == 0.001


@pytest.mark.parametrize("rule", ["aimd", "aiad", "band"])
def test_it_finds_the_bound_that_fills_the_time(rule: str) -> None:
    """On a link of 1 Mbit/s with updates of 10 MB whose rate falls by a bit per doubled bound."""
    chosen = policy(f"dc2:rule={rule},seconds=4,low=1e-3,high=1e3")
    history, uploads = [row(0)], []
    for number in range(1, 40):
        bound = factor_of(chosen.decide(history))
        rho = min(max((4.0 - math.log2(bound)) / 32, 0.002), 1.0)
        sent = round(rho * 1e7)
        uploads.append(8 * sent / 1e6)
        seen = client(sent_bytes=sent, raw_bytes=10**7)
        history.append(row(number, raw_up=10**7, sent_up=sent, clients=[seen]))

    assert 2.0 < np.mean(uploads[20:]) < 4.8


def test_a_share_of_the_round_and_links_that_are_not_timed() -> None:
    late = timed(1, 20.0, 0.2, seconds=60.0)  # more than a quarter of a minute
    assert factor_of(policy("dc2").decide([row(0), late])) > 3
    assert factor_of(policy("dc2:share=0.5").decide([row(0), late])) < 3
    silent = row(1, clients=[client(bandwidth=0.0), client(sent_bytes=0)])
    assert policy("dc2").decide([row(0), silent]).config.error_bound == "std:3"
