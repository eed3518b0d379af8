"""Secure sums: the sum is right whoever drops out, and a server learns nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsz.errors import AbortedRound, ConfigError, CorruptStream
from fedsz.privacy import graph as graph_module
from fedsz.privacy.graph import Assumptions, neighbours, plan
from fedsz.privacy.identity import CertificateVerifier, Identity
from fedsz.privacy.messages import MaskedInput, decode
from fedsz.privacy.ring import Ring
from fedsz.privacy.server import SecureServer, Stage
from tests.privacy.secure_rounds import Round, changed

LOSSY = Assumptions(corrupt=0.1, dropout=0.25)
STAGES = [stage for stage in Stage if stage is not Stage.OVER]


@given(
    st.integers(2, 100),
    st.integers(1, 32),
    st.sampled_from([stage for stage in STAGES if stage is not Stage.CONSENTS]),
    st.integers(0, 1 << 32),
)
@settings(max_examples=15, deadline=None)
def test_the_sum_is_that_of_the_survivors(n: int, bits: int, drop: Stage, seed: int) -> None:
    gone, round_ = n // 5, Round(n, bits=bits, seed=seed)

    total = round_.until(Stage.OVER, {drop: gone}).server.total

    assert total is not None
    assert total.tokens.dtype == Ring(bits).dtype
    assert len(total.survivors) == n - gone * (drop is not Stage.REVEALED)
    np.testing.assert_array_equal(total.tokens, round_.plain_sum(total.survivors))


def test_one_client_is_no_round() -> None:
    with pytest.raises(AbortedRound):
        Round(1)
    with pytest.raises(AbortedRound):
        Round(4).step(drops=3)
    with pytest.raises(ConfigError):
        SecureServer(10, 33)


@pytest.mark.parametrize("stage", STAGES[1:])
def test_too_few_clients_end_the_round(stage: Stage, signed: Round) -> None:
    signed.until(stage)

    with pytest.raises(AbortedRound):
        signed.step(drops=len(signed.sent) // 2 + 1)
    with pytest.raises(AbortedRound):
        signed.server.advance()
    assert signed.server.total is None


def test_one_clients_message_says_nothing() -> None:
    """Its tokens are uniform in the ring, whatever was masked: by chi-square, 5 sigma."""
    round_ = Round(5, tokens=1 << 16, bits=5).until(Stage.INPUTS)
    client = next(iter(round_.sent))
    round_.tokens[client][:] = 3

    masked = decode(round_.answer(client, round_.sent[client]), MaskedInput)

    tokens = np.zeros(1 << 16, np.uint8)
    Ring(5).unpack_add(masked.tokens, tokens)
    counts = np.bincount(tokens, minlength=32)
    assert counts.size == 32
    chi_square = ((counts - 2048) ** 2 / 2048).sum()
    assert abs(chi_square - 31) < 5 * np.sqrt(2 * 31)


def test_masks_are_the_keystream_of_chacha20() -> None:
    """At whatever length, for each width, and as RFC 8439 has it."""
    seed, count = bytes(range(32)), 400_001
    stream = Cipher(ChaCha20(seed, bytes(16)), None).encryptor().update(bytes(4 * count))
    for bits, dtype in ((1, "u1"), (8, "u1"), (9, "<u2"), (16, "<u2"), (17, "<u4"), (32, "<u4")):
        ring = Ring(bits)
        tokens = np.zeros(count, ring.dtype)
        ring.add_mask(tokens, seed)
        ring.reduce(tokens)
        drawn = np.frombuffer(stream, dtype, count).astype(np.uint64) % (1 << bits)
        np.testing.assert_array_equal(tokens, drawn)
        ring.add_mask(tokens, seed, subtract=True)
        ring.reduce(tokens)
        assert not tokens.any()


# The graph.


@given(st.integers(2, 300), st.floats(0, 0.5), st.floats(0, 0.5), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_plan_keeps_its_bounds(n: int, corrupt: float, dropout: float, signed: bool) -> None:
    assumed = Assumptions(corrupt=corrupt, dropout=dropout, signed=signed)
    try:
        found = plan(n, assumed)
    except ConfigError:
        assert corrupt + dropout > 0.1
        return
    graph = {c: neighbours(range(n), c, found.degree) for c in range(n)}

    assert all(len(set(near)) == found.degree and c not in near for c, near in graph.items())
    assert all(c in graph[other] for c, near in graph.items() for other in near)
    assert 1 <= found.threshold <= found.degree
    assert found.least >= n - dropout * n - 1e-6
    if signed and n > 2:
        colluding = min(int(np.ceil(corrupt * n - 1e-9)), n - 2)
        near = min(colluding, found.degree) if found.degree == n - 1 else 0
        assert 2 * found.threshold > found.degree + near
        assert 2 * found.consents > n + colluding


def test_a_plans_probabilities_are_those_of_drawn_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """With bounds of a few bits, so that what must be rare is seen, and is not too rare."""
    monkeypatch.setattr(graph_module, "SECURITY", 4)
    monkeypatch.setattr(graph_module, "FAILURES", 4)
    n, assumed = 60, Assumptions(corrupt=0.1, dropout=0.2)
    found, rng = plan.__wrapped__(n, assumed), np.random.default_rng(3)
    leaks = cuts = failures = 0
    for _ in range(2000):
        order = rng.permutation(n).tolist()
        colluding, dropped = set(range(6)), set(range(6, 18))
        graph = {c: set(neighbours(order, c, found.degree)) for c in range(n)}
        near = (len(graph[c] & colluding) for c in range(6, n))
        leaks += any(2 * found.threshold <= found.degree + count for count in near)
        failures += any(len(graph[c] - dropped) < found.threshold for c in range(n))
        cuts += not _connected(graph, set(range(18, n)))

    assert max(leaks, failures, cuts) > 0
    assert max(leaks, failures, cuts) <= 2000 / 16


def _connected(graph: dict[int, set[int]], among: set[int]) -> bool:
    reached, ahead = set[int](), {min(among)}
    while ahead:
        reached |= ahead
        ahead = {other for c in ahead for other in graph[c] & among} - reached
    return reached == among


# Signed keys, and who restarts.


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, list[Identity]]:
    pytest.importorskip("grpc")
    from fedsz.transport.authority import Authority

    authority = Authority.create(Path(tmp_path_factory.mktemp("authority")))
    files = [authority.certify_client(f"client-{i}", 1) for i in range(10)]
    return authority, [identity_of(file, authority.ca) for file in files]


def identity_of(file: Path, ca: Path) -> Identity:
    return Identity(file.read_bytes(), file.with_suffix(".key").read_bytes(), ca.read_bytes())


@pytest.fixture
def signed(certified: tuple[object, list[Identity]]) -> Round:
    authority, signers = certified
    verifier = CertificateVerifier(authority.ca.read_bytes())  # type: ignore[attr-defined]
    return Round(10, assumed=Assumptions(signed=True), verifier=verifier, identities=signers)


@pytest.mark.parametrize("stage", STAGES[1:])
@pytest.mark.parametrize("kind", ["plain", "signed"])
def test_a_client_that_restarts_in_a_round_drops_out_of_it_and_is_no_suspect(
    kind: str, stage: Stage, request: pytest.FixtureRequest
) -> None:
    """Its secrets are gone, and so are the shares that it held of others."""
    round_: Round = request.getfixturevalue("signed") if kind == "signed" else Round(20)
    stage = Stage.REVEALED if kind == "plain" and stage is Stage.CONSENTS else stage
    round_.until(stage)
    restarted = min(round_.sent)
    round_.clients[restarted].restored(b"")

    total = round_.until(Stage.OVER).server.total

    assert restarted in round_.refusals
    assert not round_.server.suspects
    assert total is not None
    assert (restarted in total.survivors) == (stage in (Stage.CONSENTS, Stage.REVEALED))
    np.testing.assert_array_equal(total.tokens, round_.plain_sum(total.survivors))


def test_signatures_are_of_the_plan_too(signed: Round) -> None:
    """The server tells one client of another plan: it neither consents nor reveals."""
    signed.until(Stage.INPUTS)
    victim = min(signed.sent)
    mine = signed.clients[victim]
    answer = mine.mask(signed.sent[victim], signed.tokens[victim], b"p" * 32)
    signed.server.receive(victim, changed(answer, MaskedInput, about=bytes(32)))
    told = signed.sent
    signed.sent = {client: data for client, data in told.items() if client != victim}
    signed.step()
    signed.step()

    assert "has not signed this" in str(signed.refusals.pop(victim))
    with pytest.raises(CorruptStream, match="has not signed this"):
        mine.answer(next(iter(signed.sent.values())))


def test_a_certificate_is_for_one_client(
    certified: tuple[object, list[Identity]],
) -> None:
    authority, signers = certified
    verifier = CertificateVerifier(authority.ca.read_bytes())  # type: ignore[attr-defined]
    twice = [*signers[:9], signers[0]]
    round_ = Round(10, assumed=Assumptions(signed=True), verifier=verifier, identities=twice)

    round_.step()

    assert len(round_.refusals) == 1
    assert "repeats" in str(*round_.refusals.values())


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (b"\x55\x1d\x11", b"\x55\x1d\x25"),  # one extension twice
        (b"\x55\x1d\x25\x04", b"\x55\x1d\x25\x05"),
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x09"),  # version 10
        (b"\x2a\x86\x48\xce\x3d\x04\x03\x02", b"\x2a\x86\x48\xce\x3d\x04\x03\x09"),
        (b"\x2a\x86\x48\xce\x3d\x03\x01\x07", b"\x2a\x86\x48\xce\x3d\x03\x01\x7f"),
        (b"client-0", b"client\xff0"),
    ],
)
def test_a_certificate_that_cannot_be_read_is_refused(
    tmp_path: Path, part: bytes, other: bytes
) -> None:
    from tests.certificates import Authority

    authority = Authority(tmp_path, "keys")
    file, key = authority.issue("client-0", uris=("urn:fedsz:client-0",), purpose="client")
    ca = authority.ca.read_bytes()
    shown = Identity(file.read_bytes(), key.read_bytes(), ca).certificate
    assert part in shown

    with pytest.raises(CorruptStream):
        CertificateVerifier(ca).check(shown.replace(part, other), b"said", b"signature")


def test_only_certificates_of_clients_count(
    certified: tuple[object, list[Identity]], tmp_path: Path
) -> None:
    from fedsz.transport.authority import Authority

    authority, signers = certified
    ours: Authority = authority  # type: ignore[assignment]
    servers = ours.certify_server(["127.0.0.1"], 1)
    strangers = Authority.create(tmp_path / "other").certify_client("client-0", 1)
    verifier = CertificateVerifier(ours.ca.read_bytes())
    for file, why in ((servers, "not a client's"), (strangers, "no authority")):
        signer = identity_of(file, ours.ca)
        with pytest.raises(CorruptStream, match=why):
            verifier.check(signer.certificate, b"said", signer.sign(b"said"))
    with pytest.raises(CorruptStream, match="has not signed"):
        verifier.check(signers[0].certificate, b"said", signers[1].sign(b"said"))
    assert "client-0" in verifier.check(signers[0].certificate, b"said", signers[0].sign(b"said"))
    with pytest.raises(CorruptStream, match="cannot be read"):
        verifier.check(b"\x30\x00", b"said", b"")

    shown = x509.load_der_x509_certificate(signers[0].certificate)
    revoking = CertificateVerifier(ours.ca.read_bytes(), [shown.serial_number])
    with pytest.raises(CorruptStream, match="revoked"):
        revoking.check(signers[0].certificate, b"said", signers[0].sign(b"said"))
