"""Plan suites of test scripts, and the checks of tasks."""

from __future__ import annotations

import ast
import dataclasses
import functools
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rankwise import plan
from rankwise.documents.checks import CheckSpec
from rankwise.documents.common import Model, Repository, complete
from rankwise.documents.load import Document, header_of, silent
from rankwise.documents.suite import Header, Suite, SuiteTest
from rankwise.documents.values import GPUS, fit_name
from rankwise.documents.written import Faults
from rankwise.errors import InputError
from rankwise.launch.commandline import read_command
from rankwise.launch.jobs import Facts, JobRequest, Kind, RoleRequest, task_for
from rankwise.launch.rewriting import NAMES, in_shell
from rankwise.plan import CASES, Resources, Task, filled_in, later
from rankwise.planning.jobs import facts_for, gpus_of, launchers_in, restart_of, runtime_of
from rankwise.planning.planner import Planned, Planner, PlanOptions, free_name
from rankwise.wording import code, nearest

APART = {"RANKWISE_STREAMS": "apart"}
"""Has the runner keep stdout and stderr apart, for checks that look at one of them."""


def checks_at(
    document: Document, path: Sequence[int | str], checks: Sequence[CheckSpec]
) -> tuple[plan.Check, ...]:
    """Return the checks at a place of a document; raises InputError if a function is missing."""
    folder = document.path.absolute().parent
    # A missing function would be noticed only after the run, which may be long.
    planned = [check.planned(folder) for check in checks]
    for number, check in enumerate(planned):
        if check.kind == "python" and (fault := _fault_of(check.what)):
            raise InputError(f"{document.at(*path, number, 'python')}: {fault}")
    return tuple(planned)


def with_checks(task: Task, checks: Sequence[plan.Check]) -> Task:
    """Return a task with checks, which keeps what the checks look at."""
    needs_streams = any(check.on in ("stdout", "stderr") for check in checks)
    environment = {**task.environment, **(APART if needs_streams else {})}
    return dataclasses.replace(task, checks=tuple(checks), environment=environment)


def _fault_of(function: str) -> str:
    """Return what is wrong with FILE:FUNCTION, without running any of it; empty: nothing is."""
    path, _, name = function.rpartition(":")
    try:
        tree = ast.parse(Path(path).read_bytes())
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except (SyntaxError, ValueError) as error:
        return f"{path} is no Python: {error}"
    defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    names = {node.name for node in tree.body if isinstance(node, defined)}
    # Names may also come from elsewhere: by an import, an assignment or a condition.
    is_complete = all(isinstance(node, defined | ast.Expr | ast.Import) for node in tree.body)
    if name in names or not is_complete:
        return ""
    meant = nearest(name, names)
    return f"{path} has no function `{name}`" + (f": did you mean `{meant}`?" if meant else "")


def files_that_fit(folder: Path, pattern: str, place: str) -> list[Path]:
    """Return the files in order; InputError, with the place of the pattern: there are none."""
    try:
        found = sorted((path for path in folder.glob(pattern) if path.is_file()), key=str)
    except (ValueError, NotImplementedError) as error:
        # An empty pattern, or one of another folder: pathlib says which.
        raise InputError(f"{place}: this is not a pattern of files: {error}") from None
    if not found:
        raise InputError(f"{place}: no file in {folder} matches")
    return found


RESULTS = "results.xml"
"""Where pytest writes what became of its tests, in the folder of the attempt."""

_LONGEST_NAME = 60
_WORKERS = re.compile(r"(?:^|\s)--n-workers[=\s]+(\d{1,6})(?!\d)")
# By the ending, so that a script needs neither the right to be executed nor a first line.
_INTERPRETERS = {".py": "python", ".sh": "sh"}
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
# Characters that a shell changes: such a word is not the name of a file.
_SPECIAL = re.compile(r"[$`*?~|&;<>(){}]")
_LAUNCHERS = re.compile(r"\b(?:mpirun|mpiexec|srun|torchrun|horovodrun|distributed)\b")
# What makes a line more than words for the shell: its plan depends on more than its text.
_MEANINGFUL = re.compile(rf"\$\{{\{{|{'|'.join(NAMES)}|{_LAUNCHERS.pattern}")
_PLAIN = re.compile(r"[\w./+-]+")
_TEXT = "text"
_BARE = "bare"


