"""Federated training on any Grid: the rounds, their tests, and what follows from them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedsz.arrays import NDArray
from fedsz.control.controller import Controller
from fedsz.control.policy import SENSITIVITY, SPREAD
from fedsz.control.record import RoundRecord
from fedsz.core.reference import Reference, energies
from fedsz.core.settings import DELTA_EF
from fedsz.errors import ConfigError
from fedsz.flower.fedbuff import MOST_AHEAD, FedBuff
from fedsz.flower.grid import FedSZGrid
from fedsz.flower.liveness import Deadlines
from fedsz.flower.records import to_record
from fedsz.flower.rules import Rules
from fedsz.flower.strategy import StreamingFedAvg
from fedsz.privacy.budget import NoiseAt, PrivacyPlan
from fedsz.privacy.flower_average import PrivateFedAvg
from fedsz.privacy.flower_server import SecureSum
from fedsz.privacy.graph import Assumptions
from fedsz.privacy.identity import CertificateVerifier
from fedsz.training.events import to_json
from fedsz.training.model_state import arrays_of, load, start_from
from fedsz.training.options import RunConfig, options
from fedsz.training.run_folder import Checkpoint, RunFolder
from fedsz.training.seeding import seed_of, seeded
from fedsz.training.sensitivity import measure
from fedsz.training.task import LoadedTask, load_task
from fedsz.transport.credentials import read_issued, revoked_serials
from fedsz.whole_files import read_bytes

LONGEST: Final = 1e9  # seconds that a client may say it trained
# The server evaluates, so that clients do nothing but train.
_NO_EVALUATION: Final[Mapping[str, Any]] = {
    "fraction_evaluate": 0.0,
    "min_train_nodes": 1,
    "min_evaluate_nodes": 0,
    "min_available_nodes": 1,
}
OnRound = Callable[[RoundRecord], None]
OnRequest = Callable[[list[int]], None]
AverageMetrics = Callable[[list[RecordDict], str], MetricRecord]


class Problem(NamedTuple):
    """What a run starts from."""

    task: LoadedTask
    model: Any  # with its initial weights; see `fedsz.training.task.Task`
    held_out: Any  # that it is judged by, as the task has loaded it


def prepare(config: RunConfig) -> Problem:
    """Return what ``config`` asks to learn, having checked all that the server can check.

    Raises:
        ConfigError: a task, codec, policy or anything the task asks for that does not exist.
        CodecUnavailable: the codec's library is not installed here.
        DataError: the held-out set is not there.
        TaskError: the task failed.
        ModelMismatch: the initial weights are those of another model.
    """
    _ = controller_of(config), rules_of(config), deadlines_of(config)
    _ = strategy_of(config), secure_of(config)
    config.compression.require()
    task = load_task(config)
    model = task.build_model()
    if config.initial:
        start_from(model, Path(config.initial))
    return Problem(task, model, task.load_test())


def federate(
    grid: Grid,
    config: RunConfig,
    problem: Problem,
    on_round: OnRound | None = None,
    *,
    on_request: OnRequest | None = None,
    folder: RunFolder | None = None,
) -> Any:
    """Run federated averaging on ``grid`` and return the trained model.

    Args:
        grid: reaches the clients.
        config: the run's options.
        problem: what `prepare` returned for them.
        on_round: called after each round, and before the first with what was there to start from.
        on_request: called as each round of training begins, with the nodes that are asked; not if
            they are asked one by one (`FedBuff`).
        folder: gets all that the run can go on from, before ``on_round`` is called. If it has a
            checkpoint, the run goes on from there. The model is then as without the interruption,
            to the bit, if clients train deterministically and replies arrive in the same order.

    Raises:
        ConfigError: the folder cannot be written.
        ModelMismatch: the folder's checkpoint is of another model.
        TooFewReplies: three rounds in a row got fewer than `min_replies`.
    """
    done = folder.checkpoint.done.round if folder and folder.checkpoint else 0
    left = config.rounds - done
    # The fleet is complete once; after that a round goes on with those who are there.
    while left and len(list(grid.get_node_ids())) < config.min_clients:
        time.sleep(0.1)
    rounds = _Rounds(grid, config, problem, on_round, folder)
    rounds.strategy.on_request = on_request
    sent = {name: getattr(config, name) for name, about in options().items() if about.sent}
    rounds.strategy.start(
        rounds.grid,
        to_record(arrays_of(problem.model)),
        num_rounds=left,
        timeout=config.round_timeout,
        train_config=ConfigRecord(sent),
        evaluate_fn=rounds.end,
    )
    return problem.model


class ResumableFedAvg(StreamingFedAvg):
    """Asks clients that depend on seed and round alone.

    ``clients_per_round`` of them train in a round, or all if they are fewer; 0 for all.
    """

    def __init__(self, seed: int, clients_per_round: int = 0, **named: Any) -> None:
        super().__init__(**_NO_EVALUATION, **named)
        self._seed, self._clients_per_round = seed, clients_per_round

    def _messages(
        self, number: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if self._clients_per_round:
            there = len(list(grid.get_node_ids()))
            self.fraction_train = min(1.0, (self._clients_per_round + 0.5) / max(there, 1))
        with seeded(seed_of(self._seed, number)):
            return super()._messages(number, arrays, config, grid)


class _Rounds:
    """The rounds of a run as they end: each average is tested, recorded and written."""

    def __init__(
        self,
        grid: Grid,
        config: RunConfig,
        problem: Problem,
        on_round: OnRound | None,
        folder: RunFolder | None,
    ) -> None:
        self._config, self._problem, self._on_round = config, problem, on_round
        self._folder, self._run_id = folder, grid.run.run_id
        self._train_seconds = 0.0  # of the round's clients
        controller = controller_of(config, folder.history() if folder else ())
        self._needs = controller.needs
        self._before: Mapping[str, NDArray] = {}  # average of the round before
        self.grid = FedSZGrid(
            grid,
            policy=controller,
            shared_initial=True,
            rules=rules_of(config),
            deadlines=deadlines_of(config),
            secure=secure_of(config),
            seed=config.seed,
        )
        self.strategy = strategy_of(config)
        average = self.strategy.train_metrics_aggr_fn
        self.strategy.train_metrics_aggr_fn = partial(self._average_metrics, average)
        if folder and config.keep_updates:
            self.strategy.on_update = folder.keep_update
        if folder and isinstance(self.strategy, PrivateFedAvg):
            self.strategy.on_release = folder.keep_release
        self._last = folder.checkpoint if folder else None  # checkpoint before this process
        if self._last:
            self._before = load(problem.model, to_record(dict(self._last.model)))
            self.grid.restore(self._last.grid)
            self.strategy.done = self._last.done.round
            self.strategy.restore(self._last.strategy)

    def _average_metrics(
        self, average: AverageMetrics, contents: list[RecordDict], weighted_by: str
    ) -> MetricRecord:
        """Average clients' metrics, and add up how long they trained."""
        metrics = [next(iter(content.metric_records.values())) for content in contents]
        reported = [one.get("train-seconds", 0.0) for one in metrics]
        plausible = (s for s in reported if isinstance(s, int | float) and 0 <= s < LONGEST)
        self._train_seconds = float(sum(plausible))
        return average(contents, weighted_by)

    def end(self, number: int, arrays: ArrayRecord) -> MetricRecord:
        """Test a round's average, record the round, and have the next one decided.

        ``number`` counts from the last round before: that one has ended already.
        """
        if self._last and not number:
            return MetricRecord()
        number += self.strategy.done
        task, model, held_out = self._problem
        begin = time.monotonic()
        averaged = load(model, arrays)
        with seeded(seed_of(self._config.seed, number)):
            result = task.evaluate(model, held_out)
        test_seconds = time.monotonic() - begin
        record = self.grid.end_round(
            accuracy=result.accuracy,
            loss=result.loss,
            uncounted=self.strategy.quorum.why,
            train_seconds=self._train_seconds,
            test_seconds=test_seconds,
            **self._measured(number, averaged),
            **_spent(self.strategy, number),
        )
        self._train_seconds = 0.0
        if self._folder:
            states = self.grid.state(), self._run_id, self.strategy.state()
            self._folder.keep(Checkpoint(to_json(record), averaged, *states))
        if self._on_round:
            self._on_round(record)
        return MetricRecord({name: x for name, x in result._asdict().items() if x is not None})

    def _measured(self, number: int, averaged: Mapping[str, NDArray]) -> dict[str, Any]:
        """Return the spread of a round's step and the sensitivity to errors, if they are needed."""
        if not self._needs:
            return {}
        config = self._config
        moved = {
            name: (count, math.sqrt(energy / count))
            for name, (count, energy) in energies(
                averaged, Reference(self._before), config.compression
            ).items()
        }
        self._before = averaged
        steps = {name: deviation for name, (_, deviation) in moved.items() if deviation > 0}
        if SENSITIVITY not in self._needs or not steps:
            return {SPREAD: moved}
        seed = config.seed + number  # other noise each round, since policies average
        return {SPREAD: moved, SENSITIVITY: measure(*self._problem, steps, seed=seed)}


