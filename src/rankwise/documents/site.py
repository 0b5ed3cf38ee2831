"""Find the site file, read it, and look up the names in it."""

from __future__ import annotations

import contextlib
import dataclasses
import grp
import json
import os
import pwd
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rankwise.documents.site_models import (
    CURRENT,
    KUBERNETES,
    LOCAL,
    ComputeConfig,
    Layer,
    NotifyConfig,
)
from rankwise.documents.written import (
    Faults,
    LocatedList,
    LocatedMapping,
    Problem,
    SourcePosition,
    as_error,
    mapping_in,
)
from rankwise.errors import InputError
from rankwise.plan import RuntimeChoice
from rankwise.wording import did_you_mean, listed

_T = TypeVar("_T")
_REMEDIES = {
    "compute": 'backend = "local"',
    "runtime": "current = true, python = …, requirements = […] or image = …",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What names mean here. The first layer that knows a name decides."""

    file: Path
    """The site file of the project, or where it would be."""
    layers: Sequence[Layer] = ()

    @property
    def notice(self) -> str:
        """Say which file counts that people do not see in the folder that they are in."""
        is_there = any(layer.file == self.file for layer in self.layers)
        if not is_there or self.file.parent == Path.cwd():
            return ""
        return f"the site file is {shown(self.file)}"

    def compute(self, name: str = "") -> ComputeConfig:
        """Return the compute that a document calls `name`; empty: the default."""
        name = name or self.default_compute
        found = self._named_compute(name)
        if found is None:
            local = self._named_compute(LOCAL) or ComputeConfig()
            return dataclasses.replace(local, name=name, is_mapped=name == LOCAL)
        return dataclasses.replace(found, name=name)

    def runtime(self, name: str = "") -> RuntimeChoice:
        """Return the runtime that a document calls `name`; empty: the default."""
        name = name or self.default_runtime
        found = self._named_runtime(name) or RuntimeChoice()
        return dataclasses.replace(found, name=name)

    def notify(self, name: str) -> NotifyConfig:
        """Return whom `name` means; InputError: no site file says so."""
        for layer in self.layers:
            if name in layer.notified:
                return layer.notified[name]
        known = self.notified
        hint = did_you_mean(name, known) or (
            f"; there are {_listed(known)}" if known else f"; write [notify.{toml_key(name)}] there"
        )
        raise InputError(f'{shown(self.file)}: there is nobody called "{name}" to tell{hint}')

    @property
    def notified(self) -> tuple[str, ...]:
        """Name all who can be told."""
        return tuple(dict.fromkeys(name for layer in self.layers for name in layer.notified))

    @property
    def default_compute(self) -> str:
        return next((a.default_compute for a in self.layers if a.default_compute), LOCAL)

    @property
    def default_runtime(self) -> str:
        return next((a.default_runtime for a in self.layers if a.default_runtime), CURRENT)

    def has_compute(self, name: str) -> bool:
        """Return whether a site file has the compute, or it is always there."""
        return name in ("", LOCAL) or self._named_compute(name) is not None

    def has_runtime(self, name: str) -> bool:
        """Return whether a site file has the runtime, or it is always there."""
        return name in ("", CURRENT) or self._named_runtime(name) is not None

    def check(
        self,
        *,
        computes: Mapping[str, str],
        runtimes: Mapping[str, str],
        is_strict: bool = False,
    ) -> tuple[str, ...]:
        """Return a notice for each kind that has names which no site file has.

        The names come with the places in the document where they stand. InputError if it is strict,
        for a name that is near another one, and for a compute where the site files have others:
        this machine stands in for names from elsewhere, not for problems.
        """
        unknown_computes = {n: at for n, at in computes.items() if not self.has_compute(n)}
        unknown_runtimes = {n: at for n, at in runtimes.items() if not self.has_runtime(n)}
        # Where nothing but images runs, the compute's own stands in, and the plan says which.
        has_images = computes and all(self._runs_images(name) for name in computes)
        has_others = self._known("compute") != [LOCAL]
        faults = [
            self._error("compute", name, at)
            for name, at in unknown_computes.items()
            if is_strict or has_others or did_you_mean(name, self._known("compute"))
        ] + [
            self._error("runtime", name, at)
            for name, at in unknown_runtimes.items()
            if is_strict or (not has_images and did_you_mean(name, self._known("runtime")))
        ]
        Faults(faults).raise_all()
        notices = []
        if unknown_computes:
            notices.append(self._notice("compute", list(unknown_computes), "this machine"))
        if unknown_runtimes and not has_images:
            notices.append(self._notice("runtime", list(unknown_runtimes), "the current Python"))
        return tuple(notices)

    def stand_in(self, name: str, backend: str) -> str | None:
        """Name the only compute with a backend, for one that no site file has; None: as it is."""
        if self.has_compute(name):
            return None
        layers = (layer.computes.items() for layer in self.layers)
        known = {one for layer in layers for one, choice in layer if choice.backend == backend}
        return known.pop() if len(known) == 1 and not any("*" in one for one in known) else None

    def _runs_images(self, name: str) -> bool:
        found = self._named_compute(name or self.default_compute)
        return found is not None and found.backend == KUBERNETES

    def _named_compute(self, name: str) -> ComputeConfig | None:
        return _look_up(name, [layer.computes for layer in self.layers], always_there=LOCAL)

    def _named_runtime(self, name: str) -> RuntimeChoice | None:
        return _look_up(name, [layer.runtimes for layer in self.layers], always_there=CURRENT)

    def _notice(self, kind: str, names: Sequence[str], stand_in: str) -> str:
        is_one = len(names) == 1
        return (
            f"{kind if is_one else f'{kind}s'} {_listed(names)} {'is' if is_one else 'are'} not in "
            f"{shown(self.file)}: {stand_in} stands in for {'it' if is_one else 'them'}; to change "
            f"that, write [{kind}.{toml_key(names[0])}] there"
        )

    def _error(self, kind: str, name: str, at: str) -> str:
        known = self._known(kind)
        hint = did_you_mean(name, known)
        place = f"{at}: " if at else ""
        then = f"{hint} If not," if hint else ";"
        others = f" (there are {_listed(known)})" if len(known) > 1 else ""
        return (
            f'{place}{kind} "{name}" is not in {shown(self.file)}{others}{then} '
            f"write [{kind}.{toml_key(name)}] there with {_REMEDIES[kind]}"
        )

    def _known(self, kind: str) -> list[str]:
        """Name all computes or runtimes, the one that is always there last."""
        is_compute = kind == "compute"
        layers = [layer.computes if is_compute else layer.runtimes for layer in self.layers]
        always = LOCAL if is_compute else CURRENT
        names = dict.fromkeys(name for layer in layers for name in layer if name != always)
        return [*names, always]


def _listed(names: Sequence[str]) -> str:
    return listed([f'"{name}"' for name in names])


def _look_up(name: str, layers: Sequence[Mapping[str, _T]], *, always_there: str) -> _T | None:
    """Find a name: in the first layer that has it or a pattern for it, the longest one."""
    for names in layers:
        if name in names:
            return names[name]
        # A pattern for everything is not meant for what needs no site file.
        if name != always_there and (fitting := [p for p in names if _fits(name, p)]):
            return names[max(fitting, key=len)]
    return None


def _fits(name: str, pattern: str) -> bool:
    return pattern.endswith("*") and name.startswith(pattern[:-1])


NAME = "rankwise.toml"
_MOST_BYTES = 1_000_000
Key = tuple[str, ...]
"""A key with those of the tables that it is in."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_ASSIGNMENT = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
_HEADER = re.compile(rf"\s*(\[\[?\s*{_PART}(?:\s*\.\s*{_PART})*\s*\]\]?)")
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def find_site(folder: Path, environ: Mapping[str, str] = os.environ) -> Site:
    """Read the nearest site file in a folder or above it, and the user's own below that.

    InputError: something in them is wrong; its message has a line for each problem.
    """
    nearest, *others = site_files(folder, environ)
    faults, layers, read = Faults(), [], []
    for file in filter(None, (nearest, *others)):
        with faults.collected():
            read.append((file, _read(file)))
    for file, contents in read:
        # pydantic takes longer to load than all the rest.
        from rankwise.documents.site_layers import read_layer

        layer, problems = read_layer(contents, file, shown(file))
        problems += _unknown_defaults(contents, [each for _, each in read])
        with faults.collected():
            if layer is None or problems:
                raise as_error(shown(file), problems)
            layers.append(layer)
    faults.raise_all()
    return Site(file=nearest or folder.absolute() / NAME, layers=tuple(layers))


def site_files(folder: Path, environ: Mapping[str, str] = os.environ) -> list[Path | None]:
    """Return the nearest site file, in a folder or above it, or None; and the user's own, if any.

    InputError: others may have written the nearest, and what stands in it is run.
    """
    nearest = _nearest(folder.absolute())
    if nearest is not None:
        _refuse_foreign(nearest)
    users = _users_own(environ)
    if users and _is_file(users) and not (nearest and users.samefile(nearest)):
        return [nearest, users]
    return [nearest]


def _refuse_foreign(file: Path) -> None:
    """Raise InputError for a file that others can write, or put into its folder.

    Whoever can do so has their own commands run by us. Only what was searched for is looked at:
    what a variable names, people have named.
    """
    try:
        own, folder = file.lstat(), file.parent.stat()
        content = file.stat()
    except OSError:
        return  # It cannot be read either, which is told there.
    whose = f"the site file {file} would be obeyed, and"
    for status in (own, content):
        if status.st_uid not in (os.geteuid(), 0):
            raise InputError(
                f"{whose} it belongs to {_user(status.st_uid)}: move it away, or if what it says "
                f"is right, make it your own:  chown {_user(os.geteuid())} {file}"
            )
    if bits := _open_to_others(content):
        raise InputError(f"{whose} others can write it: chmod {bits}-w {file}")
    if folder.st_uid not in (os.geteuid(), 0):
        raise InputError(
            f"{whose} its folder belongs to {_user(folder.st_uid)}: work in one of your own, or "
            f"chown {_user(os.geteuid())} {file.parent}"
        )
    bits = _open_to_others(folder)
    # In a sticky folder, such as /tmp, others cannot replace what is ours.
    if bits and not (folder.st_mode & stat.S_ISVTX and own.st_uid == os.geteuid()):
        raise InputError(
            f"{whose} others can put another one into its folder: move it away, or "
            f"chmod {bits}-w {file.parent}"
        )


def _open_to_others(status: os.stat_result) -> str:
    """Return who else can write: g, o, or both, as chmod calls them; empty: no others can."""
    group = "g" if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid) else ""
    return group + ("o" if status.st_mode & stat.S_IWOTH else "")


