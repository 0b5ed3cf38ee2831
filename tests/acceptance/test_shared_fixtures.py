"""Fixtures of wider scopes that several modules or classes share by a conftest."""

from __future__ import annotations

from collections import Counter

from tests.acceptance.harness import Project

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
