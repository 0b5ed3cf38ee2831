"""What is checked when an attempt has ended."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from rankwise.checks.judge import judge, judge_tests, read_tests
from rankwise.plan import Check, Process, Task
from rankwise.records import AttemptEnd
from rankwise.store import ResultRow, State
from tests.checks.attempts import judged, make_attempt

FOUR = {number: f"start\nrank {number} of 4\nloss 0.{number}\n" for number in range(4)}


@pytest.mark.parametrize(
    "check",
    [
        Check(kind="contains", what="rank 3 of 4"),
        Check(kind="contains", what="start", rank="all"),
        Check(kind="contains", what="loss 0.2", rank="2"),
        Check(kind="contains", what="rank {rank} of 4", rank="all"),
        Check(kind="regex", what="^rank {rank}", rank="3"),
        Check(kind="absent", what="Traceback"),
        Check(kind="regex", what=r"^rank (\d+) of 4$", least=4, most=4),
        Check(kind="regex", what=r"rank", least=1, most=1, rank="all"),
        Check(kind="exit_code", codes=(0, 3)),
    ],
)
def test_what_is_true_passes(tmp_path: Path, check: Check) -> None:
    end = judged(make_attempt(tmp_path, FOUR), check)
    assert (end.outcome, end.reason) == ("passed", "")


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (
            Check(kind="contains", what="rank 4 of 4"),
            ["'rank 4 of 4'): not found in worker-0/output.log and 3 more logs:\n  | rank 3 of 4"],
        ),
        (
            Check(kind="contains", what="loss 0.2", rank="all"),
            ["on every rank): not found in worker-0/output.log:", "  | loss 0.0"],
        ),
        (Check(kind="contains", what="x", rank="7"), ["there was no rank 7"]),
        (
            Check(kind="absent", what="loss 0.3"),
            ["found once in worker-0/output.log and 3 more logs:", "  | loss 0.3"],
        ),
        (
            Check(kind="regex", what=r"rank (\d+) of 4", least=5, most=5),
            [r"check 1 (regex 'rank (\\d+) of 4', 5 times): found 4 times in", "  | rank 2 of 4"],
        ),
        (
            Check(kind="regex", what="start", least=0, most=2),
            ["at most 2 times): found 4 times"],
        ),
        (Check(kind="exit_code", codes=(3,)), ["check 1 (exit code 3): it was 0"]),
    ],
)
def test_what_is_not_true_fails_and_is_quoted(
    tmp_path: Path, check: Check, words: list[str]
) -> None:
    end = judged(make_attempt(tmp_path, FOUR), check)
    assert end.outcome == "failed"
    for word in words:
        assert word.replace("\\\\", "\\") in end.reason


def test_exit_codes_that_are_wanted_are_a_success(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    wanted = Check(kind="exit_code", codes=(3,))
    assert judged(attempt, wanted, outcome="failed", code=3).outcome == "passed"
    assert judged(attempt, wanted, outcome="crashed", code=139).outcome == "crashed"
    other = judged(attempt, wanted, outcome="failed", code=4)
    assert other.outcome == "failed"
    assert other.reason.endswith("; check 1 wants exit code 3")
    # A time limit is no exit code of anybody's.
    limit = Check(kind="exit_code", codes=(124,))
    assert judged(attempt, limit, outcome="timed out", code=124).outcome == "timed out"


def test_the_other_checks_are_made_as_well_and_all_faults_are_told(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    checks = [
        Check(kind="exit_code", codes=(3,)),
        Check(kind="contains", what="start"),
        Check(kind="contains", what="nowhere"),
    ]
    end = judged(attempt, *checks, outcome="failed", code=3)
    assert end.reason.startswith("check 3 (contains 'nowhere')")
    end = judged(attempt, *checks)
    assert end.reason.splitlines()[0] == "2 of 3 checks failed"
    assert "check 1 (exit code 3): it was 0" in end.reason
    assert "check 3 (contains" in end.reason


def test_what_failed_by_itself_is_not_checked_further(tmp_path: Path) -> None:
    end = judged(
        make_attempt(tmp_path, FOUR), Check(kind="contains", what="x"), outcome="crashed", code=139
    )
    assert (end.outcome, end.reason) == ("crashed", "worker-0 exited with code")


def test_streams_are_looked_at_apart(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, {0: "both"})
    (attempt / "processes/worker-0/stderr.log").write_text("a warning\n")
    (attempt / "processes/worker-0/stdout.log").write_text("a result\n")
    assert judged(attempt, Check(kind="contains", what="warning", on="stderr")).outcome == "passed"
    end = judged(attempt, Check(kind="contains", what="warning", on="stdout"))
    assert "on stdout): not found in worker-0/stdout.log:\n  | a result" in end.reason


def test_a_check_for_absence_fails_if_a_part_of_the_log_was_left_out(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, {0: "fine\n"}, lost=100)
    assert judged(attempt, Check(kind="contains", what="fine")).outcome == "passed"
    end = judged(attempt, Check(kind="absent", what="Traceback"))
    assert "100 bytes of worker-0/output.log were left out" in end.reason


def test_parts_of_a_log_are_read_in_their_order(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, {0: "third\n"})
    (attempt / "processes/worker-0/output.log.first").write_text("first\n")
    (attempt / "processes/worker-0/output.log.1").write_text("second\n")
    check = Check(kind="regex", what="first\nsecond\nthird")
    assert judged(attempt, check).outcome == "passed"


def test_control_characters_are_quoted_harmlessly(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, {0: "\x1b[2Jgone\x07\x9b1m " + "long" * 100 + "\n"})
    end = judged(attempt, Check(kind="contains", what="\x1b[31m"))
    assert all(line.isprintable() for line in end.reason.splitlines())
    assert "\\x1b[2Jgone" in end.reason
    assert len(end.reason) < 500


def test_a_pattern_that_looks_for_years_is_ended(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, {0: "a" * 40 + "b"})
    end = judged(attempt, Check(kind="regex", what="(a+)+$", seconds=0.2))
    assert end.reason.endswith("it took longer than 0.2 s")


def test_checks_can_be_made_in_any_thread(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    ends = []
    check = Check(kind="contains", what="start")
    thread = threading.Thread(target=lambda: ends.append(judged(attempt, check)))
    thread.start()
    thread.join()
    assert ends[0].outcome == "passed"


# Files


def test_files_must_have_been_written_by_this_attempt(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    check = Check(kind="exists", what="model.pt")
    missing = judged(attempt, check)
    assert f"there is no model.pt in {tmp_path / 'work'}, which is empty" in missing.reason
    (tmp_path / "work/model.pt").touch()
    assert judged(attempt, check).outcome == "passed"
    (tmp_path / "work/other.pt").touch()
    end = judged(attempt, Check(kind="exists", what="another.pt"))
    assert "there is model.pt, other.pt" in end.reason


def test_a_file_from_before_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    (tmp_path / "work/model.pt").touch()
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 100)
    end = judged(attempt, Check(kind="exists", what="model.pt"))
    assert "model.pt was not written: the one that is there is 9" in end.reason


def test_the_age_of_a_file_is_told_by_the_clock_of_files(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    (tmp_path / "work/old.pt").touch()
    time.sleep(0.1)
    (attempt / "claim").touch()
    (tmp_path / "work/new.pt").touch()
    # Whatever the runner's own clock says.
    assert judged(attempt, Check(kind="exists", what="new.pt")).outcome == "passed"
    assert "was not written" in judged(attempt, Check(kind="exists", what="old.pt")).reason


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000, "work/" * 2000])
def test_a_name_that_no_file_can_have_fails_the_check(tmp_path: Path, name: str) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    for check in (Check(kind="exists", what=name), Check(kind="contains", what="x", on=name)):
        end = judged(attempt, check)
        assert end.outcome == "failed"
        assert end.reason.replace("\n", "").isprintable()


def test_a_file_that_was_copied_with_its_old_times_counts(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    (tmp_path / "work/model.pt").touch()
    os.utime(tmp_path / "work/model.pt", (0, 0))
    assert judged(attempt, Check(kind="exists", what="model.pt")).outcome == "passed"


def test_each_rank_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    for number in range(3):
        (tmp_path / f"work/part-{number}.pt").write_text(f"part {number}")
    end = judged(attempt, Check(kind="exists", what="part-{rank}.pt", rank="all"))
    assert "there is no part-3.pt" in end.reason
    (tmp_path / "work/part-3.pt").write_text("part 3")
    assert judged(attempt, Check(kind="exists", what="part-{rank}.pt", rank="all")).outcome == (
        "passed"
    )
    text = Check(kind="contains", what="part", on="part-{rank}.pt", rank="all")
    assert judged(attempt, text).outcome == "passed"


# Values


@pytest.mark.parametrize(
    ("path", "compare", "value", "fault"),
    [
        ("$.loss", "less_than", 0.5, ""),
        ("$.loss", "less_than", 0.25, "it is 0.25 in metrics.json"),
        ("$.loss", "greater_than", 0.2, ""),
        ("$.loss", "greater_than", 0.25, "it is 0.25 in metrics.json"),
        ("$.loss", "approx", 0.25000001, ""),
        ("$.loss", "approx", 0.26, "it is 0.25"),
        ("$.loss", "equals", 0.25, ""),
        ("$.ok", "equals", True, ""),
        ("$.ok", "equals", 1, "it is true"),
        ("$.name", "equals", "a", ""),
        ("$.name", "less_than", 3, 'it is "a"'),
        ("$.all[*]", "less_than", 3, "it is 3"),
        ("$.los", "", None, "$.los leads nowhere in metrics.json, which has 'loss', 'ok'"),
        ("$.none", "equals", "null", "it is null"),
    ],
)
def test_values_in_json_are_compared(
    tmp_path: Path, path: str, compare: str, value: str | float | None, fault: str
) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    text = '{"loss": 0.25, "ok": true, "name": "a", "all": [1, 2, 3], "none": null}'
    (tmp_path / "work/metrics.json").write_text(text)
    check = Check(kind="json", what=path, on="metrics.json", compare=compare, value=value)
    end = judged(attempt, check)
    assert end.outcome == ("failed" if fault else "passed"), end.reason
    assert fault in end.reason


@pytest.mark.parametrize(
    ("value", "is_near"), [(2.5, True), (2.75, False), (1.5, True), (1.25, False)]
)
def test_what_is_just_within_a_tolerance_is_near(
    tmp_path: Path, value: float, is_near: bool
) -> None:
    attempt = make_attempt(tmp_path, {0: f'{{"x": {value}}}\n'})
    check = Check(kind="json", what="$.x", compare="approx", value=2, tolerance=0.5)
    assert judged(attempt, check).outcome == ("passed" if is_near else "failed")


def test_all_ranks_are_those_that_there_should_have_been(tmp_path: Path) -> None:
    # A launcher starts them: what the plan knows is how many.
    attempt = make_attempt(tmp_path, {0: "ready\n", 1: "ready\n"})
    launcher = Process(name="launcher", role="launcher", command="mpirun -np 3 ./a")
    check = Check(kind="contains", what="ready", rank="all")
    task = Task(key="t", processes=(launcher,), width=3, checks=(check,))
    end, _ = judge(task, attempt, AttemptEnd(outcome="passed", exit_code=0))
    assert (end.outcome, "there was no rank 2" in end.reason) == ("failed", True)


def test_a_tolerance_says_how_far_is_near(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, {0: '{"pi": 3.1}\n'})
    check = Check(kind="json", what="$.pi", compare="approx", value=3.14, tolerance=0.05)
    assert judged(attempt, check).outcome == "passed"


def test_of_what_was_written_the_last_line_of_json_counts(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, {0: '{"loss": 9}\nepoch 2\n{"loss": 0.1}\ndone {}\n'})
    check = Check(kind="json", what="$.loss", compare="less_than", value=1)
    assert judged(attempt, check).outcome == "passed"
    (attempt / "processes/worker-0/output.log").write_text("done {}\n")
    assert "there is no JSON in worker-0/output.log:\n  | done {}" in judged(attempt, check).reason


# Functions


FUNCTIONS = """
import subprocess, sys, time

