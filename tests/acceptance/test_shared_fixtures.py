"""Fixtures of wider scopes that several modules or classes share by a conftest."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import noted
from tests.acceptance.pools import run_pool

# In static and dynamic the tests on two ranks come first, so that every rank goes through all
# modules twice.
MODULE = """
    import rankwise

    @rankwise.mark.parallel(2)
    def test_two(value):
        assert value == [__name__]

    @rankwise.mark.parallel(2)
    class TestClass:
        def test_in_class(self, class_value):
            assert class_value == [__name__, "TestClass"]

    def test_one(value):
        assert value == [__name__]

    def test_another(value):
        assert value == [__name__]

    class TestOther:
        def test_in_class(self, class_value):
            assert class_value == [__name__, "TestOther"]
"""

CONFTEST = """
    import os
    from pathlib import Path

    import pytest

    RANK = os.environ["PMI_RANK"]

    def note(text):
        with Path(f"log-{RANK}").open("a") as log:
            log.write(f"{text}\\n")

    @pytest.fixture(scope="module")
    def value(request):
        name = request.module.__name__
        note(f"up {name}")
        alive = [name]
        yield alive
        alive.append("torn down")
        note(f"down {name}")

    @pytest.fixture(scope="class")
    def class_value(request, value):
        name = f"{value[0]} {request.cls.__name__}"
        note(f"up {name}")
        alive = [*value, request.cls.__name__]
        yield alive
        alive.append("torn down")
        assert value == value[:1], "the fixture that this one needs is gone before it"
        note(f"down {name}")
"""


def test_each_module_and_class_has_its_own_value_once_on_a_rank(
    project: Project, scheduler: str
) -> None:
    names = [f"test_{letter}" for letter in "abc"]
    project.write({"conftest.py": CONFTEST, **{f"{name}.py": MODULE for name in names}})
    outcome = project.pytest(f"--scheduler={scheduler}", ranks=2)
    assert outcome.exit_code == 0, outcome
    assert "15 passed" in outcome.output, outcome
    for rank in (0, 1):
        log = (project.folder / f"log-{rank}").read_text().splitlines()
        counted = Counter(log)
        assert set(counted.values()) == {1}, log
        for name in (*names, *(f"{name} TestClass" for name in names)):
            assert log.index(f"up {name}") < log.index(f"down {name}"), log
        assert len([line for line in log if line.startswith("up")]) == len(log) / 2, log


def test_a_value_is_made_anew_when_what_it_is_made_from_changes(
    project: Project, scheduler: str
) -> None:
    project.write(
        {
            "conftest.py": """
                import pytest

                @pytest.fixture(scope="session", params=["p", "q"])
                def letter(request):
                    return request.param

                @pytest.fixture(scope="module")
                def word(request, letter):
                    return f"{request.module.__name__} {letter}"
            """
        }
    )
    for name in ("test_a", "test_b"):
        project.write(
            {
                f"{name}.py": """
                    import rankwise

                    @rankwise.mark.parallel(2)
                    def test_two(word, letter):
                        assert word == f"{__name__} {letter}"

                    def test_one(word, letter):
                        assert word == f"{__name__} {letter}"
                """
            }
        )
    outcome = project.pytest(f"--scheduler={scheduler}", ranks=2)
    assert outcome.exit_code == 0, outcome
    assert "8 passed" in outcome.output, outcome


HANGING = """
    import time
    import pytest
    from ledger import note


    @pytest.fixture(scope="session")
    def server():
        note("server")
        time.sleep(1000)


    @pytest.fixture(scope="module")
    def table(request):
        note(f"table of {request.module.__name__}")
        if request.module.__name__ == "test_first":
            time.sleep(1000)
"""


def test_a_shared_fixture_that_was_not_set_up_in_time_is_not_tried_again(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "conftest.py": HANGING,
            "test_all.py": """
                import pytest

                @pytest.mark.parametrize("number", range(6))
                def test_server(server, number): pass

                def test_without(): pass
            """,
        }
    )
    outcome = run_pool(project, temporary, "--test-timeout=2")
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, str(outcome)
    assert outcome.counts() == {"error in setup": 6, "passed": 1}, str(outcome)
    # Each of the two workers may have been at it when the first was ended.
    assert 1 <= noted(project).count("server") <= 2, str(outcome)
    place = f"{project.folder}/conftest.py:6"
    words = f"the fixture `server` (session scope, {place})"
    assert f"It sets up {words}. Every worker sets up such" in outcome.output, str(outcome)
    again = f"{words} was not set up within 2 s (time limit) for test_all.py::test_server["
    assert again in outcome.output, str(outcome)


def test_a_shared_fixture_is_tried_again_for_a_test_that_may_take_longer(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "test_all.py": """
                import time
                import pytest

                @pytest.fixture(scope="session")
                def server():
                    time.sleep(3)

                @pytest.mark.timeout(1)
                def test_short(server): pass

                @pytest.mark.timeout(1)
                def test_as_short(server): pass

                def test_long(server): pass
            """,
        }
    )
    outcome = run_pool(project, temporary, workers="1")
    assert outcome.verdicts == {
        "test_short": "error in setup",
        "test_as_short": "error in setup",
        "test_long": "passed",
    }, str(outcome)
    assert outcome.output.count("no end after 1 s in setup") == 2, str(outcome)


def test_the_same_fixture_of_another_module_is_tried(project: Project, temporary: Path) -> None:
    project.write(
        {
            "conftest.py": HANGING,
            **{
                f"test_{name}.py": """
                    def test_one(table): pass
                    def test_two(table): pass
                """
                for name in ("first", "second")
            },
        }
    )
    outcome = run_pool(project, temporary, "--test-timeout=2", workers="1")
    verdicts = {f"{one.split('::')[0]} {when}": how for one, when, how in outcome.reports}
    assert verdicts["test_first.py setup"] == "failed", str(outcome)
    assert verdicts["test_second.py call"] == "passed", str(outcome)
    assert noted(project) == ["table of test_first", "table of test_second"], str(outcome)
