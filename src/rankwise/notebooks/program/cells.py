"""A notebook as data: read it, insert parameters, compare outputs, find pictures, make a script."""

from __future__ import annotations

import base64
import contextlib
import copy
import difflib
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .notebook_results import Ended, NotebookFailure, number_of, plain, without_secrets

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")


def section(metadata: Any, name: str) -> Mapping[str, Any]:
    """Return a table of metadata; any other type of value counts as an empty one."""
    found = metadata.get(name)
    return found if isinstance(found, dict) else {}


def tags_of(cell: Any) -> list[str]:
    tags = cell.metadata.get("tags") or ()
    return [str(tag) for tag in tags] if isinstance(tags, (list, tuple)) else []


def read_notebook(path: Path) -> Any:
    """Read a notebook of any version; raises NotebookFailure."""
    import nbformat

    problem = "it has no cells"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Old notebooks lack ids of cells, of which nbformat warns.
            notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
        if isinstance(notebook.get("cells"), list):
            return notebook
    except OSError as error:
        raise NotebookFailure(Ended.UNREADABLE, f"{path}: {error.strerror}") from None
    except RecursionError:
        problem = "it is nested too deeply"
    except Exception as error:  # nbformat raises many types for files that are no notebooks
        problem = " ".join(str(error).split())[:300]
    raise NotebookFailure(Ended.UNREADABLE, f"{path} is no notebook: {problem}")


# Parameters, and outputs that are compared


def inject(notebook: Any, parameters: Mapping[str, Any]) -> int | None:
    """Insert a cell with the values after the one tagged `parameters`, and return its index.

    Return None if no cell is added: without parameters, or in the place of those of an earlier run.
    """
    if not parameters:
        return None
    from nbformat.v4 import new_code_cell

    lines = [f"{name} = {literal(value)}" for name, value in parameters.items()]
    cell: Any = new_code_cell(  # type: ignore[no-untyped-call]
        "\n".join(lines), metadata={"tags": ["injected-parameters"]}
    )
    # Ids came with version 4.5 of the format; older ones do not allow them.
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        cell.pop("id", None)
    cells = notebook.cells
    for index, found in enumerate(cells):
        if "injected-parameters" in tags_of(found):
            cells[index] = cell
            return None
    tagged = (index for index, found in enumerate(cells) if "parameters" in tags_of(found))
    place = next(tagged, -1) + 1
    cells.insert(place, cell)
    return place


def literal(value: Any) -> str:
    """Return a value of JSON as Python writes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    # Their `repr` are names that Python does not know: inf, nan.
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


def is_compared(cell: Any, which: str) -> bool:
    # The tags and comments of nbval, so that notebooks with these work unchanged.
    tags = {tag.lower().replace("nbval-", "") for tag in tags_of(cell)}
    lines = {line.strip("# ").lower() for line in cell.source.splitlines() if line[:1] == "#"}
    if "ignore-output" in tags or "nbval_ignore_output" in lines or which == "none":
        return False
    return which == "all" or "check-output" in tags or "nbval_check_output" in lines


def differences(before: Sequence[Any], after: Sequence[Any]) -> str:
    """Return how the readable parts of two outputs differ; empty if they do not."""
    stored, now = readable_lines(before), readable_lines(after)
    return "\n".join(difflib.unified_diff(stored, now, "stored", "now", lineterm=""))


def readable_lines(outputs: Sequence[Any]) -> list[str]:
    """Return the lines of an output, without addresses and colours: they differ between runs."""
    printed, shown = "", ""
    for output in outputs:
        kind = output.get("output_type")
        # Not stderr: warnings and progress bars differ from run to run.
        if kind == "stream" and output.get("name") == "stdout":
            printed += joined(output.get("text"))
        elif kind in ("execute_result", "display_data"):
            shown += joined((output.get("data") or {}).get("text/plain")) + "\n"
        elif kind == "error":
            shown += f"{output.get('ename')}: {output.get('evalue')}\n"
    text = _ADDRESS.sub("0x…", plain(printed.rstrip("\n") + "\n" + shown))
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def joined(text: Any) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text or "")


# As a script


def as_script(notebook: Any, injected: int | None = None) -> tuple[str, str]:
    """Return a notebook as a script, or an empty text and the reason why it cannot be one."""
    parts: list[str] = []
    for index, cell in enumerate(notebook.cells):
        number = number_of(index, injected)
        name = f"cell {number}" if number else "parameters"
        if cell.cell_type != "code" or "skip-execution" in tags_of(cell):
            continue
        if "raises-exception" in tags_of(cell):
            return "", f"{name} is expected to fail, which would end a script"
        try:
            # It is only checked. Magics are no Python, nor is `await` outside of a function.
            compile(cell.source, "cell", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return "", f"{name} has magics, or is no plain Python for another reason"
        if "get_ipython" in cell.source:
            return "", f"{name} asks for IPython"
        parts.append(f"# {name}\n{cell.source.rstrip()}\n")
    if any(re.search(r"\bdisplay\(", part) for part in parts):
        # Kernels have this name without an import.
        parts.insert(0, "from IPython.display import display\n")
    return "\n".join(parts), ""


def _redact_outputs(data: Any) -> Any:
    """Replace secrets in outputs, but not in the base64 of pictures, which they could break."""
    if isinstance(data, str):
        return without_secrets(data)
    if isinstance(data, list):
        return [_redact_outputs(one) for one in data]
    if isinstance(data, dict):
        for name in data:
            if not str(name).startswith("image/") or name == "image/svg+xml":
                data[name] = _redact_outputs(data[name])
    return data


def redacted(notebook: Any) -> Any:
    """Return a copy without the values of secrets; the notebook itself is still compared."""
    if not os.environ.get("RANKWISE_SECRETS"):
        return notebook
    notebook = copy.deepcopy(notebook)
    for cell in notebook.cells:
        if "outputs" in cell:
            cell["outputs"] = _redact_outputs(cell["outputs"])
    return notebook


def as_text(notebook: Any) -> str:
    import nbformat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text: str = nbformat.writes(  # type: ignore[no-untyped-call]
            notebook, version=nbformat.NO_CONVERT
        )
    return text + "\n"


def pictures_of(
    notebook: Any, stem: str, injected: int | None = None
) -> Iterator[tuple[int, str, bytes]]:
    """Return the pictures among the outputs: index of the cell, file name, bytes."""
    kinds = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg", "image/gif": "gif"}
    for index, cell in enumerate(notebook.cells):
        pictures = [
            (suffix, joined(data))
            for output in cell.get("outputs") or ()
            for kind, suffix in kinds.items()
            if (data := (output.get("data") or {}).get(kind))
        ]
        cell_number = number_of(index, injected)
        for number, (suffix, text) in enumerate(pictures, 1):
            # A picture that is damaged is left out.
            with contextlib.suppress(ValueError):
                content = text.encode() if suffix == "svg" else base64.b64decode(text)
                yield index, f"{stem}-cell{cell_number}-{number}.{suffix}", content