def right(folder, attempt, logs, output, exit_code):
    assert "rank 2 of 4" in output and set(logs) == {f"worker-{n}" for n in range(4)}
    return folder.is_dir() and attempt.is_dir() and exit_code == 0

def wrong():
    print("looked closely")
    return []

def nothing(): pass
def failing(output): assert len(output) == 3
def raising(): raise RuntimeError("too hot")
def curious(weather): return True
def slow(): time.sleep(60)
def leaving(): sys.exit(0)

def loud():
    subprocess.Popen(["sleep", "60"])
    return True

def slow_and_loud():
    subprocess.Popen(["sleep", "60"])
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("right", ""),
        ("wrong", "it gave []\n  | looked closely"),
        ("nothing", "it gave None: it must return something true"),
        ("failing", "AssertionError: def failing(output): assert len(output) == 3 (checks.py:13)"),
        ("raising", "RuntimeError: too hot (checks.py:14)"),
        ("curious", "it wants `weather`; there is folder, attempt, logs, output, exit_code"),
        ("slow", "it took longer than 0.5 s"),
        ("leaving", "its process ended with 0 and gave no answer"),
        ("loud", ""),
        ("slow_and_loud", "it took longer than 0.5 s"),
        ("absent", "has no attribute 'absent'"),
    ],
)
def test_a_function_has_the_last_word(tmp_path: Path, name: str, fault: str) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    (tmp_path / "checks.py").write_text(FUNCTIONS)
    seconds = 0.5 if "slow" in name else 10
    check = Check(kind="python", what=f"{tmp_path / 'checks.py'}:{name}", seconds=seconds)
    end = judged(attempt, check)
    assert end.outcome == ("failed" if fault else "passed"), end.reason
    assert fault in end.reason