def _is_private(group: int) -> bool:
    """Return whether a group has nobody but us in it, or is that of root."""
    if group == 0:
        return True
    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return (
        group == user.pw_gid and found.gr_name == user.pw_name and {*found.gr_mem} <= {user.pw_name}
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _nearest(folder: Path) -> Path | None:
    files = (place / NAME for place in (folder, *folder.parents))
    return next((file for file in files if _is_file(file)), None)


def _users_own(environ: Mapping[str, str]) -> Path | None:
    place = Path(environ.get("XDG_CONFIG_HOME", ""))
    # The specification has one that is not absolute ignored.
    if not place.is_absolute():
        if not (home := environ.get("HOME")):
            return None
        place = Path(home) / ".config"
    return place / "rankwise" / NAME


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that we may not look into
        return False


def _read(file: Path) -> LocatedMapping:
    """Read a file with the lines of its keys; raises InputError if that cannot be done."""

    def error(message: str, line: int = 0, column: int = 0) -> InputError:
        return as_error(shown(file), [Problem(SourcePosition(line, column), message)])

    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
    except OSError as reason:
        raise error(f"cannot be read: {reason.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise error("larger than 1 MB; a site file has a few lines")
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        document = tomllib.loads(text)
    except UnicodeDecodeError as reason:
        line = content.count(b"\n", 0, reason.start) + 1
        raise error("not UTF-8; save the file as UTF-8", line) from None
    except RecursionError:
        raise error("too many brackets within each other", 1) from None
    except ValueError as reason:
        # tomllib puts the position last.
        message = str(reason)
        found = _POSITION.search(message)
        at = (int(found[1]), int(found[2])) if found and found[1] else None
        line, column = at or (text.rstrip().count("\n") + 1, 0)
        raise error(message[: found.start()] if found else message, line, column) from None
    contents: LocatedMapping = _located(document, (), _lines_of_keys(text))
    return contents


def _located(value: Any, path: Key, lines: Mapping[Key, int]) -> Any:
    """Return tables and lists the lines of their keys; if one is not known, that of its table."""
    known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in lines), ())
    at = SourcePosition(lines.get(known, 1))
    if isinstance(value, dict):
        section = LocatedMapping(at)
        for key, entry in value.items():
            place = SourcePosition(lines.get((*path, key), at.line))
            section.put(key, _located(entry, (*path, key), lines), place, place)
        return section
    if isinstance(value, list):
        listing = LocatedList(at)
        for entry in value:
            listing.put(_located(entry, path, lines), at)
        return listing
    return value


