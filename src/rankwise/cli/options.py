"""The typer application: commands and their options, those that commands share, and chosen runs."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import typer

from rankwise.cli.completion import COMPLETERS
from rankwise.cli.main import MODULES
from rankwise.errors import InputError, StoreFailure
from rankwise.wording import hint, quoted

if TYPE_CHECKING:
    from rankwise.plan import Plan
    from rankwise.store import RunRow, Store


def make_app(verbs: Iterable[str], others: Mapping[str, str] | None = None) -> typer.Typer:
    """Make an application of some verbs: of `run`, `run_command` in the module that has it.

    The others, with what they are about, are only for shells to complete.
    """
    app = typer.Typer(
        # Pages that are set by rich cost as much time as all the rest together.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
    )
    # With a callback, an application of one verb still expects its name.
    app.callback()(lambda: None)
    for verb in verbs:
        module = importlib.import_module(f"rankwise.cli.{MODULES[verb]}")
        command = getattr(module, f"{verb}_command")
        sections = _sections(command)
        examples = f"\b\nFor example:\n{sections.get('Examples', '')}"
        app.command(verb, help=sections[""], epilog=examples)(_for_typer(verb, command))
    for verb, about in (others or {}).items():
        app.command(verb, help=about)(lambda: None)
    return app


class CommandOptions:
    """Options that several commands share, as attributes with their defaults."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


class _Entry(NamedTuple):
    """What help says of one argument or option."""

    names: Sequence[str]
    metavar: str
    text: str


# `  -o, --output PLACE  What it is.`, or of an argument `  FILE  What it is.`, on several lines.
_ENTRY = re.compile(r"^  (\S.*?)  +(.*(?:\n {4,}.*)*)", re.MULTILINE)
_HEADING = re.compile(r"^(Arguments|Options|Examples):\n", re.MULTILINE)


def _sections(documented: Any) -> dict[str, str]:
    """Return a docstring by its headings; what stands before them has none."""
    text = documented.__doc__
    if text is None and sys.flags.optimize > 1:
        # `python -OO` drops docstrings, and with them the names of options.
        source = ast.parse(textwrap.dedent(inspect.getsource(documented)))
        text = ast.get_docstring(source.body[0])  # type: ignore[arg-type]  # a function or a class
    about, *rest = _HEADING.split(inspect.cleandoc(text or ""))
    return {"": about, **dict(zip(rest[::2], rest[1::2], strict=True))}


def _entries(section: str) -> Iterator[_Entry]:
    for spec, text in _ENTRY.findall(section):
        words = spec.replace(",", " ").split()
        names = [word for word in words if word.startswith("-")]
        yield _Entry(names, " ".join(words[len(names) :]), " ".join(text.split()))


