"""The launchers that are known, and their options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from rankwise.launch.shell import Word, skip_prefixes

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
        longer = [known for known in self.arguments if known.startswith(name)]
        return longer[0] if len(longer) == 1 else name


@cache
def options_of(dialect: Dialect) -> LauncherOptions:
    """Return the options of a launcher."""
    # Read late: most documents start no ranks.
    import tomllib

    text = Path(__file__).with_name("launcher_options.toml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, str]] = tomllib.loads(text)
    own = tables[dialect]
    other = tables.get(own.get("like", ""), {})
    both = other | own
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
    if name in _SHELLS:
        return any(_WITHIN.search(text) for text in following)
    return name == "deepspeed" or (name == "accelerate" and following[:1] == ["launch"])


def _base(word: Word) -> str:
    return PurePosixPath(word.text or "").name
