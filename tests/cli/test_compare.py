"""`rankwise compare` and `rankwise trend`, on stores whose truth is known."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rankwise.plan import Measuring, Metric, Plan, Process, Task
from rankwise.reports.comparison import judged
from rankwise.reports.model import ReportData
from rankwise.store import State, Store
from rankwise.store.samples import Sample
from tests.cli.conftest import Said

Rankwise = Callable[..., Said]
TASK = Task(key="one", processes=(Process(name="a", role="a", command="true"),))
QUIET = {"host": "n1", "cores": 2, "load": 0.1, "others_percent": 0.5}
LOADED = {**QUIET, "others_percent": 60.0}


def measured(
    store: Store,
    values: Sequence[float],
    *,
    name: str = "osu",
    tags: Mapping[str, str] | None = None,
    conditions: Mapping[str, Any] = QUIET,
    sizes: Sequence[int] = (8,),
    more: Sequence[Sample] = (),
) -> str:
    """Make a run with a trial for each value."""
    plan = Plan(name=name, kind="Sweep", tasks=(TASK,), tags=tags or {})
    run = store.create_run(plan, "", now=1e9)
    for trial, value in enumerate(values, start=1):
        samples = [
            Sample(metric="latency", value=value, unit="us", better="lower", point={"size": size})
            for size in sizes
        ]
        store.add_samples(
            run, "one", trial, [*samples, *more], case="ranks=2", trial=trial, conditions=conditions
        )
    return run


def around(level: float, trials: int = 7, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, 0.01)) for _ in range(trials)]


def test_what_is_slower_is_red_and_the_way_back_is_not(store: Store, rankwise: Rankwise) -> None:
    first, second = measured(store, around(2.0)), measured(store, around(3.0))
    said = rankwise("compare", first, second)
    assert said.code == 1
    assert "regressed" in said.out
    assert "size=8" in said.out
    assert said.out.splitlines()[-1] == "regressed: 1 regressed, of 1 series"
    assert rankwise("compare", first, second, "--fail-on", "never").code == 0
    assert rankwise("compare", first, second, "--threshold", "60%").code == 0
    assert rankwise("compare", first, second, "--threshold", "latency=0.6").code == 0
    assert rankwise("compare", first, second, "--threshold", "other=60%").code == 1
    back = rankwise("compare", second, first, "--json")
    data = json.loads(back.out)
    assert (back.code, data["verdict"], data["counts"]["improved"]) == (0, "improved", 1)
    assert (data["a"], data["b"]) == (
        {"given": second, "runs": [second]},
        {"given": first, "runs": [first]},
    )
    (series,) = data["series"]
    assert series["change"] == pytest.approx(-1 / 3, abs=0.02)
    assert (series["trials"], series["cliffs_delta"], series["point"]) == (
        [7, 7],
        -1.0,
        {"size": 8},
    )


def test_equal_runs_are_unchanged_and_noise_is_inconclusive(
    store: Store, rankwise: Rankwise
) -> None:
    first, second = measured(store, around(2.0)), measured(store, around(2.0, seed=2))
    said = rankwise("compare", first, second)
    assert (said.code, said.out.splitlines()[-1]) == (0, "unchanged: 1 unchanged, of 1 series")
    loaded = measured(store, around(3.0), conditions=LOADED)
    said = rankwise("compare", first, loaded)
    assert said.code == 0
    assert "inconclusive" in said.out
    assert "7 of 14 trials were measured under noise: other processes used 60%" in said.out
    assert rankwise("compare", first, loaded, "--fail-on", "inconclusive").code == 1
    few = measured(store, around(3.0, trials=2))
    assert "3 more trials of B" in rankwise("compare", first, few).out


def test_a_reason_that_all_series_share_is_said_once_and_each_has_one_line(
    store: Store, rankwise: Rankwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    sizes = (8, 16, 32)
    first, second = (measured(store, around(2.0, trials=2), sizes=sizes) for _ in "AB")
    lines = rankwise("compare", first, second).out.splitlines()
    reason = "5 trials are needed: 3 more trials of A and 3 more trials of B"
    assert [line for line in lines if reason in line] == [f"  all of them: {reason}"]
    series = [at for at, line in enumerate(lines) if "size=" in line]
    assert series == [series[0], series[0] + 1, series[0] + 2]
    # A reason of its own stays with its series.
    third = measured(store, around(2.0), sizes=(8,))
    measured(store, around(2.0, trials=2), sizes=(16,), tags={"try": "b"})
    measured(store, around(2.0, seed=4), sizes=(8,), tags={"try": "b"})
    measured(store, around(2.0), sizes=(16,), tags={"try": "a"})
    measured(store, around(2.0), sizes=(8,), tags={"try": "a"})
    said = rankwise("compare", "try=a", "try=b").out
    assert "all of them" not in said
    assert "within 5.0%" in said
    assert "all of them" not in rankwise("compare", first, third).out


def test_noisy_trials_are_left_out_where_there_are_others(store: Store, rankwise: Rankwise) -> None:
    first = measured(store, around(2.0))
    measured(store, around(2.0), tags={"try": "b"})
    measured(store, [9.0] * 20, tags={"try": "b"}, conditions=LOADED)
    said = rankwise("compare", first, "try=b")
    assert said.out.splitlines()[-1] == "unchanged: 1 unchanged, of 1 series"


def test_the_worst_comes_first_and_the_rest_is_counted(store: Store, rankwise: Rankwise) -> None:
    sizes = [2**power for power in range(35)]
    rate = Sample(metric="rate", value=5.0, unit="MB/s", better="higher")
    slow = Sample(metric="rate", value=4.0, unit="MB/s", better="higher")
    first = measured(store, around(2.0), sizes=sizes, more=[rate])
    second = measured(store, around(2.0, seed=2), sizes=sizes, more=[slow])
    said = rankwise("compare", first, second)
    lines = [line for line in said.out.splitlines() if line.startswith("  ")]
    assert (said.code, "rate" in lines[0], "regressed" in lines[0]) == (1, True, True)
    assert "... and 6 more that are no worse: --all shows them" in said.out
    assert said.out.splitlines()[-1] == "regressed: 1 regressed and 35 unchanged, of 36 series"
    assert "more that are" not in rankwise("compare", first, second, "--all").out
    only = rankwise("compare", first, second, "--metric", "latency")
    assert only.out.splitlines()[-1] == "unchanged: 35 unchanged, of 35 series"


def test_runs_are_found_by_branch_commit_tag_and_name(store: Store, rankwise: Rankwise) -> None:
    old, new = "a" * 40, "b" * 40
    for trial in range(6):
        measured(store, [2.0 + trial / 1000], tags={"git.commit": old, "git.branch": "main"})
        measured(store, [3.0 + trial / 1000], tags={"git.commit": new, "git.branch": "topic"})
    for a, b in (("main", "topic"), (old[:8], new), ("git.branch=main", "git.branch=topic")):
        said = rankwise("compare", a, b)
        assert (said.code, said.out.splitlines()[-1][:9]) == (1, "regressed"), said
    assert "5 trials are needed" in rankwise("compare", "main", "topic", "--last", "2").out
    lone = rankwise("compare", "osu-1", "osu")
    assert (lone.code, "4 more trials of A and 4 more" in lone.out) == (0, True)


def test_commits_may_be_named_as_git_names_them(
    store: Store, rankwise: Rankwise, project: Path
) -> None:
    commits = []
    for arguments in (["init", "-q", "-b", "main"], ["commit", "-q"], ["commit", "-q"]):
        more = ["--allow-empty", "-m", "x"] if arguments[0] == "commit" else []
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments, *more], cwd=project, check=True)
        if more:
            asked = ["git", "rev-parse", "HEAD"]
            done = subprocess.run(asked, cwd=project, check=True, capture_output=True, text=True)
            commits.append(done.stdout.strip())
    measured(store, around(2.0), tags={"git.commit": commits[0]})
    measured(store, around(3.0), tags={"git.commit": commits[1]})
    measured(store, around(9.0), tags={"git.commit": commits[1], "git.dirty": "yes"})
    said = rankwise("compare", "HEAD~1", "HEAD", "--json")
    assert said.code == 1
    assert json.loads(said.out)["b"]["runs"] == ["osu-2"]


def test_what_else_differs_is_said(store: Store, rankwise: Rankwise) -> None:
    first = measured(store, around(2.0), more=[Sample(metric="gone", value=1.0, unit="s")])
    second = measured(store, around(2.0), name="other", conditions={**QUIET, "host": "n2"})
    said = rankwise("compare", first, second)
    assert "note: host was not the same: n1 in A, n2 in B" in said.out
    assert "note: only A has 1 of the series, of gone" in said.out


def test_mistakes_are_explained(store: Store, rankwise: Rankwise) -> None:
    first, empty = measured(store, around(2.0)), measured(store, [])
    second = measured(store, around(2.0))
    for arguments, part in (
        ((first, first), f"run {first} is both"),
        ((first, "oops"), "there is no run 'oops'"),
        ((first, "who=me"), "no run has the tag who=me"),
        ((first, empty), f"'{empty}' has measured nothing"),
        ((first, second, "--metric", "speed"), "have no series of speed in common"),
        ((first, second, "--threshold", "much"), "--threshold much: it must be a share"),
        ((first, second, "--threshold", "200%"), "--threshold 200%"),
        ((first, second, "--threshold", "1.2.3"), "--threshold 1.2.3"),
    ):
        said = rankwise("compare", *arguments)
        assert (said.code, part in said.err) == (2, True), said


def history_of(store: Store, levels: Sequence[tuple[float, int]]) -> None:
    """Make a run for each commit."""
    chance = random.Random(2)
    number = 0
    for level, commits in levels:
        for _ in range(commits):
            number += 1
            values = [level * (1 + chance.gauss(0, 0.02)) for _ in range(3)]
            tags = {"git.commit": f"{number:040x}", "git.branch": "main"}
            measured(store, values, tags=tags, sizes=(8, 16))


def test_a_trend_shows_the_change_and_the_commits_to_blame(
    store: Store, rankwise: Rankwise
) -> None:
    history_of(store, [(2.0, 12), (2.5, 8)])
    said = rankwise("trend", "latency", "--case", "size=16")
    first, line, change, blame = said.out.splitlines()
    assert first == "latency  ranks=2 size=16  us, lower is better; osu, 20 runs"
    assert len(line.split()[0]) == 20
    assert change.startswith("  regressed +2")
    assert "since osu-13 of " in change
    assert blame == "    to blame is among:  git log 0000000000..0000000000"
    assert len(rankwise("trend", "latency").out.split("\n\n")) == 2
    data = json.loads(rankwise("trend", "latency", "--case", "size=16", "--json").out)
    (found,) = data[0]["changes"]
    assert found["last_good"] == {"run": "osu-12", "commit": f"{12:040x}"}
    assert found["commits"] == f"{12:040x}..{13:040x}"
    assert (found["meaning"], len(data[0]["history"])) == ("regressed", 20)
    assert "no change" in rankwise("trend", "latency", "--last", "6").out
    assert "6 runs are needed" in rankwise("trend", "latency", "--last", "5").out


def test_runs_of_one_commit_are_one_moment(store: Store, rankwise: Rankwise) -> None:
    clean = {"git.commit": "c" * 40}
    for tags in (clean, clean, {**clean, "git.dirty": "yes"}, {}, {}):
        measured(store, [1.0, 2.0], tags=tags)
    (data,) = json.loads(rankwise("trend", "latency", "--json").out)
    assert [(one["run"], one["trials"]) for one in data["history"]] == [
        ("osu-1", 4),
        ("osu-3", 2),
        ("osu-4", 2),
        ("osu-5", 2),
    ]


def test_mistakes_about_trends_are_explained(store: Store, rankwise: Rankwise) -> None:
    assert "No run has measured anything yet" in rankwise("trend", "latency").err
    measured(store, [1.0, 1e308, 5e-324])
    assert "Did you mean latency?" in rankwise("trend", "latencies").err
    assert (
        "There are, for example: ranks=2 size=8" in rankwise("trend", "latency", "--case", "x").err
    )
    assert rankwise("trend", "latency", "--name", "imb").code == 2
    assert rankwise("trend", "latency").code == 0


def test_a_case_that_crashed_is_not_unchanged(store: Store, rankwise: Rankwise) -> None:
    first = measured(store, around(2.0), more=[Sample(metric="rate", value=5.0, unit="1/s")])
    wish = Metric(parser="regex")
    crashed = dataclasses.replace(TASK, measuring=Measuring(metrics=(wish,), case="ranks=2"))
    plan = Plan(name="osu", kind="Sweep", tasks=(crashed,))
    second = store.create_run(plan, "", now=1e9)
    store.task_over(second, "one", State.CRASHED, reason="", exit_code=139, now=1e9)
    said = rankwise("compare", first, second)
    assert said.code == 1
    assert "not measured in B: one crashed" in said.out
    verdicts = json.loads(rankwise("compare", first, second, "--json").out)["counts"]
    assert verdicts == {"regressed": 2, "inconclusive": 0, "improved": 0, "unchanged": 0}


def test_a_report_says_what_else_was_different_beside_a_verdict(store: Store) -> None:
    first = measured(store, around(2.0))
    second = measured(store, around(3.0), conditions={**QUIET, "host": "n2"})
    data = ReportData(store=store, run=store.run(second), now=2e9)
    [one] = judged(store, data.measures, run=store.run(second), before=store.run(first))
    assert one.verdict == "regressed"
    assert "host was not the same: n1 in A, n2 in B" in one.why


def test_a_case_that_passed_without_a_metric_is_only_not_measured(
    store: Store, rankwise: Rankwise
) -> None:
    first = measured(store, around(2.0), more=[Sample(metric="rate", value=5.0, unit="1/s")])
    passed = dataclasses.replace(
        TASK, measuring=Measuring(metrics=(Metric(parser="regex"),), case="ranks=2")
    )
    second = store.create_run(Plan(name="osu", kind="Sweep", tasks=(passed,)), "", now=1e9)
    for trial, value in enumerate(around(2.0), start=1):
        sample = Sample(metric="latency", value=value, unit="us", better="lower", point={"size": 8})
        store.add_samples(second, "one", trial, [sample], case="ranks=2", conditions=QUIET)
    store.task_over(second, "one", State.PASSED, reason="", exit_code=0, now=1e9)
    said = rankwise("compare", first, second)
    assert said.code == 0
    assert "only A has 1 of the series, of rate" in said.out


def test_failed_trials_of_b_are_counted_beside_the_others(store: Store, rankwise: Rankwise) -> None:
    first = measured(store, around(2.0))
    wish = Measuring(metrics=(Metric(parser="regex"),), case="ranks=2")
    trials = [dataclasses.replace(TASK, key=f"t{number}", measuring=wish) for number in range(9)]
    second = store.create_run(Plan(name="osu", kind="Sweep", tasks=tuple(trials)), "", now=1e9)
    for number, value in enumerate(around(2.0)):
        sample = Sample(metric="latency", value=value, unit="us", better="lower", point={"size": 8})
        store.add_samples(second, f"t{number}", 1, [sample], case="ranks=2", conditions=QUIET)
        store.task_over(second, f"t{number}", State.PASSED, reason="", exit_code=0, now=1e9)
    for number in (7, 8):
        store.task_over(second, f"t{number}", State.CRASHED, reason="", exit_code=139, now=1e9)
    said = rankwise("compare", first, second)
    assert "2 trials of ranks=2 did not pass in B, and are not among these: t7 crashed" in " ".join(
        said.out.split()
    )


def test_series_of_several_documents_are_compared_each_with_its_own(
    store: Store, rankwise: Rankwise
) -> None:
    for level, side in ((2.0, "a"), (3.0, "b")):
        measured(store, around(level), name="osu", tags={"try": side})
        measured(store, around(5.0 - level), name="imb", tags={"try": side})
    data = json.loads(rankwise("compare", "try=a", "try=b", "--json").out)
    assert {one["name"]: one["verdict"] for one in data["series"]} == {
        "osu": "regressed",
        "imb": "improved",
    }


def test_a_run_that_is_not_over_is_named_beside_the_verdict(
    store: Store, rankwise: Rankwise
) -> None:
    first, second = measured(store, around(2.0)), measured(store, around(2.0, seed=2))
    store.task_over(first, "one", State.PASSED, exit_code=0, now=2e9)
    store.run_ended(first, State.PASSED, exit_code=0, now=2e9)
    said = rankwise("compare", first, second)
    words = "is queued: what it has yet to measure does not count here"
    assert f"{second} of B {words}" in said.out
    assert f"{first} of A" not in said.out
