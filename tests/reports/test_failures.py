"""Why runs are not green."""

from __future__ import annotations

import io

from rich.console import Console

from rankwise.plan import Process, Task, later
from rankwise.reports.failures import Quote, explain_run, explain_task, without_starters
from rankwise.reports.terminal.run_end import show_explanation, show_in_brief, show_run_explanation
from rankwise.store import ProcessRow, State, Store
from tests.reports.made_runs import (
    BEGUN,
    begin,
    end,
    failed_run,
    make_run,
    one_task,
    passed_run,
    worker,
)


def console(stream: io.StringIO) -> Console:
    return Console(file=stream, width=1000, markup=False, highlight=False)


def shown(store: Store, run: str, *, is_brief: bool = False) -> str:
    stream = io.StringIO()
    explained = explain_run(store, run)
    if is_brief:
        show_in_brief(console(stream), explained, room=20)
    else:
        show_run_explanation(console(stream), explained)
    return stream.getvalue()


def test_a_run_that_passed_needs_no_explanation(store: Store) -> None:
    explained = explain_run(store, passed_run(store))
    assert not explained
    assert not explained.first
    assert not explained.others


def test_who_failed_is_named_with_its_last_lines_and_the_others_fates(store: Store) -> None:
    run = failed_run(store)
    folder = store.folder / "runs" / run / "train" / "1"
    assert (
        shown(store, run)
        == f"""\
train failed: worker 1 exited with code 7
  first to fail  worker 1, after 2.0 s
  command        python train.py
  folder         {folder}/nodes/node1
  log            {folder}/processes/worker-1/output.log
  worker 1 wrote last:
  | step 1
  | ValueError: no
  The others:
    worker 0: ended by rankwise

"""
    )


def test_in_brief_there_are_only_the_reason_and_the_lines(store: Store) -> None:
    assert (
        shown(store, failed_run(store), is_brief=True)
        == """\
train failed: worker 1 exited with code 7
  worker 1 wrote last:
  | step 1
  | ValueError: no

"""
    )


def test_a_rank_without_a_log_is_quoted_from_its_launcher(store: Store) -> None:
    command = ("mpirun", "--hostfile", later("folder") + "/hostfile", "python", "a b.py")
    launcher = Process(name="launcher", role="launcher", command=command)
    run = make_run(store, Task(key="train", processes=(launcher,), folder="/work", width=4))
    folder = begin(store, run, logs={"launcher": "rank 3 is unhappy\n\n\n"})
    culprit = ProcessRow(
        name="rank-3", role="rank", rank=3, exit_code=7, started=BEGUN, ended=BEGUN + 1
    )
    others = tuple(
        ProcessRow(name=f"rank-{number}", role="rank", rank=number, signal=15, started=BEGUN)
        for number in range(3)
    )
    boss = ProcessRow(name="launcher", role="launcher", exit_code=1, started=BEGUN)
    end(
        store,
        run,
        state=State.FAILED,
        exit_code=7,
        culprit="rank-3",
        reason="rank 3 exited with code 7",
        processes=(boss, *others, culprit),
    )
    (one,) = explain_run(store, run).first
    assert one.culprit == "rank-3"
    assert f" '{folder}/hostfile' python 'a b.py'" in one.command
    assert one.folder == "/work"
    assert one.log is None
    assert one.quotes == (Quote(process="launcher", lines=("rank 3 is unhappy",)),)
    assert one.fates == (
        ("exited with code 1", ("launcher",)),
        ("ended by signal 15 (SIGTERM)", ("rank-0", "rank-1", "rank-2")),
    )
    assert "rank 0-2: ended by signal 15 (SIGTERM)" in shown(store, run)


def test_without_a_culprit_each_process_is_quoted_with_a_line(store: Store) -> None:
    run = make_run(store)
    begin(store, run, logs={"worker-0": "a\nwaiting\n", "worker-1": "b\ncomputing\n"})
    end(
        store,
        run,
        state=State.TIMED_OUT,
        exit_code=124,
        reason="over its limit of 60 s",
        processes=(worker(0, None, signal=9, by_us=True), worker(1, None, signal=9, by_us=True)),
    )
    text = shown(store, run)
    assert "train timed out: over its limit of 60 s\n" in text
    assert "  worker 0 | waiting\n  worker 1 | computing\n" in text
    assert "  The processes:\n    worker 0-1: ended by rankwise\n" in text


