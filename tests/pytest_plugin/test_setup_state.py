"""Fixtures of several modules alive at once: nodes that pretend, then pytest's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.fixtures import FixtureDef

from rankwise.pytest_plugin.setup_state import SetupTree


@pytest.fixture(autouse=True)
def leave_pytest_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree changes how fixtures of this process are kept, which is for a rank's whole life."""
    for name in ("execute", "finish"):
        monkeypatch.setattr(FixtureDef, name, getattr(FixtureDef, name))


class Node:
    """What a tree needs of a test or collector, and a diary."""

    def __init__(self, name: str, parent: Node | None, diary: list[str]) -> None:
        self.name = name
        self.parent = parent
        self.diary = diary
        self.failure: BaseException | None = None

    def listchain(self) -> list[Node]:
        return [*(self.parent.listchain() if self.parent else []), self]

    def setup(self) -> None:
        self.diary.append(f"+{self.name}")
        if self.failure is not None:
            raise self.failure

    def teardown(self) -> None:
        self.diary.append(f"-{self.name}")


class Collector(Node):
    def collect(self) -> None:
        """Collectors have this, tests don't."""


class Suite:
    """A session with two modules of two tests each."""

    def __init__(self) -> None:
        self.tree: Any = SetupTree()
        self.diary: list[str] = []
        self.session = Collector("session", None, self.diary)
        self.a, self.b = (Collector(name, self.session, self.diary) for name in "ab")
        self.a1, self.a2 = (Node(name, self.a, self.diary) for name in ("a1", "a2"))
        self.b1, self.b2 = (Node(name, self.b, self.diary) for name in ("b1", "b2"))

    def run(self, item: Node, closing: Sequence[Node] = ()) -> None:
        self.tree.closing = set(closing)
        try:
            self.tree.setup(item)
        finally:
            self.tree.teardown_exact(item)


@pytest.fixture
def suite() -> Suite:
    return Suite()


def test_a_collector_is_set_up_once_however_tests_alternate(suite: Suite) -> None:
    for item in (suite.a1, suite.b1, suite.a2, suite.b2):
        suite.run(item)
    expected = "+session +a +a1 -a1 +b +b1 -b1 +a2 -a2 +b2 -b2"
    assert suite.diary == expected.split()


def test_a_collector_that_ends_with_a_test_is_torn_down_after_it(suite: Suite) -> None:
    suite.run(suite.a1)
    suite.run(suite.b1)
    suite.diary.clear()
    suite.run(suite.a2, closing=[suite.a])
    assert suite.diary == ["+a2", "-a2", "-a"]
    assert suite.b in suite.tree.stack


def test_the_newest_is_torn_down_first(suite: Suite) -> None:
    suite.run(suite.b1)
    suite.run(suite.a1)
    suite.diary.clear()
    suite.tree.tear_down([suite.session, suite.a, suite.b])
    assert suite.diary == ["-a", "-b", "-session"]
    assert not suite.tree.stack


def test_without_a_next_test_everything_ends(suite: Suite) -> None:
    suite.tree.setup(suite.a1)
    suite.tree.teardown_exact(None)
    assert suite.diary == ["+session", "+a", "+a1", "-a1", "-a", "-session"]


@pytest.mark.parametrize("failure", [RuntimeError("broken"), pytest.skip.Exception("not here")])
def test_a_collector_that_could_not_be_set_up_fails_each_of_its_tests_and_is_not_tried_again(
    suite: Suite, failure: BaseException
) -> None:
    suite.a.failure = failure
    for item in (suite.a1, suite.a2):
        with pytest.raises(type(failure), match=str(failure)):
            suite.run(item)
    suite.run(suite.b1)
    assert suite.diary.count("+a") == 1
    assert "+a1" not in suite.diary
    suite.tree.tear_down([suite.a])
    assert suite.diary.count("-a") == 1


def test_what_a_setup_has_left_half_done_is_torn_down(suite: Suite) -> None:
    suite.a1.failure = RuntimeError("broken")
    with pytest.raises(RuntimeError):
        suite.run(suite.a1)
    assert suite.diary[-1] == "-a1"


