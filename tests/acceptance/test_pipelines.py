"""Pipelines: what stages leave to each other, what runs again, and what a kill does to them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.store import State, Store
from tests.acceptance.jobs import Shop, opened, wait_for
from tests.notify.mailboxes import mail_server
from tests.seeds.sentences import sentence

KILLS = 4
"""By hand: RANKWISE_KILLS=30 and pytest --timeout=1200, and RANKWISE_SEED for other moments."""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with opened(tmp_path / "shop") as shop:
        yield shop


def states(shop: Shop, run: str) -> dict[str, str]:
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        return {row.key: f"{row.state} {row.reason}".strip() for row in store.task_rows(run)}


SECRET = "hush-hush-42"


def test_what_a_stage_sets_later_stages_see(shop: Shop) -> None:
    shop.write("env-setup.sh", "export TOOL=/opt/tool\nexport PATH=$PWD/bin:$PATH\nHIDDEN=1\n")
    shop.write("bin/hello", "#!/bin/sh\necho hello from the path\n").chmod(0o755)
    shop.write(
        "p.yaml",
        """\
        type: Pipeline
        env: {COLOUR: red, SIZE: "1"}
        secrets: [TOKEN]
        stages:
          setup:
            run: |
              source env-setup.sh
              export LINES_OF=$'two\\nlines' NAUGHTY=x$TOKEN TOKEN
              unset DROPPED
          early:
            needs: setup
            env: {SIZE: "2"}
            run: |
              trap 'echo tidied up' EXIT
              export WHO=early SIZE=3
              exit 0
          late:
            needs: setup
            run: export WHO=late
          use:
            needs: [late, early]
            run: |
              echo "$TOOL|$LINES_OF|$WHO|$COLOUR|$SIZE|${HIDDEN-no}|${DROPPED-no}|${NAUGHTY-no}"
              hello
          pick:
            needs: setup
            matrix: {python: [3.10, 3.11], mpi: [mpich]}
            run: echo "${{matrix.python}} with ${{matrix.mpi}} in $TOOL"
          last:
            needs: [use, pick]
            run: echo "the end"
        """,
    )
    said = shop.rankwise("run", "p.yaml", variables={"TOKEN": SECRET, "DROPPED": "there"})
    assert said.exit_code == 0, said
    # `early` stands before `late`, so that what `late` says counts.
    assert "/opt/tool|two" in said.output
    assert "lines|late|red|1|no|no|no" in said.output
    assert "hello from the path" in said.output
    assert "tidied up" in said.output
    assert "3.10 with mpich in /opt/tool" in said.output
    assert set(states(shop, "p-1")) == {
        *("setup", "early", "late", "use", "pick.3.10-mpich", "pick.3.11-mpich", "last"),
    }
    for path in (shop.folder / ".rankwise").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


FAILING = """\
type: Pipeline
stages:
  build:
    run: echo built > built; exec cat built
    artifacts: built*
    cache: {key: [key], paths: [warm]}
  flaky:
    needs: build
    retries: 1
    run: if [[ -e tried ]]; then cat ${{artifacts.build}}/built; else touch tried; exit 3; fi
    checks: [{regex: ^built$}]
  slow: {needs: build, timeout: 0.5, run: sleep 60}
  piped: {needs: build, run: false | cat}
  checked: {needs: build, run: echo 1 of 2, checks: [{contains: of 2, count: 2}]}
  ship: {needs: [flaky, slow], run: echo no}
  tell: {needs: ship, when: failed, run: echo told}
  idle: {needs: flaky, when: failed, run: echo never}
  tidy: {needs: [ship, idle], when: always, run: echo tidied}
