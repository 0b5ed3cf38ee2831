"""What is known of a notebook before it runs: its command line, and whether it needs a person."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

PROGRAM = Path(__file__).with_name("program")
"""The folder that runs notebooks, with any interpreter that has nbclient."""

NEEDS = ("nbclient",)
"""What the interpreter that runs it must have."""

RESULTS = "results.xml"
"""What became of every cell, as JUnit, in the folder that was given as `out`."""

Compare = Literal["tagged", "all", "none"]

_MOST_BYTES = 200_000_000
_ASKING = frozenset({"input", "raw_input", "getpass"})
_NOT_RUN = frozenset({"skip-execution", "raises-exception"})
# For IPython, not for Python: magics, shell commands, help.
_MAGIC = re.compile(r"^\s*(?:[%!?]|[\w.]+\?{1,2}\s*$|[\w, ]+=\s*[%!])")


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookOptions:
    """How a notebook is run."""

    timeout: float | None = None
    """Seconds for the whole notebook; None: what the notebook says, or the default; 0: no limit."""
    cell_timeout: float | None = None
    """Seconds for each cell that says nothing else."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    """Values for the cell that is tagged `parameters`."""
    html: bool = True
    pdf: bool = False
    as_script: bool = False
    """Run it as a `.py` too, if it has no magics."""
    compare: Compare = "tagged"
    """Which cells must have the output that is stored in the notebook."""
    reuse_kernel: bool = False
    """One kernel for several notebooks: faster, and what one leaves behind, the next one finds."""
    kernel_python: str = "python"
    """The interpreter of the kernel; a bare name is looked up in PATH."""


def notebook_command(
    notebook: Path,
    *,
    out: str,
    interpreter: str,
    options: NotebookOptions,
    program: str = "",
) -> tuple[str, ...]:
    """Return the command that runs a notebook and writes what becomes of it into the folder `out`.

    `program` is where the program lies on the machine that runs it, if that is not this one: there
    nothing is written beside it.
    """
    own = ["-B", program] if program else [str(PROGRAM)]
    words = [interpreter, *own, str(notebook), "--out", out]
    words += ["--kernel-python", options.kernel_python]
    if options.timeout is not None:
        words += ["--timeout", f"{options.timeout:g}"]
    if options.cell_timeout is not None:
        words += ["--cell-timeout", f"{options.cell_timeout:g}"]
    if options.parameters:
        words += ["--parameters", json.dumps(dict(options.parameters))]
    if options.compare != "tagged":
        words += ["--compare", options.compare]
    wishes = {
        "--html": options.html,
        "--pdf": options.pdf,
        "--as-script": options.as_script,
        "--reuse-kernel": options.reuse_kernel,
    }
    words += [word for word, is_wanted in wishes.items() if is_wanted]
    return (*words, "--junit", f"{out}/{RESULTS}")


def program_files() -> dict[str, str]:
    """Return the files of the program by their names in the folder that it is sent as."""
    sources = sorted(PROGRAM.glob("*.py"))
    return {f"{PROGRAM.name}/{one.name}": one.read_text(encoding="utf-8") for one in sources}


def needs_input(path: Path) -> str:
    """Say why a notebook needs a person before it can run; empty if nothing is known of that.

    The notebook may say so itself, or a cell that is always run asks for input. One that cannot be
    read is none of those: whoever runs it will say what is wrong.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            return ""
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    if not isinstance(notebook, dict):
        return ""
    said = _said(notebook)
    if said:
        return said
    for number, source in _code_cells(notebook):
        if name := _asks(source):
            return f"cell {number} calls {name}()"
    return ""


def _said(notebook: Mapping[str, object]) -> str:
    metadata = notebook.get("metadata")
    own = metadata.get("rankwise") if isinstance(metadata, dict) else None
    reason = own.get("needs_input") if isinstance(own, dict) else None
    if reason is True:
        return "its metadata says so"
    return reason.strip() if isinstance(reason, str) else ""


def _code_cells(notebook: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """Return the cells that are run, numbered from 1 among all cells."""
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
    """Name the function by which code always asks for input; empty if it may go without."""
    if not any(name in source for name in _ASKING) or source.lstrip().startswith("%%"):
        return ""
    plain = "\n".join("pass" if _MAGIC.match(line) else line for line in source.splitlines())
    try:
        tree = ast.parse(plain)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    if _defined(tree) & _ASKING - {"getpass"}:
        return ""
    return next(_calls(tree.body), "")


def _defined(tree: ast.AST) -> set[str]:
    """Name what the code itself gives a meaning to: an `input` of its own asks nobody."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
    return found


def _calls(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Name the calls that ask, of all that is run in any case: no branches, no functions."""
    for node in nodes:
        if isinstance(node, ast.stmt) and not isinstance(node, _ALWAYS_RUN):
            continue
        if isinstance(node, ast.Lambda | ast.IfExp | ast.BoolOp):
            continue
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in _ASKING and (isinstance(node.func, ast.Name) or name == "getpass"):
                yield name
        yield from _calls(list(ast.iter_child_nodes(node)))


_ALWAYS_RUN = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.With, ast.Assert)
