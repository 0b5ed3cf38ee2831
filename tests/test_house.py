"""The layout of the source: which rooms may import which, and pages that name files which exist."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import house
import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "rankwise"
MODULES = house.read_modules()

# From the top: a room imports only from rooms in lines below its own.
LAYERS = (
    ("cli",),
    ("export", "steps", "web"),
    ("engine", "notify", "planning", "pytest_plugin"),
    ("backends", "reports"),
    ("documents", "metrics"),
    ("checks", "logs"),
    ("records", "runtimes"),
    ("files", "git", "launch", "machine", "plugins", "stats", "store"),
    ("errors", "node", "notebooks", "plan", "safe_text", "wording"),
)
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}


def room_of(name: str) -> str:
    """Return the folder or file directly below rankwise that a dotted name leads into."""
    return name.split(".")[1] if name.startswith("rankwise.") else ""


def imports_of(name: str) -> Iterator[str]:
    """Return what a module imports when it runs, in functions too, by absolute dotted names."""
    waiting: list[ast.AST] = [MODULES[name].tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        waiting.extend(ast.iter_child_nodes(node))


def test_every_room_is_in_one_layer() -> None:
    rooms = sorted({room_of(name) for name in MODULES if name != "rankwise"})
    assert rooms == sorted(room for layer in LAYERS for room in layer)


def test_a_room_imports_only_from_lower_layers() -> None:
    wrong = [
        f"{name} imports {imported}"
        for name in MODULES
        if name != "rankwise"
        for imported in imports_of(name)
        # What is in no room is the version of the package.
        if room_of(imported) in LAYER_OF.keys() - {room_of(name)}
        if LAYER_OF[room_of(imported)] <= LAYER_OF[room_of(name)]
    ]
    assert wrong == []


def test_node_imports_only_the_standard_library_and_itself() -> None:
    names = [name for name in MODULES if room_of(name) == "node"]
    assert names
    for name in names:
        packages = {imported.partition(".")[0] for imported in imports_of(name)}
        assert packages <= sys.stdlib_module_names, name
        # Where the folder was copied to it has another name, so it imports itself relatively.
        nodes = ast.walk(MODULES[name].tree)
        assert all(node.level < 2 for node in nodes if isinstance(node, ast.ImportFrom)), name


@pytest.mark.parametrize("start", ["schedulers", "mpirun_coordinator"])
def test_what_gives_out_tests_loads_neither_pytest_nor_mpi(start: str) -> None:
    waiting = [name for name in MODULES if name.startswith(f"rankwise.pytest_plugin.{start}")]
    assert waiting
    loaded: set[str] = set()
    while waiting:
        name = waiting.pop()
        loaded.add(name)
        parent = {name.rpartition(".")[0]} - {""}
        waiting += (house.imports_at_load(MODULES[name], MODULES) | parent) - loaded
    packages = {one.partition(".")[0] for name in loaded for one in imports_of(name)}
    assert packages <= sys.stdlib_module_names | {"rankwise"}


# Pages

PAGES = [ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    names = re.findall(r"`([\w/-]+\.py)`", page.read_text())
    # A file without a folder is the reader's own, except on the page about the source.
    ours = [name for name in names if "/" in name or page.name == "architecture.md"]
    assert [one for one in ours if not any((at / one).exists() for at in (SOURCE, ROOT))] == []


def test_the_architecture_has_every_room_with_its_layer() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = {
        room: int(layer)
        for rooms, layer in re.findall(r"^\| (`[^|]+) \| (\d+) \|", text, re.MULTILINE)
        for room in re.findall(r"`(\w+)(?:/|\.py)`", rooms)
    }
    assert named == {room: len(LAYERS) - number for room, number in LAYER_OF.items()}
