"""Variables that are written without `$`: `--hostfile AZUREML_MPI_HOSTFILE`.

A word that is the name of a variable which the process is given stands for its value, also after
`=` in an option (`--node_rank=NODE_RANK`) and joined by colons (`MASTER_ADDR:MASTER_PORT`). It must
be written plainly: what has quotes, backslashes or `$` is left to the shell, which has the
variables too, so that `python -c "print('RANK')"` stays as it is. Names are left alone where a
name is wanted: after `-x`, `-genv` and the like, and in `export`, `unset` and `printenv`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from rankwise.launch.options import NAMES_VARIABLES
from rankwise.launch.shell import Edit, Word, apply, read
from rankwise.plan import fill_in

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
_NAMING = frozenset(
    {"-u", "--unset", *(f"-{name}" for name in NAMES_VARIABLES)}
    | {f"--{name}" for name in NAMES_VARIABLES if len(name) > 1}
)


def substitute(line: str, variables: Mapping[str, str]) -> str:
    """Put the values of variables in the place of their names; idempotent."""
    return apply(line, edits_for(line, variables))


def edits_for(line: str, variables: Mapping[str, str]) -> list[Edit]:
    """Give the changes that put values in the place of names; none if the line is not readable."""
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
    if not words or PurePosixPath(words[0].raw).name in _COMMANDS:
        return
    for before, word in zip((None, *words), words, strict=False):
        if not word.is_plain or (before is not None and before.raw in _NAMING):
            continue
        assigned = _ASSIGNED.fullmatch(word.raw)
        start = word.start + len(assigned[1]) if assigned else word.start
        names = (assigned[2] if assigned else word.raw).split(":")
        if all(name in known for name in names):
            yield Edit(start, word.end, ":".join(known[name] for name in names))
