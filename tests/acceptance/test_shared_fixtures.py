"""Fixtures of wider scopes that several modules or classes share by a conftest."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import noted, read_ledger, run_pytest
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
    assert outcome.output.count("exceeded its time limit of 1 s in setup") == 2, str(outcome)


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


# Fixtures, pytest's own and the user's, behave on each rank as they do in one process


def test_pytests_own_fixtures_belong_to_each_rank(project: Project, scheduler: str) -> None:
    project.write(
        {
            "test_own.py": """
            import logging, os, sys
            import rankwise

            @rankwise.mark.parallel(3)
            def test_caplog(comm, caplog):
                logging.getLogger("it").warning("from rank %d", comm.rank)
                assert caplog.messages == [f"from rank {comm.rank}"]

            @rankwise.mark.parallel(3)
            def test_capsys(comm, capsys):
                print("out", comm.rank)
                print("err", comm.rank, file=sys.stderr)
                assert capsys.readouterr() == (f"out {comm.rank}\\n", f"err {comm.rank}\\n")

            @rankwise.mark.parallel(3)
            def test_capfd(comm, capfd):
                os.write(1, b"%d" % comm.rank)
                assert capfd.readouterr().out == str(comm.rank)

            @rankwise.mark.parallel(3)
            def test_tmp_path(comm, tmp_path, mpi_tmp_path):
                (tmp_path / "mine").write_text(str(comm.rank))
                comm.Barrier()
                assert (tmp_path / "mine").read_text() == str(comm.rank)
                assert len(set(comm.allgather(tmp_path))) == comm.size
                assert len(set(comm.allgather(mpi_tmp_path))) == 1
                assert len(set(comm.allgather(tmp_path.stat().st_ino))) == comm.size
                (mpi_tmp_path / str(comm.rank)).touch()
                comm.Barrier()
                assert {p.name for p in mpi_tmp_path.iterdir()} >= {"0", "1", "2"}

            @rankwise.mark.parallel(3)
            def test_factory(comm, tmp_path_factory):
                made = tmp_path_factory.mktemp("made")
                assert len(set(comm.allgather(made))) == comm.size

            @rankwise.mark.parallel(3)
            def test_monkeypatch(comm, monkeypatch):
                if comm.rank == 1:
                    monkeypatch.setenv("ONLY_HERE", "yes")
                assert comm.allgather("ONLY_HERE" in os.environ) == [False, True, False]

            @rankwise.mark.parallel(3)
            def test_undone(comm):
                assert "ONLY_HERE" not in os.environ

            @rankwise.mark.parallel(3)
            def test_properties(comm, record_property, cache, pytestconfig):
                record_property("rank", comm.rank)
                assert pytestconfig.getoption("scheduler")

            def test_single_tmp_path(tmp_path):
                (tmp_path / "file").touch()
            """
        }
    )
    basetemp = project.folder / "temporary"
    outcome = run_pytest(project, f"--scheduler={scheduler}", f"--basetemp={basetemp}", ranks=3)
    assert outcome.counts() == {"passed": 9}, outcome


# Every fixture notes its setup and its teardown; sizes differ so that tests of the same module
# and class run on different ranks, and schedulers move between modules.
SCOPES = {
    "conftest.py": """
    import pytest
    from ledger import note

    @pytest.fixture(scope="session", autouse=True)
    def of_session():
        note("+session")
        yield
        note("-session")
    """,
    **{
        f"{package}/{name}": text
        for package in ("north", "south")
        for name, text in {
            "__init__.py": "",
            "conftest.py": f"""
            import pytest
            from ledger import note

            @pytest.fixture(scope="package")
            def of_package():
                note("+package {package}")
                yield
                note("-package {package}")
            """,
            **{
                f"test_{package}_{module}.py": f"""
                import pytest, rankwise
                from ledger import note

                @pytest.fixture(scope="module")
                def of_module(of_package):
                    note("+module {package} {module}")
                    yield
                    note("-module {package} {module}")

                @pytest.fixture(scope="class")
                def of_class(of_module):
                    note("+class {package} {module}")
                    yield
                    note("-class {package} {module}")

                @pytest.fixture
                def of_function(of_class):
                    note("+function {package} {module}")
                    yield
                    note("-function {package} {module}")

                @rankwise.mark.parallel([1, 2, 3])
                def test_module(of_module, mpi_ranks, comm):
                    assert comm.size == mpi_ranks

                class TestClass:
                    @rankwise.mark.parallel([3, 2, 1])
                    @pytest.mark.parametrize("number", [1, 2])
                    def test_class(self, of_function, number):
                        pass

                def test_without_fixtures():
                    pass
                """
                for module in ("first", "second")
            },
        }.items()
    },
}


def test_a_fixture_lives_once_for_its_scope_on_each_rank_that_needs_it(
    project: Project, scheduler: str
) -> None:
    project.write(SCOPES)
    outcome = run_pytest(project, f"--scheduler={scheduler}", ranks=4)
    assert outcome.exit_code == pytest.ExitCode.OK, outcome
    ledger = read_ledger(project)
    often = {entry for entry, count in Counter(ledger).items() if count > 1}
    assert {text.split()[0] for _, text in often} <= {"+function", "-function"}, often
    # 3 sizes and 2 parameters, on as many ranks as the size.
    assert noted(project).count("+function north first") == (1 + 2 + 3) * 2
    for name in ("module north first", "package south", "class south second"):
        ranks = {rank for rank, text in ledger if text == f"+{name}"}
        assert 3 <= len(ranks) <= 4, name
    for rank in range(4):
        assert_nested([text for other, text in ledger if other == rank])


def assert_nested(notes: list[str]) -> None:
    """Check that everything was torn down, and nothing before what was built on it."""
    alive: list[str] = []
    for text in notes:
        sign, name = text[0], text[1:]
        if sign == "+":
            alive.append(name)
            continue
        alive.remove(name)
        scope, *place = name.split()
        users = {"package": "module", "module": "class", "class": "function"}.get(scope)
        orphans = [other for other in alive if other.startswith(" ".join([str(users), *place]))]
        assert not orphans, f"{name} ended before {orphans}"
        assert scope != "session" or not alive, f"the session ended before {alive}"
    assert alive == []


FAULTY = """
    import pytest, rankwise
    from ledger import RANK, note

    @pytest.fixture(scope="session")
    def bad_session():
        yield
        assert RANK != 1, "session teardown"

    @pytest.fixture(scope="module")
    def bad_module(bad_session):
        yield
        assert RANK != 2, "module teardown"

    @pytest.fixture
    def bad_teardown(comm):
        yield
        assert comm.rank != 1, "function teardown"

    @pytest.fixture
    def bad_setup(comm):
        assert comm.rank != 1, "function setup"

    @rankwise.mark.parallel(3)
    def test_bad_setup(comm, bad_setup):
        note("the body ran")
        comm.Barrier()

    @rankwise.mark.parallel(3)
    def test_bad_teardown(comm, bad_teardown):
        comm.Barrier()

    @rankwise.mark.parallel(3)
    def test_no_such_fixture(comm, missing):
        comm.Barrier()

    @rankwise.mark.parallel(3)
    def test_wide(comm, bad_module):
        comm.Barrier()

    def test_single_setup(request):
        request.getfixturevalue("missing")
