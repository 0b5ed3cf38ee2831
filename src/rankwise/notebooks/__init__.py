"""Notebooks before they run: their command line, and whether they need a person."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

PROGRAM = Path(__file__).with_name("program")
"""The program that runs notebooks, a folder for any interpreter that has nbclient."""

NEEDS = ("nbclient",)
"""Modules that its interpreter must have."""

RESULTS = "results.xml"
"""The name of the JUnit file with a case for each cell, in the folder `out`."""

Compare = Literal["tagged", "all", "none"]

# A larger file is not searched: it runs, and fails there if it asks for input.
_MOST_BYTES = 200_000_000
_ASKING = frozenset({"input", "raw_input", "getpass"})
# A cell that is expected to fail may ask for input too: that is an error like any other.
_NOT_RUN = frozenset({"skip-execution", "raises-exception"})
# What IPython understands and Python does not: magics, shell commands, help.
_MAGIC = re.compile(r"^\s*(?:[%!?]|[\w.]+\?{1,2}\s*$|[\w, ]+=\s*[%!])")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookOptions:
    """Options for the run of a notebook."""

    timeout: float | None = None
    """Seconds for the whole notebook; None: from its metadata, or the default; 0: no limit."""
    cell_timeout: float | None = None
    """Seconds for each cell without a limit of its own."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Values that replace those of the cell tagged `parameters`."""
    html: bool = True
    pdf: bool = False
    as_script: bool = False
    """Run it as a Python script too, if it has no magics."""
    compare: Compare = "tagged"
    """Cells whose output must be the one that is stored in the notebook."""
    reuse_kernel: bool = False
    """Use one kernel for several notebooks: faster, but variables of one remain for the next."""
    kernel_python: str = "python"
    """The interpreter of the kernel; a bare name is looked up in PATH."""


def notebook_command(
    notebook: Path, *, out: str, interpreter: str, options: NotebookOptions, program: str = ""
) -> tuple[str, ...]:
    """Return the command that runs a notebook and writes its files into the folder `out`.

    `program` is the place of the program on another machine; no bytecode is written there.
    """
    given = {
        "--out": out,
        "--kernel-python": options.kernel_python,
        "--timeout": None if options.timeout is None else f"{options.timeout:g}",
        "--cell-timeout": None if options.cell_timeout is None else f"{options.cell_timeout:g}",
        "--parameters": json.dumps(dict(options.parameters)) if options.parameters else None,
        "--compare": None if options.compare == "tagged" else options.compare,
    }
    flags = {
        "--html": options.html,
        "--pdf": options.pdf,
        "--as-script": options.as_script,
        "--reuse-kernel": options.reuse_kernel,
    }
    words = [interpreter, *(["-B", program] if program else [str(PROGRAM)]), str(notebook)]
    for name, value in given.items():
        words += [] if value is None else [name, value]
    words += [name for name, is_set in flags.items() if is_set]
    return (*words, "--junit", f"{out}/{RESULTS}")


def program_files() -> dict[str, str]:
    """Return the files of the program by their names in the folder that is sent."""
    files = sorted(path for path in PROGRAM.iterdir() if path.is_file())
    return {f"{PROGRAM.name}/{path.name}": path.read_text(encoding="utf-8") for path in files}


def needs_input(path: Path) -> str:
    """Return why a notebook needs a person before it can run; empty if no reason is known.

    Its metadata may say so, or a cell that always runs asks for input. A file that cannot be read
    gives no reason: the program that runs it explains what is wrong.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            return ""
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    if not isinstance(notebook, dict):
        return ""
    if reason := _stated_reason(notebook):
        return reason
    asking = ((number, _asks(source)) for number, source in _code_cells(notebook))
    return next((f"cell {number} calls {name}()" for number, name in asking if name), "")


def _stated_reason(notebook: Mapping[str, object]) -> str:
    metadata = notebook.get("metadata")
    own = metadata.get("rankwise") if isinstance(metadata, dict) else None
    reason = own.get("needs_input") if isinstance(own, dict) else None
    if reason is True:
        return "its metadata says so"
    return reason.strip() if isinstance(reason, str) else ""


def _code_cells(notebook: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """Return the sources of cells that run and must not fail, by their number among all cells."""
    cells = notebook.get("cells")
    for number, cell in enumerate(cells if isinstance(cells, list) else (), 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        metadata = cell.get("metadata")
        tags = metadata.get("tags") if isinstance(metadata, dict) else None
        if isinstance(tags, list) and not _NOT_RUN.isdisjoint(map(str, tags)):
            continue
        source = cell.get("source", "")
        yield number, "".join(map(str, source)) if isinstance(source, list) else str(source)


def _asks(source: str) -> str:
    """Return the function by which code always asks for input; empty if it may run without."""
    # Nearly all cells end here, before anything is parsed. `%%` starts a cell in another language.
    if not any(name in source for name in _ASKING) or source.lstrip().startswith("%%"):
        return ""
    # `pass` in the place of a magic keeps a block valid that has no other line.
    plain = "\n".join("pass" if _MAGIC.match(line) else line for line in source.splitlines())
    try:
        tree = ast.parse(plain)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    # The module `getpass` is imported by this name, so only the others can be own ones
    if _defined(tree) & _ASKING - {"getpass"}:
        return ""
    return next(_calls(tree.body), "")


def _defined(tree: ast.AST) -> set[str]:
    """Return the names that the code itself defines: an `input` of its own asks for nothing."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.alias(name=name, asname=other):
                found.add(other or name)
    return found


def _calls(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Return the calls that ask, among all that always runs: no branches, no functions."""
    for node in nodes:
        if isinstance(node, ast.stmt) and not isinstance(node, _ALWAYS_RUN):
            continue
        # These may leave out a part of themselves.
        if isinstance(node, ast.Lambda | ast.IfExp | ast.BoolOp):
            continue
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in _ASKING and (isinstance(node.func, ast.Name) or name == "getpass"):
                yield name
        yield from _calls(list(ast.iter_child_nodes(node)))


_ALWAYS_RUN = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.With, ast.Assert)