_FAILED = '<testsuite><testcase name="one"/><testcase name="two"><failure/></testcase></testsuite>'


@pytest.mark.parametrize("code", [0, 1])
def test_a_wanted_exit_code_does_not_undo_failed_tests(tmp_path: Path, code: int) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    check = Check(kind="exit_code", codes=(0, 1))
    outcome = "failed" if code else "passed"
    end = judged(attempt, check, outcome=outcome, code=code, results="results.xml")
    assert (end.outcome, end.reason[:14]) == ("failed", "no test result")
    (attempt / "results.xml").write_text(_FAILED)
    end = judged(attempt, check, outcome=outcome, code=code, results="results.xml")
    assert (end.outcome, end.reason) == ("failed", "1 of 2 tests failed: two")
    (attempt / "results.xml").write_text('<testsuite><testcase name="one"/></testsuite>')
    assert (
        judged(attempt, check, outcome=outcome, code=code, results="results.xml").outcome
        == "passed"
    )


def test_a_crash_is_not_forgotten_for_a_failed_test(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, FOUR)
    (attempt / "results.xml").write_text(_FAILED)
    end = judged(attempt, outcome="crashed", code=139, results="results.xml")
    assert end.outcome == "crashed"


def test_what_was_not_kept_apart_is_not_taken_for_empty(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path, {0: "Traceback"})
    check = Check(kind="absent", what="Traceback", on="stderr")
    end = judged(attempt, check)
    assert end.outcome == "failed"
    assert "worker-0 has no stderr.log: its streams were not kept apart" in end.reason
    (attempt / "processes" / "worker-0" / "stdout.log").write_text("")
    assert judged(attempt, check).outcome == "passed"