def with_places(planner: Planner) -> Planner:
    """Have a planner see the files of `repository`, and its tasks know that and `outputs`."""

    @functools.wraps(planner)
    def planned(document: Document, options: PlanOptions) -> Planned:
        model: Any = document.model
        if model.repository is None and model.outputs is None:
            return planner(document, options)
        notices, checkout, source = _checked_out(document, model.repository, model.secrets)
        to = _output_place(document, model.outputs.to) if model.outputs else ""
        model = model.model_copy(update={"code": source or model.code})
        found = planner(dataclasses.replace(document, model=model), options)
        tasks = []
        for task in found.tasks:
            # A suite in a matrix may have places of its own.
            own = checkout if source in (task.code, task.folder) else {}
            tasks.append(dataclasses.replace(task, outputs=task.outputs or to, **own))
        return dataclasses.replace(found, tasks=tasks, notices=[*notices, *found.notices])

    return planned


def _checked_out(
    document: Document, wanted: Repository | None, secrets: Sequence[str]
) -> tuple[list[str], dict[str, Any], str]:
    """Return notices, what tasks know of a repository, and a folder with its files to plan from.

    InputError: there is no such repository or no such commit.
    """
    # Late: most documents have no repository.
    from rankwise.backends.orders import repositories
    from rankwise.node import files, repository

    if wanted is None:
        return [], {}, ""
    local = document.path.absolute().parent / wanted.url
    url = str(local.resolve()) if local.exists() else wanted.url
    store, path = repositories(), ["repository"]
    try:
        ref = repository.with_values(wanted.ref, os.environ)
        seen, _ = repository.without_login(repository.with_values(url, os.environ))
        if any(value in seen + ref for name in secrets if (value := os.environ.get(name))):
            raise repository.GitFailure("a secret goes only where https://user:$NAME@host has it")
        commit = repository.fetched(store, url, os.environ, ref or repository.DEFAULT)
        place = Path(store, "trees", commit)
        if not place.exists():
            # Moved into place when it is whole: several clients may do this at a time.
            with files.Beside(place) as beside:
                repository.clone(store, url, os.environ, commit, beside)
    except (repository.GitFailure, OSError) as failure:
        path += ["ref"] if isinstance(failure, repository.UnknownRef) else []
        raise InputError(f"{document.at(*path)}: {wanted.url}: {failure}") from failure
    notice = f"repository {wanted.url}: {ref or 'its default branch'} is {commit[:12]}"
    return [notice], {"repository": url, "commit": commit}, str(place)


def _output_place(document: Document, to: str) -> str:
    """Return an address that can be written to, as far as that is known before anything runs."""
    if "://" not in (path := to.removeprefix("file://")):
        return complete(path, document.path.absolute().parent)
    try:
        from fsspec import get_filesystem_class  # An extra, which most documents do without.

        get_filesystem_class(to.partition("://")[0])
    except (ImportError, ValueError) as error:
        why = f"{to} cannot be written to: {error}: pip install 'rankwise[outputs]'"
        raise InputError(f"{document.at('outputs', 'to')}: {why}") from error
    return to


