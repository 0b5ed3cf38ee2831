"""Environments that uv, or conda, makes once for each set of requirements."""

from __future__ import annotations

import configparser
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from rankwise.errors import ComputeFailure
from rankwise.node.equipment import make_environment, quoted, run, tool_of
from rankwise.node.files import lock, write_file
from rankwise.plan import RuntimeChoice
from rankwise.runtimes.base import PreparedRuntime, Say, cache_folder

Make = Callable[[Path, int], Mapping[str, object]]
COMPLETE = "complete.json"
"""Comes last: what stands beside it is whole."""
_WAIT_SECONDS = 3600.0
_LOOK_SECONDS = 0.1


def made_once(
    folder: Path, make: Make, *, is_sound: Callable[[Path], bool], say: Say, what: str
) -> Path:
    """Return `folder/content`, which `make` has made now or some time before.

    `make` gets the path, where nothing is, and a lock to leave open in the processes that it
    starts: if this process is killed, it is not begun again before they have ended too. It is made
    in its final place, since an environment that is moved loses the way to its interpreter.
    What it returns is kept for people to read. ComputeFailure: the folder cannot be written.
    """
    content, complete = folder / "content", folder / COMPLETE
    if complete.exists() and is_sound(content):
        return content
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder, say, what) as file:
            if not (complete.exists() and is_sound(content)):
                complete.unlink(missing_ok=True)
                about = _make_anew(content, make, file)
                write_file(complete, json.dumps(about, indent=2) + "\n")
    except OSError as error:
        raise ComputeFailure(
            f"{what} cannot be kept in {folder}: {error.strerror}; make room there, or set "
            f"XDG_CACHE_HOME to another folder"
        ) from error
    return content


def _make_anew(content: Path, make: Make, lock: int) -> Mapping[str, object]:
    if content.exists():
        shutil.rmtree(content)
    try:
        return make(content, lock)
    except BaseException:
        shutil.rmtree(content, ignore_errors=True)  # the disk may be full of it
        raise


@contextlib.contextmanager
def _alone(folder: Path, say: Say, what: str) -> Iterator[int]:
    """Hold the folder's lock; yield the number of the open file that is locked."""
    path = folder / "lock"
    deadline = time.monotonic() + _WAIT_SECONDS
    is_told = False
    while True:
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            if _try_lock(file, path):
                yield file
                return
        finally:
            os.close(file)
        if not is_told:
            say(f"waiting for another process that makes {what}")
            is_told = True
        if time.monotonic() > deadline:
            raise ComputeFailure(
                f"another process has made {what} for more than {_WAIT_SECONDS / 60:.0f} minutes; "
                f"see who has {path} open, and end it"
            )
        time.sleep(_LOOK_SECONDS)


def _try_lock(file: int, path: Path) -> bool:
    if not lock(file, waits=False):
        return False
    # The cache may have been emptied meanwhile: a lock on a file that is gone keeps no process out.
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


_INCLUDED = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[=\s]\s*(\S+)", re.MULTILINE)


def digest_of(path: Path) -> str:
    """Name the content of a lock file, and of all that it includes; OSError: one is not there."""
    digest = hashlib.sha256()
    for text in texts_of(path):
        digest.update(f"{len(text)}\n{text}".encode())
    return digest.hexdigest()[:16]


def texts_of(path: Path) -> list[str]:
    """Return what is in a lock file and in those that it includes, each once."""
    return list(_texts(path, set()))


def _texts(path: Path, seen: set[Path]) -> Iterator[str]:
    # Files may include each other.
    if path in seen:
        return
    seen.add(path)
    text = path.read_text(encoding="utf-8", errors="replace")
    yield text
    if path.suffix == ".toml":
        return
    for name in _INCLUDED.findall(text):
        if "://" not in name:
            yield from _texts(path.parent / name, seen)


_UV_SETTINGS = (
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
    *("UV_NO_INDEX", "UV_CONFIG_FILE", "UV_OFFLINE"),
)
# What pip calls it, what uv does, and what uv has between several.
_FROM_PIP = (
    ("index-url", "UV_DEFAULT_INDEX", " "),
    ("extra-index-url", "UV_INDEX", " "),
    ("find-links", "UV_FIND_LINKS", ","),
    ("trusted-host", "UV_INSECURE_HOST", " "),
)
_TRUE = ("1", "true", "yes", "on")


