"""The typer application, shared arguments and options, what they name, and completion."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from rankwise.errors import InputError, RankwiseError, StoreFailure

if TYPE_CHECKING:
    from rankwise.plan import Plan
    from rankwise.store import RunRow, Store

MODULES = {
    **dict.fromkeys(("run", "submit", "resume", "cancel"), "run"),
    **dict.fromkeys(("plan", "validate", "init", "schema", "export"), "documents"),
    **dict.fromkeys(("status", "list", "logs", "explain"), "runs"),
    **dict.fromkeys(("report", "compare", "trend", "notify"), "results"),
    **dict.fromkeys(("serve", "doctor", "clean", "rollback"), "operations"),
}


def make_app(verbs: Iterable[str], others: Mapping[str, str] | None = None) -> typer.Typer:
    """Make an application of some verbs; each is `command` in the module of its name.

    The others, with what they are about, are only for shells to complete.
    """
    app = typer.Typer(
        # Pages that are set by rich cost as much time as all the rest together.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    )
    # With a callback, an application of one verb still wants to be told which.
    app.callback()(_rankwise)
    for verb in verbs:
        module = importlib.import_module(f"rankwise.cli.{MODULES[verb]}")
        app.command(verb)(getattr(module, f"{verb}_command"))
    for verb, about in (others or {}).items():
        app.command(verb, help=about)(_other)
    return app


def _other() -> None:
    """Stand for a verb that is not loaded."""


def _rankwise() -> None:
    """Run what is written in YAML documents."""


_MOST_RUNS, _MOST_KEYS = 200, 1000
# Shells put a name into the line as it is, and some look into it before.
_SAFE = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Return the ids of runs."""
    return _asked(
        context, lambda store: [run.id for run in store.runs(_MOST_RUNS)], incomplete=incomplete
    )


def complete_task(context: typer.Context, incomplete: str) -> list[str]:
    """Return the tasks of the run that is named before, or of the last run of the document."""
    return _asked(context, lambda store: _keys(store, context), incomplete=incomplete)


def complete_compute(incomplete: str) -> list[str]:
    """Return the computes of the site file; this machine is always one."""
    return fitting(dict.fromkeys([*_named_in("compute"), "local"]), incomplete)


def complete_notified(incomplete: str) -> list[str]:
    """Return those whom the site file knows how to tell."""
    return fitting(_named_in("notify"), incomplete)


