"""A Python that a person has made: an interpreter, or the folder of a virtual environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.plan import RuntimeChoice
from rankwise.runtime.contract import Prepared, Say
from rankwise.runtime.interpreter import folders_for

_QUESTION = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
_ANSWER_SECONDS = 60


def prepare(choice: RuntimeChoice, say: Say) -> Prepared:
    """Have commands find that interpreter as `python`."""
    del say
    executable = _executable(choice)
    prefix, base = _prefixes(choice, executable)
    path = folders_for(str(executable))
    if prefix != base:
        environment = {"VIRTUAL_ENV": prefix}
        return Prepared(path=path, environment=environment, unset=("PYTHONHOME",))
    return Prepared(path=path, unset=("PYTHONHOME", "VIRTUAL_ENV"))


def _executable(choice: RuntimeChoice) -> Path:
    path = Path(choice.python)
    if path.is_dir():
        for name in ("python", "python3"):
            if (path / "bin" / name).exists():
                return path / "bin" / name
        raise _failure(choice, f"the folder {path} has no bin/python")
    if not path.exists():
        raise _failure(choice, f"{path} does not exist")
    return path


def _prefixes(choice: RuntimeChoice, executable: Path) -> tuple[str, str]:
    """Ask the interpreter where it lives; this is also how we know that it is one."""
    try:
        asked = subprocess.run(
            [executable, "-I", "-c", _QUESTION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except OSError as error:
        raise _failure(choice, f"{executable} does not start: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _failure(choice, f"{executable} gave no answer in {_ANSWER_SECONDS} s") from error
    try:
        prefix, base = json.loads(asked.stdout)
    except (ValueError, TypeError) as error:
        last = (asked.stderr.strip() or "no answer").splitlines()[-1]
        raise _failure(choice, f"{executable} is no Python 3: {last}") from error
    return str(prefix), str(base)


def _failure(choice: RuntimeChoice, what: str) -> ComputeFailure:
    return ComputeFailure(
        f'runtime "{choice.name}": {what}; `python` of its table in rankwise.toml must be an '
        f"interpreter, or the folder of a virtual environment"
    )
