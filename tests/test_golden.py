"""Streams that past releases wrote still decode to what they decoded to then."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedsz
from fedsz.codecs import CODECS
from tests.golden.make import FOLDER, bytes_of, state

STREAMS = sorted(FOLDER.glob("*.fsz"))


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_golden_stream(path: Path) -> None:
    codec = next(codec for codec in CODECS if path.stem.endswith(f"-{codec.name}"))
    if why := codec.missing():
        pytest.skip(why)

    decoded = fedsz.decompress(path.read_bytes(), as_numpy=True)

    with np.load(path.with_suffix(".npz")) as expected:
        assert {name: x.tobytes() for name, x in bytes_of(decoded).items()} == {
            name: expected[name].tobytes() for name in expected.files
        }
    assert [(name, x.dtype, x.shape) for name, x in decoded.items()] == [
        (name, x.dtype, x.shape) for name, x in state().items()
    ]


def test_every_codec_has_a_golden_stream() -> None:
    assert {codec.name for codec in CODECS} <= {path.stem.partition("-")[2] for path in STREAMS}
