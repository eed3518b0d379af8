"""What a hostile client replies moves no average and ends no server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum

from fedsz.control.record import RoundRecord
from fedsz.core.reference import Reference
from fedsz.core.settings import Settings
from fedsz.errors import CorruptStream, FedszError
from fedsz.flower import FedSZGrid, LocalGrid, StreamingFedAvg
from fedsz.flower.mean import Mean
from fedsz.flower.records import KEY, sealed, stream_of
from fedsz.flower.refusal import Refusal
from fedsz.flower.rules import Rules
from fedsz.flower.update import Update
from fedsz.flower.wrapped_grid import WrappedGrid
from fedsz.stream import Reader
from fedsz.training.events import from_json, to_json
from tests.federation import app_of, bound_of, initial, moved, record_of, run, seal, to_arrays
from tests.flower.test_mean import BASES, LOSSY, SERVER, add, damaged, model

CLIENTS = 6
Attack = Callable[[RecordDict], RecordDict]


class Hostile(WrappedGrid):
    """A Grid on which some clients reply something else than their app does; they come in order."""

    def __init__(
        self, attack: Attack, *hostile: int, app: Any = None, clients: int = CLIENTS
    ) -> None:
        nodes = [{"partition-id": i} for i in range(clients)]
        super().__init__(LocalGrid(app or app_of(), nodes))
        self.attack, self.hostile = attack, hostile

    def stream_replies(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        return iter(self._replaced(super().stream_replies(messages, timeout=timeout)))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return self._replaced(super().pull_messages(message_ids))

    def _replaced(self, came: Iterable[Message]) -> list[Message]:
        replies = list(came)
        replies.sort(key=lambda reply: float(reply.content["metrics"]["num-examples"]))
        for reply in replies:
            if reply.content["metrics"]["num-examples"] - 1 in self.hostile:
                reply.content = self.attack(reply.content)
        return replies


def sending(make: Callable[[ArrayRecord], ArrayRecord]) -> Attack:
    """Its arrays are what ``make`` makes of them, past `FedSZMod`."""
    return lambda content: RecordDict({**content, "arrays": make(content["arrays"])})


def arrays_filled(value: float) -> Attack:
    """One weight is ``value``, the rest is the model."""
    arrays = initial()
    arrays["fc.weight"][3, 4] = value
    return sending(lambda _: record_of(arrays))


@sending
def flipped_times_100(_: ArrayRecord) -> ArrayRecord:
    start, after = initial(), moved(initial(), 1)
    flipped = {n: x - 100 * (after[n] - x) for n, x in start.items() if x.dtype == np.float32}
    return record_of(start | flipped)


def metrics(**changes: Any) -> Attack:
    """Some metrics are others; None leaves one out."""

    def attack(content: RecordDict) -> RecordDict:
        changed = {**content["metrics"], **{n.replace("_", "-"): v for n, v in changes.items()}}
        kept = {name: value for name, value in changed.items() if value is not None}
        return RecordDict({**content, "metrics": MetricRecord(kept)})

    return attack


def sealed_by(codec: str) -> Attack:
    return sending(lambda _: seal(moved(initial(), 1), Settings.of(1e-2, codec=codec)))


@sending
def half_damaged(_: ArrayRecord) -> ArrayRecord:
    """The first tensor is valid and huge, the second does not decode."""
    arrays = {name: x * np.float32(1e30) if x.ndim == 2 else x for name, x in initial().items()}
    arrays["half.weight"] = initial()["half.weight"]
    whole = seal(arrays, Settings.of(1e-2))
    for where in np.linspace(0, 0.99, 50):
        record = damaged(whole, 1, float(where))
        try:
            Update.open(record).arrays()
        except CorruptStream:
            return record
        except FedszError:
            continue
    raise AssertionError("all of it decodes")


def changed(tamper: Callable[[bytes], bytes]) -> Attack:
    """Its stream is not what it sent."""
    return sending(lambda record: sealed(tamper(stream_of(record))))


def passing_as(name: str, array: Array) -> Attack:
    """An array beside the stream has a name of the client's own making."""
    return sending(lambda record: ArrayRecord({**record, name: array}))


def without(key: str) -> Attack:
    return lambda content: RecordDict({k: r for k, r in content.items() if k != key})


def twice(content: RecordDict) -> RecordDict:
    return RecordDict({**content, "more": content["arrays"]})


