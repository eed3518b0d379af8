"""Shamir's secret sharing: published vectors, and what makes it one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsz.privacy import keys as shamir

# RFC 9591, appendix E: secret, coefficient, shares at 1 to 3; of Ed25519 little-endian.
P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
ED25519 = 2**252 + 27742317777372353535851937790883648493
SECP256K1 = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
VECTORS = {
    "P-256": (
        P256,
        "big",
        "8ba9bba2e0fd8c4767154d35a0b7562244a4aaf6f36c8fb8735fa48b301bd8de",
        "80f25e6c0709353e46bfbe882a11bdbb1f8097e46340eb8673b7e14556e6c3a4",
        "0c9c1a0fe806c184add50bbdcac913dda73e482daf95dcb9f35dbb0d8a9f7731",
        "8d8e787bef0ff6c2f494ca45f4dad198c6bee01212d6c84067159c52e1863ad5",
        "0e80d6e8f6192c003b5488ce1eec8f5429587d48cf001541e713b2d53c09d928",
    ),
    "Ed25519": (
        ED25519,
        "little",
        "7b1c33d3f5291d85de664833beb1ad469f7fb6025a0ec78b3a790c6e13a98304",
        "178199860edd8c62f5212ee91eff1295d0d670ab4ed4506866bae57e7030b204",
        "929dcc590407aae7d388761cddb0c0db6f5627aea8e217f4a033f2ec83d93509",
        "a91e66e012e4364ac9aaa405fcafd370402d9859f7b6685c07eed76bf409e80d",
        "d3cb090a075eb154e82fdb4b3cb507f110040905468bb9c46da8bdea643a9a02",
    ),
    "secp256k1": (
        SECP256K1,
        "big",
        "0d004150d27c3bf2a42f312683d35fac7394b1e9e318249c1bfe7f0795a83114",
        "fbf85eadae3058ea14f19148bb72b45e4399c0b16028acaf0395c9b03c823579",
        "08f89ffe80ac94dcb920c26f3f46140bfc7f95b493f8310f5fc1ea2b01f4254c",
        "04f0feac2edcedc6ce1253b7fab8c86b856a797f44d83d82a385554e6e401984",
        "00e95d59dd0d46b0e303e500b62b7ccb0e555d49f5b849f5e748c071da8c0dbc",
    ),
}
secrets_of_32_bytes = st.integers(0, 2**256 - 1)


@pytest.mark.parametrize("group", VECTORS)
def test_published_vectors(group: str) -> None:
    prime, order, *texts = VECTORS[group]
    secret, slope, *shares = (int.from_bytes(bytes.fromhex(text), order) for text in texts)
    by_place = dict(enumerate(shares, 1))

    assert shamir.shares_of([secret, slope], by_place, prime) == by_place
    for missing in by_place:
        two = {place: share for place, share in by_place.items() if place != missing}
        assert shamir.combine(two, prime) == secret
    assert shamir.combine(by_place, prime) == secret


def test_the_field_is_the_smallest_that_holds_all_secrets() -> None:
    assert _is_prime(shamir.PRIME)
    assert not any(_is_prime(n) for n in range(2**256 + 1, shamir.PRIME, 2))
    assert shamir.PRIME < 1 << 8 * shamir.SHARE_BYTES


@given(secrets_of_32_bytes, st.integers(1, 12), st.integers(0, 6), st.randoms())
def test_any_shares_of_the_threshold_have_the_secret(
    secret: int, threshold: int, more: int, random: object
) -> None:
    places = random.sample(range(1, 200), threshold + more)  # type: ignore[attr-defined]
    shares = shamir.split(secret, places, threshold)
    chosen = random.sample(places, threshold)  # type: ignore[attr-defined]

    assert shamir.combine({place: shares[place] for place in chosen}) == secret


@given(secrets_of_32_bytes, secrets_of_32_bytes, st.integers(2, 8))
def test_fewer_shares_fit_any_secret(secret: int, other: int, threshold: int) -> None:
    shares = shamir.split(secret, range(1, threshold), threshold)
    places = {0: other, **shares}  # threshold points: there is a polynomial through all of them

    # The value at a place is that at 0 of the polynomial moved by it.
    value = shamir.combine({place - threshold: share for place, share in places.items()})
    completed = {**shares, threshold: value}

    assert shamir.combine(completed) == other


def _is_prime(n: int) -> bool:
    """By Miller and Rabin, to bases of which no composite below 2^300 is known to pass all."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in range(2, 60):
        power = pow(base, odd, n)
        if power in (1, n - 1):
            continue
        if not any((power := power * power % n) == n - 1 for _ in range(twos - 1)):
            return False
    return True
