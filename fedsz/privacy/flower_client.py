"""A client's part in secure sums and noise: what `FedSZMod` answers, limits, noises and masks.

What a client remembers between the messages of a round lies in its store. It is secret, and gone
with the round's last message, with the next round, or with a refusal.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from fedsz import flower_compat as compat
from fedsz.arrays import NDArray
from fedsz.core.client import ClientSession
from fedsz.errors import (
    ConfigError,
    CorruptStream,
    FedszError,
    RefusedRequest,
    TaskError,
    log_failure,
)
from fedsz.flower.differential_privacy import NOISE_MULTIPLIER, NOISE_NORM, adds_noise
from fedsz.flower.records import SECURE, TRAIN, passthrough_of, to_record, views_of
from fedsz.flower.store import Records, RecordStore
from fedsz.privacy.budget import MOST_NOISE, concentrated
from fedsz.privacy.client import Demands, SecureClient
from fedsz.privacy.identity import Identity
from fedsz.privacy.noise import (
    RandomBytes,
    add_floats,
    add_noise,
    deviation_of,
    floats_in,
    moved_floats,
    norm_of,
)
from fedsz.privacy.quantizer import Encoded, TokenCodec, TokenPlan, about
from fedsz.privacy.ring_noise import NoisedCodec, NoisedPlan
from fedsz.transport.node import LASTING

logger = logging.getLogger(__name__)

# Entries of the record of a secure sum in messages.
REQUEST: Final = "request"  # a message of `fedsz.privacy.messages`
PLAN: Final = "plan"  # a `TokenPlan`, where the model is and no noise is asked for
WEIGHTED_BY: Final = "weighted-by"  # the metric that is the weight
ANSWER: Final = "answer"

# Records in the store, beside that of a secure sum's secrets.
NOISED: Final = f"{LASTING}noised"  # the last round of each run with a share of noise
PRIVATE: Final = "fedsz.private"  # is there if the last training had masks or noise
ROUNDS: Final = f"{LASTING}rounds"  # of training: how many, and what they have spent
_COUNT, _SPENT, _STATE = "count", "spent", "state"
_RUNS: Final = 64  # whose last rounds are kept
_IN_LOG: Final = "an error; its text is in the client's log"
_LEAST: Final = 1e-30  # norm, and multiplier; the largest norm is one over that


class LocalNoise(NamedTuple):
    """What a server asks clients to do to their updates before they send them.

    In a secure sum it is that of the sum, of which each client adds a share; see
    `fedsz.privacy.ring_noise`. Else each client adds all of it.

    Attributes:
        norm: that a step is clipped to, over all its floats.
        multiplier: the noise's deviation, in norms.
    """

    norm: float
    multiplier: float

    def write(self, config: ConfigRecord) -> None:
        """Ask for it in a message's config."""
        config[NOISE_NORM], config[NOISE_MULTIPLIER] = self.norm, self.multiplier

    @classmethod
    def asked(cls, content: RecordDict) -> Self | None:
        """Return what a message asks for; None if for nothing.

        Raises:
            ConfigError: it is no noise that there is.
        """
        configs: list[Any] = [
            c for c in compat.records_in(content, ConfigRecord).values() if NOISE_NORM in c
        ]
        found = None
        for config in configs[:1]:
            found = cls(float(config[NOISE_NORM]), float(config[NOISE_MULTIPLIER]))
        if found and not (
            _LEAST <= found.norm <= 1 / _LEAST and _LEAST <= found.multiplier <= MOST_NOISE
        ):
            raise ConfigError(f"the server asks for no noise that there is: {found}")
        return found

    def added(
        self,
        record: ArrayRecord,
        start: Mapping[str, NDArray],
        random: RandomBytes = os.urandom,
    ) -> ArrayRecord:
        """Return an update clipped and noised, in the dtypes of its start.

        Whole numbers and bools become those of the start.

        Args:
            record: what training made of it.
            start: the model that it started from.
            random: of the noise.

        Raises:
            ConfigError: it holds what is no number.
            DivergedUpdate: it is not finite.
            ModelMismatch: it has other names or shapes than the start.
        """
        if passthrough_of(record):
            raise ConfigError("an update with arrays that are no numbers cannot be noised")
        step = np.zeros(floats_in(start), np.float64)
        add_floats(views_of(record), start, step)
        step *= self.norm / max(norm_of(step), self.norm)
        add_noise(step, deviation_of(self.multiplier, self.norm, step.size), random)
        return to_record(moved_floats(start, step))


