"""`gate`: a client compresses where that is faster than sending the update as it is."""

from __future__ import annotations

import math

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from fedsz.control.gate import RAW, is_worth, transfer_seconds
from fedsz.control.record import Decision
from tests.policies import BASE, client, policy, row

bandwidths = st.floats(1.0, 1e12)
counts = st.integers(1, 1 << 40)
short = st.floats(0.0, 1e4)


@given(bandwidths, counts, counts, short, short)
def test_gate_is_the_inequality(
    bandwidth: float, raw: int, sent: int, encode: float, decode: float
) -> None:
    seen = client(
        bandwidth=bandwidth,
        raw_bytes=raw,
        sent_bytes=sent,
        encode_seconds=encode,
        decode_seconds=decode,
    )
    decided = policy("gate").decide([row(0), row(1, clients=[seen])])
    seconds, plain = encode + decode + 8 * sent / bandwidth, 8 * raw / bandwidth
    assume(not math.isclose(seconds, plain))

    assert ("1" not in decided.codecs) == (0 < seconds < plain)
    assert decided.codecs.get("1", RAW) == RAW
    assert is_worth(encode + decode, raw, sent, bandwidth) == (0 < seconds < plain)


@given(bandwidths, st.lists(st.tuples(counts, short), min_size=2, max_size=2))
def test_gate_takes_the_fastest_codec_once_it_has_tried_them(
    bandwidth: float, costs: list[tuple[int, float]]
) -> None:
    chosen, raw = policy("gate:codecs=uniform/szx"), 10**6
    assert chosen.decide([]).codecs == {}
    history = [
        row(0),
        row(
            1, clients=[client(bandwidth=bandwidth, raw_bytes=raw)], decision=Decision(config=BASE)
        ),
    ]
    for codec, (sent, encode) in zip(("uniform", "szx"), costs, strict=True):
        decision = chosen.decide(history)
        assert decision.codecs == {"1": codec}
        seen = client(
            bandwidth=bandwidth,
            raw_bytes=raw,
            sent_bytes=sent,
            encode_seconds=encode,
            decode_seconds=0.0,
        )
        history.append(row(len(history), clients=[seen], decision=decision))
    seconds = {
        codec: transfer_seconds(encode, sent, bandwidth)
        for codec, (sent, encode) in zip(("uniform", "szx"), costs, strict=True)
    } | {RAW: 8 * raw / bandwidth}
    least = sorted(seconds.values())
    assume(not math.isclose(least[0], least[1]))

    assert chosen.decide(history).codecs == {"1": min(seconds, key=lambda c: seconds[c])}


def test_gate_asks_again_and_remembers_the_speed_of_the_codec() -> None:
    chosen = policy("gate:again=3")
    slow = client(encode_seconds=100.0)
    plain = client(sent_bytes=10**6, encode_seconds=0.0, decode_seconds=0.0)
    history, compressed = [row(0)], []
    for number in range(1, 13):
        decision = chosen.decide(history)
        raw = decision.codecs.get("1") == RAW
        compressed.append(not raw)
        history.append(row(number, clients=[plain if raw else slow], decision=decision))

    assert compressed == [True, False, False, False] * 3
    crawling = msgspec.structs.replace(plain, bandwidth=1e4)  # now it pays, without being asked
    for number in (13, 14):
        history.append(row(number, clients=[crawling], decision=chosen.decide(history)))
    assert chosen.decide(history).codecs == {}


def test_gate_compresses_while_nothing_is_known() -> None:
    for unknown in (0.0, math.inf, math.nan):
        history = [row(0), row(1, clients=[client(bandwidth=unknown, encode_seconds=1e9)])]
        assert policy("gate").decide(history).codecs == {}
    empty = row(1, clients=[client(raw_bytes=0, sent_bytes=0)])
    assert policy("gate").decide([row(0), empty]).codecs == {}
    assert policy("gate").decide([row(0)]).codecs == {}


def test_gate_goes_by_the_median_of_the_last_three() -> None:
    rates = [1e9, 1e9, 1e3, 1e3, 1e9]  # the last three say 1e3
    history = [row(i, clients=[client(bandwidth=b)]) for i, b in enumerate(rates, 1)]

    assert policy("gate").decide([row(0), *history[:2]]).codecs == {"1": RAW}
    assert policy("gate").decide([row(0), *history]).codecs == {}
