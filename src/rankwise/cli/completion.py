"""Names that shells complete: those that the store and the site file have.

Somebody waits with a finger on the Tab key: of the site file only names are read, and whether it is
right, others say.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rankwise.store import Store

_SITE_FILE = "rankwise.toml"
_MOST_RUNS, _MOST_KEYS = 200, 1000
# Shells put a name into the line as it is, and some look into it before.
_SAFE = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Give the ids of runs."""
    return _asked(
        context, lambda store: [run.id for run in store.runs(_MOST_RUNS)], incomplete=incomplete
    )


def complete_task(context: typer.Context, incomplete: str) -> list[str]:
    """Give the tasks of the run that is named before, or of the last run of the document."""
    return _asked(context, lambda store: _keys(store, context), incomplete=incomplete)


def complete_compute(incomplete: str) -> list[str]:
    """Give the computes of the site file; this machine is always one."""
    return fitting(dict.fromkeys([*_named_in("compute"), "local"]), incomplete)


def complete_notified(incomplete: str) -> list[str]:
    """Give those whom the site file knows how to tell."""
    return fitting(_named_in("notify"), incomplete)


def fitting(names: Iterable[str], incomplete: str) -> list[str]:
    """Give the names that begin so, and that no shell takes for more than a name."""
    return [name for name in names if name.startswith(incomplete) and _SAFE.fullmatch(name)]


def _asked(
    context: typer.Context, ask: Callable[[Store], Iterable[str]], *, incomplete: str
) -> list[str]:
    """Ask the store, if there is one; a shell is no place for complaints."""
    from rankwise.cli.stores import open_for_reading, store_folder
    from rankwise.errors import RankwiseError

    given = context.params.get("store") or os.environ.get("RANKWISE_STORE")
    try:
        with open_for_reading(store_folder(Path(given) if given else None)) as store:
            return fitting(ask(store), incomplete)
    except RankwiseError:
        return []


def _keys(store: Store, context: typer.Context) -> Iterable[str]:
    if any(parameter.name == "files" for parameter in context.command.params):
        document = _argument(context, "files")
        run = store.last_run_of(str(Path(document).absolute())) if document else None
    else:
        from rankwise.cli.stores import choose_run

        run = choose_run(store, _argument(context, "run")).id
    if run is None:
        return
    for number, row in enumerate(store.task_rows(run)):
        if number == _MOST_KEYS:
            return
        yield row.key


def _argument(context: typer.Context, name: str) -> str | None:
    """Give an argument, or the first of its kind.

    While the last option has no value, arguments are only words that are left over.
    """
    given = context.params.get(name) or context.args
    found = given[0] if isinstance(given, list | tuple) and given else given
    return str(found) if found else None


def _named_in(section: str) -> list[str]:
    """Name what is in a section of the nearest site file and of the user's own."""
    import tomllib

    here = Path.cwd()
    nearest = next(
        (file for place in (here, *here.parents) if (file := place / _SITE_FILE).is_file()), None
    )
    users = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    names: dict[str, None] = {}
    for file in filter(None, [nearest, users / "rankwise" / _SITE_FILE]):
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8")).get(section)
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            # A name with a star stands for many, none of which is known here.
            names |= dict.fromkeys(name for name in found if not name.endswith("*"))
    return list(names)
