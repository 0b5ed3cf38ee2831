"""Collected tests: described, compared between ranks, and restored in another process."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pluggy
import pytest
from _pytest import hookspec
from _pytest.compat import legacy_path
from _pytest.config import ConftestImportFailure
from _pytest.main import FSHookProxy

from rankwise.pytest_plugin.connections import Header
from rankwise.pytest_plugin.marks import limit_of, requirements_of, size_of
from rankwise.pytest_plugin.options import limit_from
from rankwise.pytest_plugin.serialize import pack_any_report, plain_value

if TYPE_CHECKING:
    from _pytest.nodes import Node

    from rankwise.pytest_plugin.schedulers.base import ScheduledTest

# Hooks of pytest that are called where tests are reported; so are all hooks of other plugins.
_REPORTING = frozenset(
    f"pytest_{name}"
    for name in (
        *("collectreport", "deselected", "internalerror", "keyboard_interrupt", "unconfigure"),
        *("report_teststatus", "runtest_logstart", "runtest_logreport", "runtest_logfinish"),
        *("sessionfinish", "terminal_summary", "warning_recorded"),
    )
)


def describe_conftests(config: pytest.Config) -> list[tuple[str, list[str]]]:
    """Return each conftest.py that has hooks for reports, with their names."""
    plugins = config.pluginmanager
    described = []
    for module in plugins._conftest_plugins:
        names = [caller.name for caller in plugins.get_hookcallers(module) or ()]
        hooks = [name for name in names if name in _REPORTING or not hasattr(hookspec, name)]
        if hooks:
            described.append((str(plugins.get_name(module)), sorted(hooks)))
    return sorted(described)


def load_conftests(config: pytest.Config, described: Sequence[tuple[str, list[str]]]) -> None:
    """Load each conftest.py that another process has found, as pytest does when it collects.

    Raises UsageError for one that cannot be loaded here: without its hooks the reports would not be
    those of plain pytest.
    """
    plugins = config.pluginmanager
    for path, hooks in described:
        if plugins.has_plugin(path):
            continue
        reason = "no such file"
        try:
            with _without_output():
                plugins._loadconftestmodules(
                    Path(path).parent,
                    config.getoption("importmode"),
                    config.rootpath,
                    consider_namespace_packages=config.getini("consider_namespace_packages"),
                )
        except Exception as error:
            cause = error.cause if isinstance(error, ConftestImportFailure) else error
            reason = f"{type(cause).__name__}: {cause}"
        if not plugins.has_plugin(path):
            raise pytest.UsageError(
                f"the pytest that reports cannot load {os.path.relpath(path)}, which has hooks for "
                f"reports ({', '.join(hooks)}): {reason}. This pytest is no rank: use MPI in "
                f"fixtures and tests, not where the module is imported, or move these hooks to a "
                f"conftest.py that can be loaded without MPI"
            )


@contextlib.contextmanager
def _without_output() -> Generator[None, None, None]:
    """Show nothing of what a module prints when it is loaded: another process has shown it.

    Redirect the descriptor, as handlers that the module makes may keep `sys.stdout`. What goes to
    stderr is shown: it may explain why this process ends.
    """
    sys.stdout.flush()
    usual = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stdout.flush()
        os.dup2(usual, 1)
        os.close(usual)


class FolderHooks:
    """Finds the hooks for a path: those of every conftest.py but the ones of other folders.

    pytest's own way looks up what it has loaded during its collection, and here it did not collect.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        plugins = config.pluginmanager
        self._folders = {
            module: Path(str(plugins.get_name(module))).parent
            for module in plugins._conftest_plugins
        }
        self._found: dict[str, pluggy.HookRelay] = {}

    def at(self, path: str) -> pluggy.HookRelay:
        """Return the hooks for a file or a folder."""
        if path not in self._found:
            above = {Path(path), *Path(path).parents}
            elsewhere = {module for module, folder in self._folders.items() if folder not in above}
            proxy: Any = FSHookProxy(self._config.pluginmanager, elsewhere)
            self._found[path] = proxy if elsewhere else self._config.hook
        return self._found[path]


