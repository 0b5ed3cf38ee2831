"""Do what a Markdown page shows, and tell where it shows something else than what happens.

The convention, which a reader of the page need not know:

- A `python`, `ini`, `yaml` or `toml` block whose first line is a comment with a file name
  (`# test_mean.py`) is that file. All files and commands of a page share one folder, which the page
  calls `/home/you/project`. Any other `python` block must compile.
- In a `console` block the lines after `$ ` are run by one shell, with MPICH; a word after `console` in
  the fence names another environment (`console openmpi5`).
- The lines below a command are its whole output, errors last, except that a line `...` stands for
  lines left out. Blank lines, the length of rules, the width of columns, times, sizes, addresses and
  the version of the MPI may differ, and lines with the names of processes (`rank 2 | …`) may come
  in another order, but not those of one process. A command that shows nothing must succeed;
  `$ echo $?` shows how the one before it ended.
- All other blocks (`sh`, `text`, …) are only read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tests.acceptance.harness import Project

_FENCE = re.compile(
    r"^```(?P<language>\w*)[ \t]*(?P<words>[^\n]*)\n(?P<text>.*?)^```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_FILE_NAME = re.compile(r"# (?P<name>[\w./-]+\.(?:py|ini|yaml|toml))\n")
_FILE_LANGUAGES = ("python", "ini", "yaml", "toml")
_FOLDER = "/home/you/project"
_OMISSION = "..."
_SECONDS_A_COMMAND = 60.0
# After each command: its exit code on both streams, and once more for an `echo $?` that may follow.
_SEPARATE = r"code=$?; printf '\n<<%d>>\n' $code | tee /dev/stderr; (exit $code)"
_SEPARATOR = re.compile(r"\n<<(\d+)>>\n")

# What may differ between two runs, and what it is replaced by on both sides.
_VARIABLE = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"([=\-_!])\1{2,}"), r"\1\1\1"),
    (re.compile(r"\b\d+\.\d+ ?s\b"), "0.00s"),
    (re.compile(r"\b0x[0-9a-f]+"), "0x0"),
    (re.compile(r"\b(MPICH|Open MPI|Intel MPI) \d[\w.]*"), r"\1 0"),
    # What runs took and used. Not every number of seconds: limits must be right.
    (re.compile(r"(  |, |after |for )(\d+ min )?\d+(\.\d+)? (ms|s)\b"), r"\g<1>0.00s"),
    (re.compile(r"\b\d+(?:\.\d+)? [KMGT]?i?B\b"), "0 B"),
    (re.compile(r"\b\d{4}-\d\d-\d\d \d\d:\d\d\b"), "2000-01-01 00:00"),
    # Columns are as wide as what is in them.
    (re.compile(r"(?<=\S) {2,}(?=\S)"), "  "),
)
# A line that a process has written, with its name before it.
_LABELLED = re.compile(r"(?P<who>\w[\w.-]*(?: [\w.-]+)* \d+) +\| ")


class Stale(AssertionError):
    """A page shows what does not happen; the message says where and what happens instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    line: int
    language: str
    words: tuple[str, ...]
    text: str

    @property
    def file_name(self) -> str | None:
        """The file that the block is, if it says so."""
        match = _FILE_NAME.match(self.text)
        return match["name"] if match and self.language in _FILE_LANGUAGES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A line to run and what the page shows of its output."""

    line: int
    text: str
    shown: Sequence[str]


def blocks_of(text: str) -> list[Block]:
    """Find the fenced blocks of a page."""
    return [
        Block(
            line=text.count("\n", 0, match.start()) + 1,
            language=match["language"],
            words=tuple(match["words"].split()),
            text=match["text"],
        )
        for match in _FENCE.finditer(text)
    ]


def commands_of(block: Block) -> Iterator[Command]:
    """Cut a console block into its commands."""
    before, *rest = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    if before.strip():
        raise Stale(f"line {block.line}: output comes before the first `$ ` of a console block")
    line = block.line + 1
    for part in rest:
        text, *shown = part.splitlines()
        yield Command(line=line, text=text, shown=_comparable(shown))
        line += 1 + len(shown)


def _comparable(lines: Sequence[str]) -> list[str]:
    result = []
    for line in lines:
        for pattern, replacement in _VARIABLE:
            line = pattern.sub(replacement, line)  # noqa: PLW2901
        if line.strip():
            result.append(line.rstrip())
    return list(_in_one_order(result))


def _in_one_order(lines: Iterable[str]) -> Iterator[str]:
    """Sort neighbouring lines by the processes that wrote them; each one's stay in order."""
    for _, some in groupby(lines, key=lambda line: bool(_who(line))):
        yield from sorted(some, key=_who)


