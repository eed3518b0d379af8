"""Every public name describes its arguments, and has an example that runs."""

from __future__ import annotations

import doctest
import inspect
import re
from types import ModuleType

import pytest

pytest.importorskip("torch")
pytest.importorskip("flwr")

import fedsz
import fedsz.flower

NAMED = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (fedsz, fedsz.flower)
    for name in module.__all__
}


@pytest.mark.parametrize("name", NAMED)
def test_its_example_runs(name: str) -> None:
    text = inspect.getdoc(NAMED[name]) or ""
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    told: list[str] = []

    outcome = doctest.DocTestRunner(verbose=False).run(example, out=told.append)

    assert outcome.attempted > 0, f"{name} has no example"
    assert not outcome.failed, "".join(told)


@pytest.mark.parametrize("name", NAMED)
def test_its_arguments_are_described(name: str) -> None:
    """Of a class, those of its `__init__`, or its fields as attributes."""
    thing = NAMED[name]
    if isinstance(thing, ModuleType) or thing is fedsz.FedszError:
        return
    text = inspect.getdoc(thing) or ""
    taken = [
        p.name
        for p in inspect.signature(thing).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]

    assert [word for word in taken if not re.search(rf"\b{word}\b", text)] == []