def _spent(strategy: StreamingFedAvg, number: int) -> dict[str, Any]:
    """Return what a run under differential privacy has spent after a round; nothing of others."""
    if not isinstance(strategy, PrivateFedAvg):
        return {}
    return {
        "epsilon": strategy.epsilon,
        "delta": strategy.plan.delta,
        "clipping_norm": strategy.plan.clip,
        "ended": strategy.ends_after(number),
    }


def strategy_of(config: RunConfig) -> StreamingFedAvg:
    """Return how the updates of a run are averaged.

    Raises:
        ConfigError: a buffer is smaller than the replies that a round needs, or asks only some
            clients; a secure sum has what it cannot; or as `privacy_of`.
        MissingPackage: differential privacy is asked for, and dp-accounting is not installed.
    """
    asked, replies = (config.seed, config.clients_per_round), {"min_replies": config.min_replies}
    if config.secure_sum and config.buffer:
        raise ConfigError("--secure-sum cannot be used with --buffer")
    if plan := privacy_of(config):
        return PrivateFedAvg(plan=plan, **replies, **_NO_EVALUATION)
    if not config.buffer:
        return ResumableFedAvg(*asked, **replies)
    if config.clients_per_round:
        raise ConfigError("--clients-per-round cannot be used with --buffer")
    return FedBuff(
        buffer=config.buffer,
        most_ahead=MOST_AHEAD if config.max_client_share < 1 else math.inf,
        **replies,
        **_NO_EVALUATION,
    )


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
    revoked = revoked_serials(read_issued(config.client_file)) if config.client_file else ()
    verifier = CertificateVerifier(read_bytes(config.tls_ca), revoked)
    return SecureSum(config.secure_sum, Assumptions(signed=True), verifier)


