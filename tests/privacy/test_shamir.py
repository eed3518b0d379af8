"""Shamir's secret sharing: a published vector, and what makes it one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedsz.privacy import keys as shamir

# RFC 9591, appendix E: secret, coefficient, shares at 1 to 3; of P-256.
P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
SECRET, SLOPE, *SHARES = (
    0x8BA9BBA2E0FD8C4767154D35A0B7562244A4AAF6F36C8FB8735FA48B301BD8DE,
    0x80F25E6C0709353E46BFBE882A11BDBB1F8097E46340EB8673B7E14556E6C3A4,
    0x0C9C1A0FE806C184ADD50BBDCAC913DDA73E482DAF95DCB9F35DBB0D8A9F7731,
    0x8D8E787BEF0FF6C2F494CA45F4DAD198C6BEE01212D6C84067159C52E1863AD5,
    0x0E80D6E8F6192C003B5488CE1EEC8F5429587D48CF001541E713B2D53C09D928,
)
secrets_of_32_bytes = st.integers(0, 2**256 - 1)


def test_a_published_vector() -> None:
    by_place = dict(enumerate(SHARES, 1))

    assert shamir.shares_of([SECRET, SLOPE], by_place, P256) == by_place
    for missing in by_place:
        two = {place: share for place, share in by_place.items() if place != missing}
        assert shamir.combine(two, P256) == SECRET
    assert shamir.combine(by_place, P256) == SECRET


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