def fitting(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin so, and that no shell takes for more than a name."""
    return [name for name in names if name.startswith(incomplete) and _SAFE.fullmatch(name)]


def _asked(
    context: typer.Context, ask: Callable[[Store], Iterable[str]], *, incomplete: str
) -> list[str]:
    """Ask the store, if there is one; a shell is no place for complaints."""
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
        run = choose_run(store, _argument(context, "run")).id
    if run is None:
        return
    for number, row in enumerate(store.task_rows(run)):
        if number == _MOST_KEYS:
            return
        yield row.key


def _argument(context: typer.Context, name: str) -> str | None:
    """Return an argument, or the first of its kind.

    While the last option has no value, arguments are only words that are left over.
    """
    given = context.params.get(name) or context.args
    found = given[0] if isinstance(given, list | tuple) and given else given
    return str(found) if found else None


def _named_in(section: str) -> list[str]:
    """Name what is in a section of the nearest site file and of the user's own."""
    import tomllib

    from rankwise.documents.site import site_files

    names: dict[str, None] = {}
    try:
        files = site_files(Path.cwd())
    except (InputError, OSError):
        return []
    for file in filter(None, files):
        try:
            found = tomllib.loads(file.read_text(encoding="utf-8")).get(section)
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            # A name with a star stands for many, none of which is known here.
            names |= dict.fromkeys(name for name in found if not name.endswith("*"))
    return list(names)


def value(
    name: str,
    metavar: str,
    about: str,
    *short: str,
    complete: Callable[..., list[str]] | None = None,
    least: int | None = None,
    most: int | None = None,
) -> typer.models.OptionInfo:
    """Make an option that has a value, and no default that is worth telling."""
    made: typer.models.OptionInfo = typer.Option(
        name,
        *short,
        metavar=metavar,
        help=about,
        show_default=False,
        autocompletion=complete,
        min=least,
        max=most,
    )
    return made


class CommandOptions:
    """Options that several commands share, as attributes with their defaults."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


def takes(options: type[CommandOptions]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a command take the attributes of a class as options; it gets an object of that class."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(options, include_extras=True)

        @functools.wraps(command)
        def called(**given: Any) -> Any:
            return command(options(**{name: given.pop(name) for name in hints}), **given)

        _, *parameters = inspect.signature(command, eval_str=True).parameters.values()
        for name, hint in hints.items():
            default = getattr(options, name, inspect.Parameter.empty)
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=hint))
        # It is the last one of all commands.
        parameters.sort(key=lambda one: one.name == "store")
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        called.__annotations__ = {}
        return called

    return decorate


Files = Annotated[
    list[Path], typer.Argument(metavar="FILE", help="YAML documents.", show_default=False)
]
Run = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="A run's id, how it begins, or its name (the newest of that name); "
        "without it, the newest of all.",
        show_default=False,
        autocompletion=complete_run,
    ),
]
StoreFolder = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FOLDER",
        envvar="RANKWISE_STORE",
        help="Where runs and their logs are kept; otherwise .rankwise in this folder.",
        show_default=False,
        show_envvar=True,
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Take names that rankwise.toml does not know for errors.")
]
_ON = "Run on this compute, whatever documents say."
On = Annotated[str | None, value("--on", "NAME", _ON, complete=complete_compute)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Say nothing unless something is wrong.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
TaskKey = Annotated[str | None, value("--task", "KEY", "Only this task.", complete=complete_task)]


class PlanningOptions(CommandOptions):
    """Documents, and what of them is wanted."""

    files: Files
    strict: Strict = False
    on: On = None
    only: Annotated[
        list[str] | None,
        value(
            "--only",
            "NAME",
            "Only this task or test, and what it needs; a pattern such as 'check*'; of a matrix, "
            "runtime=NAME,machine=NAME. May be given several times.",
            complete=complete_task,
        ),
    ] = None
    failed: Annotated[
        bool,
        typer.Option(
            "--failed",
            help="Only what was not green in the last run of the document; of a matrix, whole "
            "cells.",
        ),
    ] = False
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat",
            min=1,
            max=10_000,
            metavar="N",
            help="Each so many times, to find flaky ones.",
        ),
    ] = 1
    shard: Annotated[
        str | None, value("--shard", "I/N", "Only a share: 2/5 is the second of five.")
    ] = None
    store: StoreFolder = None

    @property
    def folder(self) -> Path:
        return store_folder(self.store)

    def plan(
        self, *, fail_fast: bool = False, choice: Mapping[str, Any] | None = None
    ) -> tuple[Plan, str]:
        """Return the plan, and the text of the documents; InputError: there is none."""
        from rankwise.planning import plan_from
        from rankwise.planning.selection import selection

        wanted = selection(
            self.files,
            self.folder,
            only=self.only,
            failed=self.failed,
            fail_fast=fail_fast,
            repeat=self.repeat,
            shard=self.shard,
        )
        return plan_from(self.files, strict=self.strict, on=self.on, choice=choice, wanted=wanted)


_FOLDER = ".rankwise"


def store_folder(given: Path | None) -> Path:
    """Return the folder of the store."""
    return (given or Path(_FOLDER)).absolute()


def open_for_reading(folder: Path) -> Store:
    """Open a store that is there."""
    from rankwise.store import Store

    return Store.open(folder, read_only=True)


def choose_run(store: Store, given: str | None) -> RunRow:
    """Return the run that is meant; None means the newest."""
    if given is not None:
        return store.find_run(given)
    if newest := store.last_run():
        return newest
    raise InputError(f"{store.path}: there are no runs yet; to make one:  rankwise run FILE")


def choose_as_it_is(store: Store, given: str | None) -> RunRow:
    """Return the run that is meant, brought up to date."""
    chosen = choose_run(store, given)
    take_in(store, chosen)
    return store.run(chosen.id)


def take_in(store: Store, run: RunRow) -> None:
    """Bring a run up to date that nobody drives, if there may be news and we may write."""
    from rankwise.store import State
    from rankwise.store.store import driver_of

    if run.state.is_over or driver_of(store.run_folder(run.id)) is not None:
        return
    if not any(store.tasks_in(run.id, (State.SUBMITTING, State.RUNNING))):
        return
    # An engine takes long to load: only now.
    from rankwise.engine.runs import look
    from rankwise.store import Store

    # Whoever can only read, sees what was written last.
    with contextlib.suppress(StoreFailure), Store.open(store.folder) as writable:
        look(writable, run.id)
