"""What plain pytest shows, writes and remembers is there on many ranks, too."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.acceptance.harness import Outcome, Project
from tests.acceptance.inner import noted, run_pytest
from tests.acceptance.pools import run_pool

# Each way of running the tests on two ranks; the order of the tests is that of the file.
ON_RANKS = {
    "pool": (None, ("--n-workers=2", "--policy=sequential")),
    "shell": (None, ("--n-workers=2", "--scheduler=shell", "--policy=sequential")),
    "cold": (None, ("--n-workers=2", "--no-warm-start", "--policy=sequential")),
    "mpirun": (2, ("--scheduler=dynamic",)),
}


def run_on_ranks(project: Project, way: str, *arguments: str) -> Outcome:
    ranks, options = ON_RANKS[way]
    return run_pytest(project, *options, *arguments, ranks=ranks)


def run_plain(project: Project, *arguments: str) -> Outcome:
    return run_pytest(project, *arguments, ranks=None)


def lines_of(text: str) -> list[str]:
    """Return what is written while tests run, without percentages."""
    lines = [re.sub(r" +\[ *\d+%\]$", "", line).strip() for line in text.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith("collected "))
    end = next((i for i, line in enumerate(lines) if i > start and line.startswith("=")), None)
    return [line for line in lines[start:end] if line]


# What is written past the capture

WRITES = """
    import logging, sys
    import pytest

    logging.warning("while collecting")

    @pytest.fixture(scope="session")
    def whole():
        yield

    @pytest.fixture(scope="module", params=["p"])
    def part(whole):
        yield
        print("captured teardown")
        logging.warning("closing part")

    def test_disabled(capsys, part):
        print("captured")
        with capsys.disabled():
            print("past capsys")

    def test_disabled_fd(capfd, part):
        with capfd.disabled():
            print("past capfd")
            print("error past capfd", file=sys.stderr)

    def test_logs(part):
        logging.warning("in the call")

    @pytest.mark.skip(reason="not today")
    def test_skipped():
        pass
