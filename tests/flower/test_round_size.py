"""How much of fedsz one ordinary round runs through: a reader of a round reads as much."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

import fedsz
from fedsz.flower import FedSZGrid, LocalGrid, StreamingFedAvg
from tests.federation import app_of, initial, record_of

# As measured; docs/results/core.md has what it was before.
MOST_FUNCTIONS, MOST_MODULES = 390, 53

PACKAGE = str(Path(fedsz.__file__).parent)
COMPREHENSIONS = {"<genexpr>", "<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>"}


def test_a_round_calls_few_functions_of_few_modules() -> None:
    """Five clients, `auto` and the rules of a fleet; the fourth of five rounds."""
    called: set[CodeType] = set()
    counts = False

    def profile(frame: FrameType, event: str, _: object) -> None:
        if counts and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            called.add(frame.f_code)

    class Strategy(StreamingFedAvg):
        def configure_train(self, server_round: int, *rest: object) -> object:  # type: ignore[override]
            nonlocal counts
            counts = server_round == 4
            return super().configure_train(server_round, *rest)  # type: ignore[arg-type]

    grid = FedSZGrid(LocalGrid(app_of(examples=lambda _: 1), [{}] * 5), rules="fleet")
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        Strategy(fraction_evaluate=0.0).start(
            grid=grid, initial_arrays=record_of(initial()), num_rounds=5
        )
    finally:
        sys.setprofile(before)

    functions = {code for code in called if code.co_name not in COMPREHENSIONS}
    assert 100 < len(functions) <= MOST_FUNCTIONS
    assert len({code.co_filename for code in functions}) <= MOST_MODULES
    # Pipelines cost those who use them.
    unused = (f"{PACKAGE}/methods/", f"{PACKAGE}/contrib/")
    assert not [code for code in functions if code.co_filename.startswith(unused)]