class SecureMember:
    """What a client asks of secure sums. Without one, it takes part in those that it is asked for.

    Args:
        demands: what it asks of each.
        identity: signs its keys, and checks those of others: it then takes part only in sums whose
            keys are signed.
        required: whether it trains for no other rounds: its update goes out masked or not at all.
        most_rounds: rounds that it trains in at most, over all runs, as long as its state is there;
            0 for no limit. A server that crashed and asks for the same reply again gets it.
        most_epsilon: what it spends at most, likewise, at a delta of 1e-5: as its own noise has it,
            or that of a secure sum. Without such noise it does not train. 0 for no limit.

    Raises:
        ConfigError: a limit is below 0.

    Examples:
        >>> from flwr.clientapp import ClientApp
        >>> from fedsz.flower import FedSZMod, SecureMember
        >>> app = ClientApp(mods=[FedSZMod(secure=SecureMember())])
    """

    def __init__(
        self,
        demands: Demands | None = None,
        identity: Identity | None = None,
        *,
        required: bool = True,
        most_rounds: int = 0,
        most_epsilon: float = 0.0,
    ) -> None:
        if not min(most_rounds, most_epsilon) >= 0:
            raise ConfigError(f"limits are at least 0, got {most_rounds} and {most_epsilon:g}")
        self._about, self._required = (identity, demands), required
        self._most_rounds, self._most_epsilon = most_rounds, most_epsilon

    def request_in(self, message: Message) -> ConfigRecord | None:
        """Return what a message says of a secure sum, if it is of one.

        Raises:
            RefusedRequest: it is of none, and asks for an update.
        """
        content = message.content if message.has_content() else RecordDict()
        record = content.get(SECURE)
        if isinstance(record, ConfigRecord):
            return record
        if self._required and message.metadata.message_type.startswith(TRAIN):
            raise RefusedRequest("this client trains for secure sums only")
        return None

    def guarded(
        self, message: Message, call_next: ClientAppCallable, records: Records
    ) -> ClientAppCallable:
        """Return the app for one message: within the limit of rounds, and with noise if asked for.

        Texts of errors may have data in them, and paths. Of a client that adds masks or noise, or
        that did in its last round, only the type of an exception goes to the server.

        Args:
            message: as it came.
            call_next: the app.
            records: of the client's store.
        """
        trains = message.has_content() and message.metadata.message_type.startswith(TRAIN)
        if trains:
            records.pop(PRIVATE, None)
            if SECURE in message.content or adds_noise(message.content):
                records[PRIVATE] = ConfigRecord()
        keeps_texts = self._required or self._most_epsilon > 0 or PRIVATE in records

        def call(message: Message, context: Context) -> Message:
            try:
                reply = call_next(message, context)
            except Exception as err:
                if not keeps_texts:
                    raise
                log_failure(logger, "the app failed", err)
                raise TaskError(type(err).__name__) from None
            if keeps_texts and reply.has_error():
                logger.error("the app's error reply: %s", reply.error.reason)
                return Message(Error(reply.error.code, _IN_LOG), reply_to=message)
            return reply

        def train(message: Message, context: Context) -> Message:
            noise = LocalNoise.asked(message.content)
            self._spend(records, noise)
            if noise and not isinstance(message.content.get(SECURE), ConfigRecord):
                return _noised(noise, call, message, context)
            return call(message, context)

        return train if trains else call

    def _spend(self, records: Records, noise: LocalNoise | None) -> None:
        """Count a round of training; raise `RefusedRequest` if it is beyond a limit."""
        if not self._most_rounds and not self._most_epsilon:
            return
        record: Any = records.get(ROUNDS, {})
        done = int(record.get(_COUNT, 0))
        if self._most_rounds and done >= self._most_rounds:
            what = f"this client has trained in {done} rounds"
            raise RefusedRequest(f"{what}, and its limit is {self._most_rounds}")
        # Any update may have been any other, twice the norm away.
        spent = record.get(_SPENT, 0.0) + (2 / noise.multiplier**2 if noise else math.inf)
        if self._most_epsilon and (epsilon := concentrated(spent)) > self._most_epsilon:
            what = f"with this round, this client would have spent epsilon {epsilon:.4g}"
            raise RefusedRequest(f"{what}, and its limit is {self._most_epsilon:g}")
        records[ROUNDS] = ConfigRecord({_COUNT: done + 1, _SPENT: spent})

    def answer(self, request: ConfigRecord, message: Message, records: Records) -> Message:
        """Return the answer to a message without a model."""
        client = self._client(message, records)
        try:
            answer = client.answer(_bytes(request, REQUEST))
        except FedszError as err:
            logger.warning("refused in a secure sum: %s", err)
            code = compat.ErrorCode.MOD_FAILED_PRECONDITION
            return Message(Error(code, f"fedsz: {err}"), reply_to=message)
        _keep(client, records)
        return Message(RecordDict({SECURE: ConfigRecord({ANSWER: answer})}), reply_to=message)

    def masking(
        self,
        request: ConfigRecord,
        message: Message,
        store: RecordStore,
        session: ClientSession,
    ) -> Callable[[Message], None]:
        """Return what masks the reply to a message with a model.

        What could not be masked after training is refused before it. The store is without secrets
        until the reply is masked.

        Raises:
            RefusedRequest: it is not what comes next; or noise was added in this round, or in a
                later one.
            CorruptStream: it has no shares, or no plan.
            ConfigError: more or less than one model was sent, or one that has no sum.
            ModelMismatch: the plan is for another model.
        """
        client = self._client(message, store.records)
        noise = LocalNoise.asked(message.content)
        return _Masking(client, request, noise, store, session).mask

    def _client(self, message: Message, records: Records) -> SecureClient:
        """Return the client that the records remember, and take it out of there."""
        client = SecureClient(message.metadata.dst_node_id, *self._about)
        kept: Any = records.pop(SECURE, None)
        return client.restored(kept[_STATE]) if kept else client


