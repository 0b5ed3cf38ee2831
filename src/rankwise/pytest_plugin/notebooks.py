"""Notebooks as tests of pytest: each is an item, and the next ones run already, two at a time.

Another process runs them, `notebooks/program/`. It gets the next notebooks before pytest reaches
them, so that kernels start while others run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from rankwise.notebooks import PROGRAM, needs_input

NAME = "rankwise-notebooks"

# Its kernels end before it does.
_END_SECONDS = 10.0
# Marks that may keep a notebook from running.
_MAY_PREVENT = ("skip", "skipif", "xfail")


def register(config: pytest.Config) -> None:
    """Add notebooks to a run with --notebooks; raises UsageError if they cannot run."""
    needed = ("nbclient", "ipykernel")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise pytest.UsageError(
            f"--notebooks needs {' and '.join(missing)}: pip install 'rankwise[notebooks]'"
        )
    # Not the working directory: a conftest may have changed it.
    here = config.invocation_params.dir
    paths = [here / path for path in config.getoption("notebooks")]
    for path in paths:
        if not path.exists():
            raise pytest.UsageError(f"--notebooks: {path} does not exist")
    # Without arguments pytest would collect everything here too.
    has_others = config.args_source == pytest.Config.ArgsSource.ARGS
    others = config.args if has_others else []
    config.args = [*others, *map(str, paths)]
    config.pluginmanager.register(
        Notebooks(
            config,
            [path.resolve() for path in paths],
            [(here / other.partition("::")[0]).resolve() for other in others],
        ),
        NAME,
    )


class Failed(Exception):
    """A notebook has not passed."""

    def __init__(self, answer: dict[str, Any], out: Path) -> None:
        super().__init__(answer["reason"])
        self.answer = answer
        self.out = out


class NotebookRepr(TerminalRepr):
    """The failure of a notebook: the cell, what it raised, and the executed notebook."""

    def __init__(self, path: Path, failed: Failed) -> None:
        self._answer = answer = failed.answer
        self._out = failed.out
        message = f"{answer['outcome']}: {answer['reason']}"
        self.reprcrash = ReprFileLocation(str(path), answer["cell"] or 0, message)

    def toterminal(self, tw: TerminalWriter) -> None:
        """Write it to a terminal."""
        answer = self._answer
        tw.line(f"{answer['outcome']}: {answer['reason']}", red=True, bold=True)
        for text in (answer["source"], answer["details"]):
            if text:
                tw.line()
                tw.line(text)
        if answer["files"]:
            tw.line()
            tw.line(f"executed notebook: {self._out / answer['files'][0]}")


class NotebookFile(pytest.File):
    """A file with one test: the notebook."""

    def collect(self) -> Iterator[pytest.Item]:
        """Return the notebook as a test."""
        item = NotebookItem.from_parent(self, name="notebook")
        if reason := needs_input(self.path):
            item.add_marker(pytest.mark.skip(reason=f"needs input: {reason}"))
        yield item


class NotebookItem(pytest.Item):
    """The run of a notebook."""

    answer: dict[str, Any] | None = None
    # The program that runs it enforces --notebooks-timeout, or the limit in its metadata.
    keeps_time = True

    def runtest(self) -> None:
        """Wait for its result; raises Failed, and skips if it asks for input."""
        notebooks = self.config.pluginmanager.get_plugin(NAME)
        assert isinstance(notebooks, Notebooks)
        answer = self.answer = notebooks.answer_for(self)
        for note in answer["notes"]:
            self.add_report_section("call", "notebook", note)
        if answer["outcome"] == "needs input":
            pytest.skip(f"needs input: {answer['reason']}")
        if answer["outcome"] != "passed":
            raise Failed(answer, notebooks.place_of(self))

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None
    ) -> str | TerminalRepr:
        """Explain a failure."""
        if isinstance(excinfo.value, Failed):
            return NotebookRepr(self.path, excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return where the test is."""
        return self.path, 0, f"notebook {self.path.name}"