@pytest.mark.parametrize(
    "check",
    [
        Check(kind="json", what="$.x", compare="approx", value=1.0),
        Check(kind="json", what="$.x", compare="approx", value=1.0, tolerance=0.5),
        Check(kind="regex", what=r"a\{rank}", rank="9"),
    ],
)
def test_what_cannot_be_compared_is_a_failure_of_the_check(tmp_path: Path, check: Check) -> None:
    end = judged(make_attempt(tmp_path, {9: '{"x": 1' + "0" * 400 + "}"}), check)
    assert end.outcome == "failed"
    assert "check 1" in end.reason


def test_a_check_by_assertions_is_one_where_python_leaves_them_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")
    (tmp_path / "checks.py").write_text(
        "def check(output):\n    assert not output\n    return True"
    )
    end = judged(
        make_attempt(tmp_path, {0: "a"}), Check(kind="python", what=f"{tmp_path}/checks.py:check")
    )
    assert end.outcome == "failed"


def test_a_function_reads_utf8_wherever_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")):
        monkeypatch.setenv(name, value)
    (tmp_path / "checks.py").write_text(
        "def check(output):\n    assert output == '5 \\u00b5s', ascii(output)\n    return True"
    )
    end = judged(
        make_attempt(tmp_path, {0: "5 µs"}),
        Check(kind="python", what=f"{tmp_path}/checks.py:check"),
    )
    assert (end.outcome, end.reason) == ("passed", "")


