"""Streams that past releases wrote still decode to what they decoded to then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedsz
from tests.golden.make import CASES, FOLDER, bytes_of

STREAMS = sorted(FOLDER.glob("*.fsz"))


def name_of(path: Path) -> str:
    """What a file holds: its name without the version."""
    return path.stem.partition("-")[2]


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_golden_stream(path: Path) -> None:
    case = CASES[name_of(path)]
    if why := case.codec.missing():
        pytest.skip(why)

    decoded = fedsz.decompress(path.read_bytes(), reference=case.reference(), as_numpy=True)

    with np.load(path.with_suffix(".npz")) as expected:
        assert {name: x.tobytes() for name, x in bytes_of(decoded).items()} == {
            name: expected[name].tobytes() for name in expected.files
        }
    assert [(name, x.dtype, x.shape) for name, x in decoded.items()] == [
        (name, x.dtype, x.shape) for name, x in case.arrays().items()
    ]


def test_every_case_has_a_golden_stream() -> None:
    assert CASES.keys() <= {name_of(path) for path in STREAMS}
