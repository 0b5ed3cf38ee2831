"""Command lines that start ranks: where the launcher's options end, and what they say.

Read are mpirun and its relatives, horovodrun, srun, torchrun and `python -m
torch.distributed.launch`, also after `cd x &&`, `env A=b`, `exec`, `time` and the like. What is
not understood for certain is not understood: the answer then says why, and the line stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from rankwise.launch import read_tables
from rankwise.launch.shell import Simple, Word, read, skip_prefixes

if TYPE_CHECKING:
    from rankwise.launch.mpiexec import Family

Dialect = Literal["openmpi", "hydra", "horovodrun", "srun", "torchrun", "torch.distributed.launch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherOptions:
    """The options of one launcher."""

    style: str
    """One of those that `launcher_options.toml` explains."""
    arguments: Mapping[str, int]
    """How many arguments each takes."""
    processes: Sequence[str] = ()
    """Those that say how many processes there are in all."""
    per_node: Sequence[str] = ()
    """Those that say how many there are on each node."""
    nodes: Sequence[str] = ()
    """Those that say how many nodes there are."""
    output: Sequence[str] = ()
    """Those that say what is to happen with the output of ranks."""

    def full_name(self, name: str) -> str:
        """Complete a name that is shortened, where that is allowed and clear."""
        if self.style == "dashes" or name in self.arguments or len(name) == 1:
            return name
        # As argparse and getopt complete: only where one option begins so.
        longer = [known for known in self.arguments if known.startswith(name)]
        return longer[0] if len(longer) == 1 else name


@cache
def options_of(dialect: Dialect) -> LauncherOptions:
    """Return the options of a launcher."""
    tables = read_tables("launcher_options.toml")
    own = tables[dialect]
    other = tables.get(own.get("like", ""), {})
    both = {**other, **own}
    # Of a name in both, the launcher's own number of arguments counts.
    return LauncherOptions(
        style=both["style"],
        arguments={
            name: count
            for table in (other, own)
            for count, group in enumerate(("none", "one", "two"))
            for name in table.get(group, "").split()
        },
        **{
            role: both.get(role, "").split()
            for role in ("processes", "per_node", "nodes", "output")
        },
    )


ELSEWHERE = frozenset({"app", "configfile", "multi-prog"})
"""Those that name a file in which the programs are."""

NAMES_VARIABLES = frozenset(
    {
        *("x", "genv", "genvlist", "genvexcl", "env", "envlist", "envexcl"),
        *("set-env", "unset-env", "append-env", "prepend-env"),
    }
)
"""Those whose first argument is the name of a variable, or several."""


_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
# Other letters may stand before the `m`, and the module right behind it: -um, -mpdb.
_MODULE = re.compile(r"-[bBdEIOqsSuvxP]*m(.*)")
PYTHON_FLAGS = re.compile(r"-[bBdEIOqsSuvxP]+")

_NAMES: Mapping[str, Dialect] = {
    **dict.fromkeys(("orterun", "prterun", "mpirun.openmpi", "mpiexec.openmpi"), "openmpi"),
    **dict.fromkeys(("mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"), "hydra"),
    "horovodrun": "horovodrun",
    "srun": "srun",
    "torchrun": "torchrun",
}
_MODULES: Mapping[str, Dialect] = {
    "torch.distributed.launch": "torch.distributed.launch",
    "torch.distributed.run": "torchrun",
}
_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_WITHIN = re.compile(
    r"(?:^|[\s;&|/])(?:torchrun|deepspeed|accelerate\s+launch)\s|-m\s*torch\.distributed"
)

TORCH: tuple[Dialect, ...] = ("torchrun", "torch.distributed.launch")


@dataclass(frozen=True, slots=True)
class FoundLauncher:
    """A launcher in a command."""

    dialect: Dialect
    name: str
    path: str
    arguments: int
    """The index of the word after it."""
    python: str = ""
    """The interpreter that runs it, as it is written, if one does."""


def find_launcher(words: Sequence[Word], family: Family) -> FoundLauncher | None:
    """Find the launcher that a command is; None if it is none."""
    found = (_launcher_at(words, place, family) for place in skip_prefixes(words))
    return next((launcher for launcher in found if launcher is not None), None)


def seems_torch(words: Sequence[Word]) -> bool:
    """Return whether a command starts ranks of torch, with a launcher that is known here or not."""
    return any(_seems_torch_at(words, place) for place in skip_prefixes(words))


def is_python(word: Word) -> bool:
    """Return whether a program is an interpreter of Python."""
    return _PYTHON.fullmatch(_base(word)) is not None


def _launcher_at(words: Sequence[Word], place: int, family: Family) -> FoundLauncher | None:
    name, path = _base(words[place]), words[place].text or ""
    # Every MPI calls its launcher so: whose it is, decides which options it has.
    if name in ("mpirun", "mpiexec"):
        dialect: Dialect = "hydra" if family in ("mpich", "intel") else "openmpi"
        return FoundLauncher(dialect, name, path, place + 1)
    if name in _NAMES:
        return FoundLauncher(_NAMES[name], name, path, place + 1)
    return _module_of_python(words, place) if is_python(words[place]) else None


def _module_of_python(words: Sequence[Word], place: int) -> FoundLauncher | None:
    at = place + 1
    while at < len(words):
        text = words[at].text or ""
        if found := _MODULE.fullmatch(text):
            at += not found[1]
            module = found[1] or (words[at].text if at < len(words) else None) or ""
            if module not in _MODULES:
                return None
            return FoundLauncher(_MODULES[module], module, module, at + 1, words[place].raw)
        # Python's own options before `-m`; of others, what follows is a script or a command.
        if text in ("-W", "-X"):
            at += 2
        elif PYTHON_FLAGS.fullmatch(text) or text.startswith(("-W", "-X")):
            at += 1
        else:
            return None
    return None


def _seems_torch_at(words: Sequence[Word], place: int) -> bool:
    launcher = _launcher_at(words, place, "unknown")
    if launcher is not None:
        return launcher.dialect in TORCH
    name = _base(words[place])
    following = [word.text or word.raw for word in words[place + 1 :]]
    # The script within `bash -c` is one word here; it is searched, not read.
    if name in _SHELLS:
        return any(_WITHIN.search(text) for text in following)
    return name == "deepspeed" or (name == "accelerate" and following[:1] == ["launch"])


def _base(word: Word) -> str:
    return PurePosixPath(word.text or "").name


_OPTION = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
# Expansions that are a program, as far as anybody can tell: $HOME/bin/app, $(which python).
_SURELY_ONE = re.compile(r"\$\{?\w+\}?/\S+|\$\((?:which|command -v) [^()]+\)", re.ASCII)
_ONE_VARIABLE = re.compile(r'("?)\$(?:\{(\w+)\}|(\w+))\1', re.ASCII)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a launcher, as it stands in the line."""

    name: str
    start: int
    end: int
    first: Word
    """The word with its name."""
    words: tuple[Word, ...] = ()
    """Its arguments; those after `=` are in the first word."""
    values: tuple[str | None, ...] = ()
    """What its arguments say; None: only the shell can tell."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A program, and the options before it."""

    options: tuple[Option, ...]
    program: tuple[Word, ...]
    options_end: int
    """Where one more option could stand."""

    def options_named(self, *names: str) -> tuple[Option, ...]:
        return tuple(option for option in self.options if option.name in names)

    def value(self, names: Sequence[str]) -> str | None:
        """Return what the last of these options says."""
        found = self.options_named(*names)
        return found[-1].values[0] if found and found[-1].values else None