def _for_typer(verb: str, command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with all that typer must know in its signature.

    Its help is in its docstring: `Arguments:` in the order of its parameters, `Options:` by name.
    Shared options are the attributes of the class of its first parameter.
    """
    first, *parameters = inspect.signature(command, eval_str=True).parameters.values()
    documented: list[Any] = [command]
    shared: Mapping[str, Any] = {}
    group: Any = first.annotation
    if is_grouped := inspect.isclass(group) and issubclass(group, CommandOptions):
        shared = get_type_hints(group, include_extras=True)
        documented += group.__mro__[:-1]
    else:
        parameters.insert(0, first)
    for name, annotation in shared.items():
        default = getattr(group, name, inspect.Parameter.empty)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=annotation))
    sections = [_sections(one) for one in documented]
    arguments = _entries(sections[0].get("Arguments", ""))
    options = {one.names[-1]: one for part in sections for one in _entries(part.get("Options", ""))}

    @functools.wraps(command)
    def called(**given: Any) -> Any:
        options = {name: given.pop(name) for name in shared}
        return command(group(**options), **given) if is_grouped else command(**given)

    # The store is the last option of all commands.
    parameters.sort(key=lambda one: one.name == "store")
    described = [_described(one, verb, arguments, options) for one in parameters]
    called.__signature__ = inspect.Signature(described)  # type: ignore[attr-defined]
    # Typer would take these before those of the signature.
    called.__annotations__ = {}
    return called


def _described(
    parameter: inspect.Parameter,
    verb: str,
    arguments: Iterator[_Entry],
    options: Mapping[str, _Entry],
) -> inspect.Parameter:
    """Return a parameter with its names, its help and who completes it."""
    hint, *infos = [parameter.annotation]
    if get_origin(hint) is Annotated:
        hint, *infos = get_args(hint)
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        # A name that Python or the module has already ends with a line in the code: `from_`.
        name = f"--{parameter.name.strip('_').replace('_', '-')}"
        entry = options.get(name, _Entry([name], "", ""))
        info = typer.Option()
    else:
        entry = _Entry([], "", "") if infos else next(arguments, _Entry([], "", ""))
        info = typer.Argument()
    if infos:
        # Other commands have it, too.
        info = copy.copy(infos[0])
    if not info.help:
        info.param_decls, info.metavar, info.help = entry.names, entry.metavar or None, entry.text
        info.show_default = bool(parameter.default)
    by_verb = COMPLETERS.get(f"{verb}.{parameter.name}")
    info.autocompletion = by_verb or COMPLETERS.get(parameter.name)
    return parameter.replace(annotation=Annotated[hint, info])


Files = Annotated[list[Path], typer.Argument(metavar="FILE", help="YAML documents.")]
_RUN = (
    "A run's id, how it begins, or its name (the newest of that name); "
    "without it, the newest of all."
)
Run = Annotated[str | None, typer.Argument(metavar="RUN", help=_RUN)]
_STORE = "Where runs and their logs are kept; otherwise .rankwise in this folder."
_STORE_OPTION = typer.Option("--store", metavar="FOLDER", envvar="RANKWISE_STORE", help=_STORE)
StoreFolder = Annotated[Path | None, _STORE_OPTION]
_STRICT = "Take names that rankwise.toml does not know for errors."
Strict = Annotated[bool, typer.Option("--strict", help=_STRICT)]
_ON = "Run on this compute, whatever documents say."
On = Annotated[str | None, typer.Option("--on", metavar="NAME", help=_ON)]
_QUIET = "Print nothing unless something is wrong."
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help=_QUIET)]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]
TaskKey = Annotated[str | None, typer.Option("--task", metavar="KEY", help="Only this task.")]
# SQLite takes no larger ones than 64 bits.
Positive = Annotated[int, typer.Option(min=1, max=10**9)]
"""A number whose help is in the docstring of its command."""


def _take_options(context: typer.Context, file: Path | None) -> Path | None:
    """Take options from a YAML file; those on the command line are stronger."""
    if file is None:
        return None
    from rankwise.documents.written import as_error, plain_data
    from rankwise.documents.yaml_reader import read_document

    source = read_document(file)
    if source.problems:
        raise as_error(source.name, source.problems)
    known = {name: one for one in context.command.params for name in one.opts}
    taken: dict[str, Any] = {}
    for name, value in plain_data(source.contents).items():
        if (option := known.get(f"--{name}")) is None:
            words = hint(f"--{name}", known, "--help lists them")
            raise InputError(f"{file}: there is no option --{name}; {words}")
        is_many = option.nargs != 1 or getattr(option, "multiple", False)
        if isinstance(value, dict) or (isinstance(value, list) and not is_many):
            raise InputError(f"{file}: {name} has one value, not {quoted(value)}")
        taken[str(option.name)] = [value] if is_many and not isinstance(value, list) else value
    context.default_map = taken
    return file


class PlanningOptions(CommandOptions):
    """Documents, and what of them is wanted.

    Options:
      --only NAME  Only this task or test, and what it needs; a pattern such as 'check*'; of a
                   matrix, runtime=NAME,machine=NAME. May be given several times.
      --failed     Only what was not green in the last run of the document; of a matrix, whole
                   cells.
      --repeat N   Each so many times, to find flaky ones.
      --shard I/N  Only a share: 2/5 is the second of five.
      --with FILE  Take options from a YAML file, such as  only: runtime=torch*; those on the
                   command line are stronger.
    """

    files: Files
    strict: Strict = False
    on: On = None
    only: list[str] | None = None
    failed: bool = False
    repeat: Annotated[int, typer.Option(min=1, max=10_000)] = 1
    shard: str | None = None
    with_: Annotated[Path | None, typer.Option(is_eager=True, callback=_take_options)] = None
    store: StoreFolder = None

    @property
    def folder(self) -> Path:
        return store_folder(self.store)

    def plan(
        self, *, fail_fast: bool = False, choice: Mapping[str, Any] | None = None
    ) -> tuple[Plan, str]:
        """Return the plan, and the text of the documents; InputError: there is none."""
        folder = self.folder
        given = {name: getattr(self, name) for name in ("only", "failed", "repeat", "shard")}
        from rankwise.planning import plan_from
        from rankwise.planning.selection import selection

        wanted = selection(self.files, folder, fail_fast=fail_fast, **given)
        return plan_from(self.files, strict=self.strict, on=self.on, choice=choice, wanted=wanted)


def store_folder(given: Path | None) -> Path:
    """Return the folder of the store."""
    return (given or Path(".rankwise")).absolute()


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


def choose_refreshed(store: Store, given: str | None) -> RunRow:
    """Return the run that is meant, brought up to date."""
    chosen = choose_run(store, given)
    refresh(store, chosen)
    return store.run(chosen.id)


def refresh(store: Store, run: RunRow) -> None:
    """Bring a run up to date that no client drives, if there may be news and we may write."""
    from rankwise.store import State
    from rankwise.store.store import driver_of

    if run.state.is_over or driver_of(store.run_folder(run.id)) is not None:
        return
    if not any(store.tasks_in(run.id, (State.SUBMITTING, State.RUNNING))):
        return
    # An engine takes long to load: only now.
    from rankwise.engine.runs import look
    from rankwise.store import Store

    # A user who may only read the store sees what was written last.
    with contextlib.suppress(StoreFailure), Store.open(store.folder) as writable:
        look(writable, run.id)
