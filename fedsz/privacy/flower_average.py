"""FedAvg under differential privacy: clipped updates, noise, and what the rounds have spent."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedsz.arrays import NDArray
from fedsz.errors import ConfigError
from fedsz.flower.mean import Mean
from fedsz.flower.records import to_record, views_of
from fedsz.flower.refusal import refusing_failures
from fedsz.flower.strategy import Averaged, Evaluate, StreamingFedAvg
from fedsz.flower.update import SealedRecord, Update
from fedsz.flower_compat import KEY_CLIPPING_NORM
from fedsz.privacy.budget import NoiseAt, PrivacyPlan
from fedsz.privacy.flower_client import LocalNoise
from fedsz.privacy.noise import (
    add_floats,
    add_noise,
    deviation_of,
    floats_in,
    moved_floats,
    random_bytes,
)

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.1  # between looks for clients
_SPENT: Final = "privacy/spent"  # array of the state


class PrivateFedAvg(StreamingFedAvg):
    """FedAvg under differential privacy of clients.

    Each update is clipped once it is decoded, which is the last thing before the noise, and all
    count alike, whatever examples they are of. Noise is added once to the sum, and that is divided
    by the number of clients that were expected: how many have replied is not told. A round without
    a reply has noise all the same. Or clients add it (`NoiseAt.CLIENT`), by
    `fedsz.flower.FedSZMod`: that hides what an update says, not that it came. Or each of them adds
    a share to a secure sum (`NoiseAt.SUM`), of a `FedSZGrid` that has ``secure``. Whole numbers and
    bools do not train: they stay as they are. What is clipped is lost: only clients that add all of
    the noise may feed back, and only what compression then leaves out.

    A round is spent once it begins, even if it does not count. The run ends before the
    round that would spend more than the budget. Sampling is Poisson's: each client is drawn
    independently of all others, by the system's secure generator, so a round can ask nobody.

    All other arguments are those of `StreamingFedAvg`.

    Args:
        plan: what may be spent, and how; or give its fields by name: ``epsilon=8, rounds=100``.

    Attributes:
        plan: as given.
        releases: how many rounds are spent.
        ended: why the run ends before all rounds that were asked for; "" if it does not.
        on_release: told what `state` returns before clients are asked that add the noise: what they
            reply is released, even if the round never ends.

    Raises:
        ConfigError: as `PrivacyPlan`; ``fraction_train`` is given, for which there is ``sampling``;
            or ``min_replies`` is above 1 and the noise the server's: whether so many have replied
            would tell of each of them.
        MissingPackage: dp-accounting is not installed.

    Examples:
        >>> from fedsz.flower import PrivateFedAvg
        >>> strategy = PrivateFedAvg(epsilon=8, delta=1e-5, rounds=100, clip=1.0)
        >>> round(strategy.plan.multiplier, 2)
        6.0
    """

    def __init__(self, *arguments: Any, plan: PrivacyPlan | None = None, **named: Any) -> None:
        fields = PrivacyPlan.__dataclass_fields__
        own = {name: named.pop(name) for name in list(named) if name in fields}
        if arguments or "fraction_train" in named:
            raise ConfigError("PrivateFedAvg draws clients by sampling=, not by fraction_train")
        if plan is not None and own:
            raise ConfigError(f"give plan=, or its fields: both have {', '.join(own)}")
        super().__init__(**named)
        self.plan = plan or PrivacyPlan(**own)
        self._noises = self.plan.at == NoiseAt.SERVER
        if self._noises and self.quorum.min_replies > 1:
            raise ConfigError("min_replies cannot be above 1 where the server adds the noise")
        self.releases = 0
        self.ended = ""
        self.on_release: Callable[[Mapping[str, NDArray]], None] | None = None
        self._number = self._last = 0  # of this round, and of that after which it ends
        self._expected = 0.0  # clients of the round
        self._sent: Mapping[str, NDArray] = {}
        if self.plan.seed is not None:
            logger.warning("the noise is drawn from a seed, for tests: it hides nothing")

    @property
    def epsilon(self) -> float:
        """What has been spent, at the plan's delta."""
        return self.plan.spent(self.releases)

    def state(self) -> dict[str, NDArray]:
        """Return what was spent."""
        spent = self.plan.multiplier, self.plan.sampling, self.releases
        return {_SPENT: np.array(spent, np.float64)}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Go on with what was spent.

        Raises:
            ConfigError: that is not there, or was spent with another noise or sampling.
        """
        if _SPENT not in state:
            raise ConfigError(
                "what the run has spent is not known: it did not begin under a budget"
            )
        multiplier, sampling, spent = state[_SPENT].tolist()
        if (multiplier, sampling) != (self.plan.multiplier, self.plan.sampling):
            began = f"it began with noise of {multiplier:g} and sampling of {sampling:g}"
            raise ConfigError(f"a run goes on with the plan that it began with: {began}")
        self.releases = int(spent)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Run the rounds that the budget has; see Flower's `Strategy`.

        Raises:
            ConfigError: the budget is spent; or the noise is that of secure sums, and the Grid
                makes none, or the other way around.
            TooFewReplies: three rounds in a row did not count.
        """
        plan = self.plan
        is_secure = getattr(grid, "is_secure", False)
        if plan.at == NoiseAt.SUM and not is_secure:
            raise ConfigError("noise in the sum needs FedSZGrid(grid, secure=SecureSum())")
        if plan.at == NoiseAt.CLIENT and is_secure:
            raise ConfigError("a secure sum has its noise in the sum: give at='sum'")
        rounds = plan.rounds_left(self.releases, num_rounds)
        if num_rounds and not rounds:
            spent = f"epsilon {self.epsilon:.4g} of {plan.epsilon:g} at delta {plan.delta:g}"
            raise ConfigError(f"the privacy budget has no round left: {spent} is spent")
        self._last, self.ended = self.done + rounds, ""
        if rounds < num_rounds:
            self.ended = f"the privacy budget of epsilon {plan.epsilon:g} has no further round"
            logger.info("fedsz: %d of %d rounds: %s", rounds, num_rounds, self.ended)
        logger.info("fedsz: %s", plan)
        return super().start(
            grid, initial_arrays, rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def ends_after(self, number: int) -> str:
        """Return why the run ends after a round that is not its last; "" if it does not."""
        return self.ended if number == self._last else ""

    def _messages(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if not self._starts:
            raise ConfigError(
                "PrivateFedAvg runs its rounds itself, and not inside another strategy"
            )
        while len(nodes := list(grid.get_node_ids())) < max(1, self.min_available_nodes):
            time.sleep(POLL_SECONDS)
        self._number = number
        self.releases += 1
        self._sent = views_of(arrays)
        self._expected = self.plan.sampling * len(nodes)
        if self._noises:
            config[KEY_CLIPPING_NORM] = self.plan.clip
        else:
            LocalNoise(self.plan.clip, self.plan.multiplier).write(config)
            if self.on_release is not None:
                self.on_release(self.state())
        config["server-round"] = number
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return self._construct_messages(content, self._drawn(nodes, number), MessageType.TRAIN)

    def _drawn(self, nodes: list[int], number: int) -> list[int]:
        """Return who takes part: each with the same probability, independently."""
        if self.plan.sampling == 1:
            return nodes
        random = random_bytes(self.plan.seed, 2 * number)
        draws = np.frombuffer(random(8 * len(nodes)), np.uint64)
        taken = draws < self.plan.sampling * 2.0**64
        return [node for node, takes_part in zip(sorted(nodes), taken, strict=True) if takes_part]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Averaged:
        """Do as `StreamingFedAvg`, and say what is spent."""
        self._asks |= self._noises
        averaged = super().aggregate_train(server_round, replies)
        plan, self._sent = self.plan, {}
        spent = f"epsilon {self.epsilon:.4g} of {plan.epsilon:g} at delta {plan.delta:g}"
        logger.info("round %d: %s is spent", self._number, spent)
        return averaged

    def _reached(self, replies: int) -> bool:
        # A model that stays as it is would tell that nobody was there.
        return super()._reached(max(replies, 1) if self._noises else replies)

    def _begin_mean(self) -> Mean:
        return _StepSum(self._sent)

    def _add_record(self, mean: Mean, record: ArrayRecord, node: int, weight: float) -> None:  # noqa: ARG002 - all alike
        assert isinstance(mean, _StepSum)
        norm = self.plan.clip if self._noises else math.inf  # which clients keep to
        with refusing_failures():
            if isinstance(record, SealedRecord):  # by no rules if it is clipped here: they
                update = record.received  # depend on what others send
            else:
                update = Update.open(record, model=self._sent)
            arrays, clipped = update.clipped(norm, keeps_integers=True)
            if isinstance(record, SealedRecord) and self._noises:
                record.received = clipped
            with update.clock:
                add_floats(arrays, update.model, mean.sums)
                mean.weight += 1

    def _weight(self, metrics: MetricRecord) -> float:  # noqa: ARG002 - all count alike
        return 1.0

    def _result(self, mean: Mean, *, inside: bool) -> ArrayRecord:  # noqa: ARG002 - never is
        assert isinstance(mean, _StepSum)
        if not self._noises:
            return mean.onto_start(mean.weight)
        random = random_bytes(self.plan.seed, 2 * self._number + 1)
        deviation = deviation_of(self.plan.multiplier, self.plan.clip, mean.sums.size)
        add_noise(mean.sums, deviation, random)
        return mean.onto_start(self._expected)


class _StepSum(Mean):
    """The sum, in float64, of what updates are above the models that their steps count from.

    Args:
        start: the round's model, which the sum goes onto.

    Attributes:
        sums: of all floats, one after another.
    """

    def __init__(self, start: Mapping[str, NDArray]) -> None:
        super().__init__(start)
        self._start, self.sums = start, np.zeros(floats_in(start), np.float64)

    def onto_start(self, divisor: float) -> ArrayRecord:
        """Return the round's model, plus the sum over ``divisor``."""
        return to_record(moved_floats(self._start, self.sums / divisor))
