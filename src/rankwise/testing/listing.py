"""The tests of a run as a process that has not collected them knows them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy
import pytest

from rankwise.testing.limits import limit_from, limit_of
from rankwise.testing.policy import Case
from rankwise.testing.results import pack_any_report
from rankwise.testing.sizes import size_of, wishes_of
from rankwise.testing.wire import Header

if TYPE_CHECKING:
    from _pytest.nodes import Node


@dataclass(slots=True, kw_only=True)
class ListedTest:
    """Stands for a test in a process that did not collect it."""

    nodeid: str
    location: tuple[str, int | None, str]
    keywords: Mapping[str, int]
    size: int
    limit: float
    world: bool
    threads: int
    exclusive: str | None
    groups: Sequence[int]
    config: pytest.Config
    ihook: pluggy.HookRelay = field(repr=False)
    execution_count: int = 1


def describe_collection(
    session: pytest.Session, errors: Sequence[pytest.CollectReport]
) -> tuple[Header, bytes]:
    """Say what this rank has collected, for others to compare."""
    nodeids = [item.nodeid for item in session.items]
    body = {
        "nodeids": nodeids,
        "errors": [pack_any_report(error, session.config) for error in errors],
    }
    header = {"kind": "collected", "digest": digest_of(nodeids)}
    return header, json.dumps(body, default=repr).encode()


def digest_of(nodeids: Sequence[str]) -> str:
    """Make a name for a list of tests in this order."""
    return hashlib.sha256("\n".join(nodeids).encode(errors="replace")).hexdigest()


def describe_tests(items: Sequence[pytest.Item]) -> list[dict[str, Any]]:
    """Say all that is needed to give tests to ranks and to report them."""
    groups, _ = number_groups(items)
    tests = []
    for item, numbers in zip(items, groups, strict=True):
        wishes = wishes_of(item)
        tests.append(
            {
                "nodeid": item.nodeid,
                "location": item.location,
                "keywords": list(item.keywords),
                "path": str(item.path),
                "size": size_of(item),
                "limit": limit_of(item, limit_from(item.config)),
                "world": wishes.world,
                "threads": wishes.threads,
                "exclusive": wishes.exclusive,
                "groups": numbers,
            }
        )
    return tests


def restore_tests(
    session: pytest.Session, described: Sequence[Mapping[str, Any]]
) -> list[ListedTest]:
    """Make what stands for the tests."""
    hooks: dict[str, pluggy.HookRelay] = {}
    tests = []
    for data in described:
        path = data["path"]
        if path not in hooks:
            hooks[path] = session.gethookproxy(Path(path))
        location = data["location"]
        tests.append(
            ListedTest(
                nodeid=data["nodeid"],
                location=(location[0], location[1], location[2]),
                keywords=dict.fromkeys(data["keywords"], 1),
                size=data["size"],
                limit=data["limit"],
                world=data["world"],
                threads=data["threads"],
                exclusive=data["exclusive"],
                groups=data["groups"],
                config=session.config,
                ihook=hooks[path],
            )
        )
    return tests


def number_groups(items: Sequence[pytest.Item]) -> tuple[list[list[int]], list[Node]]:
    """Number the collectors below the session; the same on every rank, as the tests are.

    Gives for each test the numbers of the collectors it belongs to, and the collectors by number.
    """
    numbers: dict[Node, int] = {}
    groups = []
    for item in items:
        chain = item.listchain()[1:-1]
        groups.append([numbers.setdefault(node, len(numbers)) for node in chain])
    return groups, list(numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the workers of a run stand on the machine."""

    width: int
    domains: Sequence[int]
    """The NUMA domain of each seat."""


def make_cases(
    tests: Sequence[ListedTest],
    known: Mapping[str, float],
    layout: Layout,
    *,
    fresh: bool,
    every_world: bool,
    aligned: bool,
) -> list[Case]:
    """Say what each test needs, as a policy understands it.

    Where seats cannot be chosen by domain (not `aligned`), an exclusive test gets all of them.
    """
    cases = []
    for index, test in enumerate(tests):
        seats = test.size * test.threads
        exclusive = test.exclusive is not None
        if test.exclusive == "node" or (exclusive and not aligned):
            seats = layout.width
        apart = test.world or every_world or exclusive or test.threads > 1
        cases.append(
            Case(
                index=index,
                size=seats,
                seconds=known.get(test.nodeid),
                venue="fresh" if fresh else "exact" if apart else "shared",
                exclusive=exclusive,
                ranks=None if seats == test.size else test.size,
            )
        )
    return cases