def _unknown_defaults(
    contents: LocatedMapping, layers: Sequence[LocatedMapping]
) -> Iterator[Problem]:
    """Find defaults that no site file has."""
    for kind, always in (("compute", LOCAL), ("runtime", CURRENT)):
        name = mapping_in(contents, "defaults").get(kind)
        tables = [mapping_in(layer, kind) for layer in layers]
        if not isinstance(name, str) or name in ("", always):
            continue
        if _look_up(name, tables, always_there=always) is None:
            known = [each for table in tables for each in table]
            hint = did_you_mean(name, known) or f"; write [{kind}.NAME] for it"
            at = contents["defaults"].keys_at[kind]
            yield Problem(at, f'there is no {kind} "{name}"{hint}')


def toml_key(name: str) -> str:
    """Write a name as a key in TOML: with quotes if it needs them."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def shown(file: Path) -> str:
    """Write a path as short as people know it."""
    with contextlib.suppress(ValueError, OSError):
        return str(file.relative_to(Path.cwd()))
    return str(file)


def _lines_of_keys(text: str) -> dict[Key, int]:
    """Find the lines on which keys are, and tables begin.

    tomllib does not tell. Lines are looked at one by one, so a line in the middle of a long text
    may pass for a key; then an error has a wrong line, and nothing else is wrong.
    """
    lines: dict[Key, int] = {}
    table: Key = ()
    for number, line in enumerate(text.split("\n"), 1):
        if found := _HEADER.match(line):
            path = table = _path(found[1])
        elif found := _ASSIGNMENT.match(line):
            path = (*table, *_path(f"{found[1]} = 0"))
        else:
            continue
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], number)
    return lines


def _path(statement: str) -> Key:
    """Have tomllib take a key apart."""
    try:
        value: Any = tomllib.loads(statement)
    except ValueError:
        return ()
    path = []
    while value:
        if isinstance(value, list):
            value = value[0]
        else:
            [(key, value)] = value.items()
            path.append(key)
    return tuple(path)
