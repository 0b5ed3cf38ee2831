"""The live page of a run of 10,000 tasks: how soon it is there, and what an update costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from bench import served_runs
from bench.measure import BenchError, median
from bench.serving import serving
from bench.table import Table, judge
from rankwise.store import Store
from rankwise.web.events import Feed
from rankwise.web.pages import PageRequest, whole
from rankwise.web.runs import tasks_page
from rankwise.web.store_access import Readers

_TASKS, _DONE = 10_000, 6_000
_CLIENTS = 20
_ROUNDS = 50
_PAINT_MILLISECONDS = 1000.0
_UPDATE_MILLISECONDS = 5.0
_CHROMIUM = "/usr/bin/chromium"
_PAINTED = """() => new Promise((done) => {
    const look = () => {
        const found = performance.getEntriesByName("first-contentful-paint")[0];
        if (found) done(found.startTime); else setTimeout(look, 10);
    };
    look();
})"""


def run(folder: Path, repetitions: int) -> Table:
    """Measure both."""
    table = Table(
        title=f"The live page of {_TASKS:,} tasks, medians", headings=("ms", "most", "target")
    )
    with Store.open(folder / ".rankwise") as store:
        name = served_runs.add_many(store, tasks=_TASKS, done=_DONE, at=time.time() - 120)
        for path in ("/", f"/runs/{name}", f"/runs/{name}/timeline"):
            target = None if path.endswith("timeline") else _PAINT_MILLISECONDS
            _add(table, f"first paint of {path}", _paints(folder, path, repetitions), target)
        for words, seconds in _updates(store, name).items():
            target = _UPDATE_MILLISECONDS if words.startswith("an update") else None
            _add(table, words, [1000 * one for one in seconds], target)
    table.remarks.append("Paint: wall time in Chromium. The others: CPU time of the server.")
    return table


def _add(table: Table, name: str, values: list[float], target: float | None) -> None:
    middle = median(values)
    table.rows.append((name, f"{middle:.2f}", f"{max(values):.2f}", judge(middle, target)))


def _paints(folder: Path, path: str, repetitions: int) -> list[float]:
    """Open a page in a browser that has never seen it, again and again."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise BenchError(
            "first paint is measured with playwright: pip install '.[test]'"
        ) from error
    found = []
    with serving(folder / ".rankwise") as server, sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=_CHROMIUM, args=["--no-sandbox"])
        for _ in range(repetitions):
            context = browser.new_context()
            page = context.new_page()
            page.goto(server.address)
            page.wait_for_url(f"{server.base}/")
            page.goto(f"{server.base}{path}")
            found.append(float(page.evaluate(_PAINTED)))
            context.close()
        browser.close()
    return found


def _updates(store: Store, run: str) -> dict[str, list[float]]:
    """Change the run, and measure what it takes to notice, to wake all, and to make the page."""
    found: dict[str, list[float]] = {"noticed, and 20 woken": [], "page made": [], "no change": []}

    async def measure() -> None:
        readers = Readers(store.folder, threads=1)
        feed = Feed(readers)
        watches = [feed.watching(run, store.last_event(run)) for _ in range(_CLIENTS)]
        for subscriber in watches:
            subscriber.__enter__()
        await feed.look()
        for number in range(_DONE, _DONE + _ROUNDS):
            key = f"case-{number:05}"
            served_runs.begin(store, run, key, at=time.time(), logs={})
            served_runs.end(store, run, key, at=time.time())
            found["noticed, and 20 woken"].append(await _timed(feed.look))
            ask = PageRequest(path=f"/runs/{run}", run=run, now=time.time(), query={"page": "121"})
            make = _making(readers, ask)
            found["page made"].append(await _timed(make))
            found["no change"].append(await _timed(feed.look))
        for subscriber in watches:
            subscriber.__exit__(None, None, None)
        readers.close()

    asyncio.run(measure())
    pairs = zip(found["noticed, and 20 woken"], found["page made"], strict=True)
    found["an update: noticed, woken, page made"] = [first + second for first, second in pairs]
    return found


def _making(readers: Readers, ask: PageRequest) -> Callable[[], object]:
    return lambda: readers.ask(lambda thread: whole(tasks_page(thread.store, ask), ask, "store"))


async def _timed(act: Callable[[], object]) -> float:
    """Return the CPU time of this process, in all threads, that something takes."""
    begun = time.process_time()
    await act()  # type: ignore[misc]  # whatever it gives is awaited
    return time.process_time() - begun