NUMBERS, TEXT = Array(np.ones(3, np.float32)), Array("str", (1,), "text", b"hello")
REFUSED: dict[str, tuple[Attack, Refusal]] = {
    "NaN": (arrays_filled(np.nan), Refusal.NOT_FINITE),
    "infinity": (arrays_filled(-np.inf), Refusal.NOT_FINITE),
    "1e38": (arrays_filled(1e38), Refusal.NOT_FINITE),
    "1e15": (arrays_filled(1e15), Refusal.NORM),
    "flipped x100": (flipped_times_100, Refusal.NORM),
    "half damaged": (half_damaged, Refusal.DAMAGED),
    "cut": (changed(lambda data: data[:-1]), Refusal.DAMAGED),
    "empty": (changed(lambda data: b""), Refusal.DAMAGED),
    "a bit flipped": (
        changed(lambda data: data[:-50] + bytes([data[-50] ^ 1]) + data[-49:]),
        Refusal.DAMAGED,
    ),
    "another version": (
        changed(lambda data: data[:8] + b"\x63\x00" + data[10:]),
        Refusal.DAMAGED,
    ),
    "extended": (changed(lambda data: data + b"more"), Refusal.DAMAGED),
    "another codec": (sealed_by("szx"), Refusal.CODEC),
    "weight 1e18": (metrics(num_examples=10**18), Refusal.NORM),
    "weight 1e300": (metrics(num_examples=1e300), Refusal.NORM),
    "weight below 0": (metrics(num_examples=-1), Refusal.WEIGHT),
    "weight NaN": (metrics(num_examples=np.nan), Refusal.WEIGHT),
    "weight infinite": (metrics(num_examples=np.inf), Refusal.WEIGHT),
    "weights in a list": (metrics(num_examples=[1, 2]), Refusal.WEIGHT),
    "no weight": (metrics(num_examples=None), Refusal.RECORDS),
    "no metric": (metrics(loss=None), Refusal.RECORDS),
    "a metric more": (metrics(more=1.0), Refusal.RECORDS),
    "a list for a number": (metrics(loss=[1.0, 2.0]), Refusal.RECORDS),
    "a metric NaN": (metrics(loss=np.nan), Refusal.METRIC),
    "no arrays": (without("arrays"), Refusal.RECORDS),
    "no metrics": (without("metrics"), Refusal.RECORDS),
    "an empty record": (sending(lambda _: ArrayRecord()), Refusal.MODEL),
    "a position of 5000 digits": (
        passing_as(f"{KEY}.passthrough.{'9' * 5000}.x", NUMBERS),
        Refusal.DAMAGED,
    ),
    "two records": (twice, Refusal.MODEL),
    "an array more": (passing_as(f"{KEY}.passthrough.0.more", TEXT), Refusal.RECORDS),
}


def is_mean_of_others(arrays: dict[str, np.ndarray], left_out: int) -> bool:
    """Whether this is the average without a client, within an error bound of 1e-3 and rounding."""
    others = [i for i in range(CLIENTS) if i != left_out]
    replies = [moved(initial(), i) for i in others]
    weights = [i + 1 for i in others]
    return all(
        np.allclose(
            arrays[name], np.average([r[name] for r in replies], 0, weights), rtol=0, atol=atol
        )
        for name, atol in (("fc.bias", 1e-6), ("fc.weight", bound_of(initial()["fc.weight"]) / 5))
    )


@pytest.mark.parametrize("hostile", [0, 4])  # of little weight, and of much
@pytest.mark.parametrize("strategy", [FedAvg, StreamingFedAvg])
@pytest.mark.parametrize("name", REFUSED)
def test_an_attack_moves_nothing(name: str, strategy: type[FedAvg], hostile: int) -> None:
    attack, kind = REFUSED[name]
    rules = Rules(max_client_share=1, max_update_norm="refuse:30x")
    grid = FedSZGrid(Hostile(attack, hostile), 1e-3, rules=rules)

    result = run(strategy(fraction_evaluate=0), grid)

    traffic = grid.take_traffic()
    assert [failure.kind for failure in traffic.failures] == [kind]
    assert traffic.failures[0].reason
    assert traffic.replies == CLIENTS - 1
    assert is_mean_of_others(to_arrays(result.arrays), hostile)


