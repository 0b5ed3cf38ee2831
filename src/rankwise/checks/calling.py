"""Call a check that is a function. Started as a script; needs the standard library only.

    python calling.py ANSWER < JSON

The function may have any of the parameters `folder` (where the task worked), `attempt` (the
attempt's own folder), `logs` (the log of each process), `output` (all that was written) and
`exit_code`. It must give something true.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def main(answer: str) -> None:
    """Read what to call and with what, and write what came of it."""
    Path(answer).write_text(json.dumps(outcome(json.load(sys.stdin))))


def outcome(told: Mapping[str, Any]) -> dict[str, str]:
    """Call the function, and say what is wrong, or what is missing."""
    logs = {name: Path(path) for name, path in told["logs"].items()}
    given = {
        "folder": Path(told["folder"]),
        "attempt": Path(told["attempt"]),
        "logs": logs,
        "output": "".join(
            path.read_text(errors="replace") for path in logs.values() if path.exists()
        ),
        "exit_code": told["exit_code"],
    }
    try:
        function = load(told["path"], told["function"])
        wanted = inspect.signature(function).parameters
    except Exception as error:  # Whatever importing the user's code may raise.
        return {"missing": _in_words(error)}
    if unknown := [name for name in wanted if name not in given]:
        return {"missing": f"it wants `{unknown[0]}`; there is {', '.join(given)}"}
    try:
        result = function(**{name: given[name] for name in wanted})
    except Exception as error:  # That is how it says no.
        return {"fault": _in_words(error)}
    if result is None:
        return {"fault": "it gave None: it must return something true if all is well"}
    return {"fault": "" if result else f"it gave {result!r}"}


def load(path: str, name: str) -> Callable[..., Any]:
    """Load a function from a file."""
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, name)
    return function


def _in_words(error: Exception) -> str:
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    at = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    code = "".join(frames[-1].code_context or ()).strip() if frames else ""
    text = str(error) or code
    return f"{type(error).__name__}: {text}{at}"


if __name__ == "__main__":
    main(sys.argv[1])
