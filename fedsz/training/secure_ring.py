"""The secure sums of a run, and whether their ring has room, before anybody trains."""

from __future__ import annotations

from collections.abc import Mapping

from fedsz.arrays import NDArray
from fedsz.errors import ConfigError
from fedsz.privacy.budget import ClippingNorm, NoiseAt, PrivacyPlan
from fedsz.privacy.flower_server import SecureSum
from fedsz.privacy.graph import Assumptions, plan
from fedsz.privacy.identity import CertificateVerifier
from fedsz.privacy.quantizer import Learned
from fedsz.privacy.ring_noise import NoisedCodec, NoisedPlan
from fedsz.training.options import RunConfig
from fedsz.transport.credentials import revoked_serials
from fedsz.whole_files import read_bytes


def secure_of(config: RunConfig) -> SecureSum | None:
    """Return how updates are summed that the server must not see; None if it may.

    Keys are signed if clients need certificates.

    Raises:
        ConfigError: bits are not 2 to 32, or a file is not what it should be.
    """
    if not config.secure_sum:
        return None
    if not config.tls_ca or config.insecure:
        return SecureSum(config.secure_sum)
    revoked = revoked_serials(config.client_file) if config.client_file else ()
    verifier = CertificateVerifier(read_bytes(config.tls_ca), revoked)
    return SecureSum(config.secure_sum, Assumptions(signed=True), verifier)


def require_room(
    secure: SecureSum, privacy: PrivacyPlan | None, model: Mapping[str, NDArray], clients: int
) -> None:
    """Raise `ConfigError` unless a round of so many clients fits the ring.

    Args:
        secure: of the run's sums.
        privacy: what the run may spend, if anything; noise in the sum takes room.
        model: its arrays by name.
        clients: that take part in a round. If no secure sum is of so many, nothing is said: others
            may join.
    """
    try:
        members = plan(clients, secure.assumed)
    except ConfigError:
        return
    ordered = dict(sorted(model.items()))
    if privacy is None or privacy.at != NoiseAt.SUM:
        Learned(1).codec(ordered, clients, secure.bits)
    else:
        norm = ClippingNorm(privacy.clip).norm
        NoisedCodec(NoisedPlan(secure.bits, norm, privacy.multiplier), ordered, members)
