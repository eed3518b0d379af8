"""The one record of a round: its line and its columns."""

from __future__ import annotations

import json
import math
from typing import get_type_hints

import pytest

from fedsz.control.record import (
    SUMS,
    VERSION,
    ClientRecord,
    Decision,
    Failure,
    RoundRecord,
    Traffic,
)
from fedsz.control.round_numbers import numbers
from fedsz.core.settings import Settings
from fedsz.errors import FedszError
from fedsz.training.events import from_json, to_json

RECORD = RoundRecord(
    round=3,
    accuracy=0.75,
    loss=0.5,
    seconds=1.25,
    replies=1,
    failures=[Failure("pi/0", "gone")],
    raw_up=1000,
    sent_up=10,
    clients=[
        ClientRecord(
            node="7", bandwidth=1e6, raw_bytes=1000, sent_bytes=10, encode_seconds=0.1,
            decode_seconds=0.2,
        )
    ],
    decision=Decision(
        config=Settings(error_bound="std:0.123456789", factors={"a": 0.1}),
        codecs={"7": "raw"},
        why="because",
    ),
    spread={"a": (9, 0.5)},
    sensitivity={"a": 2.0},
)  # fmt: skip


def test_a_line_holds_all_of_it() -> None:
    line = to_json(RECORD)

    assert from_json(line) == RECORD
    told = json.loads(line)
    assert (told["event"], told["version"], told["ratio"]) == ("round", VERSION, 100.0)
    nothing = json.loads(to_json(RoundRecord(round=0, loss=math.nan)))
    assert nothing["ratio"] is nothing["loss"] is None


@pytest.mark.parametrize(
    "line",
    ["", "[]", "7", "{}", '{"event": "round"}', '{"event": "round", "round": "three"}',
     '{"event": "round", "round": 1, "decision": 7}',
     '{"event": "round", "round": 1, "decision": {"error_bound": "tight"}}'],
)  # fmt: skip
def test_what_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(FedszError, match="not an event"):
        from_json(line)


def test_a_sweep_has_a_column_for_every_number() -> None:
    results = pytest.importorskip("fedsz.experiments.results")
    of_record = {
        name
        for name, kind in get_type_hints(RoundRecord).items()
        if kind in (int, float, float | None) and name != "version"
    }

    columns = numbers(RECORD)

    assert columns.keys() == of_record | {"failures", "ratio"}
    assert columns.keys() <= results.SWEEP.columns.keys()
    assert (columns["failures"], columns["ratio"], columns["sent_up"]) == (1, 100.0, 10)
    assert results.SWEEP.version == VERSION


def test_every_number_of_traffic_adds_up_or_is_a_median_or_a_maximum() -> None:
    kinds = get_type_hints(Traffic)
    counted = {name for name, kind in kinds.items() if kind in (int, float, float | None)}

    others = {"max_error", "tensors", "lossy", "energy_fraction", "residual_ratio"}
    assert set(SUMS) == counted - others
    assert not set(SUMS) & others