# As in `test_sum[Rank 1]`.
_RANK = re.compile(r"(rank[ =:_-]*)\d+", re.IGNORECASE)


@dataclass(kw_only=True, eq=False)
class ListedTest:
    """Stands for a test in a process that did not collect it.

    It has the attributes that hooks for reports use, by pytest's names.
    """

    nodeid: str
    name: str
    path: Path
    location: tuple[str, int | None, str]
    keywords: Mapping[str, int]
    size: int
    limit: float
    world: bool
    threads: int
    exclusive: str | None
    groups: Sequence[int]
    session: pytest.Session = field(repr=False)
    ihook: pluggy.HookRelay = field(repr=False)
    marks: Sequence[pytest.Mark] = field(default=(), repr=False)
    """Its own marks first, then those of its class, its module and so on."""
    own: int = 0
    """The number of its own marks."""
    execution_count: int = 1

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"{self.__dict__.get('nodeid')} has no {name!r} here: this pytest reports tests that "
            f"others have collected and run. Those have a `config.workerinput`"
        )

    @property
    def config(self) -> pytest.Config:
        """The configuration of the pytest that reports."""
        return self.session.config

    @property
    def fspath(self) -> object:
        """The path as an object that pytest has replaced by `path`."""
        return legacy_path(self.path)

    @property
    def own_markers(self) -> list[pytest.Mark]:
        """The marks of the test itself."""
        return list(self.marks[: self.own])

    def iter_markers(self, name: str | None = None) -> Iterator[pytest.Mark]:
        """Iterate over all marks, or those of this name; the closest comes first."""
        return (mark for mark in self.marks if name is None or mark.name == name)

    def get_closest_marker(self, name: str, default: Any = None) -> Any:
        """Return the first mark of this name."""
        return next(self.iter_markers(name), default)

    @property
    def id(self) -> Any:
        """The identity of a test in newer versions of pytest."""
        return node_id(self.nodeid)


def node_id(nodeid: str) -> Any:
    """Return the identity of a node: a text, or in newer versions of pytest an object."""
    report = pytest.CollectReport(nodeid, "passed", None, [])
    return getattr(report, "id", nodeid)


def describe_collection(
    session: pytest.Session, errors: Sequence[pytest.CollectReport]
) -> tuple[Header, bytes]:
    """Return the message with the tests of this rank, for a comparison with other ranks."""
    nodeids = [item.nodeid for item in session.items]
    # Reports hold what plugins put there: `repr` makes text of what JSON cannot hold.
    packed = [pack_any_report(error, session.config) for error in errors]
    body = {"nodeids": nodeids, "errors": packed}
    header = {"kind": "collected", "digest": digest_of(nodeids)}
    return header, json.dumps(body, default=repr).encode()


def describe_early_end(
    session: pytest.Session, errors: Sequence[pytest.CollectReport]
) -> tuple[Header, bytes]:
    """Return the message that this session has ended before it knew its tests, and why."""
    header = {"kind": "ended early", "status": int(session.exitstatus)}
    header |= {"fail": str(session.shouldfail or ""), "stop": str(session.shouldstop or "")}
    packed = [pack_any_report(error, session.config) for error in errors]
    return header, json.dumps(packed, default=repr).encode()


def describe_interrupt(error: BaseException) -> Header:
    """Return the message that an exception which is no error ends a session: Ctrl-C, exit, stop."""
    is_stop = isinstance(error, pytest.Session.Interrupted)
    how = "exit" if isinstance(error, pytest.exit.Exception) else "stop" if is_stop else "keyboard"
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames and how == "keyboard" else ""
    return {
        "kind": "interrupt",
        "how": how,
        "reason": str(error) or where,
        "code": getattr(error, "returncode", None),
    }


def raise_interrupt(header: Header) -> NoReturn:
    """End this session in the way in which another process has ended its own."""
    match header["how"]:
        case "exit":
            pytest.exit(header["reason"], header["code"])
        case "stop":
            raise pytest.Session.Interrupted(header["reason"])
    raise KeyboardInterrupt(header["reason"])