"""


def test_failures_are_told_and_tidied_up_after(shop: Shop) -> None:
    (shop.folder / "p.yaml").write_text(
        FAILING.replace("echo built >", "mkdir -p warm; echo built >")
    )
    shop.write("key", "1")
    said = shop.rankwise("run", "p.yaml")
    assert said.exit_code != 0, said
    found = states(shop, "p-1")
    assert found.pop("checked").startswith("failed")
    assert found == {
        "build": "passed",
        "flaky": "passed",
        "slow": "timed out the time limit of 0.5 s was reached",
        "piped": "failed run exited with code 1",
        "ship": "not run needs slow, which timed out",
        "tell": "passed",
        "idle": "skipped nothing has failed before it",
        "tidy": "passed",
    }
    status = json.loads(shop.rankwise("status", "--json").output)
    assert {task["key"]: task["attempts"] for task in status["tasks"]}["flaky"] == 2
    (shop.folder / "warm").rmdir()
    shop.rankwise("run", "p.yaml", "--quiet")
    assert (shop.folder / "warm").is_dir()
    kept = [
        shop.folder / ".rankwise" / "runs" / run / "artifacts/build/built" for run in ("p-1", "p-2")
    ]
    assert {path.read_text() for path in kept} == {"built\n"}
    assert kept[0].stat().st_ino == kept[1].stat().st_ino


def test_caches_and_artifacts_work_in_a_folder_of_any_name(tmp_path: Path) -> None:
    with opened(tmp_path / "a shop's") as shop:
        shop.write("key", "1")
        shop.write(
            "p.yaml",
            """\
            type: Pipeline
            stages:
              build:
                run: |
                  ls warm 2> /dev/null || { mkdir warm; echo made > "warm/it's"; }
                  echo built > built
                artifacts: built
                cache: {key: [key], paths: [warm]}
              use: cat "${{artifacts.build}}/built" "warm/it's"
            """,
        )
        for number in (1, 2):
            said = shop.rankwise("run", "p.yaml")
            assert said.exit_code == 0, said
            assert "| built" in said.output
            assert ("build run | it's" in said.output) == (number == 2), said
            (shop.folder / "warm" / "it's").unlink()
            (shop.folder / "warm").rmdir()


REUSING = """\
type: Pipeline
stages:
  setup: {run: export ROOT=$PWD, inputs: []}
  a: {needs: setup, run: echo a >> $ROOT/ledger, inputs: a.txt}
  b: {needs: setup, run: echo b >> $ROOT/ledger; cp b.txt out, inputs: b*.txt, artifacts: out}
  c: {needs: [a, b], run: "echo c >> $ROOT/ledger; cat ${{artifacts.b}}/out", inputs: []}
  d: {needs: b, run: echo d >> ledger}