def _who(line: str) -> str:
    """Name the process that wrote a line; empty: none did."""
    found = _LABELLED.match(line)
    return found["who"] if found else ""


def first_difference(shown: Sequence[str], printed: str) -> str | None:
    """Say what of the shown lines is not what was printed; None if all is."""
    actual = _comparable(printed.splitlines())
    parts: list[list[str]] = [[]]
    for line in _comparable(shown):
        if line == _OMISSION:
            parts.append([])
        else:
            parts[-1].append(line)
    position = 0
    for number, part in enumerate(parts):
        starts = set(range(position, len(actual) - len(part) + 1))
        if number == 0:
            starts &= {0}
        if number == len(parts) - 1 and part:
            starts &= {len(actual) - len(part)}
        found = sorted(start for start in starts if actual[start : start + len(part)] == part)
        if not found:
            absent = [line for line in part if line not in actual]
            return "\n".join(absent or ["(lines that are printed, but not together here:)", *part])
        position = found[0] + len(part)
    return None


class Page:
    """A Markdown page and the folder in which it is acted out."""

    def __init__(self, path: Path, projects: Mapping[str, Project]) -> None:
        self._path = path
        self._projects = projects

    def act_out(self) -> None:
        """Write the page's files and run its commands, in order.

        Raises Stale.
        """
        for block in blocks_of(self._path.read_text(encoding="utf-8")):
            if (name := block.file_name) is not None:
                self._projects["mpich"].write({name: block.text})
            elif block.language == "python":
                compile(block.text, f"{self._path}:{block.line}", "exec")
            elif block.language == "console":
                self._run(list(commands_of(block)), block.words[0] if block.words else "mpich")

    def _run(self, commands: Sequence[Command], mpi: str) -> None:
        project = self._projects[mpi]
        path = [project.mpi.folder / "bin", project.mpi.mpiexec.parent, "/usr/bin", "/bin"]
        outcome = project.run(
            ["bash", "-c", "\n".join(f"{command.text}\n{_SEPARATE}" for command in commands)],
            limit=_SECONDS_A_COMMAND * len(commands),
            environment={
                "PATH": ":".join(map(str, path)),
                "COLUMNS": "80",
                "PYTHONPATH": "",
                # The user who runs this may have a site file.
                "XDG_CONFIG_HOME": "/nowhere",
            },
        )
        outputs, errors = _SEPARATOR.split(outcome.output), _SEPARATOR.split(outcome.errors)
        for number, command in enumerate(commands):
            exit_code = int(outputs[2 * number + 1])
            printed = f"{outputs[2 * number]}\n{errors[2 * number]}".strip()
            printed = printed.replace(str(project.folder), _FOLDER)
            self._compare(command, printed, exit_code)

    def _compare(self, command: Command, printed: str, exit_code: int) -> None:
        where = f"{self._path.name}:{command.line}: `{command.text}`"
        if not command.shown and exit_code:
            raise Stale(f"{where} shows nothing but fails with {exit_code}:\n{printed}")
        wrong = first_difference(command.shown, printed) if command.shown else None
        if wrong is not None:
            raise Stale(f"{where} shows this:\n{wrong}\n\nbut this happens:\n{printed}")