def name_rank(header: Header) -> Header:
    """Add the rank that ends the run to the reason."""
    return {**header, "reason": f"{header['reason']} (rank {header['rank']})".strip()}


def raise_early_end(session: pytest.Session, header: Header) -> NoReturn:
    """End this session in the way in which another one has ended before its first test."""
    if header["fail"]:
        session.shouldfail = header["fail"]
        raise session.Failed(header["fail"])
    if header["stop"]:
        raise session.Interrupted(header["stop"])
    status = header["status"] or int(pytest.ExitCode.INTERNAL_ERROR)
    who = f"rank {header['rank']}" if "rank" in header else "a worker"
    pytest.exit(f"{who} ended before it had collected its tests", status)


def digest_of(nodeids: Sequence[str]) -> str:
    """Return a digest of a list of tests and its order."""
    # Ids may hold characters that UTF-8 cannot encode.
    return hashlib.sha256("\n".join(nodeids).encode(errors="replace")).hexdigest()


def are_same_tests(own: Sequence[str], theirs: Sequence[str]) -> bool:
    """Return whether two ranks have the same tests, in any order.

    Tests whose ids differ only in the number of the rank are the same.
    """
    return sorted(own) == sorted(theirs) or sorted(without_rank(own)) == sorted(
        without_rank(theirs)
    )


def without_rank(nodeids: Sequence[str]) -> list[str]:
    """Return ids without numbers of ranks, if they are unique without them; else as they are."""
    # Two tests may differ in nothing else: then the number is part of what they are.
    bare = [_RANK.sub(r"\1", nodeid) for nodeid in nodeids]
    return bare if len(set(bare)) == len(bare) else list(nodeids)


def describe_tests(items: Sequence[pytest.Item]) -> dict[str, Any]:
    """Return what is needed to schedule tests and to report them: fields of `ListedTest`."""
    groups, _ = number_groups(items)
    marks = _MarkTable()
    tests = []
    for item, numbers in zip(items, groups, strict=True):
        request = requirements_of(item)
        tests.append(
            {
                **{name: getattr(item, name) for name in ("nodeid", "name", "location")},
                **{name: getattr(request, name) for name in ("world", "threads", "exclusive")},
                "keywords": list(item.keywords),
                "path": str(item.path),
                "size": size_of(item),
                "limit": limit_of(item, limit_from(item.config)),
                "groups": numbers,
                "marks": [marks.number(mark) for mark in item.iter_markers()],
                "own": len(item.own_markers),
            }
        )
    return {"tests": tests, "marks": marks.described}


class _MarkTable:
    """Describes each mark once, however many tests have it."""

    def __init__(self) -> None:
        self.described: list[list[Any]] = []
        self._numbers: dict[int, int] = {}

    def number(self, mark: pytest.Mark) -> int:
        """Return the place of a mark in the table."""
        # Tests of the same function share its marks. The tests keep them alive, so ids are unique.
        number = self._numbers.setdefault(id(mark), len(self.described))
        if number == len(self.described):
            # Parameters can be many, and large.
            args = mark.args[:1] if mark.name == "parametrize" else mark.args
            kwargs = {} if mark.name == "parametrize" else mark.kwargs
            self.described.append([mark.name, plain_value(args), plain_value(kwargs)])
        return number


def restore_tests(session: pytest.Session, described: Mapping[str, Any]) -> list[ListedTest]:
    """Return the stand-ins of tests that another process has described."""
    hooks = FolderHooks(session.config)
    marks = [
        pytest.Mark(name, tuple(args), kwargs, _ispytest=True)
        for name, args, kwargs in described["marks"]
    ]
    # One object for each file: a suite has far more tests than files.
    paths: dict[str, Path] = {}
    tests = []
    for data in described["tests"]:
        path = data["path"]
        restored = {
            "path": paths.setdefault(path, Path(path)),
            "location": tuple(data["location"]),
            "keywords": dict.fromkeys(data["keywords"], 1),
            "marks": [marks[number] for number in data["marks"]],
        }
        tests.append(ListedTest(session=session, ihook=hooks.at(path), **{**data, **restored}))
    return tests


