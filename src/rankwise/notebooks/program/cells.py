"""A notebook as data: reading it, parameters, outputs that are compared, pictures, scripts."""

from __future__ import annotations

import base64
import copy
import difflib
import math
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .notebook_results import UNREADABLE, NotebookFailure, number_of, plain, without_secrets

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}\b")


def section(metadata: Any, name: str) -> Mapping[str, Any]:
    """Return a table of metadata; what is there instead of one counts as none."""
    found = metadata.get(name)
    return found if isinstance(found, dict) else {}


def tags_of(cell: Any) -> list[str]:
    tags = cell.metadata.get("tags") or ()
    return [str(tag) for tag in tags] if isinstance(tags, (list, tuple)) else []


def read_notebook(path: Path) -> Any:
    """Read a notebook of any version; raises NotebookFailure."""
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            notebook = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise NotebookFailure(UNREADABLE, f"{path}: {error.strerror}") from None
    except RecursionError:
        raise NotebookFailure(UNREADABLE, f"{path} is nested too deeply") from None
    except Exception as error:  # whatever is in the file
        words = " ".join(str(error).split())[:300]
        raise NotebookFailure(UNREADABLE, f"{path} is no notebook: {words}") from None
    if not isinstance(notebook.get("cells"), list):
        raise NotebookFailure(UNREADABLE, f"{path} is no notebook: it has no cells")
    return notebook


# Parameters, and outputs that are compared


def inject(notebook: Any, parameters: Mapping[str, Any]) -> int | None:
    """Put a cell with the values after the one that is tagged `parameters`; gives its index."""
    if not parameters:
        return None
    from nbformat.v4 import new_code_cell

    lines = [f"{name} = {literal(value)}" for name, value in parameters.items()]
    cell: Any = new_code_cell(  # type: ignore[no-untyped-call]
        "\n".join(lines), metadata={"tags": ["injected-parameters"]}
    )
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        cell.pop("id", None)
    cells = notebook.cells
    for index, found in enumerate(cells):
        if "injected-parameters" in tags_of(found):
            # Those of an earlier run.
            cells[index] = cell
            return None
    places = [index for index, found in enumerate(cells) if "parameters" in tags_of(found)]
    place = places[0] + 1 if places else 0
    cells.insert(place, cell)
    return place


def literal(value: Any) -> str:
    """Write a value in Python."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


def is_compared(cell: Any, which: str) -> bool:
    tags = {tag.lower().replace("nbval-", "") for tag in tags_of(cell)}
    lines = {line.strip("# ").lower() for line in cell.source.splitlines() if line[:1] == "#"}
    if "ignore-output" in tags or "nbval_ignore_output" in lines or which == "none":
        return False
    return which == "all" or "check-output" in tags or "nbval_check_output" in lines


def differences(before: Sequence[Any], after: Sequence[Any]) -> str:
    """Say how two outputs differ, in what a person reads of them; empty: they do not."""
    was, now = readable_lines(before), readable_lines(after)
    if was == now:
        return ""
    lines = difflib.unified_diff(was, now, "stored", "now", lineterm="")
    return "\n".join(lines)


def readable_lines(outputs: Sequence[Any]) -> list[str]:
    """Return the lines of an output, without what differs from run to run."""
    printed, shown = "", ""
    for output in outputs:
        kind = output.get("output_type")
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
    """Return a notebook as a script, or why there is none."""
    parts: list[str] = []
    for index, cell in enumerate(notebook.cells):
        number = number_of(index, injected)
        name = f"cell {number}" if number else "parameters"
        if cell.cell_type != "code" or "skip-execution" in tags_of(cell):
            continue
        if "raises-exception" in tags_of(cell):
            return "", f"{name} is expected to fail, which would end a script"
        try:
            compile(cell.source, "cell", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return "", f"{name} has magics, or is no plain Python for another reason"
        if "get_ipython" in cell.source:
            return "", f"{name} asks for IPython"
        parts.append(f"# {name}\n{cell.source.rstrip()}\n")
    if any(re.search(r"\bdisplay\(", part) for part in parts):
        parts.insert(0, "from IPython.display import display\n")
    return "\n".join(parts), ""


def _redact_outputs(data: Any) -> Any:
    """Keep secrets out of what cells have shown, but for pictures that are no text."""
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
    """Return a notebook as it is left behind; the other one is still compared with what it was."""
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
    """Return the pictures among the outputs: index of the cell, name for a file, bytes."""
    kinds = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg", "image/gif": "gif"}
    for index, cell in enumerate(notebook.cells):
        number = 0
        for output in cell.get("outputs") or ():
            for kind, suffix in kinds.items():
                data = (output.get("data") or {}).get(kind)
                if not data:
                    continue
                number += 1
                text = joined(data)
                content = text.encode()
                if suffix != "svg":
                    try:
                        content = base64.b64decode(text)
                    except ValueError:
                        continue
                cell_number = number_of(index, injected)
                yield index, f"{stem}-cell{cell_number}-{number}.{suffix}", content