def test_every_finalizer_runs_though_others_fail_and_all_errors_are_told(suite: Suite) -> None:
    def fail_with(text: str) -> None:
        raise RuntimeError(text)

    suite.tree.setup(suite.a1)
    suite.tree.addfinalizer(lambda: fail_with("first"), suite.a1)
    suite.tree.addfinalizer(lambda: fail_with("second"), suite.a)
    with pytest.raises(BaseExceptionGroup) as caught:
        suite.tree.teardown_exact(None)
    assert sorted(str(error) for error in caught.value.exceptions) == ["first", "second"]
    assert suite.diary[-3:] == ["-a1", "-a", "-session"]


def test_a_single_error_is_told_as_itself(suite: Suite) -> None:
    def fail() -> None:
        raise LookupError("alone")

    suite.tree.setup(suite.a1)
    suite.tree.addfinalizer(fail, suite.a1)
    with pytest.raises(LookupError, match="alone"):
        suite.tree.teardown_exact(suite.a2)


# With pytest's own fixtures


class Alternating:
    """Runs tests in the order of their names, and ends a module with its last test."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        tree = session._setupstate = SetupTree()
        items = sorted(session.items, key=lambda item: item.name)
        for number, item in enumerate(items):
            later = {node for rest in items[number + 1 :] for node in rest.listchain()}
            tree.closing = {node for node in item.listchain() if node not in later}
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=item)
        return True


SHARED = """
    from pathlib import Path
    import pytest

    def note(text):
        with open("diary", "a") as file:
            file.write(text + " ")

    @pytest.fixture(scope="session")
    def whole():
        note("+session"); yield; note("-session")

    @pytest.fixture(scope="module")
    def shared(request, whole):
        name = request.module.__name__
        note(f"+{name}")
        yield name
        note(f"-{name}")

    @pytest.fixture(scope="class")
    def grouped(request):
        name = request.cls.__name__
        note(f"+{name}"); yield name; note(f"-{name}")