"""
ALL_AT_ONCE = ("--setup-show", "--log-cli-level=INFO")


def test_what_tests_write_past_the_capture_is_shown_with_them(project: Project) -> None:
    project.write({"test_writes.py": WRITES})
    plain = run_plain(project, *ALL_AT_ONCE)
    pool = run_on_ranks(project, "pool", *ALL_AT_ONCE)
    # The fixtures of the session end with the workers.
    shown = [line.removeprefix("[rank 0 of 2]").strip() for line in lines_of(pool.output)]
    assert sorted(shown) == sorted(lines_of(plain.output)), pool
    for words in ("past capsys", "past capfd", "SETUP    S whole", "closing part"):
        assert any(words in line for line in shown), pool
    assert "live log collection" in pool.output, pool
    assert pool.output.count("while collecting") == 1, pool
    assert "captured" not in pool.output, pool
    assert "error past capfd" in pool.errors, pool


def test_live_logs_and_fixtures_of_isolated_tests_are_shown(project: Project) -> None:
    project.write({"test_writes.py": WRITES})
    outcome = run_on_ranks(project, "shell", *ALL_AT_ONCE)
    for words in ("SETUP    S whole", "TEARDOWN M part['p']", "in the call", "past capsys"):
        assert words in outcome.output, outcome


@pytest.mark.parametrize("capture", ["tee-sys", "sys"])
def test_output_that_is_not_captured_arrives_at_the_terminal(
    project: Project, temporary: Path, capture: str
) -> None:
    project.write(
        {
            "test_prints.py": """
                import os, sys

                def test_prints():
                    print("printed by Python")
                    print("error of Python", file=sys.stderr)
                    sys.stdout.flush()
                    os.write(1, b"written past Python\\n")
            """
        }
    )
    plain = run_plain(project, f"--capture={capture}")
    pool = run_pool(project, temporary, f"--capture={capture}")
    for words in ("printed by Python", "written past Python"):
        assert pool.output.count(words) == plain.output.count(words), pool
    assert pool.errors.count("error of Python") == plain.errors.count("error of Python"), pool


@pytest.mark.parametrize("way", ["pool", "mpirun"])
def test_what_several_ranks_write_names_the_rank(project: Project, way: str) -> None:
    project.write(
        {
            "test_pair.py": """
                import logging
                import pytest, rankwise

                @pytest.fixture
                def own():
                    yield

                @rankwise.mark.parallel(2)
                def test_pair(comm, own, capsys):
                    logging.warning("log of %d", comm.rank)
                    with capsys.disabled():
                        print(f"printed on {comm.rank}")
            """
        }
    )
    outcome = run_on_ranks(project, way, *ALL_AT_ONCE)
    assert outcome.verdicts == {"test_pair": "passed"}, outcome
    for rank in range(2):
        assert outcome.output.count(f"log of {rank}") == 1, outcome
        assert outcome.output.count(f"printed on {rank}") == 1, outcome
    assert re.search(r"^\[rank 1 of 2\] WARNING .* log of 1$", outcome.output, re.M), outcome
    if way == "pool":
        assert re.search(r"^\[rank 0 of 2\] .*printed on 0$", outcome.output, re.M), outcome
        assert re.search(r"^\[all 2 ranks\] +SETUP +F own$", outcome.output, re.M), outcome


def test_what_a_test_wrote_to_the_terminal_before_it_crashed_is_reported(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "test_crash.py": """
                import os

                def test_crash(capsys):
                    with capsys.disabled():
                        print("last words", flush=True)
                        os._exit(3)
            """
        }
    )
    outcome = run_pool(project, temporary)
    assert outcome.verdicts == {"test_crash": "failed"}, outcome
    assert "last words" in outcome.output, outcome


@pytest.mark.parametrize("option", ["--setup-only", "--setup-plan"])
def test_setup_only_and_setup_plan_show_the_fixtures_and_run_nothing(
    project: Project, option: str
) -> None:
    project.write({"test_writes.py": WRITES})
    plain = run_plain(project, option)
    pool = run_on_ranks(project, "pool", option)
    shown = [line.removeprefix("[rank 0 of 2]").strip() for line in lines_of(pool.output)]
    # Without outcomes these lines have no end.
    assert sorted(shown) == sorted(lines_of(plain.output)), pool
    assert "past capsys" not in pool.output, pool


# JUnit

RECORDS = """
    import pytest, rankwise

    @pytest.fixture(scope="session")
    def platform(record_testsuite_property):
        record_testsuite_property("ARCH", "PPC")
        record_testsuite_property("NUMBER", 7)

    def test_one(platform, record_xml_attribute, record_property):
        record_xml_attribute("assertions", 3)
        record_property("weight", 2)

    def test_two(platform, record_xml_attribute):
        record_xml_attribute("assertions", "<4>")

    def test_wrong(record_testsuite_property):
        record_testsuite_property(1, "a name must be a string")
