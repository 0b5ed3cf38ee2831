"""Find the site file, read it, and look up the names in it."""

from __future__ import annotations

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

from rankwise.documents import site_models, written
from rankwise.documents.site_models import CURRENT, LOCAL, ComputeConfig, NotifyConfig
from rankwise.documents.written import LocatedMapping, Problem, SourcePosition, as_error
from rankwise.errors import InputError
from rankwise.plan import RuntimeChoice
from rankwise.wording import did_you_mean, listed, short_path

_T = TypeVar("_T")
# The kinds of names in documents: what is always there, what stands in for a name that no site
# file has, and what a table for such a name needs.
_KINDS = {
    "compute": (LOCAL, "this machine", 'backend = "local"'),
    "runtime": (
        CURRENT,
        "the current Python",
        "current = true, python = …, requirements = […] or image = …",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the names in documents mean. The first layer that has a name decides."""

    file: Path
    """The site file of the project, or where it would be."""
    layers: Sequence[site_models.Layer] = ()

    @property
    def notice(self) -> str:
        """Name the site file if it is not in the current folder, where people would see it."""
        is_there = any(layer.file == self.file for layer in self.layers)
        if not is_there or self.file.parent == Path.cwd():
            return ""
        return f"the site file is {short_path(str(self.file))}"

    def compute(self, name: str = "") -> ComputeConfig:
        """Return the compute that a document calls `name`; empty: the default."""
        name = name or self.default_compute
        found: ComputeConfig | None = self._find("compute", name)
        if found is not None:
            return dataclasses.replace(found, name=name)
        local: ComputeConfig = self._find("compute", LOCAL) or ComputeConfig()
        return dataclasses.replace(local, name=name, is_mapped=name == LOCAL)

    def runtime(self, name: str = "") -> RuntimeChoice:
        """Return the runtime that a document calls `name`; empty: the default."""
        name = name or self.default_runtime
        found: RuntimeChoice = self._find("runtime", name) or RuntimeChoice()
        return with_image(dataclasses.replace(found, name=name))

    def notify(self, name: str) -> NotifyConfig:
        """Return the recipient `name`; raises InputError if no site file has it."""
        for layer in self.layers:
            if name in layer.notified:
                return layer.notified[name]
        known = self.notified
        hint = did_you_mean(name, known) or (
            f"; there are {_listed(known)}" if known else f"; write [notify.{toml_key(name)}] there"
        )
        raise InputError(f'{short_path(str(self.file))}: there is no [notify] table "{name}"{hint}')

    def input(self, name: str) -> str:
        """Return the file or folder here for an input that is elsewhere; empty: none is known."""
        return next((layer.inputs[name] for layer in self.layers if name in layer.inputs), "")

    @property
    def notified(self) -> tuple[str, ...]:
        """Return the names of all recipients."""
        return tuple(dict.fromkeys(name for layer in self.layers for name in layer.notified))

    @property
    def default_compute(self) -> str:
        return next((a.default_compute for a in self.layers if a.default_compute), LOCAL)

    @property
    def default_runtime(self) -> str:
        return next((a.default_runtime for a in self.layers if a.default_runtime), CURRENT)

    def has(self, kind: str, name: str) -> bool:
        """Return whether a site file has the `compute` or `runtime`, or it is always there."""
        return name in ("", _KINDS[kind][0]) or self._find(kind, name) is not None

    def check(
        self, *, computes: Mapping[str, str], runtimes: Mapping[str, str], is_strict: bool = False
    ) -> tuple[str, ...]:
        """Return a notice for each kind that has names which no site file has.

        The names come with the places in the document where they stand. Raises InputError if it is
        strict, for a name that is near another one, and for a compute where the site files have
        others: this machine stands in for names from elsewhere, not for spelling mistakes.
        """
        # Where only images run, the image of the compute stands in for a runtime, and the plan
        # says which: then a runtime that no site file has needs no notice.
        has_images = computes and all(self._runs_images(name) for name in computes)
        has_others = self._known("compute") != [LOCAL]
        faults: list[str] = []
        notices = []
        for kind, names in (("compute", computes), ("runtime", runtimes)):
            unknown = [name for name in names if not self.has(kind, name)]
            is_refused = is_strict or (kind == "compute" and has_others)
            has_image = kind == "runtime" and has_images
            faults += [
                self._error(kind, name, names[name])
                for name in unknown
                if is_refused or (not has_image and did_you_mean(name, self._known(kind)))
            ]
            if unknown and not has_image:
                notices.append(self._notice(kind, unknown))
        if faults:
            raise InputError("\n".join(dict.fromkeys(faults)))
        return tuple(notices)

    def stand_in(self, name: str, backend: str) -> str | None:
        """Return the only compute with a backend if no site file has `name`; else None."""
        if self.has("compute", name):
            return None
        layers = (layer.computes.items() for layer in self.layers)
        known = {one for layer in layers for one, choice in layer if choice.backend == backend}
        # A pattern such as `gpu-*` is no name that could stand in.
        return known.pop() if len(known) == 1 and not any("*" in one for one in known) else None

    def _runs_images(self, name: str) -> bool:
        found = self._find("compute", name or self.default_compute)
        return found is not None and found.backend == site_models.KUBERNETES

    def _tables(self, kind: str) -> list[Mapping[str, Any]]:
        return [getattr(layer, f"{kind}s") for layer in self.layers]

    def _find(self, kind: str, name: str) -> Any:
        return _look_up(name, self._tables(kind), always_there=_KINDS[kind][0])

    def _notice(self, kind: str, names: Sequence[str]) -> str:
        is_one = len(names) == 1
        return (
            f"{kind if is_one else f'{kind}s'} {_listed(names)} {'is' if is_one else 'are'} not in "
            f"{short_path(str(self.file))}: using {_KINDS[kind][1]} instead; to change "
            f"that, add [{kind}.{toml_key(names[0])}] there"
        )

    def _error(self, kind: str, name: str, at: str) -> str:
        known = self._known(kind)
        hint = did_you_mean(name, known)
        place = f"{at}: " if at else ""
        then = f"{hint} If not," if hint else ";"
        others = f" (there are {_listed(known)})" if len(known) > 1 else ""
        return (
            f'{place}{kind} "{name}" is not in {short_path(str(self.file))}{others}{then} '
            f"write [{kind}.{toml_key(name)}] there with {_KINDS[kind][2]}"
        )

    def _known(self, kind: str) -> list[str]:
        """Return all computes or runtimes; the one that is always there is last."""
        always = _KINDS[kind][0]
        names = dict.fromkeys(name for table in self._tables(kind) for name in table)
        return [*(name for name in names if name != always), always]


def with_image(choice: RuntimeChoice) -> RuntimeChoice:
    """Return a runtime with the name of its image; InputError: what is in it cannot be read."""
    if not choice.build:
        return choice
    from rankwise.runtimes.images import named  # Few runtimes are built.

    return named(choice)


def _listed(names: Sequence[str]) -> str:
    return listed([f'"{name}"' for name in names])


def _look_up(name: str, layers: Sequence[Mapping[str, _T]], *, always_there: str) -> _T | None:
    """Return what a name means in the first layer that has it or a pattern: the longest one."""
    # A name of the nearest file wins, even if another file has a longer pattern.
    for names in layers:
        if name in names:
            return names[name]
        # A pattern for everything is not meant for what needs no site file.
        patterns = [one for one in names if one.endswith("*") and name.startswith(one[:-1])]
        if patterns and name != always_there:
            # A star stands at the end only, so the longest pattern says most.
            return names[max(patterns, key=len)]
    return None


NAME = "rankwise.toml"
# A larger file is something else under this name.
_MOST_BYTES = 1_000_000
Key = tuple[str, ...]
"""A key with those of the tables that it is in."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[A-Za-z0-9_-]+)"""
_ASSIGNMENT = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")
_HEADER = re.compile(rf"\s*(\[\[?\s*{_PART}(?:\s*\.\s*{_PART})*\s*\]\]?)")
_LONG_NUMBER = re.compile(r"[0-9][0-9_]{1000,}")
_POSITION = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


def site_of(source: str) -> Site:
    """Return the site file that counts for a document, or for this folder where there is none."""
    return find_site(Path(source).parent if source else Path.cwd())


def find_site(folder: Path, environ: Mapping[str, str] = os.environ) -> Site:
    """Read the nearest site file in a folder or above it, and the user's own below that.

    Raises InputError, with a line for each problem in them.
    """
    nearest, *others = site_files(folder, environ)
    if nearest is None and not others:
        return Site(file=folder.absolute() / NAME)
    faults, layers, read = written.Faults(), [], []
    # All files are read before any is checked: defaults may name what another one has.
    for file in filter(None, (nearest, *others)):
        with faults.collected():
            read.append((file, _read(file)))
    for file, contents in read:
        # pydantic takes longer to import than all the rest, and is needed for site files only.
        from rankwise.documents.site_layers import read_layer

        layer, problems = read_layer(contents, file, short_path(str(file)))
        problems += _unknown_defaults(contents, [each for _, each in read])
        with faults.collected():
            if layer is None or problems:
                raise as_error(short_path(str(file)), problems)
            layers.append(layer)
    faults.raise_all()
    return Site(file=nearest or folder.absolute() / NAME, layers=tuple(layers))


def site_files(folder: Path, environ: Mapping[str, str] = os.environ) -> list[Path | None]:
    """Return the nearest site file, in a folder or above it, or None; and the user's own, if any.

    Raises InputError if other users may have written the nearest: its commands would be run.
    """
    folder = folder.absolute()
    files = (place / NAME for place in (folder, *folder.parents))
    nearest = next(filter(_is_file, files), None)
    if nearest is not None:
        _refuse_foreign(nearest)
    # Both may be the same file, if the folder is below the home folder.
    users = _users_own(environ)
    if users and _is_file(users) and not (nearest and users.samefile(nearest)):
        return [nearest, users]
    return [nearest]


def _refuse_foreign(file: Path) -> None:
    """Raise InputError for a file that others can write, or put into its folder.

    They could have us run their commands. The user's own file is not checked: it was not found by
    searching, but is in a folder that a variable names.
    """
    try:
        # A link is checked like a file: who owns it can point it elsewhere.
        own, folder = file.lstat(), file.parent.stat()
        content = file.stat()
    except OSError:
        return  # It cannot be read either, and the error of reading says why.
    # Root may own it: an administrator provides a site file for all users.
    for status in (own, content):
        if status.st_uid not in (os.geteuid(), 0):
            raise InputError(
                f"the site file {file} belongs to {_user(status.st_uid)} and could run commands as "
                f"you: read it, and then move it away or  chown {_user(os.geteuid())} {file}"
            )
    if bits := _open_to_others(content):
        raise InputError(f"other users can write the site file {file}: chmod {bits}-w {file}")
    if folder.st_uid not in (os.geteuid(), 0):
        raise InputError(
            f"the folder of the site file {file} belongs to {_user(folder.st_uid)}: use one "
            f"of your own, or  chown {_user(os.geteuid())} {file.parent}"
        )
    bits = _open_to_others(folder)
    # In a sticky folder, such as /tmp, others cannot replace what is ours.
    if bits and not (folder.st_mode & stat.S_ISVTX and own.st_uid == os.geteuid()):
        raise InputError(
            f"other users can replace the site file {file}: move it to another folder, or "
            f"chmod {bits}-w {file.parent}"
        )


def _open_to_others(status: os.stat_result) -> str:
    """Return `g`, `o` or both, as in chmod, for other users that can write; empty: none can."""
    group = "g" if status.st_mode & stat.S_IWGRP and not _is_private(status.st_gid) else ""
    return group + ("o" if status.st_mode & stat.S_IWOTH else "")


def _is_private(group: int) -> bool:
    """Return whether a group has only this user as a member, or is that of root."""
    if group == 0:
        return True
    try:
        found, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    # On many systems each user has a group of their own, and files are writable for it.
    return (
        group == user.pw_gid and found.gr_name == user.pw_name and {*found.gr_mem} <= {user.pw_name}
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _users_own(environ: Mapping[str, str]) -> Path | None:
    place = Path(environ.get("XDG_CONFIG_HOME", ""))
    # The specification of XDG says to ignore a path that is not absolute.
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
        return as_error(short_path(str(file)), [Problem(SourcePosition(line, column), message)])

    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
    except OSError as reason:
        raise error(f"cannot be read: {reason.strerror}") from None
    if len(content) > _MOST_BYTES:
        raise error("larger than 1 MB; a site file has a few lines")
    try:
        # Editors on Windows write a byte order mark and two characters at the end of a line.
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        document = tomllib.loads(text)
    except UnicodeDecodeError as reason:
        line = content.count(b"\n", 0, reason.start) + 1
        raise error("not UTF-8; save the file as UTF-8", line) from None
    except RecursionError:
        raise error("too many brackets within each other", 1) from None
    except ValueError as reason:
        if not isinstance(reason, tomllib.TOMLDecodeError):
            # Python does not read so many digits, and has advice for programmers only.
            digits = _LONG_NUMBER.search(text)
            line = text.count("\n", 0, digits.start()) + 1 if digits else 1
            raise error("a number has too many digits", line) from None
        # tomllib has the position only in its message, at the end.
        message = str(reason)
        found = _POSITION.search(message)
        at = (int(found[1]), int(found[2])) if found and found[1] else None
        line, column = at or (text.rstrip().count("\n") + 1, 0)
        raise error(message[: found.start()] if found else message, line, column) from None
    contents: LocatedMapping = _located(document, (), _lines_of_keys(text))
    return contents


def _located(value: Any, path: Key, lines: Mapping[Key, int]) -> Any:
    """Return tables and lists with the lines of their keys; if unknown, that of the table."""
    # The nearest key above whose line is known.
    known = next((path[:end] for end in range(len(path), 0, -1) if path[:end] in lines), ())
    at = SourcePosition(lines.get(known, 1))
    if isinstance(value, dict):
        section = LocatedMapping(at)
        for key, entry in value.items():
            place = SourcePosition(lines.get((*path, key), at.line))
            section.put(key, _located(entry, (*path, key), lines), place, place)
        return section
    if isinstance(value, list):
        listing = written.LocatedList(at)
        for entry in value:
            listing.put(_located(entry, path, lines), at)
        return listing
    return value


def _unknown_defaults(
    contents: LocatedMapping, layers: Sequence[LocatedMapping]
) -> Iterator[Problem]:
    """Yield a problem for each default that no site file has."""
    # All layers count: the project may choose a compute that the user has defined.
    for kind, always in (("compute", LOCAL), ("runtime", CURRENT)):
        name = written.mapping_in(contents, "defaults").get(kind)
        tables = [written.mapping_in(layer, kind) for layer in layers]
        if not isinstance(name, str) or name in ("", always):
            continue
        if _look_up(name, tables, always_there=always) is None:
            known = [each for table in tables for each in table]
            hint = did_you_mean(name, known) or f"; write [{kind}.NAME] for it"
            at = contents["defaults"].keys_at[kind]
            yield Problem(at, f'there is no {kind} "{name}"{hint}')


def toml_key(name: str) -> str:
    """Return a name as a key in TOML: in quotes if it needs them."""
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _lines_of_keys(text: str) -> dict[Key, int]:
    """Return the lines of keys and of the headers of tables.

    tomllib does not report them. Lines are looked at one by one, so a line in the middle of a long
    text may pass for a key; then an error has a wrong line, and nothing else is wrong.
    """
    lines: dict[Key, int] = {}
    table: Key = ()
    for number, line in enumerate(text.split("\n"), 1):
        if found := _HEADER.match(line):
            path = table = _path(found[1])
        elif found := _ASSIGNMENT.match(line):
            path = (*table, *_path(found[1]))
        else:
            continue
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], number)
    return lines


def _path(key: str) -> Key:
    """Return the parts of a key without their quotes."""
    parts = re.findall(_PART, key)
    try:
        # tomllib knows the escapes in quotes.
        return tuple(
            str(tomllib.loads(f"it = {part}")["it"]) if part[0] in "\"'" else part for part in parts
        )
    except ValueError:  # The line is in the middle of a text, and only looks like a key.
        return ()
