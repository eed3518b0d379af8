"""Builds of the native code, made before or by the first test that needs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from compressors.variants import VARIANTS, build, missing

native = [
    pytest.mark.skipif(bool(missing("encoder")), reason="needs a C++ compiler and cmake"),
    pytest.mark.repository,
    pytest.mark.timeout(1800),  # to compile, where nothing has
]


def built(name: str) -> Path:
    """Return the folder of a build; skip the test without what makes and runs it."""
    machine, why = VARIANTS[name].machine, missing(name)
    if machine.emulators and not machine.emulator:
        why = " and ".join(filter(None, (why, machine.emulators[0])))
    if why:
        pytest.skip(f"needs {why}")
    return build(name)