"""


def test_errors_in_fixtures_are_reported_as_errors_and_hang_no_rank(
    project: Project, scheduler: str
) -> None:
    project.write({"test_faulty.py": FAULTY})
    outcome = run_pytest(project, f"--scheduler={scheduler}", ranks=3)
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    reports = [(name.split("::")[1], when, verdict) for name, when, verdict in outcome.reports]
    assert {name for name, when, verdict in reports if (when, verdict) == ("setup", "failed")} == {
        "test_bad_setup",
        "test_no_such_fixture",
    }, outcome
    teardowns = [
        name for name, when, verdict in reports if (when, verdict) == ("teardown", "failed")
    ]
    # As in one process, the session's fixtures fail with the last test that the rank has run.
    assert len(teardowns) == 3, outcome
    assert {"test_bad_teardown", "test_wide"} <= set(teardowns), outcome
    assert {name: verdict for name, when, verdict in reports if when == "call"} == {
        "test_bad_teardown": "passed",
        "test_wide": "passed",
        "test_single_setup": "failed",
    }, outcome
    assert noted(project) == [], "a body ran although the setup had failed on one rank"
    assert "1 failed, 2 passed, 5 errors" in outcome.output, outcome
    for text, ranks in {
        "AssertionError: function setup": "rank 1 of 3",
        "AssertionError: function teardown": "rank 1 of 3",
        "fixture 'missing' not found": "all 3 ranks",
        "AssertionError: module teardown": "rank 2 of 3",
        "AssertionError: session teardown": "rank 1 of 3",
    }.items():
        before, found, _ = outcome.output.partition(f"E       {text}")
        assert found, text
        assert before.rindex(f"- {ranks} -") > before.rindex("_ ERROR at "), text
