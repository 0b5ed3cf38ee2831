"""Runtimes that are an interpreter or a virtual environment that is there already."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.plan import RuntimeChoice
from rankwise.runtimes.base import PreparedRuntime, Say, cache_folder

_NAMES = ("python", "python3")
# What else lies here is everybody's, and is found through PATH in the order that the user wants.
_SHARED = frozenset(map(Path, ("/bin", "/usr/bin", "/usr/local/bin")))


def folders_for(executable: str) -> tuple[str, ...]:
    """Return the folder of an interpreter, and before it one with the names that it lacks there.

    ComputeFailure: that other folder cannot be written.
    """
    folder = Path(executable).parent
    if folder in _SHARED:
        own: tuple[str, ...] = ()
        missing = [name for name in _NAMES if not _is_found(name, executable)]
    else:
        own = (str(folder),)
        missing = [name for name in _NAMES if not _is_same(folder / name, executable)]
    return (str(_stand_ins(executable, missing)), *own) if missing else own


def _is_found(name: str, executable: str) -> bool:
    """Return whether a name leads to a shared interpreter: the same file elsewhere is a venv's."""
    found = shutil.which(name)
    return found is not None and Path(found).parent in _SHARED and _is_same(found, executable)


def _is_same(path: str | Path, executable: str) -> bool:
    try:
        return Path(path).samefile(executable)
    except OSError:
        return False


def _stand_ins(executable: str, names: list[str]) -> Path:
    from rankwise.node.equipment import stand_ins

    root = cache_folder()
    try:
        return Path(stand_ins(executable, str(root), *names))
    except OSError as error:
        raise ComputeFailure(
            f"{root / 'pythons'} cannot be written: {error.strerror}; set XDG_CACHE_HOME to a "
            f"folder that can"
        ) from error


def prepare_current(choice: RuntimeChoice, say: Say) -> PreparedRuntime:
    """Have commands find this interpreter as `python`."""
    del choice, say
    return _prepared(sys.executable, sys.prefix, sys.base_prefix)


def _prepared(executable: str, prefix: str, base: str) -> PreparedRuntime:
    path = folders_for(executable)
    if prefix != base:
        return PreparedRuntime(path=path, environment={"VIRTUAL_ENV": prefix})
    # Another environment may be active than the one that rankwise was called from.
    return PreparedRuntime(path=path, unset=("VIRTUAL_ENV",))


# A line of its own: what starts with the interpreter (sitecustomize, a wrapper) may print too.
_MARK = "rankwise-prefixes:"
_QUESTION = (
    f"import json, sys; print('\\n{_MARK}', json.dumps([sys.prefix, sys.base_prefix]), flush=True)"
)
_ANSWER_SECONDS = 60


def prepare_python(choice: RuntimeChoice, say: Say) -> PreparedRuntime:
    """Have commands find that interpreter as `python`."""
    del say
    executable = _executable(choice)
    found = _prepared(str(executable), *_prefixes(choice, executable))
    return dataclasses.replace(found, unset=("PYTHONHOME", *found.unset))


def _executable(choice: RuntimeChoice) -> Path:
    path = Path(choice.python)
    if path.is_dir():
        for name in _NAMES:
            if (path / "bin" / name).exists():
                return path / "bin" / name
        raise _failure(choice, f"the folder {path} has no bin/python")
    if not path.exists():
        raise _failure(choice, f"{path} does not exist")
    return path


def _prefixes(choice: RuntimeChoice, executable: Path) -> tuple[str, str]:
    """Ask the interpreter where it lives; this is also how we know that it is one."""
    from rankwise.node.equipment import run

    try:
        asked = run([str(executable), "-I", "-c", _QUESTION], _ANSWER_SECONDS)
    except OSError as error:
        raise _failure(choice, f"{executable} does not start: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise _failure(choice, f"{executable} gave no answer in {_ANSWER_SECONDS} s") from error
    marked = (
        line.removeprefix(_MARK) for line in asked.stdout.splitlines() if line.startswith(_MARK)
    )
    try:
        prefix, base = json.loads("" if asked.returncode else next(marked, ""))
    except (ValueError, TypeError) as error:
        last = (asked.stderr.strip() or "no answer").splitlines()[-1]
        raise _failure(choice, f"{executable} is no Python 3: {last}") from error
    return str(prefix), str(base)


def _failure(choice: RuntimeChoice, what: str) -> ComputeFailure:
    return ComputeFailure(
        f'runtime "{choice.name}": {what}; `python` of its table in rankwise.toml must be an '
        f"interpreter, or the folder of a virtual environment"
    )
