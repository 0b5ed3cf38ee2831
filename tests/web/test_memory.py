"""Pages that were made a moment ago."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from markupsafe import Markup

from bench import served_runs
from rankwise.store import State, Store
from rankwise.web.pages import PageContent, PageRequest, address, counts_of, run_address
from rankwise.web.store_access import PageCache, Readers, StoreThread


class Maker:
    """Makes pages, and counts them."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.count = 0

    def __call__(self) -> PageContent:
        self.count += 1
        content = Markup(f"<p>made {self.count} times</p>")
        return PageContent(title="x", content=content, changes="/changes", interval=self.interval)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, StoreThread]]:
    """One who writes, and a desk that only reads."""
    with Store.open(tmp_path) as writer, Store.open(tmp_path, read_only=True) as reader:
        yield writer, StoreThread(reader, 0)


def test_a_page_is_made_again_when_something_has_changed_or_time_has_passed(
    stores: tuple[Store, StoreThread],
) -> None:
    store, thread = stores
    run = served_runs.make_run(store, "job", "Suite", [served_runs.task("a")], at=1.0)
    memory, make = PageCache(), Maker(1.0)
    ask, later = PageRequest(run=run, now=100.1), PageRequest(run=run, now=101.0)
    first = memory.page(thread, ask, "/", make)
    assert memory.page(thread, ask, "/", make) == first
    assert make.count == 1
    memory.page(thread, ask, "/other", make)
    assert make.count == 2
    store.want_cancel(run, now=2.0)
    memory.page(thread, ask, "/", make)
    assert make.count == 3
    memory.page(thread, later, "/", make)
    assert make.count == 4


def test_a_slow_page_is_kept_for_all_until_it_is_due_or_the_run_is_over(
    stores: tuple[Store, StoreThread],
) -> None:
    store, thread = stores
    run = served_runs.make_run(store, "job", "Suite", [served_runs.task("a")], at=1.0)
    memory, make = PageCache(), Maker(20.0)
    memory.page(thread, PageRequest(run=run, now=100.0), "/", make)
    store.want_cancel(run, now=2.0)
    with Store.open(store.folder, read_only=True) as other:
        memory.page(StoreThread(other, 0), PageRequest(run=run, now=119.0), "/", make)
    assert make.count == 1
    memory.page(thread, PageRequest(run=run, now=120.0), "/", make)
    assert make.count == 2
    store.task_over(run, "a", State.CANCELLED, now=3.0)
    store.run_ended(run, State.CANCELLED, exit_code=1, now=3.0)
    memory.page(thread, PageRequest(run=run, now=121.0), "/", make)
    assert make.count == 3


def test_few_pages_are_remembered(stores: tuple[Store, StoreThread]) -> None:
    store, thread = stores
    run = served_runs.make_run(store, "job", "Suite", [served_runs.task("a")], at=1.0)
    memory = PageCache()
    for number in range(100):
        memory.page(thread, PageRequest(run=run, now=1.0), f"/{number}", Maker(1.0))
        memory.page(thread, PageRequest(run=run, now=1.0), f"/slow/{number}", Maker(9.0))
    assert len(thread.memory) == len(memory._slow) == 16


def test_tasks_are_counted_again_only_after_a_change(stores: tuple[Store, StoreThread]) -> None:
    store, thread = stores
    run = served_runs.make_run(store, "job", "Suite", [served_runs.task("a")], at=1.0)
    row = thread.store.run(run)
    assert counts_of(thread.store, row)[State.SKIPPED] == 0
    store.task_over(run, "a", State.SKIPPED, now=3.0)
    assert counts_of(thread.store, row)[State.SKIPPED] == 1
    served_runs.finish(store, run, at=4.0)
    over = thread.store.run(run)
    assert counts_of(thread.store, over) is counts_of(thread.store, over)


def test_addresses_hold_whatever_names_do() -> None:
    assert run_address("a/b?c#d", "task", task="x&y=z +\0") == (
        "/runs/a%2Fb%3Fc%23d/task?task=x%26y%3Dz+%2B%00"
    )
    assert address("/", state="", page=None, words="ä") == "/?words=%C3%A4"
    assert address("/", words="\ud800") == "/?words=%3F"
    asked = PageRequest(
        path="/", query={"words": " a\0b ", "page": "²", "order": "x", "task": " k\0"}
    )
    assert (asked.text("words"), asked.name("task")) == ("ab", " k\0")
    assert asked.number("page") == asked.number("none") == 1
    assert asked.choice("order", {"plan": 1}, "plan") == "plan"
    assert asked.link(page=2, words=None) == "/?page=2&order=x&task=+k%00"


def test_a_thread_keeps_its_connection_and_closes_it_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.open(tmp_path).close()
    closed: list[Store] = []

    def close(store: Store) -> None:
        closed.append(store)

    monkeypatch.setattr(Store, "close", close)

    async def ask_twice() -> list[StoreThread]:
        readers = Readers(tmp_path, threads=1)
        try:
            return [await readers.ask(lambda thread: thread) for _ in range(2)]
        finally:
            await asyncio.to_thread(readers.close)

    first, second = asyncio.run(ask_twice())
    assert first is second
    assert closed == [first.store]
