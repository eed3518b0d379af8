"""Imports between the rooms of fedsz/ point one way, and the picture in docs shows them."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.repository

# A room may import these, and what those may.
MAY_IMPORT = {
    "cli": {"report", "monitoring"},
    "monitoring": {"training"},
    "report": {"experiments"},
    "experiments": {"training"},
    "training": {"privacy"},
    "nvflare": {"control"},
    "contrib": {"flower"},
    "privacy": {"flower"},
    "flower": {"transport", "control"},
    "transport": {"codecs"},
    "control": {"core"},
    "core": {"stream", "methods"},
    "stream": {"codecs"},
    "methods": {"codecs"},
    "codecs": {"shared"},
    "shared": set(),
}
KNOW_ONLY_ARRAYS = ("codecs", "methods", "stream", "core", "control", "privacy")


@pytest.fixture(scope="module")
def rooms() -> Any:
    spec = importlib.util.spec_from_file_location("draw_rooms", ROOT / "docs" / "draw_rooms.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rooms_import_what_they_may(rooms: Any) -> None:
    assert MAY_IMPORT.keys() == rooms.ROOMS.keys()
    folders = {path.parent.name for path in (ROOT / "fedsz").glob("*/__init__.py")}
    assert folders == rooms.ROOMS.keys() - {rooms.SHARED}
    wrong = {
        room: below - rooms.reachable(MAY_IMPORT, room) for room, below in rooms.imports().items()
    }
    assert not any(wrong.values()), wrong


def test_modules_do_not_import_in_a_circle(rooms: Any) -> None:
    sources = [path for end in ("py", "pyi") for path in (ROOT / "fedsz").rglob(f"*.{end}")]
    paths = {rooms.module_name(path): path for path in sources}
    graph = {
        name: {
            target if target in paths else target.rpartition(".")[0]
            for node in ast.parse(path.read_text("utf-8")).body  # neither functions nor types
            if isinstance(node, ast.Import | ast.ImportFrom)
            for target in rooms.imported(node)
        }
        for name, path in paths.items()
    }

    assert set(graphlib.TopologicalSorter(graph).static_order()) >= paths.keys()


@pytest.mark.parametrize("room", KNOW_ONLY_ARRAYS)
def test_what_handles_arrays_knows_neither_torch_nor_flower(room: str) -> None:
    for path in (ROOT / "fedsz" / room).rglob("*.py"):
        if path.name.startswith("flower_"):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        froms = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        packages = {(name or "").split(".")[0] for name in froms | names}
        assert not packages & {"torch", "flwr", "grpc"}, path


def test_the_picture_is_what_the_script_draws(rooms: Any) -> None:
    drawn = rooms.draw(rooms.reduced(rooms.imports()))

    assert rooms.PICTURE.read_text("utf-8") == drawn, "run python docs/draw_rooms.py"