def number_groups(items: Sequence[pytest.Item]) -> tuple[list[list[int]], list[Node]]:
    """Number the collectors below the session; every rank gets the same numbers.

    Return for each test the numbers of the collectors it belongs to, and the collectors by number.
    """
    numbers: dict[Node, int] = {}
    groups = []
    for item in items:
        chain = item.listchain()[1:-1]
        groups.append([numbers.setdefault(node, len(numbers)) for node in chain])
    return groups, list(numbers)


def make_cases(
    tests: Sequence[ListedTest],
    known: Mapping[str, float],
    width: int,
    *,
    fresh: bool,
    every_world: bool,
    aligned: bool,
) -> list[ScheduledTest]:
    """Return the tests as a scheduler needs them.

    A scheduler that is not `aligned` knows no domains: an exclusive test gets all slots.
    """
    # Ranks load this module too, and need no scheduler.
    from rankwise.pytest_plugin.schedulers.base import ScheduledTest

    cases = []
    for index, test in enumerate(tests):
        slots = test.size * test.threads
        if test.exclusive and not aligned:
            slots = width
        # Workers of the shared world have one core each.
        apart = test.world or every_world or test.exclusive is not None or test.threads > 1
        cases.append(
            ScheduledTest(
                index=index,
                size=slots,
                seconds=known.get(test.nodeid),
                world_kind="fresh" if fresh else "exact" if apart else "shared",
                exclusive=test.exclusive,
                ranks=None if slots == test.size else test.size,
            )
        )
    return cases


def sort_out_garbage(config: pytest.Config) -> None:
    """Free garbage while other processes collect the tests, and let the rest be searched rarely."""
    # Objects of an earlier run in this process are not needed any more.
    gc.unfreeze()
    gc.collect()
    spare_what_is_loaded(config)


def spare_what_is_loaded(config: pytest.Config, is_ours: Callable[[], bool] = lambda: True) -> None:
    """Make all objects old without a search: Python searches old ones rarely.

    They do not stay frozen: tests and plugins that ask `gc` for the referrers of an object must
    find them. At the end, when pytest and Python search everything several times, they are frozen
    again if the run is ours.
    """
    gc.freeze()
    # It finds nothing, but resets the counts that decide when the next collection is due.
    gc.collect()
    gc.unfreeze()
    age = _age()
    config.add_cleanup(lambda: _free_young(age) if is_ours() else None)


def _free_young(age: int) -> None:
    """Free what tests have left, and freeze the rest; not if the tests have made old objects."""
    if _age() == age:
        gc.collect(_MIDDLE)
        gc.freeze()


def _age() -> int:
    """Return how often objects have become old in this process."""
    collections: int = gc.get_stats()[_MIDDLE]["collections"]
    return collections


# The middle generation of `gc`: what survives its collection is old.
_MIDDLE = 1
_SHOWN_DIFFERENCES = 10


def raise_for_errors(session: pytest.Session) -> None:
    """End the session, as pytest does, if something could not be collected."""
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        errors = "error" if session.testsfailed == 1 else "errors"
        raise session.Interrupted(f"{session.testsfailed} {errors} during collection")


def require_same_tests(own: Sequence[str], rank: int, theirs: Sequence[str], size: int) -> None:
    """Raise UsageError if a rank has not collected the same tests as rank 0."""
    if are_same_tests(own, theirs):
        return
    counts = f"{len(own)} on rank 0, {len(theirs)} on rank {rank} (of {size} ranks)"
    lines = [f"the ranks collected different tests: {counts}"]
    for who, here, there in ((0, own, theirs), (rank, theirs, own)):
        elsewhere = set(there)
        only = [nodeid for nodeid in here if nodeid not in elsewhere]
        lines += [f"  only on rank {who}: {nodeid}" for nodeid in only[:_SHOWN_DIFFERENCES]]
        if len(only) > _SHOWN_DIFFERENCES:
            lines.append(f"  … and {len(only) - _SHOWN_DIFFERENCES} more only on rank {who}")
    lines.append(
        "  Every rank must collect the same tests: collection must not depend on the rank, the "
        "order of a set, or chance."
    )
    raise pytest.UsageError("\n".join(lines))
