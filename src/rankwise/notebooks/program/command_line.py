"""The command line, and several notebooks at a time."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import importlib.util
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .artifacts import can_make_pdf, leave, sources_of_failed
from .execution import NotebookRun, run_script
from .kernels import Kernel, KernelChoice, KernelSupervisor
from .notebook_results import (
    CANCELLED,
    CANNOT_WRITE,
    DIFFERS,
    ERROR,
    NEEDS_INPUT,
    PASSED,
    NotebookFailure,
    NotebookOrder,
    NotebookResult,
    own_fault,
    say,
)

# Several notebooks


class NotebookRunner:
    """Runs notebooks: so many at a time, with the next kernel warmed up meanwhile."""

    def __init__(self, jobs: int, supervisor: KernelSupervisor, *, is_quiet: bool) -> None:
        self._supervisor = supervisor
        self._is_quiet = is_quiet
        self._kernels = asyncio.Semaphore(jobs + 1)
        self._running = asyncio.Semaphore(jobs)
        self._turn = asyncio.Lock()
        self._shared: Kernel | None = None

    async def run(self, order: NotebookOrder, *, reuse_kernel: bool = False) -> NotebookResult:
        """Run a notebook and write what became of it; raises nothing but CancelledError."""
        run = NotebookRun(order, self._supervisor, self._is_quiet)
        if reason := _make_room(order):
            run.result.take(NotebookFailure(CANNOT_WRITE, reason))
            return run.result
        try:
            choice = run.read()
            if choice is not None:
                await (self._in_shared(run, choice) if reuse_kernel else self._in_own(run, choice))
            if order.as_script and run.result.outcome in (PASSED, ERROR, DIFFERS):
                await run_script(run)
        except asyncio.CancelledError:
            run.blame(NotebookFailure(CANCELLED, "it was ended from outside"))
            leave(run)
            raise
        except Exception as error:
            run.blame(own_fault(error))
        leave(run)
        return run.result

    async def _in_own(self, run: NotebookRun, choice: KernelChoice) -> None:
        async with self._kernels:
            kernel = await run.warm_up(choice)
            if kernel is None:
                return
            try:
                async with self._running:
                    await run.execute(kernel)
            finally:
                await kernel.end()

    async def _in_shared(self, run: NotebookRun, choice: KernelChoice) -> None:
        """Run it where others have run before, and say so."""
        async with self._turn:
            kernel = self._shared
            if kernel is not None and kernel.choice.name == choice.name and not kernel.died.done():
                run.result.notes.append(
                    "the kernel was used before: what other notebooks have left behind is there"
                )
                run.log(run.result.notes[-1])
                await _tidy(kernel, run.order.folder)
            else:
                await self.close()
                kernel = self._shared = await run.warm_up(choice)
            if kernel is not None:
                await run.execute(kernel)
                if run.result.outcome not in (PASSED, ERROR, DIFFERS, NEEDS_INPUT):
                    await self.close()

    async def close(self) -> None:
        """End the kernel that notebooks share, if there is one."""
        kernel, self._shared = self._shared, None
        if kernel is not None:
            await kernel.end()


def _make_room(order: NotebookOrder) -> str:
    """Make the folder for what a notebook leaves; returns why it cannot be used."""
    if order.out.resolve() == order.folder.resolve():
        return f"it would take the place of the notebook in {order.out}: choose another folder"
    try:
        order.out.mkdir(parents=True, exist_ok=True)
        names = (order.notebook.name, f"{order.stem}.html", "outcome.json")
        for path in (*(order.out / name for name in names), order.junit):
            # What is there from another time must not be taken for ours.
            if path is not None:
                path.unlink(missing_ok=True)
    except OSError as error:
        return f"cannot write {order.out}: {error.strerror}"
    return ""


async def _tidy(kernel: Kernel, folder: Path) -> None:
    """Forget the names of the notebook before, as far as that is possible."""
    lines = f"%reset -f\nimport os as _os\n_os.chdir({str(folder)!r})\ndel _os"
    kernel.client.execute(lines, silent=True, store_history=False)
    with contextlib.suppress(Exception):
        await kernel.client.get_shell_msg(timeout=10)


def end_with_signals(task: asyncio.Future[Any], received: list[int]) -> None:
    """Cancel a task when this process is told to end."""
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)


async def run_all(
    orders: Sequence[NotebookOrder], jobs: int, supervisor: KernelSupervisor, *, reuse_kernel: bool
) -> list[NotebookResult]:
    """Run the notebooks that were named in the command line."""
    runner = NotebookRunner(jobs, supervisor, is_quiet=len(orders) > 1)
    tasks = [asyncio.ensure_future(runner.run(one, reuse_kernel=reuse_kernel)) for one in orders]
    try:
        results = []
        for task in tasks:
            results.append(await task)
            report(results[-1])
        return results
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.close()


def report(result: NotebookResult) -> None:
    """Say what has become of a notebook."""
    words = f": {result.reason}" if result.reason else ""
    if result.details:
        say(result.details)
    for note in result.notes:
        say(f"note: {note}")
    say(f"{result.order.notebook}: {result.outcome} after {result.seconds:.2f} s{words}")


async def serve(jobs: int, supervisor: KernelSupervisor) -> None:
    """Run what is asked for, line by line, until there is nobody left to ask."""
    runner = NotebookRunner(jobs, supervisor, is_quiet=True)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    tasks: set[asyncio.Task[None]] = set()

    async def answer(asked: dict[str, Any]) -> None:
        number, reuse = asked.pop("id"), asked.pop("reuse_kernel", False)
        order = NotebookOrder(
            **{**asked, "notebook": Path(asked["notebook"]), "out": Path(asked["out"])}
        )
        order.junit = order.out / "results.xml"
        result = await runner.run(order, reuse_kernel=reuse)
        source = sources_of_failed(result).get(result.cell or 0, "")
        say(json.dumps({"id": number, "source": source, **result.as_dict()}))

    try:
        while line := await lines.readline():
            task = asyncio.create_task(answer(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runner.close()


# The command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run notebooks, and say what became of them.")
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where results are written")
    parser.add_argument("--kernel-python", default="python", help="default: python, as in PATH")
    parser.add_argument("--timeout", type=float, help="seconds for a notebook; 0: no limit")
    parser.add_argument("--cell-timeout", type=float, help="seconds for each cell")
    parser.add_argument("--parameters", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--html", action="store_true", help="write a page of HTML too")
    parser.add_argument("--pdf", action="store_true", help="write a PDF too")
    parser.add_argument("--as-script", action="store_true", help="run it as a script too")
    parser.add_argument("--compare", choices=("tagged", "all", "none"), default="tagged")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="default: results.xml")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="so many at a time")
    parser.add_argument("--reuse-kernel", action="store_true", help="one kernel: state leaks")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser


def _orders(arguments: argparse.Namespace) -> list[NotebookOrder]:
    """Return the notebooks to run; several have a folder each."""
    fields = {one.name for one in dataclasses.fields(NotebookOrder)}
    shared = {name: value for name, value in vars(arguments).items() if name in fields}
    if len(arguments.notebooks) == 1:
        junit = arguments.junit or arguments.out / "results.xml"
        return [NotebookOrder(**{**shared, "notebook": arguments.notebooks[0], "junit": junit})]
    names: set[str] = set()
    orders = []
    for notebook in arguments.notebooks:
        name, number = notebook.stem, 1
        while name in names:
            number += 1
            name = f"{notebook.stem}-{number}"
        names.add(name)
        out = arguments.out / name
        own = {"notebook": notebook, "out": out, "junit": out / "results.xml"}
        orders.append(NotebookOrder(**{**shared, **own}))
    return orders


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; gives the exit code."""
    parser = _parser()
    arguments = parser.parse_args(words)
    if not arguments.serve and (not arguments.notebooks or arguments.out is None):
        parser.error("name a notebook, and a folder with --out")
    if not isinstance(arguments.parameters, dict):
        parser.error("--parameters must be an object of JSON")
    if arguments.pdf and not can_make_pdf():
        parser.error("--pdf needs chromium, or typst: pip install 'rankwise[report]'")
    if importlib.util.find_spec("nbclient") is None:
        remedy = "pip install nbclient there; here: pip install 'rankwise[notebooks]'"
        parser.error(f"{sys.executable} has no nbclient: {remedy}")
    supervisor = KernelSupervisor()
    received: list[int] = []

    async def everything() -> list[NotebookResult]:
        task = asyncio.current_task()
        assert task is not None
        end_with_signals(task, received)
        if arguments.serve:
            await serve(arguments.jobs, supervisor)
            return []
        return await run_all(
            _orders(arguments), arguments.jobs, supervisor, reuse_kernel=arguments.reuse_kernel
        )

    try:
        results = asyncio.run(everything())
    except asyncio.CancelledError:
        return 128 + (received[0] if received else signal.SIGTERM)
    finally:
        supervisor.close()
    return int(any(result.outcome != PASSED for result in results))
