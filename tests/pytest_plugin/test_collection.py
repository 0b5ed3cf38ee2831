"""Tests as a process knows them that has not collected them, and what a policy is told of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankwise.pytest_plugin.collection import (
    ListedTest,
    are_same_tests,
    describe_collection,
    describe_tests,
    digest_of,
    make_cases,
    number_groups,
    restore_tests,
)
from rankwise.pytest_plugin.connections import TEMPLATE, name_on_node, worker_number
from rankwise.pytest_plugin.marks import settle_size
from rankwise.pytest_plugin.schedulers.base import ScheduledTest
from rankwise.pytest_plugin.workers.controller import ControllerSession
from tests.pytest_plugin.conftest import ALONE

SOURCE = """
    import pytest
    @pytest.mark.parallel(2, world=True, threads=2, exclusive="numa")
    def test_wishing(comm): pass
    class TestIt:
        @pytest.mark.timeout(7)
        def test_limited(self): pass
        @pytest.mark.parametrize("letter", "é/")
        def test_letter(self, letter): pass
"""


@pytest.fixture
def items(pytester: pytest.Pytester) -> Sequence[pytest.Item]:
    pytester.makepyfile(test_a=SOURCE, test_b="def test_other(): pass")
    items, _ = pytester.inline_genitems(*ALONE, "--test-timeout=50")
    for item in items:
        settle_size(item, override=None, available=4)
    return items


# There and back


def test_what_was_described_is_restored_after_a_journey(items: Sequence[pytest.Item]) -> None:
    described = json.loads(json.dumps(describe_tests(items)))
    restored = restore_tests(items[0].session, described)
    assert len(restored) == len(items) == 5
    for test, item in zip(restored, items, strict=True):
        assert test.nodeid == item.nodeid
        assert test.location == item.location
        assert isinstance(test.location, tuple)
        assert set(test.keywords) == set(item.keywords)
        assert (test.name, test.path, test.fspath) == (item.name, item.path, item.fspath)
        assert (test.session, test.config) == (item.session, item.config)
    wishing, limited, *_ = restored
    assert (wishing.size, wishing.world, wishing.threads) == (2, True, 2)
    assert wishing.exclusive == "numa"
    assert (limited.size, limited.world, limited.threads) == (1, False, 1)
    assert limited.exclusive is None
    assert [test.limit for test in restored] == [50.0, 7.0, 50.0, 50.0, 50.0]


def test_marks_are_restored_in_their_order_and_described_once(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = case")
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.case("class", deep={"list": (1, None)}, of=ValueError)
        class TestIt:
            @pytest.mark.case("own")
            @pytest.mark.parametrize("number", range(100))
            def test_it(self, number): pass
        """
    )
    items, _ = pytester.inline_genitems(*ALONE)
    described = json.loads(json.dumps(describe_tests(items)))
    assert len(described["marks"]) == 3, "however many tests there are"
    test = restore_tests(items[0].session, described)[-1]
    assert [mark.name for mark in test.own_markers] == ["parametrize", "case"]
    assert [mark.name for mark in test.iter_markers()] == ["parametrize", "case", "case"]
    own, of_class = test.iter_markers("case")
    assert own.args == ("own",)
    assert of_class.args == ("class",)
    assert of_class.kwargs == {"deep": {"list": [1, None]}, "of": "<class 'ValueError'>"}
    assert test.get_closest_marker("case") is own
    assert test.get_closest_marker("parametrize").args == ("number",)
    assert test.get_closest_marker("other") is None
    assert test.get_closest_marker("other", own) is own