@dataclass(frozen=True, slots=True)
class Launch:
    """A line that starts ranks."""

    dialect: Dialect
    launcher: str
    """As people call it: `mpirun`, `torchrun`."""
    segments: tuple[Segment, ...]
    """More than one where different programs are parts of one job: `-n 1 ./a : -n 3 ./b`."""
    path: str
    """As it is written, with its folder."""
    python: str = ""
    """The interpreter that runs the launcher, as it is written, if it does."""
    keeps_output: bool = True
    """Whether the output of ranks goes nowhere but to where the line's own output goes."""

    @property
    def is_torch(self) -> bool:
        return self.dialect in TORCH

    @property
    def processes(self) -> int | None:
        """How many processes the line asks for in all."""
        # Each program of `-n 1 ./a : -n 3 ./b` has its own number; without one, the sum is unknown.
        names = options_of(self.dialect).processes
        counts = [count_in(segment.value(names)) for segment in self.segments]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def processes_per_node(self) -> str | None:
        """How many it asks for on each node: a number, or `gpu`, `cpu`, `auto`."""
        first = self.segments[0]
        mapped = re.match(r"ppr:(\d+):node", first.value(("map-by",)) or "")
        return mapped[1] if mapped else first.value(options_of(self.dialect).per_node)

    @property
    def count_per_node(self) -> int | None:
        """The same, if it is a number."""
        return count_in(self.processes_per_node)

    @property
    def nodes(self) -> tuple[int, int] | None:
        """The least and the most nodes that it asks for."""
        least, _, most = (self.segments[0].value(options_of(self.dialect).nodes) or "").partition(
            ":"
        )
        low, high = count_in(least), count_in(most or least)
        return (low, high) if low is not None and high is not None else None


