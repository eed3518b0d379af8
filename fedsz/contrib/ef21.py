"""EF21 and DIANA: clients send how their steps differ from a shift that both sides keep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid

import fedsz
from fedsz import methods
from fedsz.arrays import Layout, NDArray
from fedsz.contrib.steps import (
    App,
    Arrays,
    FedAvgOfSteps,
    coded_reply,
    floats,
    record_of,
    require_finite,
    setting_of,
)
from fedsz.errors import ConfigError
from fedsz.stream import Limits

CHAIN, RATE, AGE = "shift.chain", "shift.rate", "shift.age"  # settings that clients are sent
STREAM: Final = "stream"
SHIFT: Final = "ef21.shift"  # the record of a client's Context; FedSZMod hides names of its own


def shift_mod(message: Message, context: Context, call_next: App) -> Message:
    """Reply to an `Ef21` or `Diana` with C(x - h), x the step and h the shift in the Context.

    A client whose shift is of another age than the server's starts anew with a shift of 0, and
    says so.
    """
    chain = setting_of(message, CHAIN)
    if chain is None:
        return call_next(message, context)
    rate, age = float(setting_of(message, RATE)), int(setting_of(message, AGE))

    def encode(step: Arrays) -> Mapping[str, Any]:
        shift, before = _shift_of(context, step, age)
        difference = {name: x - shift[name] for name, x in step.items()}
        seed = (context.node_id + (int(setting_of(message, "server-round")) << 32)) % (1 << 64)
        stream = fedsz.compress(difference, chain=str(chain), seed=seed)
        decoded = fedsz.decompress(stream, as_numpy=True)
        context.state[SHIFT] = record_of(_moved(shift, decoded, rate))
        context.state[f"{SHIFT}.age"] = ConfigRecord({AGE: before + 1})
        return {STREAM: stream, AGE: before}

    return coded_reply(message, context, call_next, encode)


class Ef21(FedAvgOfSteps):
    """EF21 (Richtárik et al. 2021), for clients with `shift_mod`.

    With x a client's step, h its shift, at first 0, and q = C(x - h), its estimate is h + q; the
    model moves by FedAvg's mean of the estimates, and both sides go on from h + rate q.

    Shifts take the memory of a model for each client. An age tells whether both sides have the same
    one: after a lost reply, or where one side has forgotten, both start anew from 0. All other
    arguments are FedAvg's.

    Args:
        chain: C, methods without state, which must contract.
        rate: of the shift, above 0, at most 1.
        most_clients: that have a shift. Above, those that have not replied for longest lose theirs.

    Attributes:
        shifts: by node id, the age of its shift, in replies, and the shift by tensor.

    Raises:
        ConfigError: an argument is out of range, or no chain that does.
    """

    def __init__(
        self,
        *arguments: Any,
        chain: str = "topk:k=10%",
        rate: float = 1.0,
        most_clients: int = 1000,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        parsed = methods.parse(chain)
        if parsed.keeps_state:
            raise ConfigError(f"a shift needs a chain without state, got {chain!r}")
        if not 0 < rate <= 1:
            raise ConfigError(f"the rate of a shift must lie above 0, up to 1, got {rate:g}")
        self.chain, self.rate, self.most_clients = str(parsed), rate, most_clients
        self.shifts: dict[int, tuple[int, Arrays]] = {}  # who has replied last at the end

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a round's messages, each with the age of its client's shift."""
        config[CHAIN], config[RATE] = self.chain, self.rate
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message in messages:
            age, _ = self.shifts.get(message.metadata.dst_node_id, (0, {}))
            own = ConfigRecord({**config, AGE: age})
            message.content = RecordDict({**message.content, self.configrecord_key: own})
        return messages

    def decode(self, node: int, coded: Mapping[str, Any]) -> Arrays:
        """Return the client's estimate of its step; see `FedAvgOfSteps.decode`."""
        like = floats(self.model)
        layout = Layout.of(like)
        q = fedsz.decompress(coded[STREAM], as_numpy=True, limits=Limits.of_model(layout))
        layout.check({name: x.shape for name, x in q.items()})
        for name, x in q.items():
            if x.dtype != like[name].dtype:
                raise ValueError(f"{name!r} is {x.dtype} and must be {like[name].dtype}")
            require_finite(name, x)
        age, shift = self.shifts.pop(node, (0, {}))
        if coded[AGE] != age or not shift:
            age, shift = 0, {name: np.zeros_like(x) for name, x in like.items()}
        if coded[AGE] != age:
            raise ValueError(f"its shift is of age {coded[AGE]}, and unknown here")
        self.shifts[node] = age + 1, _moved(shift, q, self.rate)
        while len(self.shifts) > self.most_clients:
            self.shifts.pop(next(iter(self.shifts)))
        return {name: shift[name] + x for name, x in q.items()}


class Diana(Ef21):
    """DIANA (Mishchenko et al. 2019), for clients with `shift_mod`.

    `Ef21` by an unbiased chain. With w the variance of that, E|C(v) - v|^2 <= w |v|^2, the rate
    must be at most 1 / (1 + w).
    """

    def __init__(
        self, *arguments: Any, chain: str = "qsgd", rate: float = 0.2, **named: Any
    ) -> None:
        super().__init__(*arguments, chain=chain, rate=rate, **named)
        if methods.parse(chain).biased:
            raise ConfigError(f"DIANA needs an unbiased chain, got {chain!r}: take Ef21 for it")


def _shift_of(context: Context, step: Arrays, age: int) -> tuple[Arrays, int]:
    """Return a client's shift and its age; 0 of age 0 unless it fits the step and ``age``."""
    kept = context.state.array_records.get(SHIFT)
    about = context.state.config_records.get(f"{SHIFT}.age")
    if kept is not None and about is not None and about[AGE] == age > 0:
        shift = {name: array.numpy() for name, array in kept.items()}
        if Layout.of(shift) == Layout.of(step):
            return shift, age
    return {name: np.zeros_like(x) for name, x in step.items()}, 0


def _moved(shift: Arrays, decoded: Arrays, rate: float) -> dict[str, NDArray]:
    """Return a shift after a round, equal to the bit on both sides."""
    return {name: np.asarray(h + h.dtype.type(rate) * decoded[name]) for name, h in shift.items()}
