"""Command lines changed where they must be: for another MPI, with a wrapper, with values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from rankwise.launch import read_tables
from rankwise.launch.commandline import NAMES_VARIABLES, PYTHON_FLAGS, is_python
from rankwise.launch.shell import Edit, Word, apply, in_short, read, remove
from rankwise.plan import fill_in, later

if TYPE_CHECKING:
    from rankwise.launch.commandline import Launch, Option, ReadCommand, Segment
    from rankwise.launch.mpiexec import Family

NAMES = frozenset(
    {
        *("AZUREML_MPI_HOSTFILE", "RANKWISE_HOSTFILE"),
        *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
        *("NODE_RANK", "RANK", "LOCAL_RANK", "TF_CONFIG"),
    }
)
"""The variables that may be written so."""

_ASSIGNED = re.compile(r"(--?[A-Za-z][\w-]*=)(.+)")
# Commands whose arguments are names of variables, and options of launchers and of `env`.
_COMMANDS = frozenset({"export", "unset", "printenv", "declare", "typeset", "readonly", "read"})
# After these, a word is the name of a variable and stays one: `-x RANK` passes it on.
_NAMING = frozenset(
    {"-u", "--unset", *map("-{}".format, NAMES_VARIABLES), *map("--{}".format, NAMES_VARIABLES)}
)


def substitute(line: str, variables: Mapping[str, str]) -> str:
    """Put the values of variables in the place of their names; idempotent."""
    return apply(line, edits_for(line, variables))


def edits_for(line: str, variables: Mapping[str, str]) -> list[Edit]:
    """Return the changes that put values in the place of names; none if it cannot be read."""
    names = [name for name in variables if name in NAMES and name in line]
    if not names:
        return []  # To read a line takes long, and there may be thousands.
    known = {name: in_shell(variables[name]) for name in names}
    parts = read(line)
    if parts is None:
        return []
    return [edit for command in parts.commands for edit in _edits(command.words, known)]


def names_in(line: str, variables: Mapping[str, str]) -> list[str]:
    """Name the variables that stand in a line as words."""
    found = " ".join(line[edit.start : edit.end] for edit in edits_for(line, variables))
    return sorted({name for name in re.findall(r"\w+", found) if name in variables})


def in_shell(value: str) -> str:
    """Write a value for the shell, with quotes only where they are needed.

    Folders may have blanks in their names; addresses and ports are known to be harmless.
    """
    sample = fill_in(value, lambda what: " " if what.startswith("folder") else "0")
    return value if shlex.quote(sample) == sample else shlex.quote(value)


def _edits(words: Sequence[Word], known: Mapping[str, str]) -> Iterator[Edit]:
    # `export RANK` is about the variable, not about its value.
    if not words or PurePosixPath(words[0].raw).name in _COMMANDS:
        return
    for before, word in zip((None, *words), words, strict=False):
        if not word.is_plain or (before is not None and before.raw in _NAMING):
            continue
        assigned = _ASSIGNED.fullmatch(word.raw)
        start = word.start + len(assigned[1]) if assigned else word.start
        names = (assigned[2] if assigned else word.raw).split(":")
        # `MASTER_ADDR:MASTER_PORT` is one word, and as a whole either replaced or not.
        if all(name in known for name in names):
            yield Edit(start, word.end, ":".join(known[name] for name in names))


RANK_PROGRAM = later("folder") + "/bin/rankwise-rank"
OUTPUT_VARIABLE = "RANKWISE_RANK_OUTPUT"
"""Set to `own`, each rank has a log of its own; else its output goes to the launcher."""


def needs_no_python(segment: Segment) -> bool:
    """Return whether torch is to run a program that is Python itself, but takes it for a script."""
    others = segment.options_named("no-python", "m", "module", "run-path")
    return is_python(segment.program[0]) and not others


def wrapping(line: str, launch: Launch) -> list[Edit] | str:
    """Return the changes that put the wrapper before every program; or why that cannot be done."""
    if not launch.is_torch:
        # mpirun starts any program; each rank then records how it ended, whatever mpirun reports.
        wrapper = f"{in_shell(RANK_PROGRAM)} "
        return [_insertion(segment, wrapper) for segment in launch.segments]
    segment = launch.segments[0]
    if segment.options_named("run-path"):
        return "--run-path runs the script within the launcher"
    is_legacy = launch.dialect == "torch.distributed.launch"
    if is_legacy and not segment.options_named("use-env") and not needs_no_python(segment):
        return (
            "without --use_env it hands the rank to the script as an argument (add --use_env if "
            "the script takes it from LOCAL_RANK)"
        )
    return _torch_wrapping(line, launch, segment)


def _torch_wrapping(line: str, launch: Launch, segment: Segment) -> list[Edit]:
    """Have torch run the wrapper instead of Python, and the wrapper run Python as torch would."""
    # torch starts a script with its own Python, unless --no_python says that it is a program.
    has_program = bool(segment.options_named("no-python")) or needs_no_python(segment)
    wrapper = [in_shell(RANK_PROGRAM)]
    edits: list[Edit] = []
    if not has_program:
        modules = segment.options_named("m", "module")
        # As torch itself starts Python: `-u` holds no output back.
        wrapper += [_python_of(launch), "-u", *(["-m"] if modules else [])]
        edits = [remove(line, option.start, option.end) for option in modules]
        edits.append(Edit(segment.options_end, segment.options_end, "--no_python "))
    return [*edits, _insertion(segment, " ".join(wrapper) + " ")]


def _python_of(launch: Launch) -> str:
    # torchrun itself runs in the Python beside which it is installed.
    folder = launch.path.removesuffix("torchrun")
    return launch.python or in_shell(f"{folder}python")


def _insertion(segment: Segment, text: str) -> Edit:
    return Edit(segment.program[0].start, segment.program[0].start, text)


_TRANSLATIONS = "launcher_translations.toml"


def _only_openmpi() -> dict[str, str]:
    """Return the options that only Open MPI has, each with the kind of change."""
    kinds = read_tables(_TRANSLATIONS)["only_openmpi"].items()
    return {name: kind for kind, names in kinds for name in names.split()}


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
    # A line of one MPI is written for the launcher that is here only if it is known whose that is.
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
        elif family == "unknown" and segment.options_named(*_only_openmpi()):
            # Whichever version it is: the older ones take two dashes as well.
            for option in segment.options:
                fixes += _with_two_dashes(line, option) if option.name in _TWO_DASHES else ()
    return fixes


def notes_for(fixes: Sequence[Fix], launch: Launch, family: Family) -> list[str]:
    """Return what was changed, a line for each kind."""
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
    reason = read_tables(_TRANSLATIONS)["reasons"].get(
        fixes[0].name, "where it is called otherwise"
    )
    if family == "unknown":
        return f"{', '.join(parts)}: {launch.launcher} may be of Open MPI 5, {reason}"
    title = read_tables(_TRANSLATIONS)["titles"][family]
    return f"{', '.join(parts)}: {launch.launcher} is of {title}, {reason}"


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
    only_openmpi, names = _only_openmpi(), read_tables(_TRANSLATIONS)["hydra"]
    for option in segment.options:
        value = option.values[0] if option.values else None
        if option.name == "x":
            yield _export_for_hydra(line, option, to_set)
        elif option.name == "pernode":
            yield _replaced("per-node", line, option, "-ppn 1")
        elif option.name == "map-by" and value is not None and family == "mpich":
            yield from _mapping_for_hydra(line, option, value)
        # MPICH has this one, too.
        elif option.name == "report-bindings" and family == "intel":
            yield _left_out("display", line, option)
        elif option.name in only_openmpi:
            yield _left_out(only_openmpi[option.name], line, option)
        elif option.name in names:
            yield _renamed(line, option, names[option.name])


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
    names = read_tables(_TRANSLATIONS)["openmpi"]
    for option in segment.options:
        if option.name in ("genv", "env") and option.words:
            raw = [word.raw for word in option.words]
            yield _replaced("export-value", line, option, f"-x {'='.join(raw)}")
        elif option.name in ("genvall", "envall"):
            yield _left_out("export", line, option)
        elif option.name in ("genvlist", "envlist") and option.values[0] is not None:
            passed = " ".join(f"-x {name}" for name in option.values[0].split(","))
            yield _replaced("export-value", line, option, passed)
        elif option.name in names:
            yield _renamed(line, option, names[option.name])
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
        end, now, rest = end + 1, f"{now} ", rest[1:]
    return Fix(name or option.name, was, Edit(option.start, end, now), now + rest)


NOTE = (
    "exceptions: `python` is run as `python -m mpi4py`, so that an exception on one rank ends all "
    "ranks and none waits for ever"
)


WITH_MPI4PY = "-m mpi4py"
WITH_MPI4PY_IF_THERE = "$RANKWISE_MPI4PY"
"""In a container: what is in its image is known only there."""


def ending_all(launch: Launch, option: str = WITH_MPI4PY) -> list[Edit]:
    """Return the changes that have every Python of a line end all ranks when it raises."""
    # torchrun itself ends the other ranks.
    if launch.is_torch:
        return []
    places = (_place(segment) for segment in launch.segments)
    return [Edit(place, place, f"{option} ") for place in places if place is not None]


def _place(segment: Segment) -> int | None:
    """Find where Python's own options end; None: it is no Python, or runs mpi4py already."""
    program = segment.program
    if not is_python(program[0]):
        return None
    rest = list(program[1:])
    while rest and rest[0].text is not None and PYTHON_FLAGS.fullmatch(rest[0].text):
        del rest[0]
    texts = [word.text or "" for word in rest[:2]]
    if not rest or texts == ["-m", "mpi4py"] or texts[0] in ("-W", "-X", "-V", "--version", "-h"):
        return None
    return rest[0].start


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedLine:
    """A line with the changes that are the same for all processes that it is the command of."""

    line: str
    launch: Launch | None = None
    edits: tuple[Edit, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that belong to the changes."""
    notes: tuple[str, ...] = ()

    def for_process(self, variables: Mapping[str, str]) -> str:
        """Return the command of a process that has these variables."""
        return apply(self.line, [*self.edits, *edits_for(self.line, variables)])

    def word_notes(self, variables: Mapping[str, str]) -> list[str]:
        """Return which variables' names stand for their values."""
        names = ", ".join(f"`{name}`" for name in names_in(self.line, variables))
        return [f"words: {names} in the command replaced by the value"] if names else []


def prepare(
    line: str, reading: ReadCommand, family: Family, *, wrap: bool = True, mpi4py: str = ""
) -> PreparedLine:
    """Mend a line for the launcher that is here, and wrap the ranks that it starts.

    A line that is not understood stays as it is, and a note says what follows from that.
    """
    launch = reading.launch
    if launch is None:
        why = f"ranks: `{in_short(line)}`: {reading.reason}"
        note = f"{why}: the exit code will be that of the command as a whole"
        return PreparedLine(line=line, notes=(note,))
    fixes = fixes_for(line, launch, family)
    notes = notes_for(fixes, launch, family)
    edits = [fix.edit for fix in fixes]
    if mpi4py and (aborting := ending_all(launch, mpi4py)):
        edits += aborting
        notes.append(NOTE if mpi4py == WITH_MPI4PY else f"{NOTE}: if the image has mpi4py")
    environment = {}
    wrapped = wrapping(line, launch) if wrap else "another launcher numbers the ranks of this job"
    if isinstance(wrapped, str):
        notes.append(f"ranks: {launch.launcher}: {wrapped}: the exit code will be the launcher's")
    else:
        edits += wrapped
        # With `mpirun … > file`, the file gets the output, and each rank has no log of its own.
        environment = {OUTPUT_VARIABLE: "own"} if launch.keeps_output else {}
    return PreparedLine(
        line=line, launch=launch, edits=tuple(edits), environment=environment, notes=tuple(notes)
    )