# What became of single tests, from JUnit files of several programs


def read(folder: Path, text: str) -> list[ResultRow]:
    path = folder / "results.xml"
    path.write_text(text)
    return list(read_tests(path))


def test_states_names_times_and_messages_are_read(tmp_path: Path) -> None:
    text = """
    <testsuite>
      <testcase classname="a.b" name="one" time="1,234.5"><system-out>x</system-out></testcase>
      <testcase name="two" time="soon"><error message="boom&#10;more">trace
boom</error></testcase>
      <testcase classname="c" name="three"><skipped message="no GPU">where: no GPU</skipped></testcase>
      <testcase><failure>only text</failure></testcase>
    </testsuite>
    """
    assert read(tmp_path, text.strip()) == [
        ResultRow(name="a.b::one", state=State.PASSED, seconds=1234.5),
        ResultRow(name="two", state=State.FAILED, message="trace\nboom"),
        ResultRow(name="c::three", state=State.SKIPPED, message="no GPU"),
        ResultRow(name="unnamed", state=State.FAILED, message="only text"),
    ]


def test_a_message_is_kept_within_limits(tmp_path: Path) -> None:
    (one,) = read(tmp_path, f"<testcase><failure>{'x' * 10_000} end</failure></testcase>")
    assert len(one.message) == 4000
    assert one.message.endswith("x end")


@pytest.mark.parametrize(
    "text", ["", "not XML", "<a><b></a>", "<?xml version='1.0' encoding='odd'?><a/>"]
)
def test_what_is_no_xml_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"results\.xml is no XML"):
        read(tmp_path, text)


