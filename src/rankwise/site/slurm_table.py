"""`[compute.NAME]` of a Slurm cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rankwise.site.choices import SlurmChoice
from rankwise.site.page import Key, Page, did_you_mean
from rankwise.site.values import from_file, read_number, read_text, read_words, written

_TEXTS = ("partition", "account", "qos", "constraint", "python")
_LISTS = ("options", "modules", "init")
SLURM_KEYS = (
    *_TEXTS,
    *_LISTS,
    *("time", "mpi", "shared", "mode", "max_queued", "pilot_nodes", "pilot_idle"),
)
MODES = ("job", "pilot")
_MPI = re.compile(r"mpirun|srun(-\w+)?")
# Minutes, and the other forms that sbatch has.
_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
# What we give ourselves, and could not find a job without.
_OURS = (
    *("--job-name", "-J", "--output", "-o", "--error", "-e", "--array", "-a", "--wrap"),
    *("--parsable", "--wait", "-W", "--nodes", "-N", "--open-mode", "--chdir", "-D"),
)


def read_slurm(at: Key, table: Mapping[str, Any], page: Page) -> SlurmChoice:
    """Read what only a cluster has."""
    texts: dict[str, Any] = {
        name: read_text((*at, name), table, page) for name in _TEXTS if name in table
    }
    lists: dict[str, Any] = {name: read_words((*at, name), table, page) for name in _LISTS}
    _check_options((*at, "options"), lists["options"], page)
    most = read_number((*at, "max_queued"), table, page, least=1, is_whole=True)
    nodes = read_number((*at, "pilot_nodes"), table, page, least=1, is_whole=True)
    idle = read_number((*at, "pilot_idle"), table, page, least=0)
    shared = read_text((*at, "shared"), table, page) if "shared" in table else ""
    return SlurmChoice(
        **texts,
        **lists,
        time=_time((*at, "time"), table, page),
        mpi=_one_of((*at, "mpi"), table, page, _MPI, ("mpirun", "srun", "srun-pmi2", "srun-pmix")),
        mode=_one_of((*at, "mode"), table, page, re.compile("|".join(MODES)), MODES),
        shared=from_file(shared, page) if shared else "",
        max_queued=int(most) if most is not None else None,
        pilot_nodes=int(nodes or 1),
        pilot_idle=30.0 if idle is None else idle,
    )


def _time(at: Key, table: Mapping[str, Any], page: Page) -> str:
    value = table.get("time", "")
    is_number = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if value == "" or is_number or (isinstance(value, str) and _TIME.fullmatch(value)):
        return str(value)
    page.complain(at, f'time must be minutes, or like "1:30:00" or "2-0", not {written(value)}')
    return ""


def _one_of(
    at: Key, table: Mapping[str, Any], page: Page, form: re.Pattern[str], known: tuple[str, ...]
) -> str:
    value = table.get(at[-1], known[0])
    if isinstance(value, str) and form.fullmatch(value):
        return value
    hint = did_you_mean(str(value), known) or f"; there are {', '.join(known)}"
    page.complain(at, f"{at[-1]} cannot be {written(value)}{hint}")
    return known[0]


def _check_options(at: Key, options: tuple[str, ...], page: Page) -> None:
    for option in options:
        name = option.partition("=")[0]
        if not option.startswith("-"):
            page.complain(at, f'"{option}" is no option of sbatch: write "--name=value" as one')
        elif name in _OURS:
            page.complain(at, f'"{name}" is given by rankwise itself')
