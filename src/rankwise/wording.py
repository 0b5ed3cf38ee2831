"""How messages say times, sizes, names and lists, and which name may be meant."""

from __future__ import annotations

import difflib
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_NUMBERED = re.compile(r"(?P<name>.+)-(?P<number>\d+)")


def label(process: str) -> str:
    """Say the name of a process: `worker 2` for worker-2."""
    found = _NUMBERED.fullmatch(process)
    return f"{found['name']} {found['number']}" if found else process


def fold(processes: Iterable[str]) -> str:
    """Name many processes shortly: `rank 0-2, 7 and launcher`."""
    numbers: dict[str, list[int]] = {}
    for process in processes:
        found = _NUMBERED.fullmatch(process)
        if found:
            numbers.setdefault(found["name"], []).append(int(found["number"]))
        else:
            numbers.setdefault(process, [])
    return listed([f"{name} {ranges(them)}" if them else name for name, them in numbers.items()])


def ranges(numbers: Iterable[int]) -> str:
    """Name numbers shortly: `0-2, 7`."""
    spans: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def grouped(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """Put together the values of each key, so that what is true of several is said once."""
    found: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def listed(names: Sequence[str], *, most: int = 0) -> str:
    """Enumerate names; only the first ones if there are more than `most` (0: all)."""
    # Without a limit, a message about 10,000 tasks would fill the screen.
    if most and len(names) > most:
        names = [*names[:most], f"{len(names) - most} more"]
    return alternatives(names, "and")


def counted(number: int, noun: str) -> str:
    """Say how many: `1 task`, `2 processes`."""
    # Enough for the nouns that messages count: tasks, processes, matches.
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def duration(seconds: float) -> str:
    """Say how long something took."""
    # From here on, rounding to milliseconds would say 1000 ms.
    if seconds < 0.9995:
        return f"{max(0, round(seconds * 1000))} ms"
    # In the same way, 9.96 s would become 10.0 s: from there on whole seconds are enough.
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def size(number: float) -> str:
    """Say how many bytes."""
    # Powers of 1024 with their own names: KB means 1000 to some and 1024 to others.
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1024 and len(units) > 1:
        number /= 1024
        del units[0]
    return f"{number:.0f} {units[0]}" if number >= 100 else f"{number:.3g} {units[0]}"


def ending(exit_code: int | None, number: int | None) -> str:
    """Say how a process has ended: `exit code 7`, `signal 11 (SIGSEGV)`."""
    if number is not None:
        # Real-time signals have numbers, but no names in Python.
        try:
            return f"signal {number} ({signal.Signals(number).name})"
        except ValueError:
            return f"signal {number}"
    return "an unknown end" if exit_code is None else f"exit code {exit_code}"


def headline_of(message: str) -> str:
    """Return the line of a test's report that says most: what pytest marks with E, or the first."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    # Lines with E are the assertion or the exception; the first line is often only a place.
    marked = [line.removeprefix("E").strip() for line in lines if line.startswith("E  ")]
    return next(iter([*marked, *lines]), "")


def short_path(path: str) -> str:
    """Return a path as people would write it in this folder."""
    if not path:
        return ""
    # A path that begins with `..` is longer to read than the whole one.
    here = os.path.relpath(path)
    return path if here.startswith("..") else here


def moment(when: float, *, with_zone: bool = True) -> str:
    """Say when something was, in the time of this place."""
    form = "%Y-%m-%d %H:%M %Z" if with_zone else "%Y-%m-%d %H:%M"
    try:
        # A store may have times of a clock that was wrong by centuries.
        return time.strftime(form, time.localtime(when)).strip()
    except (OverflowError, ValueError, OSError):
        return str(when)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Name the known word that is nearest, if one is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f'; did you mean "{near[0]}"?' if near else ""


_LONGEST_QUOTE = 60


def printable_name(path: Path) -> str:
    """Name a file in a way that every terminal can show."""
    # Names of files may have bytes that are no UTF-8; Python keeps them as surrogates.
    shown = str(path).encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in shown)


def clipped(text: str) -> str:
    """Make a text fit for one line: short, and without characters that a terminal obeys."""
    # repr escapes control characters, which would move the cursor or change colours.
    shown = repr(text[:_LONGEST_QUOTE])[1:-1].replace("\\'", "'")
    return shown + "…" if len(text) > _LONGEST_QUOTE else shown


def code(name: str) -> str:
    """Show the name of a field or a type as such."""
    return f"`{clipped(name)}`"


def quoted(value: Any) -> str:
    """Quote a value of a document, as far as it fits into a message."""
    match value:
        case None:
            return "empty"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case str() if hasattr(value, "value"):
            # A number or a truth value, shown as it stands in the document.
            return clipped(value)
        case str():
            return f"'{clipped(value)}'"
        case bool():
            return str(value).lower()
    return clipped(str(value))


def alternatives(names: Sequence[str], last: str = "or") -> str:
    """Join names into a phrase: `a, b or c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} {last} {names[-1]}"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Find the valid name that was most likely meant; None if none is alike."""
    # Azure ML and Kubeflow write the same fields in three styles.
    by_core = {_core(each): each for each in valid}
    found = difflib.get_close_matches(_core(name[:_LONGEST_QUOTE]), by_core, n=1)
    return by_core[found[0]] if found else None


def hint(name: str, valid: Iterable[str], otherwise: str) -> str:
    """Return which valid name may be meant by a wrong one, or else another remedy."""
    meant = nearest(name, valid)
    return f"did you mean {code(meant)}?" if meant else otherwise


def _core(name: str) -> str:
    """Leave out in what spellings of one name differ: `instanceCount` and `instance-count`."""
    return name.lower().replace("_", "").replace("-", "")


_FEW = 3


def name_nearest(text: str, names: Sequence[str]) -> str:
    """Say which names are most like a wrong one, or else which come first."""
    if close := difflib.get_close_matches(text, names, n=_FEW):
        return f"Did you mean {' or '.join(close)}?"
    some = [*names[:_FEW], *["…"] * (len(names) > _FEW)]
    return f"{'There is' if len(names) == 1 else 'There are'} {', '.join(some)}."
