"""One store, many processes."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from rankwise.errors import StoreFailure
from rankwise.store.rows import State
from rankwise.store.store import FILE, Store
from tests.store.children import go, started
from tests.store.invariants import check_store
from tests.store.samples import begin, new_run


def test_twenty_processes_at_once_make_one_store_and_no_number_twice(folder: Path) -> None:
    with started(*[("create_runs", folder, "job", 5)] * 20) as children:
        ids = [run for said in go(children) for run in said.split()]
    assert sorted(ids) == sorted(f"job-{number}" for number in range(1, 101))
    check_store(folder)


def test_several_engines_and_a_follower_work_side_by_side(store: Store, folder: Path) -> None:
    keys = [f"t{number}" for number in range(30)]
    runs = [new_run(store, *keys, name=name) for name in "abc"]
    with started(*(("end_runs", folder, run) for run in runs), ("follow", folder, "a-1")) as all_:
        *_, followed = go(all_)
    lines = followed.splitlines()
    assert [line for line in lines if line.startswith("task_over")] == [
        f"task_over {key}" for key in keys
    ]
    assert (lines[0].strip(), lines[-1].strip()) == ("run_created", "run_ended")
    assert {store.run(run).state for run in runs} == {State.PASSED}
    check_store(folder)


def test_an_end_that_several_processes_take_in_is_taken_in_once(store: Store, folder: Path) -> None:
    keys = [f"t{number}" for number in range(50)]
    run = new_run(store, *keys)
    with store.together():
        for key in keys:
            begin(store, run, key)
    with started(*[("take_in_twice", folder, run)] * 4) as children:
        news = [int(said) for said in go(children)]
    assert sum(news) == 2 * len(keys)
    assert store.counts(run)[State.PASSED] == len(keys)
    check_store(folder)


def test_a_killed_writer_leaves_a_whole_store(folder: Path) -> None:
    moments = random.Random(4)
    for _ in range(12):
        with started(("write_for_ever", folder), ("write_for_ever", folder)) as children:
            time.sleep(moments.uniform(0.0, 0.2))
            for child in children:
                child.kill()
        check_store(folder)
        with Store.open(folder) as store:
            left, right = ([*store.runs(10**6, name=name)] for name in ("left", "right"))
            assert len(left) == len(right), "what was to be stored together is"
    assert left


def test_a_writer_that_is_killed_at_the_first_moment_leaves_a_whole_store(tmp_path: Path) -> None:
    moments = random.Random(5)
    for number in range(12):
        folder = tmp_path / str(number)
        with started(("write_for_ever", folder)) as (child,):
            time.sleep(moments.uniform(0.0, 0.03))
            child.kill()
            child.wait(timeout=60)
        with Store.open(folder) as store:
            new_run(store)
        check_store(folder)


def test_a_store_that_is_locked_can_be_read_but_not_written(store: Store, folder: Path) -> None:
    run = new_run(store)
    with (
        started(("hold_the_lock", folder)),
        Store.open(folder, patience=0.2) as other,
        Store.open(folder, read_only=True, patience=0.2) as viewer,
    ):
        assert other.run(run) == viewer.run(run)
        with pytest.raises(StoreFailure) as caught:
            other.run_started(run, now=11.0)
    message = str(caught.value)
    assert message.startswith(
        f"{folder / FILE}: another process has kept the store locked for 0.2 s"
    )
    assert f"fuser {folder / FILE}" in message
    assert store.run_started(run, now=12.0), "the lock went with its holder"


def test_who_is_patient_writes_when_the_lock_is_gone(store: Store, folder: Path) -> None:
    run = new_run(store)
    with started(("hold_the_lock", folder), ("end_runs", folder, run)) as (holder, writer):
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
        # Longer than SQLite waits in one go.
        time.sleep(1.0)
        assert store.run(run).state is State.QUEUED
        go([holder])
        assert writer.wait(timeout=60) == 0
    assert store.run(run).state is State.PASSED


def test_a_store_is_closed_by_its_block_and_may_be_closed_again(folder: Path) -> None:
    with Store.open(folder) as store:
        assert (store.path, store.folder) == (folder / FILE, folder)
        assert store.run_folder("job-1") == folder / "runs" / "job-1"
        new_run(store)
    store.close()
    with pytest.raises(StoreFailure, match="closed"):
        store.runs()
    assert [path.name for path in folder.iterdir()] == [FILE], "nothing else is left beside it"