@dataclass(frozen=True, slots=True)
class ReadCommand:
    """What was made of a line; `reason` says why there is no launch."""

    launch: Launch | None
    reason: str = ""
    starts_ranks: bool = False
    """Whether the line seems to start ranks of torch, even if it is not understood."""
    has_launcher: bool = False
    """Whether a launcher stands in it, even if it is not understood."""


def read_command(
    line: str, family: Family = "unknown", environment: Mapping[str, str] | None = None
) -> ReadCommand:
    """Find the launcher in a line, and read its options; never raises.

    `family` is whose the mpirun is. `environment` tells what `$NAME` stands for in an option.
    """
    parts = read(line)
    if parts is None:
        return ReadCommand(
            None, "its quotes, or text that follows on other lines, are not understood"
        )
    # Torch is looked for in all commands, as a script that starts it need not be understood.
    found = [
        (command, start)
        for command in parts.commands
        if (start := find_launcher(command.words, family)) is not None
    ]
    starts_torch = any(seems_torch(command.words) for command in parts.commands)
    try:
        if parts.is_compound:
            raise _NotUnderstood("it has conditions, loops or functions")
        if not found:
            raise _NotUnderstood("no mpirun, mpiexec, horovodrun, srun or torchrun stands in it")
        if len(found) > 1:
            raise _NotUnderstood("it has more than one launcher")
        command, start = found[0]
        # What goes through a pipe is no longer the output of a rank.
        is_kept = not parts.is_redirected and command.after not in ("|", "|&")
        return ReadCommand(
            _launch(command, start, is_kept, environment or {}), "", starts_torch, True
        )
    except _NotUnderstood as reason:
        return ReadCommand(None, str(reason), starts_torch, bool(found))


def count_in(text: str | None) -> int | None:
    """Return the number that a text is; None if it is none, or nothing to count with."""
    # Longer ones are no counts, and Python refuses to read the longest.
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 9:
        return None
    return int(text) or None


class _NotUnderstood(Exception):
    """The line may be right, but it is not clear where the program begins."""


def _launch(
    command: Simple, launcher: FoundLauncher, is_kept: bool, environment: Mapping[str, str]
) -> Launch:
    table = options_of(launcher.dialect)
    reader = _Options(command.words, table, launcher.name, environment)
    segments = tuple(reader.segments(launcher.arguments))
    redirecting = any(segment.options_named(*table.output) for segment in segments)
    return Launch(
        dialect=launcher.dialect,
        launcher=launcher.name,
        path=launcher.path,
        segments=segments,
        python=launcher.python,
        keeps_output=is_kept and not redirecting,
    )