class Notebooks:
    """The plugin for notebooks: collects them, and orders them ahead of their turn."""

    def __init__(self, config: pytest.Config, paths: list[Path], others: list[Path]) -> None:
        self._config = config
        self._paths = paths
        self._others = others
        self._process: NotebookProcess | None = None
        # On a worker, only the dispatcher knows which tests are next.
        self._is_worker = hasattr(config, "workerinput") or config.pluginmanager.has_plugin(
            "rankwise-world"
        )
        self._jobs: int = 1 if self._is_worker else config.getoption("notebooks_jobs")
        self._is_shared: bool = config.getoption("notebooks_reuse_kernel")
        self._queue: list[NotebookItem] | None = None

    @cached_property
    def folder(self) -> Path:
        """The folder for executed notebooks."""
        cache = getattr(self._config, "cache", None)
        if given := self._config.getoption("notebooks_output"):
            return self._config.invocation_params.dir / str(given)
        if cache is not None:
            return Path(cache.mkdir("rankwise-notebooks"))
        return Path(tempfile.mkdtemp(prefix="rankwise-notebooks-"))

    def place_of(self, item: NotebookItem) -> Path:
        """Return the folder for the files of one notebook."""
        path = Path(os.path.relpath(item.path, self._config.rootpath)).with_suffix("")
        return self.folder.joinpath(*(part for part in path.parts if part != ".."))

    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """Collect the notebooks in the paths of --notebooks."""
        is_notebook = file_path.suffix == ".ipynb" and ".ipynb_checkpoints" not in file_path.parts
        if not is_notebook or not _is_in(file_path, self._paths):
            return None
        return NotebookFile.from_parent(parent, path=file_path)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore other files in the paths of --notebooks, unless they are arguments too."""
        if collection_path.suffix == ".ipynb" or collection_path.is_dir():
            return None
        is_named = _is_in(collection_path, self._others)
        # None, not False: other plugins may ignore it.
        return True if _is_in(collection_path, self._paths) and not is_named else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Order the notebooks that are next, before their turn."""
        if self._is_worker:
            ahead = [one for one in (item, nextitem) if isinstance(one, NotebookItem)]
        else:
            ahead = self._next_after(item)
        for one in ahead:
            # One that may be skipped waits for its turn.
            if not any(one.get_closest_marker(name) for name in _MAY_PREVENT):
                self._order(one)

    def _next_after(self, item: pytest.Item) -> list[NotebookItem]:
        if self._queue is None:
            items = item.session.items
            self._queue = [one for one in items if isinstance(one, NotebookItem)]
        if item in self._queue:
            del self._queue[: self._queue.index(item)]
        # One that is reported, those that run, and one whose kernel starts.
        return self._queue[: self._jobs + 2]

    def _order(self, item: NotebookItem) -> None:
        if self._process is None:
            self._process = NotebookProcess(self._jobs)
        self._process.order(
            item.nodeid,
            {
                "notebook": str(item.path),
                "out": str(self.place_of(item)),
                "kernel_python": sys.executable,
                "timeout": self._config.getoption("notebooks_timeout"),
                "html": True,
                "reuse_kernel": self._is_shared,
            },
        )

    def answer_for(self, item: NotebookItem) -> dict[str, Any]:
        """Wait for the result of a notebook."""
        self._order(item)
        assert self._process is not None
        return self._process.answer_for(item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Any:
        """Report the time of the notebook itself, not how long pytest has waited for it."""
        report = yield
        if isinstance(item, NotebookItem) and item.answer is not None and call.when == "call":
            report.duration = item.answer["seconds"]
        return report

    def pytest_unconfigure(self) -> None:
        """End the process that runs notebooks."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def pytest_report_header(self) -> str | None:
        """Return a warning that notebooks share a kernel."""
        text = "notebooks: one kernel for all; variables of one remain for the next"
        return text if self._is_shared else None


def _is_in(path: Path, places: list[Path]) -> bool:
    found = path.resolve()
    return any(found == place or place in found.parents for place in places)


class NotebookProcess:
    """The process that runs notebooks, and its answers."""

    def __init__(self, jobs: int) -> None:
        # A file: a pipe that is not read would block the process once it is full.
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `close`
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), "--serve", "--jobs", str(jobs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            # Libraries in a kernel must not take themselves for a part of a test.
            env={key: value for key, value in os.environ.items() if key[:7] != "PYTEST_"},
        )
        self._answers: dict[str, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._is_over = False
        threading.Thread(target=self._listen, daemon=True).start()

    def order(self, name: str, order: dict[str, Any]) -> None:
        """Let a notebook run, unless it is ordered already."""
        if name in self._answers:
            return
        with self._lock:
            answer = self._answers[name] = Future()
            if self._is_over:
                answer.cancel()
        assert self._process.stdin is not None
        # If the process has ended, the listener notices.
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps({"id": name, **order}).encode() + b"\n")
            self._process.stdin.flush()

    def answer_for(self, name: str) -> dict[str, Any]:
        """Wait for the result of a notebook, and return it once: it may run again."""
        try:
            return self._answers[name].result()
        except CancelledError:
            raise RuntimeError(self._explain_end()) from None
        finally:
            del self._answers[name]

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Modules that the process has loaded may print other lines.
            with contextlib.suppress(Exception):
                answer = json.loads(line)
                self._answers[answer["id"]].set_result(answer)
        with self._lock:
            self._is_over = True
            for answer in self._answers.values():
                answer.cancel()

    def _explain_end(self) -> str:
        """Return why there is no answer: the process has ended."""
        self._process.wait(_END_SECONDS)
        self._output.seek(0)
        words = self._output.read()[-2000:].decode(errors="replace")
        code = self._process.returncode
        return f"the process that runs notebooks exited with code {code}:\n{words}"

    def close(self) -> None:
        """End the process; its kernels end with it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