def test_entities_that_grow_without_bounds_are_refused(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY e{level} "{f"&e{level - 1};" * 10}">' for level in range(1, 12))
    text = f'<!DOCTYPE a [<!ENTITY e0 "lol">{entities}]><a>&e11;</a>'
    with pytest.raises(ValueError, match="is no XML"):
        read(tmp_path, text)


def test_a_test_that_was_begun_and_has_no_name_has_not_passed(tmp_path: Path) -> None:
    """This is what pytest.exit(returncode=0) in a test leaves."""
    text = '<testsuite><testcase name="one" time="0.1" /><testcase time="0.000" /></testsuite>'
    assert [one.state for one in read(tmp_path, text)] == [State.PASSED, State.FAILED]


@pytest.mark.parametrize("time", ["inf", "nan", "1e999", "-1"])
def test_a_time_that_is_none_is_zero(tmp_path: Path, time: str) -> None:
    (one,) = read(tmp_path, f'<testcase name="one" time="{time}" />')
    assert one.seconds == 0.0


def test_a_long_message_keeps_what_it_says_in_short(tmp_path: Path) -> None:
    source = "x = 1\n" * 2000
    text = f'<failure message="cell 3: ValueError: boom">{source}end</failure>'
    (one,) = read(tmp_path, f"<testcase>{text}</testcase>")
    assert len(one.message) <= 4000
    assert one.message.startswith("cell 3: ValueError: boom\n")
    assert one.message.endswith("end")


@pytest.mark.parametrize(
    ("tests", "reason"),
    [
        (
            (
                '<testcase classname="plots" name="cell 3: x = load()">'
                '<failure message="cell 3: ValueError: boom">cell 3: ValueError: boom\n\n1 x = load()</failure>'
                "</testcase>"
            ),
            "1 of 2 tests failed: plots: cell 3: ValueError: boom",
        ),
        (
            (
                '<testcase classname="t" name="b"><failure message="assert 1 == 2">'
                "def test_b():\n>   assert 1 == 2\nE   assert 1 == 2\nt.py:2: AssertionError</failure></testcase>"
            ),
            "1 of 2 tests failed: t::b: assert 1 == 2",
        ),
        ('<testcase name="b"><failure/></testcase>', "1 of 2 tests failed: b"),
        (
            "".join(f'<testcase name="t{n}"><error message="no{n}"/></testcase>' for n in range(5)),
            "5 of 6 tests failed: t0: no0, t1: no1, t2: no2 and 2 more",
        ),
    ],
)
def test_a_task_whose_tests_failed_says_what_was_wrong_with_them(
    tmp_path: Path, tests: str, reason: str
) -> None:
    (tmp_path / "results.xml").write_text(f'<testsuite><testcase name="good"/>{tests}</testsuite>')
    process = Process(name="worker-0", role="worker", command="true")
    task = Task(key="a", processes=(process,), results="results.xml")
    end, _ = judge_tests(task, tmp_path, AttemptEnd(outcome="failed", exit_code=1))
    assert end.reason == reason


# Cases of a program that says which of them begins


def judged_cases(folder: Path, outcome: str, **logs: str) -> tuple[AttemptEnd, list[ResultRow]]:
    for name, text in logs.items():
        place = folder / "processes" / name
        place.mkdir(parents=True)
        (place / "cases.log").write_text(text)
        (place / "output.log").write_text("what went wrong\n")
    task = Task(
        key="a", processes=(), results="cases.log", environment={"RANKWISE_CASES": "Running:"}
    )
    end = AttemptEnd(outcome=outcome, exit_code=int(outcome != "passed"), reason="why", ended=104.5)
    end, tests = judge(task, folder, end)
    return end, list(tests)


THREE = """\
101.5 DEBUG Running: \x1b[31mtwo\x1b[0m words
100.000000 Running: one
[rankwise: 12 bytes are left out here]
soon Running: no time
102.0 Running:
103.5 INFO Running: three
"""


def test_a_case_lasts_until_the_next_one_begins(tmp_path: Path) -> None:
    end, tests = judged_cases(
        tmp_path, "passed", launcher="", rank1=THREE, rank2="1.0 Running: x\n"
    )
    assert end.outcome == "passed"
    assert tests == [
        ResultRow(name="one", state=State.PASSED, seconds=1.5),
        ResultRow(name="two words", state=State.PASSED, seconds=2.0),
        ResultRow(name="three", state=State.PASSED, seconds=1.0),
    ]


@pytest.mark.parametrize("outcome", ["failed", "crashed", "timed out", "lost", "cancelled"])
def test_the_last_case_ended_as_the_program_did(tmp_path: Path, outcome: str) -> None:
    end, tests = judged_cases(tmp_path, outcome, worker=THREE)
    assert end.outcome == outcome
    assert [one.state for one in tests] == [State.PASSED, State.PASSED, State.FAILED]
    assert tests[-1].message == "why\n  | what went wrong"
    assert ("1 of 3 tests failed: three: why" in end.reason) == (outcome == "failed")


@pytest.mark.parametrize("text", ["", "nothing\n", "1.0 Running: \n"])
def test_a_program_without_a_case_has_not_passed(tmp_path: Path, text: str) -> None:
    end, tests = judged_cases(tmp_path, "passed", worker=text)
    assert (end.outcome, tests) == ("failed", [])
    assert end.reason == "no test results: no line has 'Running:'"
