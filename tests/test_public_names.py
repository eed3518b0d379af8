"""Every public name describes its arguments, and has an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")

import fedsz
import fedsz.flower

NAMES = [
    *(("fedsz", name) for name in fedsz.__all__),
    *(("fedsz.flower", name) for name in fedsz.flower.__all__),
]


def public(module: str, name: str) -> Any:
    return getattr(fedsz if module == "fedsz" else fedsz.flower, name)


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_its_example_runs(module: str, name: str) -> None:
    text = inspect.getdoc(public(module, name)) or ""
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    told: list[str] = []

    outcome = doctest.DocTestRunner(verbose=False).run(example, out=told.append)

    assert outcome.attempted > 0, f"{module}.{name} has no example"
    assert not outcome.failed, "".join(told)


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_its_arguments_are_described(module: str, name: str) -> None:
    """Of a class, those of its `__init__`, or its fields as attributes."""
    thing = public(module, name)
    if isinstance(thing, ModuleType) or thing is fedsz.FedszError:
        return
    text = inspect.getdoc(thing) or ""
    taken = [
        p.name
        for p in inspect.signature(thing).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]

    assert [word for word in taken if not re.search(rf"\b{word}\b", text)] == []
