"""FedAvg of sketches, with momentum and error feedback on the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord

from fedsz.arrays import NDArray
from fedsz.errors import ConfigError
from fedsz.flower.mean import Mean
from fedsz.flower.strategy import StreamingFedAvg
from fedsz.methods.compressed_sum import CompressedSums
from fedsz.methods.fetchsgd import SketchedFeedback
from fedsz.methods.settings import Count


class FetchSgd(StreamingFedAvg):
    """FetchSGD: clients send sketches and keep nothing, the server feeds back what it left out.

    Clients send ``update="sketch:rows=5,fixed=1"``. The server adds up the sketches of each tensor,
    and applies its k largest elements; see `fedsz.methods.fetchsgd.SketchedFeedback`. A tensor that
    comes otherwise is averaged as in `StreamingFedAvg`, whose arguments this takes, too.

    Args:
        k: elements that are applied in a round: a number, or a share of a tensor such as "1%".
        momentum: of the sums, 0 to below 1.

    Attributes:
        feedback: holds what was left out, in its ``state``.

    Raises:
        ConfigError: k or momentum is out of range.

    Examples:
        >>> from fedsz.flower import FedSZGrid, FetchSgd, LocalGrid, make_client_app
        >>> grid = FedSZGrid(LocalGrid(make_client_app(), [{}]), update="sketch:rows=5,fixed=1")
        >>> FetchSgd(k="1%", momentum=0.9).feedback.state
        {}
    """

    def __init__(
        self, *arguments: Any, k: str | int = "1%", momentum: float = 0.0, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        try:
            count = Count(str(k))
        except ConfigError as err:
            raise ConfigError(f"FetchSGD's k {err}") from None
        self.feedback = SketchedFeedback(count, momentum)

    def state(self) -> dict[str, NDArray]:
        """Return the arrays of ``feedback.state``, by kind and tensor: ``error/fc.weight``."""
        kept = self.feedback.state
        return {f"{kind}/{name}": x for name, both in kept.items() for kind, x in both.items()}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Go on from what `state` returned, also in another process."""
        self.feedback.state = {}
        for key, x in state.items():
            kind, _, name = key.partition("/")
            self.feedback.state.setdefault(name, {})[kind] = x

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Do as `StreamingFedAvg`; a method of its own, since Flower accounts for plain means."""
        return super().aggregate_train(server_round, replies)

    def _begin_mean(self) -> Mean:
        return _FedBackMean(self.feedback)


class _FedBackMean(Mean):
    """A mean in which sums of sketches are not decoded, but fed to the server's feedback."""

    def __init__(self, feedback: SketchedFeedback) -> None:
        super().__init__()
        self._feedback = feedback

    def _add_compressed(self, compressed: CompressedSums, sums: NDArray) -> None:
        for sketch, shared, total in compressed.take_sketches():
            self._feedback.step(total / self.weight, sketch, shared).add(sums, self.weight)
        super()._add_compressed(compressed, sums)