def settings_for_uv(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """Return the variables that have uv find what pip finds; none if uv has settings of its own."""
    pip = _settings_of_pip(environ, root)
    found = {}
    if "cert" in pip and "SSL_CERT_FILE" not in environ:
        found["SSL_CERT_FILE"] = pip["cert"]
    if _is_uv_set_up(environ, root):
        return found
    for name, variable, separator in _FROM_PIP:
        if given := pip.get(name, "").split():
            found[variable] = separator.join(given)
    # As pip does: else the first index that has a package at all would hide the others.
    if "UV_INDEX" in found and "UV_INDEX_STRATEGY" not in environ:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if pip.get("no-index", "").lower() in _TRUE:
        found["UV_NO_INDEX"] = "1"
    return found


def _is_uv_set_up(environ: Mapping[str, str], root: Path) -> bool:
    files = (_config_home(environ) / "uv" / "uv.toml", root / "etc/uv/uv.toml")
    return any(name in environ for name in _UV_SETTINGS) or any(map(_is_file, files))


def _settings_of_pip(environ: Mapping[str, str], root: Path) -> dict[str, str]:
    """Merge what pip merges: files, the later over the earlier; `install` over them; variables."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in _files_of_pip(environ, root):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text())
        except (OSError, ValueError, configparser.Error):
            continue  # pip itself will complain
        for section, found in sections.items():
            if parser.has_section(section):
                found.update({_plain(name): value for name, value in parser.items(section)})
    variables = {
        _plain(name.removeprefix("PIP_")): value
        for name, value in environ.items()
        if name.startswith("PIP_") and value
    }
    return {**sections["global"], **sections["install"], **variables}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _files_of_pip(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    """Return the files that pip reads, in its order."""
    told = environ.get("PIP_CONFIG_FILE", "")
    if told == os.devnull:
        return
    # Beside the others, not in their place: as pip reads it.
    if told:
        yield Path(told)
    for folder in environ.get("XDG_CONFIG_DIRS", "").split(os.pathsep):
        yield (Path(folder) if folder else root / "etc/xdg") / "pip" / "pip.conf"
    yield root / "etc/pip.conf"
    if home := environ.get("HOME"):
        yield Path(home) / ".pip" / "pip.conf"
    yield _config_home(environ) / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"


def _config_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


_LIMIT_SECONDS = 3600
# What could make a tool take another Python than the one that it is told, or colour what it says.
_DISTURBING = ("VIRTUAL_ENV", "PYTHONHOME", "UV_PYTHON", "FORCE_COLOR", "CLICOLOR_FORCE")


def prepare(choice: RuntimeChoice, say: Say) -> PreparedRuntime:
    """Make the environment, or take the one that was made from the same words before."""
    folder = cache_folder() / "runtimes" / _digest(choice)

    def make(place: Path, lock: int) -> Mapping[str, object]:
        listed = _listed(choice) or "no requirements"
        say(f'making the environment of runtime "{choice.name}" in {place}: {listed}')
        (_make_by_conda if choice.engine else _make)(choice, place, lock)
        kept = ("python", "requirements", "lock")
        return {name: getattr(choice, name) for name in kept}

    environment = made_once(
        folder,
        make,
        # Its Python is a link, which breaks when what it points to is removed. Conda may have none.
        is_sound=lambda place: (place / "bin" / ("" if choice.engine else "python")).exists(),
        say=say,
        what=f'the environment of runtime "{choice.name}"',
    )
    return PreparedRuntime(
        path=(str(environment / "bin"),),
        environment={"VIRTUAL_ENV": str(environment)},
        unset=("PYTHONHOME",),
    )


CONDA_TOOLS = ("micromamba", "mamba", "conda")
"""What makes an environment from a conda file; the first that is there does."""


def _make_by_conda(choice: RuntimeChoice, place: Path, lock: int) -> None:
    # JSON is YAML too.
    listed = place.parent / "environment.yml"
    listed.write_text(choice.requirements[0])
    how = ("create", "--yes") if choice.engine == "micromamba" else ("env", "create")
    told = ("--quiet", "--prefix", str(place), "--file", str(listed))
    _run(choice, lock, {}, [choice.engine, *how, *told])


def find_uv() -> tuple[str, ...] | None:
    """Return the command that is uv: beside our interpreter, on PATH, or its module."""
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
    # Without a wish it is made from our own Python: another one makes another environment.
    ours = "" if choice.python else f"{sys.version} {sys.base_prefix}"
    parts = [1, sysconfig.get_platform(), ours, choice.python, sorted(choice.requirements)]
    if choice.lock or choice.engine:
        parts.append(choice.lock_digest or choice.engine)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _listed(choice: RuntimeChoice) -> str:
    """Say what it is made from."""
    return ", ".join(filter(None, (choice.lock, *choice.requirements)))


def _make(choice: RuntimeChoice, place: Path, lock: int) -> None:
    requirements = place.parent / "requirements.txt"
    # A file and not arguments: arguments are seen by all users, and ${NAME} is filled in here.
    requirements.write_text("".join(f"{one}\n" for one in choice.requirements))
    uv = find_uv() or ()
    make_environment(
        str(place),
        _files(choice, requirements),
        uv=uv,
        python=choice.python or sys.executable,
        base=partial(_python_for_venv, choice),
        call=partial(_run, choice, lock, settings_for_uv(os.environ) if uv else {}),
    )


def _files(choice: RuntimeChoice, requirements: Path) -> Iterator[str]:
    """Return what is to be installed, one after the other."""
    if choice.lock:
        # What is kept under the name of a content must be made from it: before and afterwards.
        _check(choice)
        yield choice.lock
        _check(choice)
    if choice.requirements:
        yield str(requirements)


def _check(choice: RuntimeChoice) -> None:
    try:
        is_same = digest_of(Path(choice.lock)) == choice.lock_digest
    except OSError as error:
        raise _failure(choice, f"it has no file {choice.lock}: {error.strerror}") from error
    if not is_same:
        raise _failure(choice, f"it is not made, since {choice.lock} has changed: run it again")


def _python_for_venv(choice: RuntimeChoice) -> str:
    wanted = choice.python
    ours = ".".join(map(str, sys.version_info[:3]))
    if not wanted or f"{ours}.".startswith(f"{wanted}."):
        return sys.executable
    short = re.match(r"\d+(\.\d+)?", wanted)
    if short and short[0] == wanted and (found := shutil.which(f"python{wanted}")):
        return found
    raise ComputeFailure(
        f'runtime "{choice.name}" wants Python {wanted}, and this is {ours}; install uv '
        f"(`pip install uv`), which gets it"
    )


def _run(
    choice: RuntimeChoice, lock: int, settings: Mapping[str, str], command: Sequence[str]
) -> None:
    inherited = {n: v for n, v in os.environ.items() if n not in _DISTURBING}
    environment = {**inherited, **settings, "NO_COLOR": "1"}
    tool = tool_of(command)
    try:
        # Not where the user is: a project there has settings of its own.
        more = {"cwd": cache_folder(), "env": environment, "pass_fds": (lock,)}
        done = run(command, _LIMIT_SECONDS, stderr=subprocess.STDOUT, **more)
    except OSError as error:
        why = f"{tool} did not start: {command[0]}: {error.strerror}"
        raise _failure(choice, why) from error
    except subprocess.TimeoutExpired as error:
        raise _failure(choice, f"{tool} had not ended after {_LIMIT_SECONDS} s") from error
    if done.returncode:
        said = quoted(done.stdout)
        raise _failure(choice, f"{tool} ended with exit code {done.returncode}:{said}\n")


def _failure(choice: RuntimeChoice, what: str) -> ComputeFailure:
    python = f", Python {choice.python}" if choice.python else ""
    name = f'"{choice.name}" ({_listed(choice) or "empty"}{python})'
    separator = "" if what.endswith("\n") else "; "
    return ComputeFailure(
        f"the environment of runtime {name} could not be made: {what}{separator}correct it in "
        f"rankwise.toml or in the document; if the package index cannot be reached, set "
        f"UV_DEFAULT_INDEX, or pip's index-url, to one that can"
    )