@with_places
def plan_suite(document: Document, options: PlanOptions) -> Planned:
    """Plan a suite; raises InputError with a line for every mistake."""
    model = document.model
    assert isinstance(model, Suite)
    compute = options.compute(model.compute)
    notices = options.check(document, ("compute",), [compute], [model.environment])
    return Planned(tasks=SuitePlanner(document, model, options, compute).tasks(), notices=notices)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One test, with the header of its script."""

    entry: SuiteTest
    index: int
    command: str
    name: str
    header: Header
    is_named: bool = False
    script: str = ""
    """The script that a pattern has found: its header goes before the entry, which is for many."""

    def said(self, name: str, entry: Model | None = None) -> Any:
        """Return a value of the header or the entry, whichever is more specific; None: neither."""
        entry, header = entry or self.entry, getattr(self.header, name)
        if name not in entry.model_fields_set or (self.script and header is not None):
            return header
        # A field of the entry that was given, but is empty, counts as left out.
        said = getattr(entry, name)
        return header if said is None else said

    @property
    def is_bare(self) -> bool:
        """Return whether the test is a line to run, and nothing more."""
        return self.header is silent() and self.entry.model_fields_set == {"run"}

    @property
    def resources(self) -> Resources:
        """Return what all ranks of the test need together."""
        names = ("gpus", "cores", "memory")
        return Resources(**{name: self.said(name, self.entry.requires) or 0 for name in names})


class SuitePlanner:
    """Plans the tests of one suite."""

    def __init__(
        self, document: Document, model: Suite, options: PlanOptions, compute: str
    ) -> None:
        self._document = document
        self._model = model
        self._options = options
        self._compute = compute
        self._runtime = runtime_of(document, options.site, model.environment)
        self._patterns: dict[object, Task] = {}
        self._known_facts: dict[tuple[object, ...], Facts] = {}

    def tasks(self) -> list[Task]:
        """Plan all tests; raises InputError with a line for every mistake."""
        # First all tests are found, because a name that is given goes before names that are made.
        faults = Faults()
        cases: list[_Case] = []
        for index, entry in enumerate(self._model.tests):
            with faults.collected():
                cases += self._cases(index, entry)
        tasks = []
        for case, key in zip(cases, self._keys(cases), strict=True):
            with faults.collected():
                tasks.append(self._task(case, key))
        faults.raise_all()
        return tasks

    def tasks_of(self, index: int, entry: SuiteTest) -> list[Task]:
        """Plan the tests of one entry, which may have more than the document has at this index."""
        # Patterns are known by the index, and another entry may have had it before.
        self._patterns.clear()
        cases = list(self._cases(index, entry))
        return [self._task(case, key) for case, key in zip(cases, self._keys(cases), strict=True)]

    # What there is to run

    @cached_property
    def _folder(self) -> Path:
        here = self._document.path.absolute().parent
        folder = here / (self._model.code or self._model.folder)
        if not folder.is_dir():
            place = self._document.place(("code", "folder"), self._model.code or self._model.folder)
            raise InputError(f"{place}: there is no folder {folder}")
        return folder

    def _cases(self, index: int, entry: SuiteTest) -> Iterator[_Case]:
        if entry.files:
            yield from self._found(index, entry)
        elif entry.pytest:
            # The results of single tests, which the report shows, are read from this file.
            results = f"{in_shell(later('folder'))}/{RESULTS}"
            line = f"python -m pytest {entry.pytest} --junitxml={results}"
            first = entry.pytest.split()[0]
            name = "pytest" if first.startswith("-") else f"pytest-{fit_name(first)}"
            yield self._case(index, entry, line, name)
        else:
            yield self._script_or_line(index, entry)

    def _found(self, index: int, entry: SuiteTest) -> Iterator[_Case]:
        for path in files_that_fit(self._folder, entry.files, self._place(index, "files")):
            script = path.relative_to(self._folder)
            header = header_of(path)
            interpreter = _INTERPRETERS.get(path.suffix, "")
            yield _Case(
                entry=entry,
                index=index,
                command=shlex.join([interpreter, str(script)] if interpreter else [f"./{script}"]),
                script=str(script),
                name=header.name or fit_name(str(script.with_suffix(""))),
                header=header,
            )

    def _script_or_line(self, index: int, entry: SuiteTest) -> _Case:
        line = entry.run.strip()
        script, interpreter = _script_in(line)
        if script is None:
            return self._case(index, entry, line, line)
        path = self._folder / script
        if not path.is_file():
            # Only files with an ending: a script has one, and folders would be no help.
            names = [str(one.relative_to(self._folder)) for one in path.parent.glob("*.*")]
            meant = nearest(script, names)
            where = f": did you mean {code(meant)}?" if meant else f" in {self._folder}"
            raise InputError(f"{self._place(index, 'run')}: there is no script {script}{where}")
        line = f"{interpreter} {line}" if interpreter else line
        return self._case(index, entry, line, Path(script).stem, header_of(path))

    def _case(
        self, index: int, entry: SuiteTest, line: str, name: str, header: Header | None = None
    ) -> _Case:
        header = header or silent()
        return _Case(
            entry=entry,
            index=index,
            command=line,
            name=entry.name or header.name or fit_name(name[:_LONGEST_NAME]),
            is_named=bool(entry.name),
            header=header,
        )

    def _keys(self, cases: list[_Case]) -> Iterator[str]:
        """Return a unique name for each test; names from the document are kept."""
        taken = {case.name for case in cases if case.is_named}
        for case in cases:
            name = case.name if case.is_named else free_name(case.name, taken)
            taken.add(name)
            yield name

    # How it runs

    def _task(self, case: _Case, key: str) -> Task:
        if _MEANINGFUL.search(case.command):
            return self._planned(case, key)
        if case.is_bare:
            return self._like(_BARE, case, key, later(_TEXT), case.command)
        if case.script.endswith(".py") and _PLAIN.fullmatch(case.script):
            # All scripts that one pattern finds and that have the same header are alike.
            kind, command = (case.index, case.header), f"python {later(_TEXT)}"
            return self._like(kind, case, key, command, case.script)
        return self._planned(case, key)

    def _like(self, kind: object, case: _Case, key: str, command: str, text: str) -> Task:
        """Plan a test from a pattern of its kind: that is faster, and there may be thousands."""
        if kind not in self._patterns:
            self._patterns[kind] = self._planned(dataclasses.replace(case, command=command), key)
        # Other marks are for the runner, and stay.
        return filled_in(
            self._patterns[kind],
            lambda what: text if what == _TEXT else later(what),
            key=key,
            place=self._place(case.index),
        )

    def _planned(self, case: _Case, key: str) -> Task:
        request = self._request(case, key)
        try:
            task = task_for(request, self._facts(request))
        except InputError as error:
            raise InputError(f"{self._place(case.index)}: {error}") from None
        path = ("tests", case.index, "checks")
        checks = checks_at(self._document, path, case.entry.checks)
        # `pytest --n-workers=4` starts four workers by itself: they need as many cores.
        width = _WORKERS.search(case.entry.pytest)
        task = dataclasses.replace(
            task,
            width=max(task.width, int(width[1]) if width else 0),
            is_optional=bool(case.said("optional")),
            results=RESULTS if case.entry.pytest else CASES if case.entry.cases else "",
            place=self._place(case.index),
        )
        return with_checks(task, checks)

    def _request(self, case: _Case, key: str) -> JobRequest:
        ranks, nodes = case.said("ranks"), case.said("nodes") or 1
        resources = case.resources
        if ranks == GPUS:
            # Without a GPU it is not run, with the reason.
            ranks = max(1, gpus_of(self._options.site.compute(self._compute))) * nodes
            resources = dataclasses.replace(resources, gpus=max(ranks, resources.gpus))
        if nodes > 1 and (ranks is None or ranks % nodes):
            place = self._place(case.index)
            raise InputError(f"{place}: `ranks` must be a multiple of `nodes` ({nodes})")
        model, entry = self._model, case.entry
        here = self._document.path.absolute().parent
        kind, role = _kind(case, ranks)
        return JobRequest(
            kind=kind,
            name=key,
            key=key,
            roles=(
                RoleRequest(
                    name=role,
                    command=case.command,
                    code=str(here / model.code) if model.code else "",
                    runtime=self._runtime,
                    # A document says what the whole test needs; a role has what each node gives.
                    resources=resources.share(nodes),
                ),
            ),
            instance_count=nodes if kind != "mpi" or ranks is not None else None,
            process_count_per_instance=ranks // nodes if ranks is not None else None,
            environment={
                # Otherwise Python keeps what it prints until the end, and no case has a duration.
                **({"PYTHONUNBUFFERED": "1", "RANKWISE_CASES": entry.cases} if entry.cases else {}),
                **model.environment_variables,
                **entry.environment_variables,
            },
            secrets=tuple(model.secrets),
            timeout=case.said("timeout") or model.timeout,
            restart=restart_of(entry.restart),
            compute=self._compute,
            folder=str(self._folder),
            generate_launcher=kind == "mpi" and ranks is not None,
        )

    def _facts(self, request: JobRequest) -> Facts:
        """Return what is known about where a test runs; tests that are alike share the answer."""
        # The command matters only by the launcher in it, whose MPI is looked up.
        key = (request.kind, request.instance_count, *launchers_in(request.roles[0].command))
        if key not in self._known_facts:
            self._known_facts[key] = facts_for(request, self._options.site)
        return self._known_facts[key]

    # Where it stands

    def _place(self, index: int, *path: str) -> str:
        return self._document.at("tests", index, *path)


def _script_in(line: str) -> tuple[str | None, str]:
    """Return the script that a line runs, and the interpreter to put before it, if one is missing.

    The script is None if the line runs something else, or if only a shell knows what it runs.
    """
    first = line.partition(" ")[0]
    if Path(first).suffix not in _INTERPRETERS and not _PYTHON.fullmatch(first):
        return None, ""
    try:
        words = shlex.split(line)
    except ValueError:
        return None, ""
    if not words or _SPECIAL.search(words[0]):
        return None, ""
    if interpreter := _INTERPRETERS.get(Path(words[0]).suffix, ""):
        return words[0], interpreter
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    is_script = script.endswith(".py") and not _SPECIAL.search(script)
    # With -m or -c, a file is an argument of something else.
    is_run = _PYTHON.fullmatch(words[0]) and not {"-m", "-c"} & set(words[1:3])
    return (script if is_script and is_run else None), ""


def _kind(case: _Case, ranks: object) -> tuple[Kind, str]:
    """Return how the processes of a test find each other, and the role of the first one."""
    is_torch = None if ranks is None else case.said("launcher") == "pytorch"
    # A command may start the ranks itself.
    if is_torch is None and _LAUNCHERS.search(case.command):
        reading = read_command(case.command)
        if reading.has_launcher and reading.launch is not None:
            is_torch = reading.launch.is_torch
    if is_torch is None:
        return "plain", "worker"
    return ("pytorch", "worker") if is_torch else ("mpi", "launcher")
