"""Pages that were made a moment ago."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest
from markupsafe import Markup

from bench import served_runs
from rankwise.store import State, Store
from rankwise.web import events
from rankwise.web.events import ALIVE, Feed, changes, event_stream
from rankwise.web.logs import LogPosition, log_of, log_stream
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
    assert len(memory._pages) == 64


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


# Who is told when something is new

_PATIENCE = 20.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / ".rankwise")


def in_loop(store: Store, act: Callable[[Readers, Feed], Awaitable[None]]) -> None:
    """Do something with a feed of a store, and close all."""

    async def do() -> None:
        readers = Readers(store.folder, threads=1)
        feed = Feed(readers, pause=0.01)
        going = asyncio.create_task(feed.go())
        try:
            await asyncio.wait_for(act(readers, feed), _PATIENCE)
        finally:
            going.cancel()
            readers.close()

    asyncio.run(do())
    store.close()


async def told(source: AsyncGenerator[bytes, None]) -> int:
    """Return the event that a stream tells of next."""
    async for part in source:
        if part.startswith(b"id:"):
            assert b"event: change" in part
            return int(part.split()[1])
    raise AssertionError("the stream has ended")


def test_what_happens_before_the_first_look_is_told(store: Store) -> None:
    run = served_runs.make_run(store, "one", "Suite", [served_runs.task("a")], at=1.0)

    async def act() -> None:
        readers = Readers(store.folder, threads=1)
        feed = Feed(readers)
        try:
            with feed.watching(run, 0) as subscriber:
                seen = await feed.newest(run)
                store.add_event(run, "something", {}, now=2.0)
                await feed.look()
                assert subscriber.news.is_set()
                assert subscriber.last > seen
        finally:
            readers.close()

    asyncio.run(act())
    store.close()


def test_a_reader_gets_only_events_of_the_runs_that_it_watches(store: Store) -> None:
    first = served_runs.make_run(store, "one", "Suite", [served_runs.task("a")], at=1.0)
    second = served_runs.make_run(store, "two", "Suite", [served_runs.task("a")], at=1.0)

    async def act(readers: Readers, feed: Feed) -> None:
        with (
            feed.watching(first, store.last_event(first)) as one,
            feed.watching(second, store.last_event(second)) as two,
            feed.watching(None, store.last_event()) as both,
        ):
            await feed.look()
            assert [subscriber.news.is_set() for subscriber in (one, two, both)] == [False] * 3
            store.want_cancel(first, now=2.0)
            await both.news.wait()
            assert one.news.is_set()
            assert not two.news.is_set()
            assert one.last == both.last == store.last_event()
            assert feed.count == 3
        assert feed.count == 0

    in_loop(store, act)


def test_what_came_between_the_page_and_the_stream_is_told_at_once(store: Store) -> None:
    run = served_runs.make_run(store, "one", "Suite", [served_runs.task("a")], at=1.0)
    seen = store.last_event(run)
    store.want_cancel(run, now=2.0)

    async def act(readers: Readers, feed: Feed) -> None:
        for which in (run, None):
            async with aclosing(changes(feed, which, seen)) as source:
                assert await told(source) == store.last_event()

    in_loop(store, act)


def test_streams_end_with_the_server(store: Store) -> None:
    run = served_runs.make_run(store, "one", "Suite", [served_runs.task("a")], at=1.0)

    async def act(readers: Readers, feed: Feed) -> None:
        async with aclosing(changes(feed, run, store.last_event(run))) as source:
            waiting = asyncio.create_task(anext(source))
            while not feed.count:
                await asyncio.sleep(0.01)
            feed.close()
            # It has one more word, or none if it had not begun to wait yet.
            with suppress(StopAsyncIteration):
                await waiting
            assert [part async for part in source] == []
        assert feed.count == 0

    in_loop(store, act)


def test_a_browser_that_leaves_is_forgotten(store: Store) -> None:
    run = served_runs.make_run(store, "one", "Suite", [served_runs.task("a")], at=1.0)

    async def act(readers: Readers, feed: Feed) -> None:
        sent = []
        leave = asyncio.Event()

        async def receive() -> dict[str, object]:
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: object) -> None:
            sent.append(message)

        answer = event_stream(changes(feed, run, store.last_event(run)))
        going = asyncio.create_task(answer({"type": "http"}, receive, send))
        while not feed.count:
            await asyncio.sleep(0.01)
        leave.set()
        await going
        assert feed.count == 0
        assert len(sent) >= 1

    in_loop(store, act)


def test_silence_is_broken_now_and_then(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_HEARTBEAT_SECONDS", 0.01)
    run = served_runs.make_run(store, "one", "Suite", [served_runs.task("a")], at=1.0)

    async def act(readers: Readers, feed: Feed) -> None:
        async with aclosing(changes(feed, run, store.last_event(run))) as source:
            assert await anext(source) == b": alive\n\n"

    in_loop(store, act)


def test_a_store_that_is_away_for_a_moment_ends_nothing(store: Store, tmp_path: Path) -> None:
    run = served_runs.make_run(store, "one", "Suite", [served_runs.task("a")], at=1.0)

    async def act(readers: Readers, feed: Feed) -> None:
        with feed.watching(run, store.last_event(run)) as subscriber:
            await feed.look()
            store.folder.rename(tmp_path / "away")
            await asyncio.sleep(0.05)
            (tmp_path / "away").rename(store.folder)
            with Store.open(store.folder) as again:
                again.want_cancel(run, now=2.0)
            await subscriber.news.wait()

    in_loop(store, act)


def test_a_log_is_followed_to_its_end(store: Store) -> None:
    run = served_runs.make_run(store, "one", "Suite", [served_runs.task("a")], at=1.0)
    folder = served_runs.begin(store, run, "a", at=2.0, logs={"rank-0": "one\n"})
    log = folder / "processes" / "rank-0" / "output.log"

    async def act(readers: Readers, feed: Feed) -> None:
        found = await readers.ask(lambda thread: log_of(thread.store, PageRequest(run=run)))
        assert found is not None
        kinds, lines = [], []
        async for part in log_stream(readers, feed, found, LogPosition()):
            if part == ALIVE:
                continue
            _, kind, data = part.decode().strip().split("\n")
            kinds.append(kind)
            if kind == "event: lines":
                lines += json.loads(data.removeprefix("data: "))
            if lines == ["one"]:
                with log.open("a") as file:
                    file.write("<two>\nthree")
                served_runs.end(store, run, "a", at=3.0)
        assert lines == ["one", "&lt;two&gt;", "three"]
        assert kinds[-1] == "event: over"

    in_loop(store, act)


def test_of_too_many_lines_the_last_ones_are_told(store: Store) -> None:
    run = served_runs.make_run(store, "one", "Suite", [served_runs.task("a")], at=1.0)
    text = "".join(f"{number}\n" for number in range(5000))
    served_runs.begin(store, run, "a", at=2.0, logs={"rank-0": text})
    served_runs.end(store, run, "a", at=3.0)

    async def act(readers: Readers, feed: Feed) -> None:
        found = await readers.ask(lambda thread: log_of(thread.store, PageRequest(run=run)))
        assert found is not None
        parts = [part async for part in log_stream(readers, feed, found, LogPosition())]
        assert parts[0] == ALIVE
        lines = json.loads(parts[1].decode().strip().split("\n")[2].removeprefix("data: "))
        assert "4000 lines left out" in lines[0]
        assert lines[1:] == [str(number) for number in range(4000, 5000)]

    in_loop(store, act)