def test_only_what_failed_first_is_explained_and_the_rest_is_grouped(store: Store) -> None:
    keys = [f"task-{number}" for number in range(9)]
    run = make_run(store, *(one_task(key, ranks=1) for key in keys))
    for number, key in enumerate(keys[:5]):
        begin(store, run, key, logs={"worker-0": f"{key}\n"})
        end(
            store,
            run,
            key,
            state=State.FAILED,
            exit_code=1,
            reason="worker 0 exited with code 1",
            after=20 - number,
        )
    for key in keys[5:]:
        store.task_over(run, key, State.NOT_RUN, reason="needs 4 GPUs, found 0", now=BEGUN)
    explained = explain_run(store, run)
    assert [one.task for one in explained.first] == ["task-4", "task-3", "task-2"]
    assert [(group.state, group.tasks) for group in explained.others] == [
        (State.FAILED, ("task-0", "task-1")),
        (State.NOT_RUN, ("task-5", "task-6", "task-7", "task-8")),
    ]
    text = shown(store, run, is_brief=True)
    assert "task-0 and task-1 failed: worker 0 exited with code 1\n" in text
    assert "task-5, task-6, task-7 and 1 more not run: needs 4 GPUs, found 0\n" in text


def test_very_many_reasons_are_only_counted(store: Store) -> None:
    keys = [f"task-{number}" for number in range(30)]
    run = make_run(store, *(one_task(key, ranks=1) for key in keys))
    for number, key in enumerate(keys):
        store.task_over(run, key, State.NOT_RUN, reason=f"reason {number}", now=BEGUN)
    assert "\n20 more tasks for 20 more reasons\n" in shown(store, run)


def test_a_task_that_was_tried_again_is_explained_by_its_last_attempt(store: Store) -> None:
    run = make_run(store)
    begin(store, run, logs={"worker-0": "first\n"})
    end(store, run, state=State.FAILED, exit_code=1, culprit="worker-0", is_over=False)
    begin(store, run, logs={"worker-0": "second\n"})
    end(store, run, state=State.LOST, exit_code=1, reason="its runner was killed")
    one = explain_task(store, store.task_row(run, "train"))
    assert one.attempts == 2
    assert one.quotes == (Quote(process="worker-0", lines=("second",)),)
    stream = io.StringIO()
    show_explanation(console(stream), one, is_brief=True)
    assert stream.getvalue().startswith("train lost: its runner was killed (attempt 2)\n")


def test_what_processes_wrote_cannot_disturb_the_terminal(store: Store) -> None:
    run = make_run(store)
    begin(store, run, logs={"worker-0": "[red]\x1b[2J\x1b[31mbad\x1b[0m\tend\n"})
    end(store, run, state=State.FAILED, exit_code=1, culprit="worker-0", processes=(worker(0, 1),))
    assert "  | [red]bad        end\n" in shown(store, run)


def test_a_process_without_an_end_is_said_to_have_none(store: Store) -> None:
    run = make_run(store)
    folder = begin(store, run, logs={"worker-0": "", "worker-1": ""})
    (folder / "processes" / "worker-0" / "start.json").write_text('{"started": 1.0}')
    end(store, run, state=State.LOST, exit_code=1, reason="its runner was killed")
    (one,) = explain_run(store, run).first
    assert one.fates == (
        ("left no record of its end", ("worker-0",)),
        ("never started", ("worker-1",)),
    )


# Frames that only start a program are left out of what is quoted

_WRITTEN = """\
before
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/venv/lib/python3.11/site-packages/mpi4py/__main__.py", line 8, in <module>
    main()
  File "/venv/lib/python3.11/site-packages/mpi4py/run.py", line 53, in run_command_line
    run_path(sys.argv[0], run_name="__main__")
    ^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/runpy.py", line 291, in run_path
  File "boom.py", line 4, in <module>
    raise ValueError("boom")
ValueError: boom
  indented output of a program
""".splitlines()


def test_only_the_frames_of_the_program_stay() -> None:
    assert without_starters(_WRITTEN) == [
        "before",
        "Traceback (most recent call last):",
        '  File "boom.py", line 4, in <module>',
        '    raise ValueError("boom")',
        "ValueError: boom",
        "  indented output of a program",
    ]


def test_other_output_stays_as_it_is() -> None:
    lines = ["", "  File", '  File "mine.py", line 3', "    x", "plain"]
    assert without_starters(lines) == lines