ROBUST = {
    "FedMedian": lambda: FedMedian(fraction_evaluate=0),
    "FedTrimmedAvg": lambda: FedTrimmedAvg(fraction_evaluate=0, beta=0.2),
    "Krum": lambda: Krum(fraction_evaluate=0, num_malicious_nodes=1),
    "MultiKrum": lambda: MultiKrum(
        fraction_evaluate=0, num_malicious_nodes=1, num_nodes_to_select=2
    ),
    "Bulyan": lambda: Bulyan(fraction_evaluate=0, num_malicious_nodes=0),
}


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("attack", ["NaN", "1e38", "flipped x100"])
def test_robust_strategies_of_flower(name: str, attack: str) -> None:
    grid = FedSZGrid(Hostile(REFUSED[attack][0], 2), 1e-2, rules="fleet")

    result = run(ROBUST[name](), grid)

    bias = to_arrays(result.arrays)["fc.bias"]
    assert np.abs(bias - initial()["fc.bias"]).max() < 1
    assert len(grid.take_traffic().failures) == (REFUSED[attack][1] is not Refusal.NORM)


def test_a_heavy_client_counts_for_its_share() -> None:
    """Client 4 says in the second round that it has a million examples; the median is 3.

    One of six has a share of a half, so it counts as five that have the median.
    """
    said = iter([5, 10**6])

    def attack(content: RecordDict) -> RecordDict:
        return metrics(num_examples=next(said))(content)

    rules = Rules(max_client_share=0.5, max_update_norm="none")
    grid = FedSZGrid(Hostile(attack, 4), 1e-2, rules=rules)

    result = run(StreamingFedAvg(fraction_evaluate=0), grid, rounds=2)

    start = initial()["fc.bias"]
    steps = [moved(initial(), i)["fc.bias"] - start for i in range(CLIENTS)]
    mean = start.astype(np.float64)
    for heavy in (5, (CLIENTS - 1) * 3):
        mean += np.average(steps, axis=0, weights=[1, 2, 3, 4, heavy, 6])
    assert np.allclose(to_arrays(result.arrays)["fc.bias"], mean, atol=1e-5)
    assert not grid.take_traffic().failures


def bits(mean: Mean) -> Any:
    """All that is in a mean."""
    constants = {
        name: [weight for _, weight in known.values()] for name, known in mean._constants.items()
    }
    return mean.weight, {name: x.tobytes() for name, x in mean._sums.items()}, constants


@pytest.mark.parametrize("base", [None, BASES[0]], ids=["whole", "difference"])
@pytest.mark.parametrize("codec", LOSSY)
def test_a_reply_refused_half_way_changes_no_bit(codec: str, base: Reference | None) -> None:
    """Of every codec and dtype, with damage in every payload and at several places of it."""
    config = Settings.of(1e-2, codec=codec)

    def opened(record: ArrayRecord) -> Update:
        return Update.open(record, model=SERVER, reference=base)

    def mean_of(clients: int) -> Mean:
        mean = Mean()
        for client in range(clients):
            record = seal(model(client), config, base)
            add(mean, opened(record), 2.0)
        return mean

    huge = {n: x * x.dtype.type(1e4) if "weight" in n else x for n, x in model(3).items()}
    record = seal(huge, config, base)
    (array,) = record.values()
    refused = 0
    for clients in (0, 2):  # the first reply of all, or of some
        mean = mean_of(clients)
        before = bits(mean)
        for payload, _ in enumerate(Reader(array.data).payloads()):
            for where in (0.0, 0.3, 0.6, 0.9):
                hostile = damaged(record, payload, where)
                try:
                    add(mean, opened(hostile), 5.0)
                except FedszError:
                    refused += 1
                    assert bits(mean) == before
                else:  # some bits change a value and no more
                    mean = mean_of(clients)
    assert refused


@pytest.mark.parametrize("seconds", [np.nan, np.inf, 1e308, -5.0, 3.0])
def test_what_a_client_says_of_its_time_can_be_read_back(seconds: float) -> None:
    inner, records = Hostile(metrics(loss=seconds), 4), list[RoundRecord]()
    grid = FedSZGrid(inner, 1e-2, rules="fleet", on_round=records.append)
    run(StreamingFedAvg(fraction_evaluate=0), grid)

    (record,) = records
    assert from_json(to_json(record)) == record


def test_what_is_typical_outlasts_a_crash() -> None:
    inner = Hostile(REFUSED["NaN"][0], 4)
    before = FedSZGrid(inner, 1e-2, rules="fleet")
    run(StreamingFedAvg(fraction_evaluate=0), before, rounds=3)

    after = FedSZGrid(inner, 1e-2, rules="fleet")
    after.restore(before.state())

    assert before._checks.typical.norm > 0
    assert after.state() == before.state()