@dataclass(frozen=True, slots=True)
class _Options:
    """Reads the options of a launcher, word by word."""

    words: Sequence[Word]
    table: LauncherOptions
    launcher: str
    environment: Mapping[str, str]

    def segments(self, at: int) -> Iterator[Segment]:
        """Return each program with its options, from a word on."""
        while True:
            options: list[Option] = []
            last = at
            while (option := self._option(at)) is not None:
                options.append(option)
                at += 1 + len(option.words)
                last = at
            at += at < len(self.words) and self.words[at].raw == "--"
            end = self._end_of_program(at)
            self._check_program(at, end)
            yield Segment(tuple(options), tuple(self.words[at:end]), self.words[last].start)
            if end == len(self.words):
                return
            at = end + 1

    def _end_of_program(self, at: int) -> int:
        # As in `mpirun -n 1 ./a : -n 3 ./b`; to torchrun, a colon is an argument.
        if self.table.style == "dashes":
            for place in range(at, len(self.words)):
                if self.words[place].raw == ":":
                    return place
        return len(self.words)

    def _check_program(self, at: int, end: int) -> None:
        if at >= end:
            raise _NotUnderstood(f"{self.launcher} is given no program")
        raw = self.words[at].raw
        # `mpirun $OPTIONS ./a`: where the variable is empty, the next word is the program.
        if self.words[at].may_split and not _SURELY_ONE.fullmatch(raw):
            raise _NotUnderstood(f"`{raw}` may be options or the program")

    def _option(self, at: int) -> Option | None:
        """Read the option at a word; None if there is none."""
        if at >= len(self.words) or not self.words[at].raw.startswith("-"):
            return None
        word = self.words[at]
        if word.raw == "--":
            return None
        name, joined = self._name(word)
        count = self.table.arguments.get(name)
        # How many words belong to an unknown option is unknown: the program may be one of them.
        if count is None or name in ELSEWHERE:
            raise _NotUnderstood(f"the option `{word.raw}` of {self.launcher} is not known")
        if joined is not None:
            return Option(name, word.start, word.end, word, (), (self._meaning(joined),))
        given = self.words[at + 1 : at + 1 + self._count(name, count, at)]
        values = tuple(self._value(argument) for argument in given)
        end = given[-1].end if given else word.end
        return Option(name, word.start, end, word, tuple(given), values)

    def _count(self, name: str, count: int, at: int) -> int:
        # Hydra takes both `-genv A b` and `-genv A=b`.
        if name in ("env", "genv") and at + 1 < len(self.words):
            count = 1 if "=" in self.words[at + 1].raw else 2
        if at + count >= len(self.words):
            raise _NotUnderstood(f"the line ends after `{self.words[at].raw}`")
        return count

    def _name(self, word: Word) -> tuple[str, str | None]:
        """Return an option's name, and the argument that is written in the same word."""
        found = _OPTION.fullmatch(word.raw)
        if found is None:
            raise _NotUnderstood(f"`{word.raw}` is not understood as an option of {self.launcher}")
        # torchrun takes both --nproc_per_node and --nproc-per-node.
        name = self.table.full_name(found[1].replace("_", "-"))
        is_letters = self.table.style != "dashes" and not word.raw.startswith("--")
        if is_letters and self.table.arguments.get(name) is None and found[2] is None:
            # Letters with their argument at once, as in -n4.
            letter, rest = found[1][0], found[1][1:]
            if self.table.arguments.get(letter) == 1:
                return letter, rest
            if all(self.table.arguments.get(other) == 0 for other in found[1]):
                return letter, None
            return (letter, rest) if rest.isdecimal() else (found[1], None)
        return name, found[2]

    def _meaning(self, raw: str) -> str | None:
        """Return what is written after `=`, if that is clear."""
        if found := _ONE_VARIABLE.fullmatch(raw):
            return self.environment.get(found[2] or found[3])
        parts = read(raw)
        if raw and parts and len(parts.commands) == 1 and len(parts.commands[0].words) == 1:
            return parts.commands[0].words[0].text
        return None

    def _value(self, word: Word) -> str | None:
        return word.text if word.text is not None else self._meaning(word.raw)
