"""Lines that were written for another version or another MPI than the one that is here.

Every change has a name, and a note that shows what was changed and why. What has no equivalent is
left as it is: the launcher will say that it does not know it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rankwise.launch.command import Launch, Option, Segment
from rankwise.launch.mpiexec import Family
from rankwise.launch.ranks import needs_no_python
from rankwise.launch.shell import Edit, in_short, remove

_TITLES: Mapping[Family, str] = {
    "mpich": "MPICH",
    "intel": "Intel MPI",
    "openmpi4": "Open MPI 4",
    "openmpi5": "Open MPI 5",
    "unknown": "another MPI",
}
_OTHERWISE = "where it is called otherwise"
_REASONS = {
    "mca": "which has no such parameters",
    "run-as-root": "which always allows it",
    "oversubscribe": "which always allows it",
    "export": "which passes on all variables",
    "map-by": "which places ranks otherwise",
    "display": "which does not show it",
    "two-dashes": "which needs two dashes",
}

# Open MPI's options that Hydra does without: it passes on all variables, allows root and more
# ranks than cores, and has no parameters of that kind.
_ONLY_OPEN_MPI = {
    **dict.fromkeys(
        ("mca", "gmca", "omca", "gomca", "prtemca", "gprtemca", "pmixmca", "gpmixmca"), "mca"
    ),
    "allow-run-as-root": "run-as-root",
    **dict.fromkeys(("oversubscribe", "nooversubscribe"), "oversubscribe"),
    **dict.fromkeys(("rank-by", "byslot", "use-hwthread-cpus"), "map-by"),
    **dict.fromkeys(("display-map", "display-allocation"), "display"),
}
_HYDRA_NAMES = {
    "c": "-n",
    "N": "-ppn",
    "npernode": "-ppn",
    "H": "-hosts",
    "wd": "-wdir",
    "tag-output": "-prepend-rank",
    "default-hostfile": "-f",
}
_OPEN_MPI_NAMES = {
    "f": "--hostfile",
    "hosts": "--host",
    "hostlist": "--host",
    "ppn": "--npernode",
    "perhost": "--npernode",
    "prepend-rank": "--tag-output",
    "l": "--tag-output",
}
# What Hydra can map by, also with a number after a colon.
_HYDRA_PLACES = re.compile(r"(?:hwthread|core|socket|numa|l[1-5][idu]?cache)(?::\d+)?")
# Open MPI 5 takes these with one dash for something else.
_TWO_DASHES = ("bind-to", "map-by", "rank-by", "runtime-options")


@dataclass(frozen=True, slots=True)
class Fix:
    """One change, under the name of its kind."""

    name: str
    was: str
    """What stood there."""
    edit: Edit
    now: str = ""
    """What stands there instead; empty: nothing."""


def fixes_for(line: str, launch: Launch, family: Family) -> list[Fix]:
    """Find what is to be changed in a line, with the launcher that is here."""
    if launch.is_torch:
        return list(_torch(line, launch))
    fixes: list[Fix] = []
    for segment in launch.segments:
        if launch.dialect == "hydra" and family in ("mpich", "intel"):
            # What holds for all programs of a line is not for one of several.
            to_set = "-genv" if len(launch.segments) == 1 else "-env"
            fixes += _for_hydra(line, segment, family, to_set)
        elif launch.dialect == "openmpi" and family in ("openmpi4", "openmpi5"):
            fixes += _for_open_mpi(line, segment, family)
        elif family == "unknown" and _is_for_open_mpi(segment):
            # Whichever version it is: the older ones take two dashes as well.
            for option in segment.options:
                fixes += _with_two_dashes(line, option) if option.name in _TWO_DASHES else ()
    return fixes


def _is_for_open_mpi(segment: Segment) -> bool:
    return any(option.name in _ONLY_OPEN_MPI for option in segment.options)


def notes_for(fixes: Sequence[Fix], launch: Launch, family: Family) -> list[str]:
    """Tell what was changed, a line for each kind."""
    kinds = dict.fromkeys(fix.name for fix in fixes)
    return [
        f"compatibility: {kind}: "
        + _told([fix for fix in fixes if fix.name == kind], launch, family)
        for kind in kinds
    ]


def _told(fixes: Sequence[Fix], launch: Launch, family: Family) -> str:
    if launch.is_torch:
        was, now = in_short(fixes[0].was), fixes[0].now
        return f"`{was}` names a program, which {launch.launcher} takes for a script: {now} added"
    gone = ", ".join(dict.fromkeys(f"`{in_short(fix.was)}`" for fix in fixes if not fix.now))
    changed = dict.fromkeys(
        f"`{in_short(fix.was)}` became `{in_short(fix.now)}`" for fix in fixes if fix.now
    )
    parts = [*([f"{gone} left out"] if gone else []), *changed]
    reason = _REASONS.get(fixes[0].name, _OTHERWISE)
    if family == "unknown":
        return f"{', '.join(parts)}: {launch.launcher} may be of Open MPI 5, {reason}"
    return f"{', '.join(parts)}: {launch.launcher} is of {_TITLES[family]}, {reason}"


def _torch(line: str, launch: Launch) -> Iterator[Fix]:
    segment = launch.segments[0]
    if not needs_no_python(segment):
        return
    added = ["--no_python"]
    if launch.dialect == "torch.distributed.launch" and not segment.options_named("use-env"):
        added.insert(0, "--use_env")
    place = segment.options_end
    program = line[segment.program[0].start : segment.program[:2][-1].end]
    now = " ".join(added)
    yield Fix("no-python", program, Edit(place, place, f"{now} "), now)


def _for_hydra(line: str, segment: Segment, family: Family, to_set: str) -> Iterator[Fix]:
    for option in segment.options:
        value = option.values[0] if option.values else None
        if option.name == "x":
            yield _export_for_hydra(line, option, to_set)
        elif option.name == "pernode":
            yield _replaced("per-node", line, option, "-ppn 1")
        elif option.name == "map-by" and value is not None and family == "mpich":
            yield from _mapping_for_hydra(line, option, value)
        elif option.name == "report-bindings" and family == "intel":
            yield _left_out("display", line, option)
        elif option.name in _ONLY_OPEN_MPI:
            yield _left_out(_ONLY_OPEN_MPI[option.name], line, option)
        elif option.name in _HYDRA_NAMES:
            yield _renamed(line, option, _HYDRA_NAMES[option.name])


def _export_for_hydra(line: str, option: Option, to_set: str) -> Fix:
    # Hydra passes on every variable; named in -genvlist, only those would be passed on.
    if "=" in line[option.start : option.end]:
        return _renamed(line, option, to_set, "export-value")
    return _left_out("export", line, option)


def _mapping_for_hydra(line: str, option: Option, value: str) -> Iterator[Fix]:
    per_node = re.match(r"ppr:(\d+):node", value)
    if per_node or value == "node":
        yield _replaced("map-by", line, option, f"-ppn {per_node[1] if per_node else 1}")
    elif not _HYDRA_PLACES.fullmatch(value):
        yield _left_out("map-by", line, option)


def _for_open_mpi(line: str, segment: Segment, family: Family) -> Iterator[Fix]:
    for option in segment.options:
        if option.name in ("genv", "env") and option.words:
            raw = [word.raw for word in option.words]
            yield _replaced("export-value", line, option, f"-x {'='.join(raw)}")
        elif option.name in ("genvall", "envall"):
            yield _left_out("export", line, option)
        elif option.name in ("genvlist", "envlist") and option.values[0] is not None:
            names = option.values[0].split(",")
            yield _replaced("export-value", line, option, " ".join(f"-x {name}" for name in names))
        elif option.name in _OPEN_MPI_NAMES:
            yield _renamed(line, option, _OPEN_MPI_NAMES[option.name])
        elif family == "openmpi5" and option.name in _TWO_DASHES:
            yield from _with_two_dashes(line, option)


def _with_two_dashes(line: str, option: Option) -> Iterator[Fix]:
    if not option.first.raw.startswith("--"):
        was = line[option.start : option.end]
        yield Fix("two-dashes", was, Edit(option.start, option.start, "-"), f"-{was}")


def _left_out(name: str, line: str, option: Option) -> Fix:
    was = line[option.start : option.end]
    return Fix(name, was, remove(line, option.start, option.end))


def _replaced(name: str, line: str, option: Option, now: str) -> Fix:
    return Fix(name, line[option.start : option.end], Edit(option.start, option.end, now), now)


def _renamed(line: str, option: Option, now: str, name: str = "") -> Fix:
    """Change the name of an option, and leave its argument as it is."""
    dashes = len(option.first.raw) - len(option.first.raw.lstrip("-"))
    # Names are as long in the table as in the line.
    end = option.start + dashes + len(option.name)
    was = line[option.start : option.end]
    rest = line[end : option.end]
    if rest.startswith("="):
        return Fix(
            name or option.name, was, Edit(option.start, end + 1, f"{now} "), f"{now} {rest[1:]}"
        )
    return Fix(name or option.name, was, Edit(option.start, end, now), now + rest)
