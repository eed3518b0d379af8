"""What a server says of the secure sums that it is to make."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedsz.secagg.graph import Assumptions
from fedsz.secagg.identity import Verifier


@dataclass(frozen=True)
class SecureSum:
    """How a `FedSZGrid` adds up updates that it cannot read.

    Attributes:
        bits: of the ring, and so of each parameter on the uplink.
        assumed: what a round withstands: who colludes, who drops out, whether keys are signed.
        verifier: checks signatures, if keys are signed.
        share: of the parameters that each round sends, in turn; clients feed the others back.
        most_examples: from which on a client weighs no more, in the first round. Later it is twice
            the mean weight of the round before.
        stage_timeout: seconds that clients have for a message without a model.

    Examples:
        >>> from fedsz.flower import FedSZGrid, LocalGrid, SecureSum, make_client_app
        >>> nodes = [{"partition-id": i, "num-partitions": 8} for i in range(8)]
        >>> grid = FedSZGrid(LocalGrid(make_client_app(), nodes), secure=SecureSum(bits=16))
    """

    bits: int = 16
    assumed: Assumptions = field(default_factory=Assumptions)
    verifier: Verifier | None = None
    share: float = 1.0
    most_examples: int = 1024
    stage_timeout: float = 300.0
