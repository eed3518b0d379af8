"""The corpus of `make fuzz`, replayed with a few mutations of each of its files."""

from __future__ import annotations

import random

import pytest

from tests.fuzz import TARGETS, corpus, mutated


@pytest.mark.parametrize("target", TARGETS)
def test_the_corpus_and_its_neighbours_are_read_or_refused(target: str) -> None:
    seeds, rng = corpus(target), random.Random(0)  # noqa: S311 - a mutation is no secret
    assert seeds
    for seed in seeds:
        TARGETS[target](seed)
        for _ in range(20):
            TARGETS[target](mutated(seed, seeds, rng))
