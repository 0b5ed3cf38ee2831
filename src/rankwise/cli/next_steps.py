"""What to do next in a folder, by what is in it: `rankwise` without a command."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

# Of a folder, and of a file: the answer comes at once also where there are many.
_MOST_FILES, _MOST_CHARACTERS = 100, 20_000


def next_steps() -> list[tuple[str, str]]:
    """Return commands that make sense in this folder, each with what it is for."""
    steps = []
    if Path(".rankwise").is_dir():
        steps.append(("rankwise status", "how the newest run stands"))
    document = _file_with("\ntype:", "*.yaml") or _file_with("\ntype:", "*.yml")
    if document:
        steps.append((f"rankwise plan {document}", "show what it would run"))
        steps.append((f"rankwise run {document}", "run it"))
    test = _file_with("mark.parallel", "*test*.py") or _file_with("mark.parallel", "tests/*.py")
    if test:
        steps.append((f"pytest --n-workers=4 {test}", "run its tests on 4 ranks"))
    if Path("rankwise.toml").is_file():
        steps.append(("rankwise doctor", "check what rankwise.toml names"))
    if not (document or test):
        steps.append(("rankwise init MpiJob job.yaml", "write a document to start from"))
    return [*steps, ("rankwise --help", "show all commands")]


def _file_with(text: str, pattern: str) -> str:
    """Return the first file that has a text near its beginning, written for the shell."""
    for path in sorted(Path().glob(pattern))[:_MOST_FILES]:
        # No pipes, which would be waited for, and no names that would command the terminal.
        if not path.is_file() or not str(path).isprintable():
            continue
        with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
            # With a line end before it, `type:` is also found in the first line.
            if text in f"\n{file.read(_MOST_CHARACTERS)}":
                return shlex.quote(str(path))
    return ""