class _Masking:
    """Masks one reply."""

    def __init__(
        self,
        client: SecureClient,
        request: ConfigRecord,
        noise: LocalNoise | None,
        store: RecordStore,
        session: ClientSession,
    ) -> None:
        self._client, self._store, self._session = client, store, session
        models = {key: x.arrays for key, x in session.models.items()}
        self._key, self._origin = _only(models, "was sent")
        self._shares = _bytes(request, REQUEST)
        self._weighted_by = str(request.get(WEIGHTED_BY, ""))
        self._codec: NoisedCodec | TokenCodec
        if noise is None:
            self._codec = TokenCodec(TokenPlan.decode(_bytes(request, PLAN)), self._origin)
        else:
            # Two sums of one round are two releases, and two of other survivors with the same
            # noise would tell of few clients. A server that has crashed goes on with the next one.
            if self._rounds_noised().get(session.request.run.hex(), -1) >= session.request.round:
                what = "this client has added its share of noise in this round before"
                raise RefusedRequest(what)
            self._codec = NoisedCodec(NoisedPlan(client.bits, *noise), self._origin, client.plan)
        client.check_shares(self._shares)

    def _rounds_noised(self) -> dict[str, Any]:
        """Return the last round in which a share of noise was added, by run."""
        note = self._store.records.get(NOISED)
        return dict(note) if isinstance(note, ConfigRecord) else {}

    def mask(self, reply: Message) -> None:
        """Put masked tokens into the place of a reply's arrays and weight.

        Raises:
            ConfigError: the reply has more or less than one model and one weight.
            FedszError: what `SecureClient.mask` and `TokenCodec` raise.
        """
        records = compat.records_in(reply.content, ArrayRecord)
        _, trained = _only({key: views_of(record) for key, record in records.items()}, "is there")
        metrics = compat.records_in(reply.content, MetricRecord)
        weights = [m[self._weighted_by] for m in metrics.values() if self._weighted_by in m]
        if len(weights) != 1 or not isinstance(weights[0], int | float):
            raise ConfigError(f"a reply has one number {self._weighted_by!r}, got {len(weights)}")
        encoded = self._encoded(trained, weights[0])
        tokens_about = about(self._codec.plan, self._origin)
        masked = self._client.mask(self._shares, encoded.tokens, tokens_about)
        _keep(self._client, self._store.records)
        if encoded.residual:
            self._session.keep_residuals(self._key, encoded.residual)
        others = {
            key: _without(record, self._weighted_by)
            for key, record in reply.content.items()
            if key not in records
        }
        reply.content = RecordDict({**others, SECURE: ConfigRecord({ANSWER: masked})})

    def _encoded(self, trained: Mapping[str, NDArray], weight: float) -> Encoded:
        request = self._session.request
        if isinstance(self._codec, TokenCodec):
            feeds_back = request.settings.feedback_decay is not None
            before = self._session.residuals(self._key) if feeds_back else {}
            encoded = self._codec.encode(trained, _whole_weight(weight), before)
            return encoded if feeds_back else encoded._replace(residual={})
        rounds = self._rounds_noised()
        rounds.pop(run := request.run.hex(), None)
        last = [*rounds.items(), (run, request.round)][-_RUNS:]
        self._store.records[NOISED] = ConfigRecord(dict(last))
        encoded = self._codec.encode(trained)
        if encoded.clipped:
            count = self._codec.count
            logger.info("%d of %d elements were at their limit", encoded.clipped, count)
        return encoded


