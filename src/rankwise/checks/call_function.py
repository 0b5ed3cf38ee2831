"""Call a function of the user's, in a process of its own: a check, or what finds metrics.

Both sides are here. `call` starts this file as a script, which needs the standard library only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """What came of a call."""

    told: Mapping[str, Any] | None
    """`result`; or `fault`, what it raised; or `missing`, why it was not called; None: nothing."""
    printed: str
    exit_code: int | None
    """None: it took too long."""


def call(
    function: str, given: Mapping[str, Any], *, work: Path | None, seconds: float, is_check: bool
) -> FunctionCall:
    """Call FILE:NAME with those of the given values that it has parameters for.

    `folder`, `attempt` and `logs` become paths; `output` is a list of files, and becomes their
    text. Everything that the function has started is ended.
    """
    # Not needed in the process that is started, nor wherever this file is loaded.
    import tempfile

    path, _, name = function.rpartition(":")
    order = {"path": str(Path(path).absolute()), "function": name, "given": given}
    with tempfile.TemporaryDirectory(prefix="rankwise-call-") as folder:
        answer, printed = Path(folder) / "answer.json", Path(folder) / "printed"
        # With -P, a file beside this script hides no module of the standard library.
        line = [sys.executable, "-P", __file__, str(answer)]
        told = json.dumps({**order, "is_check": is_check}).encode()
        code = _run(line, told, work, printed, seconds)
        try:
            answered: object = json.loads(answer.read_bytes())
        except (OSError, ValueError, RecursionError):
            answered = None
        return FunctionCall(
            told=answered if isinstance(answered, dict) else None,
            printed=printed.read_text(errors="replace"),
            exit_code=code,
        )


def _run(
    line: list[str], told: bytes, work: Path | None, printed: Path, seconds: float
) -> int | None:
    """Run a process with all that it starts, and return its exit code; None: it took too long."""
    import subprocess

    # Into a file: a process that holds a pipe open would be waited for.
    with printed.open("wb") as file, printed.with_name("input").open("w+b") as given:
        given.write(told)
        given.seek(0)
        process = subprocess.Popen(
            line,
            stdin=given,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=work if work is not None and work.is_dir() else None,
            # With PYTHONOPTIMIZE, what a check asserts would not be looked at.
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONOPTIMIZE": ""},
            start_new_session=True,
        )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Also after a good end: what it has left running would never be ended.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# In the process of its own


def main(answer: str) -> None:
    """Read what to call and with what, and write what came of it."""
    order = json.load(sys.stdin)
    told = outcome(order)
    if order["is_check"] and "result" in told:
        told = _judged(told["result"])
    try:
        text = json.dumps(told)
    except TypeError as error:
        text = json.dumps({"fault": _in_words(error)})
    Path(answer).write_text(text)


def outcome(order: Mapping[str, Any]) -> dict[str, Any]:
    """Call the function, and say what it returned, what is wrong, or what is missing."""
    given = {name: _value(name, value) for name, value in order["given"].items()}
    try:
        function = load(order["path"], order["function"])
        wanted = inspect.signature(function).parameters
    except Exception as error:  # Whatever importing the user's code may raise.
        return {"missing": _in_words(error)}
    if unknown := [name for name in wanted if name not in given]:
        return {"missing": f"it wants `{unknown[0]}`; there is {', '.join(given)}"}
    try:
        return {"result": function(**{name: given[name] for name in wanted})}
    except Exception as error:  # That is how a check says no.
        return {"fault": _in_words(error)}


def _value(name: str, value: Any) -> Any:
    match name:
        case "folder" | "attempt":
            return Path(value)
        case "logs":
            return {who: Path(path) for who, path in value.items()}
        case "output":
            there = [path for path in map(Path, value) if path.exists()]
            return "".join(path.read_text("utf-8", "replace") for path in there)
    return value


def _judged(result: object) -> dict[str, str]:
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
