"""The step of a reply, put onto the server's own model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedsz
from fedsz.core.decode import decode_onto
from fedsz.core.reference import Reference
from fedsz.stream import Reader

Arrays = dict[str, Any]


def models() -> tuple[Arrays, Arrays, Arrays]:
    """Return a server's model, a reference model near it, and what a client has trained."""
    rng = np.random.default_rng(1)
    own = {
        "weight": rng.normal(size=(100, 50)).astype(np.float32),
        "half": rng.normal(size=2000).astype(np.float16),
        "bias": rng.normal(size=50).astype(np.float32),
        "count": np.array(7, np.int64),
    }
    reference = {n: x + x.dtype.type(0.125) if x.dtype != np.int64 else x for n, x in own.items()}
    trained = {n: x + x.dtype.type(1) for n, x in reference.items()}
    return own, reference, trained


@pytest.mark.parametrize("differences", [True, False])
def test_floats_are_put_onto_the_server_s_model(differences: bool) -> None:
    own, reference, trained = models()
    stream = fedsz.compress(trained, "abs:1e-3", reference=reference if differences else None)
    got = dict(decode_onto(Reader(stream), Reference(reference), own))

    for name in ("weight", "half", "bias"):
        slack = 4e-3 if name == "half" else 1e-6
        assert got[name].dtype == own[name].dtype
        assert np.abs(got[name].astype(np.float64) - own[name] - 1).max() <= 1e-3 + slack
    assert got["count"] == 8


@pytest.mark.parametrize("differences", [True, False])
def test_where_the_reference_is_the_model_nothing_changes(differences: bool) -> None:
    own, _, trained = models()
    reference = Reference(own)
    stream = fedsz.compress(trained, codec="zstd", reference=reference if differences else None)
    got = dict(decode_onto(Reader(stream), reference, reference.arrays))

    for name, x in trained.items():
        np.testing.assert_array_equal(got[name], x)


def test_tensors_of_which_the_server_has_no_such_model_are_as_they_were_trained() -> None:
    own, reference, trained = models()
    stream = fedsz.compress(trained, codec="zstd", reference=reference)
    got = dict(decode_onto(Reader(stream), Reference(reference), {"weight": own["bias"]}))

    for name, x in trained.items():
        np.testing.assert_array_equal(got[name], x)
