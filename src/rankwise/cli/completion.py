"""What shells may complete: names in the store, in the site file and in documents."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

import typer

from rankwise.errors import InputError, RankwiseError

if TYPE_CHECKING:
    from rankwise.store import Store

Completer = Callable[[typer.Context, str], list[str]]

# A shell shows no more at once, and a store may have a hundred thousand of them.
_MOST_RUNS, _MOST_NAMES = 200, 1000
# Shells put a name into the line as it is, and some expand it before that.
_SAFE = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def fitting(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin so and that no shell takes for more than a name, each once."""
    return [
        name
        for name in dict.fromkeys(names)
        if name.startswith(incomplete) and _SAFE.fullmatch(name)
    ]


def _of_store(ask: Callable[[Store, typer.Context], Iterable[str]]) -> Completer:
    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from rankwise.cli.options import open_for_reading, store_folder

        given = context.params.get("store") or os.environ.get("RANKWISE_STORE")
        # Without a store there is nothing to offer; an error would end up in the user's line.
        try:
            with open_for_reading(store_folder(Path(given) if given else None)) as store:
                return fitting(islice(ask(store, context), _MOST_NAMES), incomplete)
        except RankwiseError:
            return []

    return complete


def _of_names(names: Callable[[], Iterable[str]]) -> Completer:
    def complete(context: typer.Context, incomplete: str) -> list[str]:
        del context
        return fitting(names(), incomplete)

    return complete


def _run_sets(store: Store, context: typer.Context) -> Iterable[str]:
    """Name what `compare` takes: runs, and the branches that they are of."""
    del context
    runs = store.runs(_MOST_RUNS)
    yield from dict.fromkeys(run.tags["git.branch"] for run in runs if "git.branch" in run.tags)
    yield from (run.id for run in runs)


def _tasks(store: Store, context: typer.Context) -> Iterable[str]:
    """Name the tasks of the run that is given before, or of the last run of the document."""
    from rankwise.cli.options import choose_run

    # Commands that plan are given documents, all others a run.
    if any(parameter.name == "files" for parameter in context.command.params):
        document = _argument(context, "files")
        run = store.last_run_of(str(Path(document).absolute())) if document else None
    else:
        run = choose_run(store, _argument(context, "run")).id
    return (row.key for row in store.task_rows(run)) if run is not None else ()


def _processes(store: Store, context: typer.Context) -> Iterable[str]:
    from rankwise.cli.options import choose_run
    from rankwise.records import process_folders

    run = choose_run(store, _argument(context, "run"))
    for attempt in store.attempts(run.id, context.params.get("task")):
        yield from (folder.name for folder in process_folders(attempt.folder))


def _argument(context: typer.Context, name: str) -> str | None:
    """Return an argument, or the first of its kind.

    While the last option has no value, arguments are only words that are left over.
    """
    given = context.params.get(name) or context.args
    found = given[0] if isinstance(given, list | tuple) and given else given
    return str(found) if found else None


def _in_site_files(table: str) -> list[str]:
    """Name the tables of this kind in the nearest site file and in the user's own."""
    import tomllib

    from rankwise.documents.site import site_files

    names: dict[str, None] = {}
    try:
        files = site_files(Path.cwd())
    # A site file that others can write is refused; an error would end up in the user's line.
    except (InputError, OSError):
        return []
    for file in filter(None, files):
        try:
            # Without the models: only names are wanted, and pydantic takes long to load.
            found = tomllib.loads(file.read_text(encoding="utf-8")).get(table)
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            # A name with a star is a pattern, and what it matches is not known here.
            names |= dict.fromkeys(name for name in found if not name.endswith("*"))
    return list(names)


def _report_formats() -> Iterable[str]:
    from rankwise.plugins import REPORT_FORMATS

    return [*REPORT_FORMATS.ours, *REPORT_FORMATS.others()]


_task = _of_store(_tasks)
_recipient = _of_names(lambda: _in_site_files("notify"))
_compute = _of_names(lambda: [*_in_site_files("compute"), "local"])
_side = _of_store(_run_sets)

# What a table of ours has is looked up late: to load it takes longer than to complete.
COMPLETERS: dict[str, Completer] = {
    **dict.fromkeys(("task", "only", "from_"), _task),
    **dict.fromkeys(("on", "doctor.name"), _compute),
    **dict.fromkeys(("run.notify", "submit.notify", "notify.to"), _recipient),
    **dict.fromkeys(("compare.a", "compare.b"), _side),
    "run": _of_store(lambda store, _: (run.id for run in store.runs(_MOST_RUNS))),
    "process": _of_store(_processes),
    "metric": _of_store(
        lambda store, context: (
            series.metric for series in store.series(name=context.params.get("name"))
        )
    ),
    "trend.name": _of_store(lambda store, _: (series.name for series in store.series())),
    "export.to": _of_names(lambda: resolve_name("rankwise.export.base:TARGETS")),
    "init.type_name": _of_names(lambda: resolve_name("rankwise.documents.load:TYPES")),
    "init.launcher": _of_names(lambda: ("mpi", "pytorch")),
    "init.runtimes": _of_names(lambda: [*_in_site_files("runtime"), "current"]),
    "init.ci": _of_names(lambda: resolve_name("rankwise.cli.documents:CI_FILES")),
    "schema.what": _of_names(lambda: ("documents", "site")),
    "report.format_": _of_names(_report_formats),
}
"""Who completes a parameter: under its name, or under that of its command and its own."""
