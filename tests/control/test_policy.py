"""The policies that can be named, and which texts are refused."""

from __future__ import annotations

import math
import re

import pytest

from fedsz.control.controller import POLICIES, all_policies
from fedsz.core.settings import EXACT
from fedsz.errors import ConfigError
from tests.policies import BASE, controller, decide


@pytest.mark.parametrize(
    ("spec", "why", "changes"),
    [
        ("", "no policy ''; have fixed, auto, gate, schedule, accuracy, dc2, layers", {}),
        ("fix", "no policy 'fix'", {}),
        ("auto+", "no policy ''", {}),
        ("fixed:x=1", "policy 'fixed' has no setting 'x'; have none", {}),
        ("accuracy:ups=2", "have up, down, low, high, patience", {}),
        ("accuracy:up=much", "up must be float", {}),
        ("accuracy:up=0.5", "at least 1", {}),
        ("accuracy:low=nan", "above 0, up to 1, got nan", {}),
        ("accuracy:low=2", "accuracy low must lie above 0, up to 1, got 2", {}),
        ("schedule", "needs an end", {}),
        ("schedule:first=abs:1", "both must be of one kind", {}),
        ("schedule:first=std:0", "above 0", {}),
        ("schedule:down_last=std:1", "exact without it", {"downlink": EXACT}),
        ("dc2:rule=da9", "must be one of mean, aimd, aiad, trend, band", {}),
        ("dc2:seconds=-1", "finite and above 0", {}),
        ("dc2:width=1", "above 0, below 1", {}),
        ("layers:limit=0.5", "at least 1", {}),
        ("layers", "layers needs update delta", {"update": "weights"}),
        ("gate:codecs=szx", "policy 'gate' has no setting 'codecs'; have again", {}),
        ("gate:again=0", "at least 1", {}),
    ],
)
def test_specs_that_cannot_be_are_refused_with_what_can(
    spec: str, why: str, changes: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        controller(spec, BASE.replace(**changes))


def test_a_tolerance_is_a_number() -> None:
    with pytest.raises(ConfigError, match="tolerance"):
        controller("auto", tolerance=math.nan)


def test_joined_policies_need_what_each_of_them_needs() -> None:
    assert {policy.name for policy in all_policies() if policy.needs} == {"layers"}
    assert not controller("auto+gate").needs
    assert controller("gate+layers").needs == {"spread", "sensitivity"}
    assert controller("layers+auto").needs == {"spread", "sensitivity"}


def test_the_core_has_three_policies() -> None:
    assert [policy.name for policy in POLICIES] == ["fixed", "auto", "gate"]


@pytest.mark.parametrize(
    ("spec", "up", "down"),
    [
        ("auto+schedule:down_first=step:1", "step:0.4667", "step:1"),
        ("auto+schedule:down_last=step:1", "step:0.4667", "step:0.4667"),
        ("auto+schedule:down_first=step:1,down_last=step:2", "step:0.4667", "step:1"),
        ("auto+schedule:first=step:2", "step:2", "step:0.4667"),
    ],
)
def test_a_schedule_takes_the_end_that_it_lacks_from_auto(spec: str, up: str, down: str) -> None:
    config = decide(spec).config
    assert (config.error_bound, config.downlink) == (up, down)