"""


def test_only_what_depends_on_a_change_runs_again(shop: Shop) -> None:
    shop.write("p.yaml", REUSING)
    shop.write("a.txt", "1")
    shop.write("b.txt", "1")
    ledger = shop.folder / "ledger"

    def ran(*options: str) -> str:
        ledger.unlink(missing_ok=True)
        said = shop.rankwise("run", "p.yaml", "--quiet", *options)
        assert said.exit_code == 0, said
        return "".join(sorted(ledger.read_text().split()))

    assert ran() == "abcd"
    assert ran() == "d"
    assert states(shop, "p-2")["c"] == "passed unchanged since p-1"
    shop.write("a.txt", "2")
    assert ran() == "acd"
    shop.write("b-more.txt", "1")
    assert ran() == "bcd"
    assert ran("--force") == "abcd"
    assert ran("--from", "a") == "ac"
    assert states(shop, "p-6")["b"] == "passed taken over from p-5"
    shop.write("p.yaml", REUSING.replace("echo c", "echo e"))
    assert ran() == "de"
    wrong = shop.rankwise("run", "p.yaml", "--from", "bb")
    assert (wrong.exit_code, "there is no stage 'bb'; did you mean `b`?" in wrong.errors) == (
        2,
        True,
    )


def test_a_stage_that_is_detached_goes_on_by_itself(shop: Shop) -> None:
    shop.write(
        "p.yaml",
        """\
        type: Pipeline
        name: nightly
        stages:
          setup: export ROOT=$PWD
          bench:
            detach: true
            matrix: {n: [1, 2]}
            run: while [[ ! -e go ]]; do sleep 0.05; done; echo ${{matrix.n}} >> $ROOT/ledger
          summary: {report: summary.md}
          report: {report: "report-${{run.id}}.html"}
          tell: {notify: {file: news.txt}}
        """,
    )
    said = shop.rankwise("run", "p.yaml")
    assert said.exit_code == 0, said
    assert "Goes on by itself: nightly-bench-1" in (shop.folder / "summary.md").read_text()
    assert "nightly-1: 4 of 4 stages passed so far" in (shop.folder / "news.txt").read_text()
    assert "nightly-1" in (shop.folder / "report-nightly-1.html").read_text()
    status = json.loads(shop.rankwise("status", "nightly-1", "--json").output)
    (child,) = status["children"]
    assert (child["id"], child["parent"]) == ("nightly-bench-1", "nightly-1")
    assert not State(child["state"]).is_over
    (shop.folder / "go").touch()
    deadline = time.monotonic() + 60
    while json.loads(shop.rankwise("status", child["id"], "--json").output)["state"] != "passed":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert sorted((shop.folder / "ledger").read_text().split()) == ["1", "2"]
    shop.wait_until_empty()


def test_what_a_stage_submits_outlives_the_stage(shop: Shop) -> None:
    shop.write(
        "job.yaml",
        "type: command\nname: job\ncommand: {command}\n".format(
            command="'touch began; while [ ! -e go ]; do sleep 0.05; done; echo $OF_STAGE > went'"
        ),
    )
    shop.write(
        "p.yaml",
        f"""\
        type: Pipeline
        name: outer
        stages:
          hand-in: |
            export OF_STAGE=seen
            {sys.executable} -m rankwise.cli.main submit job.yaml
            while [[ ! -e began ]]; do sleep 0.05; done
          after: "true"
        """,
    )
    said = shop.rankwise("run", "p.yaml")
    assert said.exit_code == 0, said
    assert "job-1" in said.output
    assert json.loads(shop.rankwise("status", "job-1", "--json").output)["state"] == "running"
    (shop.folder / "go").touch()
    shop.wait_until_empty()
    assert json.loads(shop.rankwise("status", "job-1", "--json").output)["state"] == "passed"
    assert (shop.folder / "went").read_text() == "seen\n"


@sentence(
    "theta-ci-performance",
    ran="rankwise run pipeline.yaml --notify team: `sweep`, `detach`, `report: when-complete`",
    said="Ideally, a PDF with graphical results is generated, and mailed to us automatically.",
)
def test_a_detached_sweep_of_a_pipeline_has_its_report_and_its_news(shop: Shop) -> None:
    shop.write(
        "sweep.yaml",
        """\
        type: Sweep
        command: echo "took ${{size}} s"
        parameters: {size: [1, 2]}
        trials: 2
        metrics:
          - {name: time, unit: s, better: lower, pattern: 'took (?P<value>[0-9.]+) s'}
        report: when-complete
        """,
    )
    shop.write(
        "p.yaml",
        """\
        type: Pipeline
        name: nightly
        stages:
          build: "true"
          bench: {sweep: sweep.yaml, detach: true}
        """,
    )
    with mail_server() as mailbox:
        shop.write(
            "rankwise.toml",
            f"""\
            [notify.team]
            host = "127.0.0.1"
            port = {mailbox.port}
            security = "none"
            from = "robot@example.org"
            to = ["team@example.org"]
            """,
        )
        said = shop.rankwise("run", "p.yaml", "--notify", "team")
        assert said.exit_code == 0, said
        # No process is there any more but the one that drives the sweep.
        shop.wait_until_empty(120)
    subjects = sorted(str(letter["Subject"]) for letter in mailbox.letters)
    assert [one.partition(":")[0] for one in subjects] == [
        "nightly-1 passed",
        "nightly-bench-1 passed",
    ]
    [letter] = [one for one in mailbox.letters if "bench" in one["Subject"]]
    attached = [part.get_filename() for part in letter.iter_attachments()]
    assert attached == ["nightly-bench-1.pdf", "nightly-bench-1.csv"]
    runs = shop.folder / ".rankwise" / "runs"
    assert (runs / "nightly-bench-1" / "report.pdf").read_bytes().startswith(b"%PDF-")
    assert not (runs / "nightly-1" / "report.pdf").exists()


def test_included_documents_are_stages(shop: Shop) -> None:
    shop.write("job.yaml", "type: command\ncommand: echo job $FROM_SETUP\n")
    shop.write(
        "p.yaml",
        """\
        type: Pipeline
        stages:
          setup: export FROM_SETUP=seen
          job: {job: job.yaml}
          ranks: {ranks: 2, run: 'echo rank of $FROM_SETUP'}
          checked: {run: "true"}
        """,
    )
    said = shop.rankwise("run", "p.yaml")
    assert said.exit_code == 0, said
    assert "job seen" in said.output
    assert said.output.count("rank of seen") == 2


# Mistakes, all of them before anything runs


@pytest.mark.parametrize(
    ("stages", "complaint"),
    [
        (
            "a: {needs: c, run: x}\n  b: {needs: a, run: x}\n  c: {needs: [b], run: x}",
            "p.yaml:3:7: a circle: `a` needs `c` needs `b` needs `a`",
        ),
        ("a: x\n  b: {needs: [a, aa], run: x}", "there is no stage `aa`; did you mean `a`?"),
        ("a: {run: x, checks: [{contain: y}]}", "did you mean `contains`?"),
        ("a: {deploy: {from: x, to: file}}", "`a` cannot deploy to"),
        ("a: {checkout: {repository: other, into: dirty}}", "changed by hand in"),
        ("a: {run: x, job: y.yaml}", "a stage has `run` or `job`, not both"),
        ("a: {env: {X: 1}}", "a stage needs one of `run`"),
        ("a: {run: 'echo ${{matrix.x}}'}", "`matrix` has no `x`"),
        ("a: {run: 'echo ${{artifacts.b}}'}", "`artifacts` has no `b`"),
        ("a: {job: nowhere.yaml}", "nowhere.yaml"),
        ("a: {suite: p.yaml}", "includes itself"),
        ("a: {when: failed, run: x}", "`when: failed` needs stages to come after"),
        ("a: {ranks: 3, nodes: 2, run: x}", "3 ranks cannot be shared evenly by 2 nodes"),
        ("a: {run: x, matrix: {n: []}}", "`n` has no values"),
        ("a: {notify: {to: nobody}}", "nobody"),
        ("a.b: x", "the name of a stage has no `.`"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stages: str,
    complaint: str,
) -> None:
    from rankwise.cli.main import main

    shop.write("p.yaml", f"type: Pipeline\nstages:\n  {stages}\n")
    shop.write("file", "")
    if "dirty" in stages:
        lines = (
            "git init -q dirty && cd dirty && echo 1 > f && git add f && "
            "git -c user.name=x -c user.email=x@x commit -qm x && echo 2 > f"
        )
        subprocess.run(["/bin/sh", "-c", lines], cwd=shop.folder, check=True)
    monkeypatch.chdir(shop.folder)
    assert main(["run", "p.yaml"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(("p.yaml:", "rankwise: p.yaml:")), said
    assert complaint in said
    assert not (shop.folder / ".rankwise").exists()


# A pipeline of the shape of examples/theta, whose clients are killed


LIGHT = """\
type: Pipeline
name: light
env: {RELEASE_ROOT: ./releases}
stages:
  setup:
    run: |
      echo begin setup >> ledger
      export BUILD_ROOT=$PWD/build
      mkdir -p build
      echo end setup >> ledger
  build:
    needs: setup
    run: |
      echo begin build >> ledger
      for i in 1 2 3 4 5 6 7 8; do echo whole > $BUILD_ROOT/$i; sleep 0.02; done
      echo end build >> ledger
    artifacts: build/*
  docs:
    needs: setup
    run: echo begin docs >> ledger; sleep 0.1; echo end docs >> ledger
  sanity:
    needs: build
    run: echo begin sanity >> ledger; cat ${{artifacts.build}}/build/8; echo end sanity >> ledger
    checks: [whole]
  deploy:
    needs: sanity
    deploy: {from: build, to: $RELEASE_ROOT, name: only}
  bench:
    needs: deploy
    detach: true
    run: echo begin bench >> ledger; cat releases/current/8; echo end bench >> ledger
  summary:
    needs: [bench, docs]
    run: echo begin summary >> ledger; echo end summary >> ledger
"""
NOTED = ("setup", "build", "docs", "sanity", "bench", "summary")


def run_exists(shop: Shop) -> bool:
    if not (shop.folder / ".rankwise" / "store.db").exists():
        return False
    with Store.open(shop.folder / ".rankwise") as store:
        return any(run.id == "light-1" for run in store.runs())


def test_a_pipeline_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    kills = int(os.environ.get("RANKWISE_KILLS", KILLS))
    chance = random.Random(os.environ.get("RANKWISE_SEED", "11"))
    seconds = 3.0
    for number in range(kills):
        with opened(tmp_path / f"shop-{number}") as shop:
            shop.write("p.yaml", LIGHT)
            client = shop.start("run", "p.yaml", "--quiet")
            begun = time.monotonic()
            time.sleep(chance.uniform(0.3, seconds))
            os.killpg(client.pid, signal.SIGKILL)
            client.communicate()
            again = ["resume", "light-1"] if run_exists(shop) else ["run", "p.yaml"]
            end = shop.rankwise(*again)
            seconds = max(1.0, min(seconds, time.monotonic() - begun))
            assert end.exit_code == 0, end
            releases = shop.folder / "releases"
            assert (releases / "current").readlink() == Path("only")
            assert [(releases / "current" / str(one)).read_text() for one in range(1, 9)] == [
                "whole\n"
            ] * 8
            deadline = time.monotonic() + 60
            while "end bench" not in (shop.folder / "ledger").read_text():
                assert time.monotonic() < deadline, shop.rankwise("status", "light-bench-1")
                time.sleep(0.05)
            lines = Counter((shop.folder / "ledger").read_text().splitlines())
            assert lines == {f"{what} {one}": 1 for what in ("begin", "end") for one in NOTED}
            with Store.open(shop.folder / ".rankwise", read_only=True) as store:
                assert {run.id for run in store.runs()} == {"light-1", "light-bench-1"}
                assert store.counts("light-1")[State.PASSED] == 7
            shop.wait_until_empty()


@sentence(
    "theta-ci-performance",
    ran="rankwise run pipeline.yaml: `wait: {submit, state, done}`",
    stand_in="a script that queues",
)
def test_a_batch_system_of_its_own_is_polled(shop: Shop) -> None:
    """There is no "queue runner": extra logic submits the job and polls on its completion."""
    shop.write(
        "qsub",
        """\
        #!/bin/bash
        (sleep 0.5; echo "rank 0 of 1" > out.txt; echo exited > state) > /dev/null 2>&1 &
        echo running > state
        echo "Job 4711.pbs is queued"
        """,
    ).chmod(0o755)
    shop.write(
        "p.yaml",
        """\
        type: Pipeline
        stages:
          sanity:
            wait:
              submit: setsid ./qsub
              job: Job ([0-9]+)
              state: echo $JOB; cat state
              done: exited
              interval: 0.1
            checks: [{contains: rank 0 of 1, on: out.txt}]
          broken:
            needs: sanity
            wait: {submit: echo 1, state: echo FAILED, done: ok, failed: FAILED, interval: 0.1}
        """,
    )
    said = shop.rankwise("run", "p.yaml")
    assert "submitted as 4711" in said.output
    assert states(shop, "p-1") == {
        "sanity": "passed",
        "broken": "failed wait exited with code 1",
    }, said
    assert "1 has failed" in said.output
    wait_for(shop.folder / "out.txt")


REVERTED = """\
type: Pipeline
stages:
  build: {run: cp source program, inputs: source, outputs: program}
  test: {run: grep -x "$(cat source)" program}
"""


@pytest.mark.parametrize("outputs", [", outputs: program", ""], ids=["said", "not said"])
def test_after_a_revert_the_build_of_another_source_is_not_taken_for_its_own(
    shop: Shop, outputs: str
) -> None:
    shop.write("p.yaml", REVERTED.replace(", outputs: program", outputs))
    for source in ("one", "two", "one"):
        shop.write("source", source)
        said = shop.rankwise("run", "p.yaml", "--quiet")
        assert said.exit_code == 0, said
    assert states(shop, "p-3")["build"] == "passed"
    said = shop.rankwise("run", "p.yaml", "--quiet")
    assert states(shop, "p-4")["build"] == "passed unchanged since p-3"


def test_inputs_that_are_not_there_are_a_mistake(shop: Shop) -> None:
    shop.write(
        "p.yaml", "type: Pipeline\nstages: {a: {run: echo a, inputs: 'srcc/*.c'}, b: echo b}\n"
    )
    said = shop.rankwise("run", "p.yaml", "--quiet")
    assert said.exit_code == 1, said
    found = states(shop, "p-1")
    assert found["a"].startswith("not run `inputs`: no file in ")
    assert found["a"].endswith("fits srcc/*.c")
    assert found["b"] == "not run needs a, which was not run"