def _noised(
    noise: LocalNoise, call: ClientAppCallable, message: Message, context: Context
) -> Message:
    """Return the app's reply to plain arrays, with all of its noise."""
    starts = list(compat.records_in(message.content, ArrayRecord).values())
    start = views_of(starts[0]) if len(starts) == 1 else {}
    reply = call(message, context)
    if reply.has_content():
        records = compat.records_in(reply.content, ArrayRecord)
        if len(starts) != 1 or len(records) != 1:
            raise ConfigError(f"{len(records)} ArrayRecords cannot be noised as one update")
        ((key, record),) = records.items()
        reply.content[key] = noise.added(record, start)
    return reply


def _keep(client: SecureClient, records: Records) -> None:
    if kept := client.to_bytes():
        records[SECURE] = ConfigRecord({_STATE: kept})


def _bytes(record: ConfigRecord, name: str) -> bytes:
    value = record.get(name)
    if not isinstance(value, bytes):
        raise CorruptStream(f"no bytes {name!r} in a message of a secure sum")
    return value


def _whole_weight(weight: float) -> int:
    """Return a client's weight as a sum has it: whole, and 0 for 0 alone.

    Raises:
        ConfigError: it is below 0, or not finite.
    """
    if not 0 <= weight < math.inf:
        raise ConfigError(f"a weight lies in [0, infinity), got {weight}")
    return max(round(weight), 1) if weight else 0


def _only(
    models: Mapping[str, Mapping[str, NDArray]], where: str
) -> tuple[str, dict[str, NDArray]]:
    """Return the key and the arrays of the only model, by their names in order."""
    if len(models) != 1:
        raise ConfigError(f"a secure sum is of one ArrayRecord; {len(models)} {where}")
    ((key, model),) = models.items()
    return key, dict(sorted(model.items()))


def _without(record: Any, name: str) -> Any:
    """Return a record without the weight, if it has one."""
    if not isinstance(record, MetricRecord) or name not in record:
        return record
    return MetricRecord({key: value for key, value in record.items() if key != name})