"""


def read_junit(file: Path) -> tuple[object, object]:
    """Return the properties of the suite, and the attributes and properties of each test."""
    suite = next(ElementTree.parse(file).getroot().iter("testsuite"))
    own = [one.attrib for one in suite.findall("properties/property")]
    cases = {}
    for case in suite.iter("testcase"):
        properties = [one.attrib for one in case.iter("property")]
        attributes = {name: value for name, value in case.attrib.items() if name != "time"}
        failures = [one.get("message") for one in case.iter("failure")]
        cases[case.get("name")] = (attributes, properties, failures)
    return own, cases


@pytest.mark.parametrize("way", ["pool", "shell", "mpirun"])
def test_junit_has_what_tests_record_for_it(project: Project, way: str) -> None:
    project.write({"test_records.py": RECORDS})
    options = ("--junitxml=junit.xml", "-o", "junit_family=xunit1", "--tb=line")
    run_plain(project, *options)
    expected = read_junit(project.folder / "junit.xml")
    outcome = run_on_ranks(project, way, *options)
    assert read_junit(project.folder / "junit.xml") == expected, outcome
    own, cases = expected
    assert {"name": "ARCH", "value": "PPC"} in own, outcome  # type: ignore[operator]
    assert cases["test_two"][0]["assertions"] == "<4>"  # type: ignore[index]


# The collection

COLLECTED = {
    "conftest.py": """
        import json
        from pathlib import Path

        import pytest

        NOTES = []

        def pytest_collectreport(report):
            if hasattr(report, "result"):
                found = [
                    (type(one).__name__, one.nodeid, getattr(one, "location", None))
                    for one in report.result
                ]
                NOTES.append((report.nodeid, report.outcome, found))

        def pytest_deselected(items):
            NOTES.append(["deselected", [item.nodeid for item in items]])

        def pytest_report_collectionfinish(config, items):
            return [f"{len(items)} tests", f"first: {items[0].name}"]

        def pytest_sessionfinish(session):
            if not hasattr(session.config, "workerinput"):
                Path("notes.json").write_text(json.dumps(NOTES))
    """,
    "test_group.py": """
        import warnings
        import pytest

        warnings.warn("while importing")
        warnings.warn("with a category", DeprecationWarning)

        class TestGroup:
            def test_in_group(self):
                pass

        @pytest.mark.parametrize("number", [1, 2])
        def test_number(number):
            pass

        def test_left_out():
            pass
    """,
    "test_skipped.py": """
        import pytest

        pytest.skip("not here", allow_module_level=True)
    """,
    "folder/test_more.py": "def test_more(): pass\n",
}


def warnings_of(outcome: Outcome) -> str:
    _, _, rest = outcome.output.partition("warnings summary")
    return rest.partition("-- Docs")[0]


@pytest.mark.parametrize("way", ["pool", "cold"])
def test_the_collection_is_reported_to_hooks_and_to_the_user(project: Project, way: str) -> None:
    project.write(COLLECTED)
    plain = run_plain(project, "-k", "not left_out", "-rs")
    notes = json.loads((project.folder / "notes.json").read_text())
    outcome = run_on_ranks(project, way, "-k", "not left_out", "-rs")
    assert json.loads((project.folder / "notes.json").read_text()) == notes, outcome
    assert warnings_of(outcome) == warnings_of(plain), outcome
    assert "DeprecationWarning: with a category" in warnings_of(outcome), outcome
    for line in ("4 tests", "first: test_more"):
        assert outcome.output.splitlines().count(line) == 1, outcome
    counts = re.compile(r"\d+ passed.* in ")
    found = counts.search(outcome.output)
    expected = counts.search(plain.output)
    assert found is not None, outcome
    assert expected is not None, plain
    assert found[0] == expected[0], outcome


def read_cache(project: Project, name: str) -> object:
    return json.loads((project.folder / ".pytest_cache/v/cache" / name).read_text())


def test_new_tests_go_first_and_known_ones_are_remembered(project: Project) -> None:
    project.write({"test_it.py": "def test_a(): pass\ndef test_c(): pass\n"})
    run_on_ranks(project, "pool")
    assert read_cache(project, "nodeids") == ["test_it.py::test_a", "test_it.py::test_c"]
    project.write({"test_it.py": "def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n"})
    outcome = run_on_ranks(project, "pool", "--nf")
    order = [name for name, when, _ in outcome.reports if when == "call"]
    assert order == [f"test_it.py::test_{name}" for name in "bac"], outcome
    assert len(read_cache(project, "nodeids")) == 3  # type: ignore[arg-type]


def test_a_module_that_can_be_collected_again_has_not_failed_last(project: Project) -> None:
    project.write({"test_it.py": "import nonsense\n"})
    run_on_ranks(project, "pool")
    assert read_cache(project, "lastfailed") == {"test_it.py": True}
    project.write({"test_it.py": "def test_a(): pass\n"})
    outcome = run_on_ranks(project, "pool", "--lf")
    assert outcome.exit_code == pytest.ExitCode.OK, outcome
    assert "run-last-failure: rerun previous 1 failure" in outcome.output, outcome
    assert read_cache(project, "lastfailed") == {}, outcome


def test_stepwise_knows_how_many_tests_there_were(project: Project) -> None:
    text = "def test_a(): pass\ndef test_b(): assert False\n"
    project.write({"test_it.py": text})
    run_plain(project, "--sw")
    project.write({"test_it.py": f"{text}def test_c(): pass\n"})
    changed = run_on_ranks(project, "pool", "--sw")
    assert "stepwise: test count changed, not skipping" in changed.output, changed
    again = run_on_ranks(project, "pool", "--sw")
    assert again.verdicts == {"test_b": "failed"}, again
    assert "stepwise: skipping 1 already passed items" in again.output, again


# Log files

LOGS = """
    import logging
    import pytest, rankwise

    @pytest.mark.parametrize("number", range(8))
    def test_single(number):
        logging.warning("single %d", number)

    @rankwise.mark.parallel(2)
    def test_pair(comm):
        logging.warning("pair %d", comm.rank)