"""


def diary_of(pytester: pytest.Pytester, **modules: str) -> list[str]:
    pytester.makeconftest(SHARED)
    pytester.makepyfile(**modules)
    run = pytester.inline_run("-p", "no:randomly", "-p", "no:asyncio", plugins=[Alternating()])
    run.assertoutcome(passed=sum(text.count("def test_") for text in modules.values()))
    return (pytester.path / "diary").read_text().split()


def test_a_module_fixture_of_a_conftest_has_a_value_for_each_module_at_once(
    pytester: pytest.Pytester,
) -> None:
    body = """
        def test_{}(shared): assert shared == __name__
        def test_{}(shared): assert shared == __name__
    """
    diary = diary_of(pytester, test_one=body.format("1", "3"), test_two=body.format("2", "4"))
    assert diary == ["+session", "+test_one", "+test_two", "-test_one", "-test_two", "-session"]


def test_a_class_fixture_is_torn_down_with_its_class(pytester: pytest.Pytester) -> None:
    body = """
        class TestA:
            def test_1(self, grouped): assert grouped == "TestA"
            def test_3(self, grouped): assert grouped == "TestA"
        class TestB:
            def test_2(self, grouped): assert grouped == "TestB"
            def test_4(self, grouped): assert grouped == "TestB"
    """
    assert diary_of(pytester, test_classes=body) == ["+TestA", "+TestB", "-TestA", "-TestB"]


def test_a_module_without_the_fixture_does_not_disturb_it(pytester: pytest.Pytester) -> None:
    with_it = "def test_1(shared): pass\ndef test_3(shared): pass"
    diary = diary_of(pytester, test_one=with_it, test_two="def test_2(): pass")
    assert diary == ["+session", "+test_one", "-test_one", "-session"]


def test_xunit_style_setup_runs_once_for_each_module(pytester: pytest.Pytester) -> None:
    body = """
        from conftest import note
        def setup_module(module): note("+" + module.__name__)
        def teardown_module(module): note("-" + module.__name__)
        def test_{}(): pass
        def test_{}(): pass
    """
    diary = diary_of(pytester, test_one=body.format("1", "3"), test_two=body.format("2", "4"))
    assert diary == ["+test_one", "+test_two", "-test_one", "-test_two"]


@pytest.mark.parametrize("end", [SystemExit(3), KeyboardInterrupt(), pytest.exit.Exception("on")])
def test_nothing_stays_set_up_whatever_a_finalizer_raises(suite: Suite, end: BaseException) -> None:
    def raise_end() -> None:
        raise end

    suite.tree.setup(suite.a1)
    suite.tree.addfinalizer(lambda: suite.diary.append("first"), suite.a1)
    suite.tree.addfinalizer(raise_end, suite.a1)
    suite.diary.clear()
    with pytest.raises(type(end)):
        suite.tree.teardown_exact(suite.a1)
    assert suite.diary == ["first", "-a1"]
    assert suite.a1 not in suite.tree.stack


def test_what_ends_the_run_comes_before_other_errors(suite: Suite) -> None:
    def raise_error() -> None:
        raise RuntimeError("broken")

    def end_run() -> None:
        pytest.exit("enough")

    suite.tree.setup(suite.a1)
    suite.tree.addfinalizer(end_run, suite.a1)
    suite.tree.addfinalizer(raise_error, suite.a1)
    with pytest.raises(pytest.exit.Exception, match="enough"):
        suite.tree.teardown_exact(suite.a1)


def test_the_session_stays_set_up_in_the_teardown_of_the_last_test(suite: Suite) -> None:
    suite.tree.is_running = True
    suite.tree.closing = {suite.a}
    suite.tree.setup(suite.a1)
    suite.tree.teardown_exact(None)
    assert suite.diary == ["+session", "+a", "+a1", "-a1", "-a"]
    suite.tree.is_running = False
    suite.tree.teardown_exact(None)
    assert suite.diary[-1] == "-session"


# Which tests need no agreement between their ranks before they begin

SUITE = """
    import pytest
    from rankwise.pytest_plugin.setup_state import has_plain_setup

    @pytest.fixture
    def own():
        pass

    @pytest.fixture
    def number(request):
        return request.param

    @pytest.mark.parallel(1)
    def test_plain(comm, mpi_ranks, request):
        assert has_plain_setup(request.node)

    @pytest.mark.parallel([1])
    @pytest.mark.parametrize("left, right", [(1, 2)])
    def test_parameters(comm, left, right, request):
        assert has_plain_setup(request.node)

    class TestMethods:
        @pytest.mark.parallel_from_context
        def test_plain(self, request):
            assert has_plain_setup(request.node)

    def test_fixture_of_the_suite(own, request):
        assert not has_plain_setup(request.node)

    @pytest.mark.parametrize("number", [1], indirect=True)
    def test_indirect_parameter(number, request):
        assert not has_plain_setup(request.node)

    def test_fixture_that_may_fail(tmp_path, request):
        assert not has_plain_setup(request.node)

    @pytest.mark.skipif(False, reason="may differ")
    def test_condition(request):
        assert not has_plain_setup(request.node)

    class TestSetup:
        def setup_method(self):
            pass

        def test_it(self, request):
            assert not has_plain_setup(request.node)
"""


def run_alone(pytester: pytest.Pytester) -> pytest.RunResult:
    """Run with rankwise as the only plugin: what others do before a test is not the question."""
    pytester._monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester.runpytest_inprocess("-p", "rankwise.pytest_plugin.plugin")


def test_only_a_setup_without_anything_of_the_users_is_plain(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    run_alone(pytester).assert_outcomes(passed=8)


@pytest.mark.parametrize(
    "conftest",
    [
        "def pytest_runtest_setup(item): pass",
        "import pytest\n@pytest.fixture\ndef comm(): pass",
        "import pytest\n@pytest.fixture(autouse=True)\ndef everywhere(): pass",
    ],
    ids=["hook", "another comm", "autouse"],
)
def test_what_a_conftest_adds_is_seen(pytester: pytest.Pytester, conftest: str) -> None:
    pytester.makeconftest(conftest)
    pytester.makepyfile(
        """
        from rankwise.pytest_plugin.setup_state import has_plain_setup

        def test_it(comm, request):
            assert not has_plain_setup(request.node)
        """
    )
    run_alone(pytester).assert_outcomes(passed=1)
