"""Call a function that finds metrics.

python -m rankwise.metrics.calling FILE NAME OUTPUT ANSWER
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

from rankwise.checks.calling import load


def main(path: str, name: str, output: str, answer: str) -> None:
    """Call it and write what it gives, or why it gives nothing."""
    try:
        told: dict[str, object] = {"result": _call(path, name, output)}
        text = json.dumps(told)
    except Exception as error:  # Whatever code of the user's may raise.
        text = json.dumps({"fault": f"{type(error).__name__}: {error}"})
    Path(answer).write_text(text)


def _call(path: str, name: str, output: str) -> object:
    function = load(path, name)
    given = {"output": Path(output).read_text(errors="replace"), "folder": Path.cwd()}
    wanted = inspect.signature(function).parameters
    if unknown := [name for name in wanted if name not in given]:
        raise TypeError(f"it wants `{unknown[0]}`; there is {' and '.join(given)}")
    return function(**{name: given[name] for name in wanted})


if __name__ == "__main__":
    main(*sys.argv[1:])
