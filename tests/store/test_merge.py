"""One store merged into another: all of it or nothing, and nothing twice."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.errors import InputError, StoreFailure
from rankwise.plan import MERGED, NOTIFIED, REPORTED, Plan
from rankwise.store import schema
from rankwise.store.rows import State
from rankwise.store.samples import Sample
from rankwise.store.store import FILE, Store
from tests.store.children import NEXT_STEP, started
from tests.store.invariants import check_store
from tests.store.samples import FAILED, PASSED, PROCESSES, simple_task


def measured_run(
    store: Store, site: str, *, created: float, values: tuple[float, ...] = (1.0, 2.0)
) -> str:
    """Store a run that is over, with a value of each of its trials but the last, which failed."""
    keys = [f"size-8.t{number}" for number in range(1, len(values) + 2)]
    tags = {"site": site, NOTIFIED: "team", REPORTED: "when-complete"}
    plan = Plan(
        name="osu",
        kind="Sweep",
        tasks=tuple(map(simple_task, keys)),
        source=f"/{site}/osu.yaml",
        tags=tags,
    )
    run = store.create_run(plan, "type: Sweep\n", now=created)
    store.run_started(run, now=created)
    for number, key in enumerate(keys):
        outcome = PASSED if number < len(values) else FAILED
        marker = f"rw-{site}-{created}-{key}"
        store.begin_attempt(run, key, marker=marker, folder=Path("/there"), now=created)
        store.attempt_ended(run, key, 1, outcome, PROCESSES)
        store.task_over(run, key, outcome.state, exit_code=outcome.exit_code, now=created)
        if number < len(values):
            sample = Sample(metric="latency", value=values[number], unit="us", better="lower")
            about = {"host": site}
            store.add_samples(
                run, key, 1, [sample], case="size=8", trial=number + 1, conditions=about
            )
    store.run_ended(run, State.FAILED, exit_code=7, now=created + 1)
    return run


def values_in(store: Store) -> dict[str, list[float]]:
    """Return the values of all runs by the names of their sites and ids."""
    return {run.id: [row.value for row in store.samples_of_run(run.id)] for run in store.runs(100)}


@pytest.fixture
def site_b(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "site b's" / ".rankwise") as opened:
        yield opened


def test_runs_are_merged_with_all_that_is_known_of_them(store: Store, site_b: Store) -> None:
    run = measured_run(site_b, "b", created=20.0)
    merged = store.merge(site_b.path)
    assert (merged.ids, merged.known, merged.waiting, merged.samples) == ({run: run}, 0, [], 2)
    assert store.samples_of_run(run)[0].value == 1.0
    assert store.counts(run)[State.FAILED] == 1
    assert store.processes(run, "size-8.t1", 1) == site_b.processes(run, "size-8.t1", 1)
    assert store.conditions(run) == site_b.conditions(run)
    kinds = [event.kind for event in site_b.events_after(run)]
    assert [event.kind for event in store.events_after(run)] == kinds
    assert store.spec_text(run) == "type: Sweep\n"
    tags = store.run(run).tags
    assert tags == {"site": "b", MERGED: f"osu-1 of {site_b.path}, /b/osu.yaml"}
    check_store(store.folder)


def test_what_was_merged_is_not_merged_again_from_either_side(store: Store, site_b: Store) -> None:
    measured_run(store, "a", created=10.0)
    measured_run(site_b, "b", created=20.0)
    store.merge(site_b.path)
    before = values_in(store)
    again = store.merge(site_b.path)
    assert (again.ids, again.known, again.samples) == ({}, 1, 0)
    back = site_b.merge(store.path)
    assert (back.ids, back.known, back.samples) == ({"osu-1": "osu-2"}, 1, 2)
    assert store.merge(site_b.path).ids == {}
    assert values_in(store) == before
    [series] = store.series()
    assert len(store.history(series.id)) == 4
    check_store(site_b.folder)


def test_an_id_that_is_taken_is_said_and_the_order_is_that_of_creation(
    store: Store, site_b: Store
) -> None:
    for created, value in ((20.0, 1.0), (40.0, 3.0)):
        measured_run(store, "a", created=created, values=(value,))
    for created, value in ((10.0, 0.0), (30.0, 2.0)):
        measured_run(site_b, "b", created=created, values=(value,))
    assert store.merge(site_b.path).ids == {"osu-1": "osu-3", "osu-2": "osu-4"}
    # Trends read histories in this order, and the newest run is the one that was made last.
    [series] = store.series()
    assert [row.value for row in store.history(series.id)] == [0.0, 1.0, 2.0, 3.0]
    assert [run.id for run in store.runs()] == ["osu-2", "osu-4", "osu-1", "osu-3"]
    assert store.conditions("osu-3")["size-8.t1", 1] == {"host": "b"}
    check_store(store.folder)


def test_a_run_that_is_not_over_waits_for_the_next_merge(store: Store, site_b: Store) -> None:
    plan = Plan(name="osu", kind="Sweep", tasks=(simple_task("a"),))
    run = site_b.create_run(plan, "", now=30.0)
    assert store.merge(site_b.path).waiting == [run]
    assert store.runs() == []
    site_b.task_over(run, "a", State.PASSED, exit_code=0, now=31.0)
    site_b.run_ended(run, State.PASSED, exit_code=0, now=31.0)
    assert store.merge(site_b.path).ids == {run: run}


def test_nothing_that_ran_elsewhere_is_taken_for_what_ran_here(store: Store, site_b: Store) -> None:
    plan = Plan(name="p", kind="Pipeline", tasks=(simple_task("setup"),), source="/b/p.yaml")
    run = site_b.create_run(plan, "", now=1.0)
    site_b.note_digest(run, "setup", "digest")
    site_b.task_over(run, "setup", State.PASSED, exit_code=0, now=2.0)
    site_b.run_ended(run, State.PASSED, exit_code=0, now=2.0)
    store.merge(site_b.path)
    assert site_b.passed_with("digest") is not None
    assert store.passed_with("digest") is None
    assert store.passed_before("/b/p.yaml", "setup") is None
    assert store.last_run_of("/b/p.yaml") is None


def test_children_belong_to_the_run_that_submitted_them_under_its_new_id(
    store: Store, site_b: Store
) -> None:
    measured_run(store, "a", created=10.0)
    parent = measured_run(site_b, "b", created=20.0)
    plan = Plan(name="bench", kind="Sweep", tasks=())
    child = site_b.create_run(plan, "", now=21.0, parent=parent)
    site_b.run_ended(child, State.PASSED, exit_code=0, now=22.0)
    ids = store.merge(site_b.path).ids
    assert ids == {parent: "osu-2", child: child}
    assert [run.id for run in store.children("osu-2")] == [child]
    assert store.children("osu-1") == []


def test_an_older_store_is_read(
    store: Store, site_b: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = measured_run(site_b, "b", created=20.0)
    site_b.close()
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, NEXT_STEP))
    store.close()
    with Store.open(folder) as newer:
        assert newer.merge(site_b.path).ids == {run: run}


def test_a_newer_store_is_refused(
    store: Store, site_b: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(schema, "STEPS", (*schema.STEPS, NEXT_STEP))
        Store.open(site_b.folder).close()
    with pytest.raises(StoreFailure, match=r"Use rankwise 7\.8\.9 or newer"):
        store.merge(site_b.path)
    assert store.runs() == []


def test_what_is_no_other_store_is_refused(store: Store, site_b: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this is the store itself"):
        store.merge(store.path)
    with pytest.raises(StoreFailure, match="there is no store"):
        store.merge(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("no database at all, only words\n" * 100)
    with pytest.raises(StoreFailure, match=r"text\.db: this file is not a store"):
        store.merge(tmp_path / "text.db")
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("CREATE TABLE runs (id TEXT)")
    with pytest.raises(StoreFailure, match=r"other\.db: this is the database of another program"):
        store.merge(tmp_path / "other.db")
    for number in range(30):
        measured_run(site_b, "b", created=20.0 + number)
    site_b.close()
    content = bytearray(site_b.path.read_bytes())
    # Where rows are: the tables can still be found.
    middle = len(content) // 2
    content[middle:-4096] = random.Random(1).randbytes(len(content) - middle - 4096)
    (tmp_path / "damaged.db").write_bytes(content)
    with pytest.raises(StoreFailure, match=r"damaged\.db: the store is damaged"):
        store.merge(tmp_path / "damaged.db")
    # It is not this store that is damaged, and it goes on.
    assert store.runs() == []
    measured_run(store, "a", created=1.0)
    check_store(store.folder)


def test_a_copy_without_the_right_to_write_its_folder_is_read(
    store: Store, site_b: Store, tmp_path: Path
) -> None:
    run = measured_run(site_b, "b", created=20.0)
    site_b.close()
    place = tmp_path / "fixed"
    place.mkdir()
    shutil.copy(site_b.path, place / "b.db")
    place.chmod(0o500)
    try:
        assert store.merge(place / "b.db").ids == {run: run}
    finally:
        place.chmod(0o700)


def test_stores_in_use_are_merged_and_a_kill_leaves_nothing_half_done(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    with Store.open(tmp_path / "busy") as busy, busy.together():
        for number in range(60):
            measured_run(busy, "b", created=1.0 + number, values=(0.5,) * 20)
    with started(("write_for_ever", folder), ("write_for_ever", tmp_path / "busy")):
        times = []
        for number in range(8):
            with started(("merge_for_ever", folder, tmp_path / "busy")) as [child]:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
                # From before it begins to after it has ended.
                time.sleep(0.01 * number)
                os.kill(child.pid, signal.SIGKILL)
                child.wait(60)
            counts = {run.id: len(store.samples_of_run(run.id)) for run in store.runs(10_000)}
            times.append(sum(name.startswith("osu-") for name in counts))
            # All of them or none, each with all of its samples.
            assert times[-1] in (0, 60)
            assert {n for name, n in counts.items() if name.startswith("osu-")} <= {20}
        store.merge(tmp_path / "busy" / FILE)
    ours = [run for run in store.runs(10_000) if MERGED in run.tags]
    assert len([run for run in ours if run.name == "osu"]) == 60
    check_store(folder)
    assert times == sorted(times)
