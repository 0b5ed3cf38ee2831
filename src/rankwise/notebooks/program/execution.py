"""Run one notebook: its cells, within their time limits, and the notebook as a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable
from typing import Any

from . import cells
from . import notebook_results as results
from .kernels import Kernel, KernelChoice, KernelSupervisor, SupervisedProcess, choose_kernel
from .notebook_results import CellResult, Ended, NotebookFailure, NotebookOrder, plain

DEFAULT_TIMEOUT = 600.0
INTERRUPT_SECONDS = 3.0
MOST_OUTPUT = 10_000_000  # bytes of a cell, in the notebook
MOST_PRINTED = 20_000  # characters of a cell, in the log
SAVE_SECONDS = 2.0


class NotebookRun:
    """One notebook while it runs."""

    def __init__(self, order: NotebookOrder, supervisor: KernelSupervisor, is_quiet: bool) -> None:
        self.order = order
        self.result = results.NotebookResult(order)
        self.notebook: Any = None
        self.supervisor = supervisor
        self._kernel: Kernel  # from `execute` on
        self._is_quiet = is_quiet
        self._cell_cases: dict[int, CellResult] = {}
        self._before: list[Any] = []
        self._reply: dict[str, Any] = {}
        self._began = self._saved = time.monotonic()

    def log(self, text: str) -> None:
        """Write a line to the log, unless several notebooks share it."""
        if not self._is_quiet:
            results.say(text)

    def read(self) -> KernelChoice | None:
        """Read the notebook and find its kernel; None if it cannot run."""
        try:
            self.notebook = cells.read_notebook(self.order.notebook)
            own = cells.section(self.notebook.metadata, "rankwise")
            # A copy: the outputs are removed below, and compared after the run.
            self._before = json.loads(json.dumps(self.notebook.cells))
            self.result.injected = cells.inject(self.notebook, self.order.parameters)
            for index, cell in enumerate(self.notebook.cells):
                if cell.cell_type == "code":
                    self._clear(index, cell)
            if reason := own.get("needs_input"):
                reason = "its metadata says so" if reason is True else str(reason)
                raise NotebookFailure(Ended.NEEDS_INPUT, reason)
            choice = choose_kernel(self.notebook, self.order)
            if self.order.parameters and not choice.is_python:
                raise NotebookFailure(Ended.UNREADABLE, "parameters are for notebooks in Python")
            return choice
        except NotebookFailure as failure:
            self.blame(failure)
            return None

    def _clear(self, index: int, cell: Any) -> None:
        """Remove the outputs of an earlier run, and prepare the result of the cell."""
        first = next((line.strip() for line in cell.source.splitlines() if line.strip()), "")
        title = first if len(first) <= 60 else f"{first[:59]}…"
        case = CellResult(self.number(index), title or "empty")
        # Its stored outputs stay: they are all that the reader has of it.
        if "skip-execution" in cells.tags_of(cell):
            case.state, case.reason = "skipped", "it is tagged skip-execution"
        else:
            cell.outputs = []
            cell.execution_count = None
            if not cell.source.strip():
                case.state = "passed"
        self._cell_cases[index] = case
        self.result.cases.append(case)

    def number(self, index: int) -> int:
        """Return the number of a cell in the notebook as it was written; 0 if it was inserted."""
        return results.number_of(index, self.result.injected)

    async def warm_up(self, choice: KernelChoice) -> Kernel | None:
        """Start the kernel; None if that fails."""
        kernel = Kernel(choice, self.supervisor)
        try:
            await kernel.start(self.order.folder)
        except BaseException as error:
            await kernel.end()
            if not isinstance(error, NotebookFailure):
                raise
            self.blame(error)
            return None
        return kernel

    async def execute(self, kernel: Kernel) -> None:
        """Run the cells in their order."""
        self._kernel = kernel
        self._began = time.monotonic()
        language = kernel.info.get("language_info", {})
        self.result.kernel = {
            "name": kernel.choice.name,
            "language": language.get("name", ""),
            "version": language.get("version", ""),
        }
        if language:
            self.notebook.metadata["language_info"] = language
        try:
            await self._execute_cells()
        except NotebookFailure as failure:
            self.blame(failure)
        finally:
            self.result.seconds = time.monotonic() - self._began

    async def _execute_cells(self) -> None:
        client = self._make_client()
        differing: NotebookFailure | None = None
        for index, cell in enumerate(self.notebook.cells):
            case = self._cell_cases.get(index)
            if case is None or case.state != "not run":
                continue
            began = time.monotonic()
            try:
                await self._execute_cell(client, index, cell)
                case.state = "passed"
                if failure := self._compare(index, cell):
                    case.state, case.reason = "failed", failure.reason
                    case.details = failure.details
                    # The other cells run anyway, and the first difference is the outcome.
                    differing = differing or failure
            except (NotebookFailure, asyncio.CancelledError):
                case.state = "failed"
                raise
            finally:
                case.seconds = round(time.monotonic() - began, 3)
                self.log(self._line(case, cell))
                self._save_at_times()
        with contextlib.suppress(Exception):
            client.set_widgets_metadata()
        await self._check_survival()
        if differing:
            raise differing

    def _make_client(self) -> Any:
        execution = cells.section(self.notebook.metadata, "execution")
        client = _executor_class()(
            self.notebook,
            log=self.log,
            allow_errors=bool(execution.get("allow_errors")),
            on_cell_executed=self._replied,
            # nbclient's own way takes minutes for megabytes of output.
            coalesce_streams=False,
            record_timing=False,
        )
        client.kc = self._kernel.client
        return client

    def _replied(self, execute_reply: dict[str, Any], **_: Any) -> None:
        self._reply = execute_reply["content"]

    def limit(self) -> float | None:
        """Return the time limit of all cells together; None: no limit."""
        own = cells.section(self.notebook.metadata, "rankwise").get("timeout")
        return _first_number(self.order.timeout, own, DEFAULT_TIMEOUT) or None

    def _cell_limit(self, cell: Any) -> float | None:
        """Return the time limit of a cell, from the place that is closest to it; None: no limit."""
        whole = self.notebook.metadata
        seconds = _first_number(
            cells.section(cell.metadata, "rankwise").get("timeout"),
            cells.section(cell.metadata, "execution").get("timeout"),
            self.order.cell_timeout,
            cells.section(whole, "rankwise").get("cell_timeout"),
            cells.section(whole, "execution").get("timeout"),
        )
        return seconds if seconds and seconds > 0 else None

    def _traceback(self) -> str:
        return plain("\n".join(map(str, self._reply.get("traceback") or ())))

    async def _execute_cell(self, client: Any, index: int, cell: Any) -> None:
        self._reply = {}
        died, limit, own = self._kernel.died, self.limit(), self._cell_limit(cell)
        where = self._name(index)
        limits: list[tuple[float, str]] = []
        if own is not None:
            limits.append((own, f"{where} took longer than {own:g} s"))
        if limit is not None:
            left = max(0.0, self._began + limit - time.monotonic())
            limits.append((left, f"the notebook took longer than {limit:g} s, in {where}"))
        # The limit that is reached first is the reason.
        seconds, reason = min(limits, default=(None, ""))
        task = asyncio.ensure_future(
            client.async_execute_cell(cell, index, execution_count=client.code_cells_executed + 1)
        )
        try:
            await asyncio.wait({task, died}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                self._check(task, index, cell)
            elif died.done():
                # Its last output may still be on its way.
                await asyncio.wait({task}, timeout=0.2)
                raise self._kernel.death(f"in {where}", self.number(index))
            else:
                raise await self._interrupt(task, index, reason)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=1.0)
            if task.done() and not task.cancelled():
                # asyncio warns of an exception that is never looked at.
                task.exception()

    def _check(self, task: asyncio.Future[Any], index: int, cell: Any) -> None:
        """Raise NotebookFailure if a cell that has ended has failed."""
        from nbclient.exceptions import CellExecutionError, DeadKernelError

        where, number = self._name(index), self.number(index)
        error = task.exception()
        if error is None:
            payload = self._reply.get("payload") or ()
            if any(one.get("source") == "ask_exit" for one in payload):
                reason = f"{where} ends the kernel by exit(): later cells do not run"
                raise NotebookFailure(Ended.ERROR, reason, cell=number)
            return
        if isinstance(error, DeadKernelError):
            raise self._kernel.death(f"in {where}", number)
        if not isinstance(error, CellExecutionError):
            raise error
        details = self._traceback() or plain(getattr(error, "traceback", ""))
        name, value = str(error.ename), plain(error.evalue)
        if name == "StdinNotImplementedError":
            raise NotebookFailure(Ended.NEEDS_INPUT, f"{where} asks for input", cell=number)
        if name in ("SystemExit", "KeyboardInterrupt") and not details.strip():
            # IPython prints no traceback for these.
            details = "".join(plain(one.get("text", "")) for one in cell.outputs)
        problem = f"{name}: {value.splitlines()[0]}" if value.strip() else name
        if name == "SystemExit":
            problem = f"sys.exit({value}): later cells do not run"
        raise NotebookFailure(Ended.ERROR, f"{where}: {problem}", cell=number, details=details)

    async def _interrupt(
        self, task: asyncio.Future[Any], index: int, reason: str
    ) -> NotebookFailure:
        """Interrupt a cell that takes too long: its traceback shows where it was."""
        died = self._kernel.died
        self._kernel.interrupt()
        await asyncio.wait(
            {task, died}, timeout=INTERRUPT_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        details = ""
        if task.done() and not task.cancelled() and task.exception() is not None:
            details = self._traceback()
        elif not task.done() and not died.done():
            reason += "; the kernel ignored the interrupt and was killed"
        return NotebookFailure(Ended.TIMED_OUT, reason, cell=self.number(index), details=details)

    async def _check_survival(self) -> None:
        """Raise NotebookFailure if the kernel has died of the last cell, after its reply."""
        kernel = self._kernel
        # A crash may follow the reply, such as one in a thread.
        kernel.client.kernel_info()
        answer = asyncio.ensure_future(kernel.client.get_shell_msg(timeout=2))
        await asyncio.wait({answer, kernel.died}, return_when=asyncio.FIRST_COMPLETED)
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
        if kernel.died.done():
            raise kernel.death("after the last cell")

    def _compare(self, index: int, cell: Any) -> NotebookFailure | None:
        number = self.number(index)
        if number and cells.is_compared(cell, self.order.compare):
            before = self._before[number - 1].get("outputs") or []
            if difference := cells.differences(before, cell.outputs):
                reason = f"the output of {self._name(index)} differs from the stored one"
                return NotebookFailure(Ended.DIFFERS, reason, cell=number, details=difference)
        return None

    def _name(self, index: int) -> str:
        number = self.number(index)
        return f"cell {number}" if number else "the cell with the parameters"

    def _line(self, case: CellResult, cell: Any) -> str:
        count = f" [{cell.execution_count}]" if cell.get("execution_count") else ""
        name = f"cell {case.cell}" if case.cell else "parameters"
        return f"--- {name}{count} {case.state} after {case.seconds:.2f} s: {case.title}"

    def blame(self, failure: NotebookFailure) -> None:
        """Make this failure the outcome, and the reason why the other cells were not run."""
        self.result.fail(failure)
        for case in self.result.cases:
            if case.state == "failed" and not case.reason:
                case.reason, case.details = failure.reason, failure.details
            elif case.state == "not run":
                case.state, case.reason = "skipped", f"not run: {failure.reason}"

    def _save_at_times(self) -> None:
        """Save the notebook every few seconds: a kill of this process loses no more than that."""
        if time.monotonic() - self._saved > SAVE_SECONDS:
            with contextlib.suppress(OSError):
                results.write(
                    self.order.out / self.order.notebook.name,
                    cells.as_text(cells.redacted(self.notebook)),
                )
            self._saved = time.monotonic()


def _first_number(*values: object) -> float | None:
    # Metadata may hold anything; for Python, True is a number.
    numbers = (one for one in values if isinstance(one, (int, float)) and not isinstance(one, bool))
    return next(map(float, numbers), None)


def _executor_class() -> Any:
    """Return the client of nbclient, with a limit for the output of a cell; it loads slowly."""
    from nbclient import NotebookClient

    class CellExecutor(NotebookClient):
        def __init__(self, notebook: Any, *, log: Callable[[str], None], **named: Any) -> None:
            super().__init__(notebook, **named)
            self._say = log
            self._index = -1
            self._kept = 0
            self._printed = 0

        def output(self, outs: Any, msg: Any, display_id: Any, cell_index: int) -> Any:
            # The limits are those of one cell.
            if cell_index != self._index:
                self._index, self._kept, self._printed = cell_index, 0, 0
            content = msg["content"]
            text = content.get("text", "") if msg["msg_type"] == "stream" else ""
            if text and self._printed < MOST_PRINTED:
                self._say(results.readable(text[: MOST_PRINTED - self._printed]).rstrip("\n"))
                self._printed += len(text)
            was_full = self._kept > MOST_OUTPUT
            self._kept += len(text) or len(str(content.get("data", "")))
            if self._kept > MOST_OUTPUT and msg["msg_type"] != "error":
                # The note was written when the limit was reached.
                if was_full:
                    return None
                note = f"\n[more than {MOST_OUTPUT} bytes of output: the rest is omitted]\n"
                msg = {**msg, "msg_type": "stream", "content": {"name": "stdout", "text": note}}
                msg["header"] = {**msg["header"], "msg_type": "stream"}
            made = super().output(outs, msg, display_id, cell_index)
            # nbclient adds an output for each message; Jupyter joins those of one stream.
            if len(outs) > 1 and made is outs[-1] and _is_continued(outs[-2], made):
                outs[-2]["text"] += outs.pop()["text"]
                return outs[-1]
            return made

    return CellExecutor


def _is_continued(first: Any, second: Any) -> bool:
    """Return whether both outputs are of the same stream."""
    names = [one["name"] for one in (first, second) if one["output_type"] == "stream"]
    return len(names) == 2 and names[0] == names[1]


async def run_script(run: NotebookRun) -> None:
    """Run a notebook as a script too, with a log of its own."""
    order, result = run.order, run.result
    text, reason = cells.as_script(run.notebook, result.injected)
    case = CellResult(0, "as a script")
    result.cases.append(case)
    python = shutil.which(order.kernel_python)
    if reason or python is None:
        case.state, case.reason = "skipped", reason or f"{order.kernel_python} is not in PATH"
        result.notes.append(f"not run as a script: {case.reason}")
        return
    script, log = order.out / f"{order.stem}.py", order.out / f"{order.stem}.log"
    results.write(script, text)
    paths = filter(None, [str(order.folder), os.environ.get("PYTHONPATH", "")])
    # With Agg, matplotlib opens no window that would wait to be closed.
    environment = {"PYTHONPATH": os.pathsep.join(paths), "MPLBACKEND": "Agg"}
    limit, began = run.limit(), time.monotonic()
    process = SupervisedProcess(run.supervisor, MOST_OUTPUT)
    try:
        process.launch([python, "-u", str(script.absolute())], order.folder, environment)
        await asyncio.wait({process.died}, timeout=limit)
        how = f"exited with code {process.died.result()}" if process.died.done() else ""
        await process.wait_for_output(0.2)
    finally:
        await process.end()
    case.seconds = round(time.monotonic() - began, 3)
    written = results.without_secrets(process.output)
    results.write(log, written)
    result.files += [script.name, log.name]
    if how == "exited with code 0":
        case.state = "passed"
        return
    last = next((line for line in reversed(written.splitlines()) if line.strip()), "")
    case.state = "failed"
    case.reason = f"as a script it {how or f'took longer than {limit:g} s'}: {plain(last)[:200]}"
    case.details = plain(written[-2000:])
    if result.outcome == Ended.PASSED:
        outcome = Ended.ERROR if how else Ended.TIMED_OUT
        result.fail(NotebookFailure(outcome, case.reason, details=case.details))
