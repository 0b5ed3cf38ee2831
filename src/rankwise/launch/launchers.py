"""Which launcher a command is, and where its arguments begin."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from rankwise.launch.mpiexec import Family
from rankwise.launch.options import Dialect
from rankwise.launch.prefixes import skip_prefixes
from rankwise.launch.shell import Word

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_MODULE = re.compile(r"-[bBdEIOqsSuvxP]*m(.*)")
_PYTHON_FLAGS = re.compile(r"-[bBdEIOqsSuvxP]+")

_MPI_NAMES = frozenset({"mpirun", "mpiexec"})
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
class Launcher:
    """A launcher in a command."""

    dialect: Dialect
    name: str
    path: str
    arguments: int
    """The index of the word after it."""
    python: str = ""
    """The interpreter that runs it, as it is written, if one does."""


def find_launcher(words: Sequence[Word], family: Family) -> Launcher | None:
    """Find the launcher that a command is; None if it is none."""
    found = (_launcher_at(words, place, family) for place in skip_prefixes(words))
    return next((launcher for launcher in found if launcher is not None), None)


def seems_torch(words: Sequence[Word]) -> bool:
    """Tell whether a command starts ranks of torch, with a launcher that is known here or not."""
    return any(_seems_torch_at(words, place) for place in skip_prefixes(words))


def is_python(word: Word) -> bool:
    """Tell whether a program is an interpreter of Python."""
    return _PYTHON.fullmatch(_base(word)) is not None


def _launcher_at(words: Sequence[Word], place: int, family: Family) -> Launcher | None:
    name, path = _base(words[place]), words[place].text or ""
    if name in _MPI_NAMES:
        dialect: Dialect = "hydra" if family in ("mpich", "intel") else "openmpi"
        return Launcher(dialect, name, path, place + 1)
    if name in _NAMES:
        return Launcher(_NAMES[name], name, path, place + 1)
    return _module_of_python(words, place) if is_python(words[place]) else None


def _module_of_python(words: Sequence[Word], place: int) -> Launcher | None:
    at = place + 1
    while at < len(words):
        text = words[at].text or ""
        if found := _MODULE.fullmatch(text):
            at += not found[1]
            module = found[1] or (words[at].text if at < len(words) else None) or ""
            dialect = _MODULES.get(module)
            return Launcher(dialect, module, module, at + 1, words[place].raw) if dialect else None
        if text in ("-W", "-X"):
            at += 2
        elif _PYTHON_FLAGS.fullmatch(text) or text.startswith(("-W", "-X")):
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
