"""What a cell of a matrix ran in, how two cells differ, and the files that notebooks left."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rankwise.files import read_left
from rankwise.wording import size

_LONGEST = 200
# A report has them again for each environment that differs.
_MOST_PACKAGES = 2000
_MOST_BYTES = 4_000_000
# Memory that differs by less is the same machine with another kernel.
_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What a program finds around itself, as `surroundings.py` says it."""

    python: str = ""
    """With its implementation: `CPython 3.12.1`."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions by normal names."""
    system: Mapping[str, str] = field(default_factory=dict)
    """What it is called, the kernel, the C library."""
    host: str = ""
    cpu: str = ""
    cores: int = 0
    flags: frozenset[str] = frozenset()
    """What the processor can do, as far as it matters."""
    memory: int = 0
    """In bytes."""
    gpus: tuple[str, ...] = ()
    driver: str = ""
    cuda: str = ""
    modules: tuple[str, ...] = ()
    variables: frozenset[str] = frozenset()
    """The names of those that programs heed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentChange:
    """One thing that differs."""

    kind: str
    name: str
    here: str
    there: str
    """Empty: it is not there at all."""
    is_named: bool = False
    """Whether what went wrong speaks of it."""


def read_environment(text: str) -> Environment | None:
    """Find the last line that says what is around; None: there is none that can be used."""
    # A program may write before and after it, and print JSON of its own.
    for line in reversed(text[-_MOST_BYTES:].splitlines()):
        if line.startswith("{") and '"packages"' in line:
            try:
                return environment_of(json.loads(line))
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                continue
    return None


def environment_of(data: Mapping[str, Any]) -> Environment:
    """Take what was said; raises what Python does where it is not of the right form."""
    python, system, cpu = data["python"], data.get("system", {}), data.get("cpu", {})
    gpus = [one for one in data.get("gpus", ()) if isinstance(one, dict)]
    # Machines with GPUs of two kinds have one driver.
    driver = gpus[0] if gpus else {}
    names = ("distribution", "platform", "kernel", "libc")
    packages = list(data["packages"].items())[:_MOST_PACKAGES]
    return Environment(
        python=_text(f"{python.get('implementation', '')} {python.get('version', '')}".strip()),
        packages={_text(name): _text(version) for name, version in packages},
        system={name: _text(system[name]) for name in names if system.get(name)},
        host=_text(system.get("host", "")),
        cpu=_text(cpu.get("model", "")),
        cores=int(cpu.get("usable") or cpu.get("count") or 0),
        flags=frozenset(map(_text, cpu.get("flags", ()))),
        memory=int(data.get("memory") or 0),
        gpus=tuple(_gpu(one) for one in gpus),
        driver=_text(driver.get("driver", "")),
        cuda=_text(driver.get("cuda", "")),
        modules=tuple(map(_text, data.get("modules", ()))),
        variables=frozenset(map(_text, data.get("variables", ()))),
    )


def _text(value: object) -> str:
    return str(value)[:_LONGEST]


def _gpu(one: Mapping[str, Any]) -> str:
    memory = int(one.get("memory") or 0)
    return _text(one.get("name", "GPU")) + (f" ({size(memory)})" if memory else "")


def difference(here: Environment, there: Environment) -> tuple[EnvironmentChange, ...]:
    """Say what is not the same in two places; what matters most comes first."""
    return tuple(change for change in _changes(here, there) if change.here != change.there)


def _changes(here: Environment, there: Environment) -> Iterator[EnvironmentChange]:
    def whole(kind: str, say: Callable[[Environment], str]) -> EnvironmentChange:
        return EnvironmentChange(kind=kind, name="", here=say(here), there=say(there))

    yield whole("Python", lambda one: one.python)
    # A new major version explains more than a new patch.
    packages = list(_of_mappings("package", here.packages, there.packages))
    yield from sorted(packages, key=_step)
    yield whole("GPU", lambda one: _counted(one.gpus))
    if here.gpus and there.gpus:  # Otherwise it says nothing more.
        yield whole("GPU driver", lambda one: one.driver)
        yield whole("CUDA of the driver", lambda one: one.cuda)
    yield whole("CPU", lambda one: one.cpu)
    yield from _of_sets("CPU features", here.flags, there.flags)
    yield whole("cores", lambda one: str(one.cores or ""))
    if abs(here.memory - there.memory) > _SHARE * max(here.memory, there.memory):
        yield whole("memory", lambda one: size(one.memory) if one.memory else "")
    yield from _of_mappings("system", here.system, there.system)
    yield from _of_sets("modules", frozenset(here.modules), frozenset(there.modules))
    yield from _of_sets("variables", here.variables, there.variables)


def _of_mappings(
    kind: str, here: Mapping[str, str], there: Mapping[str, str]
) -> Iterator[EnvironmentChange]:
    for name in dict.fromkeys((*here, *there)):
        a, b = here.get(name, ""), there.get(name, "")
        if a != b:
            yield EnvironmentChange(kind=kind, name=name, here=a, there=b)


def _of_sets(kind: str, here: frozenset[str], there: frozenset[str]) -> Iterator[EnvironmentChange]:
    """Say what only one of them has, all of it together."""
    for some, a, b in ((there - here, "no", "yes"), (here - there, "yes", "no")):
        if some:
            yield EnvironmentChange(kind=kind, name=" ".join(sorted(some)), here=a, there=b)


def _counted(names: Sequence[str]) -> str:
    counts = Counter(names).items()
    return (
        ", ".join(f"{count} of {name}" if count > 1 else name for name, count in counts) or "none"
    )


def _step(change: EnvironmentChange) -> tuple[int, str]:
    """Return how far apart two versions are: the first number that differs, or all of it."""
    if not change.here or not change.there:
        return 3, change.name
    here, there = (re.findall(r"\d+", text) for text in (change.here, change.there))
    # Versions of different lengths are compared as far as both go; 4 is behind all that differ.
    places = (place for place, (a, b) in enumerate(zip(here, there, strict=False)) if a != b)
    return min(next(places, 4), 4), change.name


def ranked(changes: Iterable[EnvironmentChange], words: str) -> tuple[EnvironmentChange, ...]:
    """Put first what is spoken of in the words of whatever went wrong."""
    said = set(re.findall(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*", words.lower()))
    # Errors name modules (scikit_learn), environments packages (scikit-learn).
    known = {word.replace("_", "-") for word in said}
    marked = [replace(one, is_named=one.kind == "package" and one.name in known) for one in changes]
    return tuple(sorted(marked, key=lambda one: not one.is_named))


_KINDS = (".ipynb", ".html", ".pdf")
# What an attempt has for itself, or was given: no results.
_NOT_LOOKED_INTO = frozenset({"nodes", "processes", "bin", ".ipynb_checkpoints"})
# Deeper in an attempt there are data and caches.
_DEEPEST = 3
_MOST_FILES = 12
_MOST_NOTEBOOK_BYTES = 50_000_000
_PICTURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookPicture:
    """A picture that a cell of a notebook has shown."""

    kind: str
    """`image/png`, for example."""
    data: str
    """In base64."""
    words: str
    """Its description, for readers who do not see it."""

    @property
    def address(self) -> str:
        """Return an address that holds the picture itself."""
        return f"data:{self.kind};base64,{self.data}"


def notebook_files(folder: Path) -> list[Path]:
    """Find notebooks, and what was made of them, in the folder of an attempt."""
    return sorted(_files(folder, _DEEPEST), key=lambda path: (path.stem, path.suffix))[:_MOST_FILES]


def _files(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        # A link may lead anywhere, and in a circle.
        if entry.is_symlink():
            continue
        if entry.is_dir() and depth > 1 and entry.name not in _NOT_LOOKED_INTO:
            yield from _files(Path(entry.path), depth - 1)
        elif entry.name.endswith(_KINDS) and entry.is_file():
            yield Path(entry.path)


def pictures_of(notebook: Path, *, largest: int) -> list[NotebookPicture]:
    """Take the pictures out of a notebook that are no larger than so many bytes of base64."""
    try:
        if notebook.stat().st_size > _MOST_NOTEBOOK_BYTES:
            return []
        content = json.loads(read_left(notebook))
        return [
            picture
            for number, cell in enumerate(content["cells"], start=1)
            for output in cell.get("outputs", ())
            if (picture := _picture(output.get("data") or {}, number)) is not None
            and len(picture.data) <= largest
        ]
    # A program has written it: whatever is wrong with it costs no more than its pictures.
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return []


def _picture(data: Mapping[str, Any], number: int) -> NotebookPicture | None:
    for kind, beginning in _PICTURES.items():
        if kind in data:
            # Notebooks have base64 with newlines, in one text or many.
            text = "".join(_joined_text(data[kind]).split())
            # What claims to be a picture is not put into a page before it looks like one.
            if not _is_base64_of(text, beginning):
                continue
            shown = _joined_text(data.get("text/plain", "")).strip("<>").splitlines()
            words = f"cell {number}: {shown[0][:80]}" if shown else f"cell {number}"
            return NotebookPicture(kind=kind, data=text, words=words)
    return None


def _is_base64_of(text: str, beginning: bytes) -> bool:
    """Return whether a text is base64 of data that begin so."""
    try:
        return base64.b64decode(text, validate=True).startswith(beginning)
    except (binascii.Error, ValueError):
        return False


def _joined_text(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else "".join(map(str, value))