"""


@pytest.mark.parametrize("way", ["pool", "cold", "mpirun"])
def test_the_log_file_has_the_records_of_all_ranks_and_of_this_run_only(
    project: Project, way: str
) -> None:
    project.write({"test_logs.py": LOGS, "logs/all.txt": "of an earlier run\n"})
    options = ("--log-file=logs/all.txt", "--log-file-format=%(message)s")
    outcome = run_on_ranks(project, way, *options)
    assert outcome.exit_code == pytest.ExitCode.OK, outcome
    lines = (project.folder / "logs/all.txt").read_text().splitlines()
    expected = [*(f"single {number}" for number in range(8)), "pair 0", "pair 1"]
    assert sorted(lines) == sorted(expected), outcome


def test_a_log_file_can_be_added_to(project: Project) -> None:
    project.write({"test_logs.py": LOGS, "all.txt": "of an earlier run\n"})
    run_on_ranks(project, "pool", "--log-file=all.txt", "--log-file-mode=a")
    lines = (project.folder / "all.txt").read_text().splitlines()
    assert lines[0] == "of an earlier run"
    assert len(lines) == 11


# Plugins of pytest's own that are switched off

SMALL = """
    import rankwise

    def test_single():
        pass

    @rankwise.mark.parallel(2)
    def test_pair(comm):
        comm.barrier()

    def test_fails():
        assert False
