"""The command line, and the runner of several notebooks at a time."""

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
from functools import partial
from pathlib import Path
from typing import Any

from . import notebook_results as results
from .artifacts import can_make_pdf, sources_of_failed, write_artifacts
from .execution import NotebookRun, run_script
from .kernels import Kernel, KernelChoice, KernelSupervisor
from .notebook_results import Ended, NotebookFailure, NotebookOrder, NotebookResult


class NotebookRunner:
    """Runs several notebooks at a time, and starts the next kernel meanwhile."""

    def __init__(self, jobs: int, supervisor: KernelSupervisor, *, is_quiet: bool) -> None:
        self._supervisor = supervisor
        self._is_quiet = is_quiet
        # One kernel more than notebooks that run: it is ready when one of them has ended.
        self._kernels = asyncio.Semaphore(jobs + 1)
        self._running = asyncio.Semaphore(jobs)
        self._turn = asyncio.Lock()
        self._shared: Kernel | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, order: NotebookOrder, *, reuse_kernel: bool) -> asyncio.Task[NotebookResult]:
        """Start a notebook; it ends at the latest with `close`."""
        task = asyncio.ensure_future(self.run(order, reuse_kernel=reuse_kernel))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(self, order: NotebookOrder, *, reuse_kernel: bool = False) -> NotebookResult:
        """Run a notebook and write its files; raises nothing but CancelledError."""
        run = NotebookRun(order, self._supervisor, self._is_quiet)
        if reason := _prepare_folder(order):
            run.result.fail(NotebookFailure(Ended.CANNOT_WRITE, reason))
            return run.result
        try:
            choice = run.read()
            if choice is not None:
                await (self._in_shared(run, choice) if reuse_kernel else self._in_own(run, choice))
            if order.as_script and run.result.outcome in results.RAN_TO_THE_END:
                await run_script(run)
        except asyncio.CancelledError:
            run.blame(NotebookFailure(Ended.CANCELLED, "it was cancelled"))
            write_artifacts(run)
            raise
        except Exception as error:
            run.blame(
                error if isinstance(error, NotebookFailure) else results.internal_error(error)
            )
        write_artifacts(run)
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
        """Run a notebook in the kernel of the one before, and note that."""
        async with self._turn:
            kernel = self._shared
            if kernel is not None and kernel.choice.name == choice.name and not kernel.died.done():
                note = "the kernel was used before: variables of other notebooks may remain"
                run.result.notes.append(note)
                run.log(note)
                await _reset(kernel, run.order.folder)
            else:
                await self._end_shared()
                kernel = self._shared = await run.warm_up(choice)
            if kernel is not None:
                await run.execute(kernel)
                if run.result.outcome not in (*results.RAN_TO_THE_END, Ended.NEEDS_INPUT):
                    await self._end_shared()

    async def _end_shared(self) -> None:
        kernel, self._shared = self._shared, None
        if kernel is not None:
            await kernel.end()

    async def close(self) -> None:
        """Cancel what still runs, and end its kernels."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end_shared()


def _prepare_folder(order: NotebookOrder) -> str:
    """Make the folder for the files of a notebook; returns why it cannot be used."""
    if order.out.resolve() == order.folder.resolve():
        return f"{order.out} is the folder of the notebook, which would be replaced: choose another"
    try:
        order.out.mkdir(parents=True, exist_ok=True)
        names = (order.notebook.name, f"{order.stem}.html", "outcome.json")
        for path in (*(order.out / name for name in names), order.junit):
            # If this process is killed, files of an earlier run must not look like its own.
            if path is not None:
                path.unlink(missing_ok=True)
    except OSError as error:
        return f"cannot write {order.out}: {error.strerror}"
    return ""


async def _reset(kernel: Kernel, folder: Path) -> None:
    """Remove the variables of the notebook before, as far as IPython can, and change the folder."""
    lines = f"%reset -f\nimport os as _os\n_os.chdir({str(folder)!r})\ndel _os"
    # Not counted and not stored: it belongs to no notebook.
    kernel.client.execute(lines, silent=True, store_history=False)
    with contextlib.suppress(Exception):
        await kernel.client.get_shell_msg(timeout=10)


def _cancel_on_signals(task: asyncio.Future[Any], received: list[int]) -> None:
    """Cancel a task when this process gets a signal to end, and note the signal."""
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        received.append(number)
        task.cancel()

    # Batch systems send SIGTERM, terminals the other two.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop, number)


async def run_all(
    orders: Sequence[NotebookOrder], runner: NotebookRunner, *, reuse_kernel: bool
) -> int:
    """Run the notebooks of the command line; returns the exit code."""
    tasks = [runner.start(order, reuse_kernel=reuse_kernel) for order in orders]
    ended = []
    for task in tasks:
        ended.append(await task)
        report(ended[-1])
    return int(any(result.outcome != Ended.PASSED for result in ended))


def report(result: NotebookResult) -> None:
    """Write the result of a notebook to the log."""
    reason = f": {result.reason}" if result.reason else ""
    if result.details:
        results.say(result.details)
    for note in result.notes:
        results.say(f"note: {note}")
    results.say(f"{result.order.notebook}: {result.outcome} after {result.seconds:.2f} s{reason}")


async def serve(runner: NotebookRunner) -> int:
    """Run each notebook that a line of stdin asks for, until stdin is closed."""
    # An order is one line, with all its parameters.
    lines = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )

    def answer(identity: object, task: asyncio.Task[NotebookResult]) -> None:
        if task.cancelled():
            return
        result = task.result()
        source = sources_of_failed(result).get(result.cell or 0, "")
        results.say(json.dumps({"id": identity, "source": source, **result.as_dict()}))

    # The pipe is closed when pytest ends, in whatever way.
    while line := await lines.readline():
        asked = json.loads(line)
        identity, reuse_kernel = asked.pop("id"), asked.pop("reuse_kernel", False)
        asked["notebook"], out = Path(asked["notebook"]), Path(asked["out"])
        order = NotebookOrder(**{**asked, "out": out, "junit": out / "results.xml"})
        task = runner.start(order, reuse_kernel=reuse_kernel)
        task.add_done_callback(partial(answer, identity))
    return 0


# The command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Run notebooks and report their results.")
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
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="notebooks at a time")
    parser.add_argument("--reuse-kernel", action="store_true", help="one kernel for all")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser


def _orders(arguments: argparse.Namespace) -> list[NotebookOrder]:
    """Return the notebooks to run; several have a folder each."""
    fields = {one.name for one in dataclasses.fields(NotebookOrder)}
    shared = {name: value for name, value in vars(arguments).items() if name in fields}
    has_several = len(arguments.notebooks) > 1
    names: set[str] = set()
    orders = []
    for notebook in arguments.notebooks:
        name, number = notebook.stem, 1
        # Notebooks of different folders may have the same name.
        while name in names:
            number += 1
            name = f"{notebook.stem}-{number}"
        names.add(name)
        out = arguments.out / name if has_several else arguments.out
        junit = (None if has_several else arguments.junit) or out / "results.xml"
        orders.append(NotebookOrder(**{**shared, "notebook": notebook, "out": out, "junit": junit}))
    return orders


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
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
    # Before the event loop and heavy modules: it is a fork.
    supervisor = KernelSupervisor()
    received: list[int] = []
    try:
        return asyncio.run(_run(arguments, supervisor, received))
    except asyncio.CancelledError:
        return 128 + (received[0] if received else signal.SIGTERM)
    finally:
        supervisor.close()


async def _run(
    arguments: argparse.Namespace, supervisor: KernelSupervisor, received: list[int]
) -> int:
    """Run everything; a signal cancels it, so that results so far are written."""
    task = asyncio.current_task()
    assert task is not None
    _cancel_on_signals(task, received)
    is_quiet = arguments.serve or len(arguments.notebooks) > 1
    runner = NotebookRunner(arguments.jobs, supervisor, is_quiet=is_quiet)
    try:
        if arguments.serve:
            return await serve(runner)
        return await run_all(_orders(arguments), runner, reuse_kernel=arguments.reuse_kernel)
    finally:
        await runner.close()