def privacy_of(config: RunConfig) -> PrivacyPlan | None:
    """Return what a run may spend of differential privacy; None if it has none.

    Raises:
        ConfigError: a number is out of range; or another option would break what is accounted for.
        MissingPackage: dp-accounting is not installed.
    """
    if not config.dp_epsilon:
        if config.dp_noise:
            raise ConfigError("--dp-noise needs a budget: give --dp-epsilon, too")
        return None
    for name in ("buffer", "clients-per-round"):
        if getattr(config, name.replace("-", "_")):
            instead = "; clients are drawn by --dp-sampling" if name == "clients-per-round" else ""
            raise ConfigError(f"--{name} cannot be used with --dp-epsilon{instead}")
    sends, at = config.compression, config.dp_noise_at
    if at != NoiseAt.SUM and config.secure_sum:
        raise ConfigError("--secure-sum with --dp-epsilon needs --dp-noise-at sum")
    if at == NoiseAt.SUM and not config.secure_sum:
        raise ConfigError("--dp-noise-at sum needs --secure-sum")
    if at != NoiseAt.CLIENT and sends.keeps_state and sends.update != DELTA_EF:
        why = "what an update adds of earlier rounds is clipped off, and is not accounted for"
        raise ConfigError(f"--dp-epsilon needs an --update without feedback or difference: {why}")
    return PrivacyPlan(
        epsilon=config.dp_epsilon,
        delta=config.dp_delta,
        rounds=config.rounds,
        noise=config.dp_noise,
        clip=config.dp_clip,
        sampling=config.dp_sampling,
        at=at,
        seed=None if config.dp_seed < 0 else config.dp_seed,
    )


def rules_of(config: RunConfig) -> Rules:
    """Return what replies of a run must keep to.

    Raises:
        ConfigError: a limit is out of range.
    """
    return Rules(config.max_client_share, config.max_update_norm)


def deadlines_of(config: RunConfig) -> Deadlines:
    """Return how long the rounds of a run wait for the slowest clients.

    Raises:
        ConfigError: the factor is between 0 and 1; or there is one, and rounds wait for nobody.
    """
    if config.buffer and config.deadline_factor not in (0, RunConfig.deadline_factor):
        raise ConfigError("--deadline-factor cannot be used with --buffer")
    return Deadlines(config.deadline_factor or math.inf, config.min_replies)


def controller_of(config: RunConfig, history: Iterable[RoundRecord] = ()) -> Controller:
    """Return what decides how each round of a run is sent, after the rounds in ``history``.

    Raises:
        ConfigError: there is no such policy, or it cannot act on the run's options.
    """
    return Controller(
        config.policy,
        config.compression,
        tolerance=config.tolerance,
        rounds=config.rounds,
        history=history,
        private=config.dp_epsilon > 0,
    )