"""
MANY = (
    "cacheprovider",
    "debugging",
    "faulthandler",
    "junitxml",
    "logging",
    "reports",
    "setuponly",
    "stepwise",
    "threadexception",
    "unraisableexception",
    "warnings",
)


def without(names: Sequence[str]) -> list[str]:
    return [argument for name in names for argument in ("-p", f"no:{name}")]


@pytest.mark.parametrize("names", [("capture",), ("tmpdir",), MANY], ids=lambda names: names[0])
@pytest.mark.parametrize("way", ["pool", "shell", "mpirun"])
def test_plugins_of_pytest_can_be_switched_off(
    project: Project, way: str, names: Sequence[str]
) -> None:
    project.write({"test_small.py": SMALL})
    outcome = run_on_ranks(project, way, *without(names))
    expected = {"test_single": "passed", "test_pair": "passed", "test_fails": "failed"}
    assert outcome.verdicts == expected, outcome
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert "Traceback" not in outcome.output + outcome.errors, outcome


# Benchmarks

# As much of pytest-benchmark as its tables are made from.
BENCHMARK = {
    "pytest_benchmark/__init__.py": "",
    "pytest_benchmark/stats.py": """
        class Stats:
            def __init__(self):
                self.data = []

        class Metadata:
            def __init__(self, fixture, iterations, options):
                for name in ("name", "fullname", "group", "param", "params", "extra_info"):
                    setattr(self, name, getattr(fixture, name))
                self.fixture, self.iterations, self.options = fixture, iterations, options
                self.stats = Stats()

            @property
            def has_error(self):
                return self.fixture.has_error

            def as_dict(self, include_data=True, stats=True):
                names = ("name", "fullname", "group", "param", "params", "extra_info", "options")
                return {name: getattr(self, name) for name in names}
    """,
    "conftest.py": """
        from types import SimpleNamespace

        import pytest
        from pytest_benchmark.stats import Metadata

        def pytest_configure(config):
            config._benchmarksession = SimpleNamespace(
                benchmarks=[], json=None, save=None, autosave=None
            )

        @pytest.fixture
        def benchmark(request):
            node = request.node
            fixture = SimpleNamespace(
                name=node.name, fullname=node.nodeid, group=None, param=None, params=None,
                extra_info={}, has_error=False,
            )
            one = Metadata(fixture, 2, {"min_rounds": 5})
            one.stats.data = [0.5, 0.25]
            request.config._benchmarksession.benchmarks.append(one)

        def pytest_terminal_summary(terminalreporter, config):
            for one in sorted(config._benchmarksession.benchmarks, key=lambda one: one.name):
                terminalreporter.write_line(
                    f"{one.fullname}: {one.stats.data} {one.iterations} {one.options}"
                )
    """,
    "test_speed.py": """
        import rankwise

        def test_one(benchmark):
            pass

        def test_other(benchmark):
            pass

        @rankwise.mark.parallel(2)
        def test_pair(comm, benchmark):
            pass
    """,
}


@pytest.mark.parametrize("way", ["pool", "mpirun"])
def test_what_benchmarks_measure_on_ranks_is_in_one_table(project: Project, way: str) -> None:
    project.write(BENCHMARK)
    outcome = run_on_ranks(project, way)
    for name in ("test_one", "test_other", "test_pair"):
        row = f"test_speed.py::{name}: [0.5, 0.25] 2 {{'min_rounds': 5}}"
        assert outcome.output.splitlines().count(row) == 1, outcome


# Garbage

LEAVES_GARBAGE = """
    from pathlib import Path


    class Knot:
        def __init__(self):
            self.itself = self

        def __del__(self):
            Path("freed").touch()


    def pytest_configure(config):
        if not hasattr(config, "workerinput"):
            Knot()
"""


@pytest.mark.parametrize("way", ["pool", "shell", "cold"])
def test_garbage_of_the_process_that_reports_is_freed(project: Project, way: str) -> None:
    project.write({"conftest.py": LEAVES_GARBAGE, "test_it.py": "def test_it(): pass"})
    outcome = run_on_ranks(project, way)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert (project.folder / "freed").exists()


@pytest.mark.parametrize("way", ON_RANKS)
def test_what_refers_to_an_object_is_found_by_tests_and_by_hooks(
    project: Project, way: str
) -> None:
    """Plugins (hypothesis for one) and tests for leaks ask the collector of garbage for it."""
    project.write(
        {
            "conftest.py": """
            import gc
            from ledger import note

            KEPT = ["by this module"]

            def say(who):
                note(f"{who} {any(one is globals() for one in gc.get_referrers(KEPT))}")

            def pytest_sessionfinish():
                say("sessionfinish")

            def pytest_terminal_summary():
                say("summary")
            """,
            "test_it.py": """
            import gc
            import weakref
            import rankwise
            from conftest import say

            class Knot:
                def __init__(self):
                    self.itself = self

            KNOTS = [Knot()]

            def test_alone():
                say("test")

            @rankwise.mark.parallel(2)
            def test_together(comm):
                say("test")

            def test_what_modules_have_made_is_freed():
                dead = weakref.ref(KNOTS.pop())
                gc.collect()
                assert dead() is None
            """,
        }
    )
    outcome = run_on_ranks(project, way)
    assert outcome.exit_code == pytest.ExitCode.OK, str(outcome)
    assert set(noted(project)) == {"test True", "sessionfinish True", "summary True"}
