"""What `fedsz.privacy` does for the mod and the Grid, which know it by these protocols alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from flwr.app import ConfigRecord, Message
from flwr.clientapp.typing import ClientAppCallable

from fedsz.core.client import ClientSession
from fedsz.flower.round_statistics import RoundStatistics
from fedsz.flower.store import Records, RecordStore

if TYPE_CHECKING:
    from fedsz.flower.grid import FedSZGrid  # which is given a `SumMaker`


class ClientGuard(Protocol):
    """What a client asks of secure sums and of noise; see `fedsz.flower.SecureMember`."""

    def request_in(self, message: Message) -> ConfigRecord | None:
        """Return what a message says of a secure sum, if it is of one."""

    def answer(self, request: ConfigRecord, message: Message, records: Records) -> Message:
        """Return the answer to a message of a secure sum without a model."""

    def guarded(
        self, message: Message, call_next: ClientAppCallable, records: Records
    ) -> ClientAppCallable:
        """Return the app for one message: within the limit of rounds, and with noise if asked."""

    def masking(
        self,
        request: ConfigRecord,
        message: Message,
        store: RecordStore,
        session: ClientSession,
    ) -> Callable[[Message], None]:
        """Return what puts masked tokens into the place of a reply's arrays and weight.

        Refuses before training what could not be masked after it.
        """


class Sums(Protocol):
    """The secure sums of a run."""

    def takes(self, pushed: Sequence[Message]) -> bool:
        """Say whether messages are of a round that is summed up."""

    def replies(self, pushed: Sequence[Message], timeout: float | None) -> list[Message]:
        """Return a reply for each of a round's messages: the mean, or an error."""

    def state(self) -> dict[str, ConfigRecord]:
        """Return what another process goes on with."""

    def restore(self, records: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""


class SumMaker(Protocol):
    """Makes the secure sums of a run; see `fedsz.flower.SecureSum`."""

    def of_run(self, grid: FedSZGrid, statistics: RoundStatistics, weighted_by: str) -> Sums:
        """Return those of one run of a Grid."""
