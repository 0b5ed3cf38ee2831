"""A virtual environment made from requirements, once, with uv or else with pip."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.plan import RuntimeChoice
from rankwise.runtime.cache import cache_folder, made_once
from rankwise.runtime.contract import Prepared, Say
from rankwise.runtime.lock import digest_of
from rankwise.runtime.package_index import settings_for_uv

_LIMIT_SECONDS = 3600
_SHOWN_LINES = 20
# What could make a tool take another Python than the one that it is told, or colour what it says.
_DISTURBING = ("VIRTUAL_ENV", "PYTHONHOME", "UV_PYTHON", "FORCE_COLOR", "CLICOLOR_FORCE")


def prepare(choice: RuntimeChoice, say: Say) -> Prepared:
    """Make the environment, or take the one that was made from the same words before."""
    folder = cache_folder() / "runtimes" / _digest(choice)

    def make(place: Path, lock: int) -> Mapping[str, object]:
        listed = _listed(choice) or "no requirements"
        say(f'making the environment of runtime "{choice.name}" in {place}: {listed}')
        _Maker(choice, lock).make(place)
        return {
            "python": choice.python,
            "requirements": list(choice.requirements),
            "lock": choice.lock,
        }

    environment = made_once(
        folder,
        make,
        # Its Python is a link, which breaks when what it points to is removed.
        is_sound=lambda place: (place / "bin" / "python").exists(),
        say=say,
        what=f'the environment of runtime "{choice.name}"',
    )
    return Prepared(
        path=(str(environment / "bin"),),
        environment={"VIRTUAL_ENV": str(environment)},
        unset=("PYTHONHOME",),
    )


def find_uv() -> tuple[str, ...] | None:
    """Give the command that is uv: beside our interpreter, on PATH, or its module."""
    beside = Path(sys.executable).parent / "uv"
    if os.access(beside, os.X_OK):
        return (str(beside),)
    if found := shutil.which("uv"):
        return (found,)
    if importlib.util.find_spec("uv"):
        return (sys.executable, "-m", "uv")
    return None


def _digest(choice: RuntimeChoice) -> str:
    """Name what an environment is made from; a home folder may serve unlike machines."""
    ours = "" if choice.python else f"{sys.version} {sys.base_prefix}"
    parts = [1, sysconfig.get_platform(), ours, choice.python, sorted(choice.requirements)]
    if choice.lock:
        parts.append(choice.lock_digest)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _listed(choice: RuntimeChoice) -> str:
    """Say what it is made from."""
    return ", ".join(filter(None, (choice.lock, *choice.requirements)))


class _Maker:
    """Makes one environment."""

    def __init__(self, choice: RuntimeChoice, lock: int) -> None:
        self._choice = choice
        self._lock = lock

    def make(self, place: Path) -> None:
        requirements = place.parent / "requirements.txt"
        # A file and not arguments: arguments are seen by everybody, and ${NAME} is filled in here.
        requirements.write_text("".join(f"{one}\n" for one in self._choice.requirements))
        if uv := find_uv():
            self._with_uv(uv, place, requirements)
        else:
            self._with_pip(place, requirements)

    def _with_uv(self, uv: Sequence[str], place: Path, requirements: Path) -> None:
        settings = settings_for_uv(os.environ)
        wanted = self._choice.python or sys.executable
        command = [*uv, "--color", "never", "--quiet"]
        self._run("uv", [*command, "venv", "--python", wanted, str(place)], settings)
        install = ["pip", "install", "--python", str(place / "bin" / "python")]
        for file in self._files(requirements):
            # Bytecode at once: later, all ranks would make it at the same time.
            self._run("uv", [*command, *install, "--compile-bytecode", "-r", file], settings)

    def _with_pip(self, place: Path, requirements: Path) -> None:
        self._run("venv", [self._python_for_venv(), "-m", "venv", str(place)], {})
        pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        quiet = ["--no-input", "--quiet"]
        for file in self._files(requirements):
            self._run("pip", [*pip, "install", *quiet, "-r", file], {})

    def _files(self, requirements: Path) -> Iterator[str]:
        """Give what is to be installed, one after the other.

        Not at once: a lock with hashes allows nothing that has none.
        """
        lock = self._choice.lock
        if lock:
            self._check(lock)
            yield lock
            self._check(lock)
        if self._choice.requirements:
            yield str(requirements)

    def _check(self, lock: str) -> None:
        """Make sure that what is kept under the name of a content is made from it."""
        try:
            is_same = digest_of(Path(lock)) == self._choice.lock_digest
        except OSError as error:
            raise self._failure("it", f"has no file {lock}: {error.strerror}") from error
        if not is_same:
            raise self._failure("it", f"is not made, since {lock} has changed: run it again")

    def _python_for_venv(self) -> str:
        wanted = self._choice.python
        ours = ".".join(map(str, sys.version_info[:3]))
        if not wanted or f"{ours}.".startswith(f"{wanted}."):
            return sys.executable
        short = re.match(r"\d+(\.\d+)?", wanted)
        if short and short[0] == wanted and (found := shutil.which(f"python{wanted}")):
            return found
        raise ComputeFailure(
            f'runtime "{self._choice.name}" wants Python {wanted}, and this is {ours}; install uv '
            f"(`pip install uv`), which gets it"
        )

    def _run(self, tool: str, command: Sequence[str], settings: Mapping[str, str]) -> None:
        inherited = {n: v for n, v in os.environ.items() if n not in _DISTURBING}
        try:
            done = subprocess.run(
                command,
                # Not where the user is: a project there has settings of its own.
                cwd=cache_folder(),
                env={**inherited, **settings, "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                pass_fds=(self._lock,),
                timeout=_LIMIT_SECONDS,
                check=False,
            )
        except OSError as error:
            raise self._failure(tool, f"did not start: {command[0]}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise self._failure(tool, f"had not ended after {_LIMIT_SECONDS} s") from error
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.strip()][-_SHOWN_LINES:]
            said = "".join(f"\n    {line}" for line in lines)
            raise self._failure(tool, f"ended with exit code {done.returncode}:{said}\n")

    def _failure(self, tool: str, what: str) -> ComputeFailure:
        asked = _listed(self._choice) or "empty"
        python = f", Python {self._choice.python}" if self._choice.python else ""
        name = f'"{self._choice.name}" ({asked}{python})'
        text = f"the environment of runtime {name} could not be made: {tool} {what}"
        separator = "" if text.endswith("\n") else "; "
        return ComputeFailure(
            f"{text}{separator}correct it in rankwise.toml or in the document; if the package "
            f"index cannot be reached, set UV_DEFAULT_INDEX, or pip's index-url, to one that can"
        )
