"""The live page for a long time: many browsers at a long run, and whether memory stays flat.

    python -m bench.soak                  5 minutes, 20 clients, 10,000 tasks, half of them done
    python -m bench.soak --seconds 60

The run grows meanwhile, and so does what is shown of it. So a server that has just been started is
looked at in the same way for a minute at the end: one that has been there all the time must not
need more for the same.

Most clients look at pages of the run, as a browser does: they are told of changes, and ask again
once a second at most. Some look at the list, the timeline and a log. Some leave and come back.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from bench import served_runs
from bench.load import watch_load
from bench.serving import Server, serving
from rankwise.store import Store
from rankwise.store.store import driving

_LOOK_SECONDS = 5.0
# A page that was open for so long is closed, and opened again.
_STAY_SECONDS = 40.0
# A minute is too short for all caches to fill.
_MOST_GROWTH = 0.1
# What is left for the second server: a part of the tasks, and of the time.
_LAST_TASKS, _LAST_SHARE = 0.02, 0.2
_LAST_LOOKS = 6


@dataclass(slots=True)
class Figures:
    """What was seen."""

    answers: list[float] = field(default_factory=list)
    """How long each page took to come, in seconds."""
    kinds: Counter[str] = field(default_factory=Counter)
    memory: list[float] = field(default_factory=list)
    """Of the server, in MB, every few seconds."""
    cpu: float = 0.0
    """Seconds that the server took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of the tasks, to be written while clients look on."""

    first: int
    last: int
    seconds: float
    clients: int


def main(arguments: Sequence[str]) -> int:
    """Soak, and say whether memory stayed flat."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=10_000)
    chosen = parser.parse_args(arguments)
    half, rest = chosen.tasks // 2, int(chosen.tasks * (1 - _LAST_TASKS))
    long = Part(first=half, last=rest, seconds=chosen.seconds, clients=chosen.clients)
    short = Part(
        first=rest,
        last=chosen.tasks,
        seconds=chosen.seconds * _LAST_SHARE,
        clients=chosen.clients,
    )
    figures = []
    with tempfile.TemporaryDirectory(prefix="rankwise-soak-") as place:
        folder = Path(place) / ".rankwise"
        with Store.open(folder) as store, watch_load() as load:
            run = served_runs.add_many(store, tasks=chosen.tasks, done=half, at=time.time() - 120)
            with driving(store.run_folder(run), run):
                for part in (long, short):
                    with serving(folder) as server:
                        figures.append(asyncio.run(_soak(store, run, server, part)))
    soaked, fresh = (max(one.memory[-_LAST_LOOKS:]) for one in figures)
    print(f"{chosen.clients} clients, {chosen.tasks:,} tasks, {chosen.seconds:.0f} s")
    print(_said(figures[0], long))
    print(f"a server that was just started, with the same to show: {fresh:.0f} MB")
    is_flat = soaked <= fresh * (1 + _MOST_GROWTH)
    print("memory is flat" if is_flat else "MEMORY GROWS")
    print(load)
    return 0 if is_flat else 1


async def _soak(store: Store, run: str, server: Server, part: Part) -> Figures:
    figures = Figures()
    end = time.monotonic() + part.seconds
    pages = [f"/runs/{run}/timeline", f"/runs/{run}/logs", "/", f"/runs/{run}/failures"]
    pages += [f"/runs/{run}?page={number % 200 + 1}" for number in range(part.clients)]
    begun = server.cpu_seconds
    await asyncio.gather(
        _write(store, run, end, part),
        _look(server, end, figures),
        *(_client(server, page, end, figures) for page in pages[: part.clients]),
    )
    figures.cpu = server.cpu_seconds - begun
    return figures


async def _write(store: Store, run: str, end: float, part: Part) -> None:
    """Have one task after the other run, so that the last ends with the soak."""
    pause = part.seconds / (part.last - part.first)
    due = time.monotonic()
    for number in range(part.first, part.last):
        # What was begun is ended: the next part goes on behind it.
        key = f"case-{number:05}"
        logs = {"rank-0": f"case {number}\n" * 20} if number % 10 == 0 else {}
        served_runs.begin(store, run, key, at=time.time(), logs=logs)
        due += pause
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        served_runs.end(store, run, key, at=time.time())
        if time.monotonic() > end:
            return


async def _look(server: Server, end: float, figures: Figures) -> None:
    while time.monotonic() < end:
        await asyncio.sleep(_LOOK_SECONDS)
        figures.memory.append(server.megabytes)


async def _client(server: Server, page: str, end: float, figures: Figures) -> None:
    """Look at a page for some time, leave, and come back, until the end."""
    while time.monotonic() < end:
        async with httpx.AsyncClient(base_url=server.base, timeout=60.0) as browser:
            (await browser.get(server.address)).raise_for_status()
            await _stay(browser, page, min(end, time.monotonic() + _STAY_SECONDS), figures)


async def _stay(browser: httpx.AsyncClient, page: str, end: float, figures: Figures) -> None:
    text = await _ask(browser, page, figures)
    stream = _between(text, 'data-stream="') or _between(text, 'data-changes="')
    pause = float(_between(text, 'data-interval="') or 1000) / 1000
    if not stream:
        await asyncio.sleep(1.0)
        return
    asked = time.monotonic()
    async with browser.stream("GET", stream.replace("&amp;", "&")) as answer:
        async for line in answer.aiter_lines():
            if time.monotonic() > end:
                return
            figures.kinds[line.partition(":")[2].strip()] += line.startswith("event:")
            if line == "event: over":
                return
            if line == "event: change" and time.monotonic() - asked > pause:
                asked = time.monotonic()
                await _ask(browser, page, figures)


async def _ask(browser: httpx.AsyncClient, page: str, figures: Figures) -> str:
    begun = time.monotonic()
    answer = await browser.get(page)
    answer.raise_for_status()
    figures.answers.append(time.monotonic() - begun)
    return answer.text


def _between(text: str, mark: str) -> str:
    return text.partition(mark)[2].partition('"')[0]


def _at(answers: Sequence[float], share: float) -> str:
    return f"{1000 * answers[int(len(answers) * share)]:.0f} ms"


def _said(figures: Figures, part: Part) -> str:
    answers, memory = sorted(figures.answers), figures.memory
    told = {kind: count for kind, count in figures.kinds.items() if count}
    shown = [f"{one:.0f}" for one in memory[:: max(1, len(memory) // 12)]]
    return "\n".join(
        [
            f"{len(answers):,} pages: half in {_at(answers, 0.5)}, 99 % in {_at(answers, 0.99)}",
            f"events: {', '.join(f'{count:,} {kind}' for kind, count in told.items())}",
            f"CPU of the server: {100 * figures.cpu / part.seconds:.1f} % of a core",
            f"CPU of the server: {1000 * figures.cpu / len(answers):.2f} ms a page",
            f"memory, MB: {' '.join(shown)} (at the end {memory[-1]:.0f})",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
