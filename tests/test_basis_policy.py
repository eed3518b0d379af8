"""`basis`: what the rules before it decide, in a basis that both sides know."""

from __future__ import annotations

import pytest

from fedsz.control.policy import Controller
from fedsz.core.settings import Settings
from fedsz.errors import ConfigError
from fedsz.methods import Bounded, Eigen, Feedback, parts_of
from tests.policies import decide, row
from tests.test_auto_policy import learning


@pytest.mark.parametrize("rounds", [0, 1, 12, 60])
def test_basis_has_the_bounds_and_the_codec_of_the_rules_before(rounds: int) -> None:
    plain, turned = (decide(policy, learning(rounds)).config for policy in ("auto", "auto+basis"))

    assert turned.chain is not None
    feedback, eigen, last = parts_of(turned.chain)
    assert isinstance(feedback, Feedback)
    assert isinstance(eigen, Eigen)
    assert isinstance(last, Bounded)
    assert (str(last.codec), last.bound) == (plain.codec, plain.bound)
    assert turned.replace(update=plain.update) == plain
    assert turned.without_history == plain.without_history


def test_auto_tightens_what_the_basis_takes() -> None:
    history = [*learning(7), row(8, 0.1, 3.0), row(9, 0.1, 3.0)]

    usual, behind = (decide("auto+basis", history[:n]).config.update for n in (-1, None))

    assert float(behind.rpartition(":")[2]) <= float(usual.rpartition(":")[2]) / 2


def test_a_decay_goes_into_the_chain() -> None:
    base = Settings(update="delta+ef", decay=0.5, error_bound="step:1", downlink="step:1")

    decided = Controller("basis", base, tolerance=0.5, rounds=None).decided()

    assert decided.config.update == "feedback:decay=0.5>eigen>uniform@step:1"


@pytest.mark.parametrize("codec", ["raw", "zlib", "zfp:precision=12"])
def test_codecs_that_keep_no_bound_are_refused(codec: str) -> None:
    base = Settings(codec=codec)
    with pytest.raises(ConfigError, match=f"basis needs a codec that keeps a bound; got {codec}"):
        Controller("auto+basis", base, tolerance=0.5, rounds=None)


@pytest.mark.parametrize("policy", ["basis", "basis+auto+layers", "auto+basis+layers"])
def test_rules_in_an_order_that_means_nothing_are_refused_before_any_round(policy: str) -> None:
    with pytest.raises(ConfigError, match="needs"):
        decide(policy)


@pytest.mark.parametrize(
    ("update", "downlink", "told"),
    [("delta", "step:1", "basis needs update delta"), ("delta+ef", "exact", "got exact")],
)
def test_what_has_no_basis_is_refused(update: str, downlink: str, told: str) -> None:
    base = Settings(update=update, error_bound="step:1", downlink=downlink)
    with pytest.raises(ConfigError, match=told):
        Controller("basis", base, tolerance=0.5, rounds=None)


def test_factors_of_layers_are_left_out_in_words() -> None:
    base = Settings(update="delta+ef", error_bound="step:1", downlink="step:1", factors={"a": 2.0})

    decided = Controller("basis", base, tolerance=0.5, rounds=None).decided()

    assert decided.config.factors == {}
    assert decided.why.endswith("without factors")
