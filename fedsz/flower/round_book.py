"""What a Grid counts of its rounds, and how the next one is to be sent, by what was counted."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid

from fedsz.control.policy import Controller
from fedsz.control.record import Decision, RoundRecord, Traffic
from fedsz.control.tally import EvaluationMetrics
from fedsz.flower.admission import Admitted
from fedsz.flower.refusal import Refusal
from fedsz.flower.round_log import RoundLog
from fedsz.flower.traffic import TrafficCounter
from fedsz.flower_compat import records_in

METRICS: Final = "accuracy", "loss"
LISTED: Final = 10_000  # updates and failures of many rounds; nobody may ever take them

logger = logging.getLogger(__name__)


class RoundBook:
    """Counts what crosses a Grid, makes the record of each round, and has the next one decided.

    Args:
        grid: that carries the messages.
        controller: decides how each round is sent.
        on_round: called with the record of each round; what it raises is logged.
        tells: whether rounds are logged, and traffic is taken apart from rounds. A server that ends
            its rounds itself does neither: what nobody takes would grow for weeks.

    Attributes:
        decision: how messages are sent now.
        ended: whether the last round has ended, and none has begun.
        measured: accuracy and loss of the model that goes out next, where an app has told them.
    """

    def __init__(
        self,
        grid: Grid,
        controller: Controller,
        *,
        tells: bool,
        on_round: Callable[[RoundRecord], None] | None = None,
    ) -> None:
        self._on_round = on_round
        self.measured: tuple[float | None, float | None] = None, None
        self._evaluated = EvaluationMetrics()
        self._of_round = TrafficCounter(grid)
        self._taken = TrafficCounter(grid, LISTED) if tells else self._of_round
        self._told = TrafficCounter(grid, LISTED) if tells else self._of_round
        self._counters = {self._of_round, self._taken, self._told}
        self._log = RoundLog(controller.base) if tells else None
        self._untold = False  # whether a model has crossed, and not been told of
        self.begin_run(controller)

    def begin_run(self, controller: Controller) -> None:
        """Count the rounds of a new run, after the last one of the run before has ended."""
        self.controller, self.decision = controller, Decision(config=controller.base)
        self.ended = self._trained = False
        self._last = time.monotonic()
        if controller.decision is not None:
            self.steer(controller.decision)

    @property
    def is_over(self) -> bool:
        """Whether a training message that goes out now ends a round that nobody else has ended.

        Some protocols train in several exchanges, of which one has the model: SecAgg+ in four.
        """
        goes_on = self.controller.next_round and not self._trained
        return not self.ended and not goes_on

    def steer(self, decision: Decision) -> None:
        """Send otherwise from now on; raises `CodecUnavailable` for a codec that is not here."""
        if decision == self.decision:
            return
        for codec in (decision.config.codec, *decision.codecs.values()):
            decision.config.replace(codec=codec).require()
        self.decision = decision

    def end(self, measured: Mapping[str, Any]) -> RoundRecord:
        """Return the record of the round that is over, and decide how the next one is sent."""
        now = time.monotonic()
        for counter in self._counters:
            counter.settle()
        evaluated = self._evaluated.take() if self.measured == (None, None) else self.measured
        told = dict(zip(METRICS, evaluated, strict=True)) | dict(measured)
        odd = [name for name in METRICS if not math.isfinite(told[name] or 0.0)]
        record = RoundRecord(
            **msgspec.structs.asdict(self._of_round.take()),
            round=self.controller.next_round,
            seconds=now - self._last,
            decision=self.controller.decision,
            diverged=bool(odd),
            **(told | dict.fromkeys(odd)),  # as its line of JSON has it
        )
        self._last, self.measured, self.ended = now, (None, None), True
        self._trained = False
        self.steer(self.controller.decide(record))
        self._tell_record(record)
        return record

    def _tell_record(self, record: RoundRecord) -> None:
        try:
            if self._on_round is not None:
                self._on_round(record)
        except Exception:
            logger.exception("on_round failed on round %d", record.round)

    def take_traffic(self) -> Traffic:
        """Return what was counted since the last call, or since the start; see `LISTED`."""
        return self._taken.take()

    def tell(self) -> None:
        """Log the training that is over, if any was."""
        if self._untold and self._log is not None:
            self._untold = False
            self._log.tell(self.controller.next_round, self._told.take(), self.decision)

    def sent(self, raw_bytes: int, sent_bytes: int) -> None:
        """Count a message's arrays, before and after compression."""
        for counter in self._counters:
            counter.sent(raw_bytes, sent_bytes)

    def received(self, reply: Admitted) -> None:
        """Count a reply that has passed admission."""
        for counter in self._counters:
            counter.received(reply)
        if reply.trains:
            self.note_training()

    def failed(self, node: int, reason: str, kind: Refusal) -> None:
        """Count a message that got no usable reply."""
        for counter in self._counters:
            counter.failed(node, reason, kind)

    def evaluated(self, reply: Message) -> None:
        """Take what a reply to an evaluate message says of the model."""
        metrics: dict[str, Any] = {}
        for record in records_in(reply.content, MetricRecord).values():
            metrics |= dict(record)
        self._evaluated.add(metrics)

    def note_training(self) -> None:
        """Note that a model has crossed, to be trained or back."""
        self._trained = self._untold = True