def test_marks_with_values_that_json_cannot_hold_are_described(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers = case")
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.case(10**5000, by={1: "one"})
        def test_it(): pass
        """
    )
    items, _ = pytester.inline_genitems(*ALONE)
    described = json.loads(json.dumps(describe_tests(items), default=repr))
    (mark,) = restore_tests(items[0].session, described)[0].own_markers
    assert isinstance(mark.args[0], str)
    assert mark.kwargs == {"by": {"1": "one"}}


def test_hooks_of_a_folder_are_those_of_its_tests(pytester: pytest.Pytester) -> None:
    """A conftest.py in a subfolder counts for the tests there only."""
    for name in ("with_hooks", "without"):
        folder = pytester.mkdir(name)
        (folder / f"test_{name}.py").write_text("def test_it(): pass")
    conftest = pytester.path / "with_hooks" / "conftest.py"
    conftest.write_text("def pytest_runtest_logreport(report): report.seen = True")
    items, _ = pytester.inline_genitems(*ALONE)
    tests = restore_tests(items[0].session, json.loads(json.dumps(describe_tests(items))))
    for test in tests:
        report: Any = pytest.TestReport(test.nodeid, test.location, {}, "passed", None, "call")
        implementations = test.ihook.pytest_runtest_logreport.get_hookimpls()
        ours = [one for one in implementations if one.plugin_name == str(conftest)]
        for one in ours:
            one.function(report)
        assert hasattr(report, "seen") == test.nodeid.startswith("with_hooks")


def test_collectors_are_numbered_below_the_session(items: Sequence[pytest.Item]) -> None:
    groups, nodes = number_groups(items)
    assert sorted({number for numbers in groups for number in numbers}) == list(range(len(nodes)))
    for item, numbers in zip(items, groups, strict=True):
        assert [nodes[number] for number in numbers] == item.listchain()[1:-1]
    first, second, *_, other = groups
    assert second[: len(first)] == first, "the class is in the module"
    assert len(second) == len(first) + 1
    assert first[-1] not in other


# What ranks compare


def test_equal_collections_have_equal_digests_and_all_others_do_not() -> None:
    assert digest_of(["a", "b"]) == digest_of(("a", "b"))
    different = [["a", "b"], ["b", "a"], ["a"], [], ["ab"], ["a", "b", "b"]]
    assert len({digest_of(nodeids) for nodeids in different}) == len(different)


def test_names_that_are_no_text_have_a_digest() -> None:
    assert digest_of(["test_it[\udcff]"])


def test_a_collection_is_described_with_its_errors(items: Sequence[pytest.Item]) -> None:
    session = items[0].session
    session.items = list(items)
    error = pytest.CollectReport("test_c.py", "failed", "E   no such module", None)
    header, body = describe_collection(session, [error])
    said = json.loads(body)
    assert header == {"kind": "collected", "digest": digest_of([item.nodeid for item in items])}
    assert said["nodeids"] == [item.nodeid for item in items]
    assert len(said["errors"]) == 1
    assert "no such module" in json.dumps(said["errors"])


# What a policy is told


def listed(name: str = "test_it", size: int = 1, **options: Any) -> ListedTest:
    return ListedTest(
        nodeid=name,
        name=name,
        path=Path("test_it.py"),
        location=("test_it.py", 0, name),
        keywords={},
        size=size,
        limit=0.0,
        groups=(),
        session=cast(Any, None),
        ihook=cast(Any, None),
        **{"world": False, "threads": 1, "exclusive": None, **options},
    )


def case_of(
    test: ListedTest, *, fresh: bool = False, every_world: bool = False, aligned: bool = True
) -> ScheduledTest:
    (case,) = make_cases([test], {}, 8, fresh=fresh, every_world=every_world, aligned=aligned)
    return case


def test_a_test_without_wishes_shares_a_world_on_as_many_seats_as_ranks() -> None:
    case = case_of(listed(size=3))
    assert (case.size, case.world_kind, case.exclusive) == (3, "shared", None)


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ({"world": True}, 2),
        ({"threads": 3}, 6),
        ({"exclusive": "numa"}, 2),
        ({"exclusive": "numa", "threads": 2}, 4),
        ({"exclusive": "node"}, 2),
    ],
)
def test_a_test_with_wishes_has_a_world_of_its_size_and_the_seats_that_it_needs(
    options: dict[str, Any], slots: int
) -> None:
    case = case_of(listed(size=2, **options))
    assert (case.size, case.world_kind) == (slots, "exact")
    assert case.exclusive == options.get("exclusive")


def test_where_seats_cannot_be_chosen_an_exclusive_test_has_all_of_them() -> None:
    case = case_of(listed(size=2, exclusive="numa"), aligned=False)
    assert (case.size, case.ranks, case.exclusive) == (8, 2, "numa")
    assert case_of(listed(size=2), aligned=False).size == 2


def test_every_test_can_have_a_world_of_its_size_or_one_of_its_own() -> None:
    assert case_of(listed(), every_world=True).world_kind == "exact"
    assert case_of(listed(), fresh=True).world_kind == "fresh"
    assert case_of(listed(world=True), fresh=True, every_world=True).world_kind == "fresh"


def test_cases_are_numbered_in_order_with_the_durations_that_are_known() -> None:
    tests = [listed("a"), listed("b")]
    cases = make_cases(tests, {"b": 2.5}, 1, fresh=False, every_world=False, aligned=True)
    assert [(case.index, case.seconds) for case in cases] == [(0, None), (1, 2.5)]


def test_ids_that_differ_in_the_number_of_the_rank_only_are_of_the_same_tests() -> None:
    own = ["a[Rank 0]", "b[x][Rank 0]"]
    assert are_same_tests(own, ["b[x][Rank 3]", "a[Rank 3]"])
    assert not are_same_tests(own, ["a[Rank 3]", "c[x][Rank 3]"])
    # Where that number tells tests apart, it counts.
    assert not are_same_tests(["a[rank=1]", "a[rank=2]"], ["a[rank=1]", "a[rank=3]"])


# What the controller makes of the tests that several processes have collected


def controller_with(**collections: list[str]) -> ControllerSession:
    """Return a controller that has nothing but what each rank has collected."""
    session: Any = object.__new__(ControllerSession)
    session._options = SimpleNamespace(width=2)
    names = {"rank0": worker_number(0, 0), "rank1": worker_number(0, 1)}
    session._collections = {
        names.get(name, name_on_node(TEMPLATE, name)): (
            {},
            json.dumps({"nodeids": nodeids, "errors": []}).encode(),
        )
        for name, nodeids in collections.items()
    }
    return cast(ControllerSession, session)


def test_the_template_of_one_node_does_not_matter_where_another_node_can_have_none() -> None:
    session = controller_with(n1=["a", "b"], rank0=["a", "b"], rank1=["a", "b"])
    session._compare({"nodeids": ["a", "b"], "errors": []})


def test_ranks_that_have_other_tests_are_refused() -> None:
    session = controller_with(rank0=["a", "b"], rank1=["a"])
    with pytest.raises(pytest.UsageError, match="rank 1"):
        session._compare({"nodeids": ["a", "b"], "errors": []})
