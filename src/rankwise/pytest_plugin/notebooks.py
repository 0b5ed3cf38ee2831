"""Notebooks as tests of pytest: an item each, run ahead of their turn, two at a time.

A process beside pytest, `notebooks/program/`, runs them. It is told of the next few notebooks
before pytest has come to them, so that kernels start while others run.
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
from pathlib import Path
from typing import IO, Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from rankwise.notebooks import PROGRAM, needs_input

NAME = "rankwise-notebooks"

_END_SECONDS = 10.0
_CHECK_SECONDS = 0.5
_NEEDS = ("nbclient", "ipykernel")
_MAY_PREVENT = ("skip", "skipif", "xfail")


def register(config: pytest.Config) -> None:
    """Take part in a run that was asked for notebooks; raises UsageError if it cannot be."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise pytest.UsageError(
            f"--notebooks needs {' and '.join(missing)}: pip install 'rankwise[notebooks]'"
        )
    here = config.invocation_params.dir
    paths = [here / path for path in config.getoption("notebooks")]
    for path in paths:
        if not path.exists():
            raise pytest.UsageError(f"--notebooks: there is no {path}")
    # Of other places, only those that were named.
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
    """What is shown of a notebook that has not passed: the cell, what it raised, where to look."""

    def __init__(self, path: Path, failed: Failed) -> None:
        answer = failed.answer
        self._answer = answer
        self._out = failed.out
        message = f"{answer['outcome']}: {answer['reason']}"
        self.reprcrash = ReprFileLocation(str(path), answer["cell"] or 0, message)

    def toterminal(self, tw: TerminalWriter) -> None:
        """Write it."""
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
    """A notebook, which is one test."""

    def collect(self) -> Iterator[pytest.Item]:
        """Return the test."""
        item = NotebookItem.from_parent(self, name="notebook")
        if reason := needs_input(self.path):
            item.add_marker(pytest.mark.skip(reason=f"needs input: {reason}"))
        yield item


class NotebookItem(pytest.Item):
    """The run of a notebook."""

    answer: dict[str, Any] | None = None
    # The program that runs it ends it at --notebooks-timeout, or at what the notebook says.
    keeps_time = True

    def runtest(self) -> None:
        """Wait for what becomes of it; raises Failed, and skips if it asks for input."""
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
        """Say where it is."""
        return self.path, 0, f"notebook {self.path.name}"


class Notebooks:
    """What is done for notebooks in a run of pytest."""

    def __init__(self, config: pytest.Config, paths: list[Path], others: list[Path]) -> None:
        self._config = config
        self._paths = paths
        self._others = others
        self._press: Press | None = None
        # Others decide what comes next where tests are handed out: there is no looking ahead.
        self._is_worker = hasattr(config, "workerinput") or config.pluginmanager.has_plugin(
            "rankwise-world"
        )
        self._jobs: int = 1 if self._is_worker else config.getoption("notebooks_jobs")
        self._is_shared: bool = config.getoption("notebooks_reuse_kernel")
        self._folder: Path | None = None
        self._queue: list[NotebookItem] | None = None

    @property
    def folder(self) -> Path:
        """Return where executed notebooks are written."""
        if self._folder is None:
            given = self._config.getoption("notebooks_output")
            cache = getattr(self._config, "cache", None)
            if given:
                self._folder = self._config.invocation_params.dir / given
            elif cache is not None:
                self._folder = Path(cache.mkdir("rankwise-notebooks"))
            else:
                self._folder = Path(tempfile.mkdtemp(prefix="rankwise-notebooks-"))
        return self._folder

    def place_of(self, item: NotebookItem) -> Path:
        """Return the folder for what one notebook leaves behind."""
        path = Path(os.path.relpath(item.path, self._config.rootpath)).with_suffix("")
        return self.folder.joinpath(*(part for part in path.parts if part != ".."))

    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> pytest.Collector | None:
        """Collect the notebooks that were asked for."""
        if file_path.suffix != ".ipynb" or ".ipynb_checkpoints" in file_path.parts:
            return None
        if not _is_in(file_path, self._paths):
            return None
        return NotebookFile.from_parent(parent, path=file_path)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out what is no notebook where only notebooks were asked for."""
        if collection_path.suffix == ".ipynb" or collection_path.is_dir():
            return None
        is_left_out = _is_in(collection_path, self._paths) and not _is_in(
            collection_path, self._others
        )
        return True if is_left_out else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Report the notebooks that are next, before their turn has come."""
        if self._is_worker:
            ahead = [one for one in (item, nextitem) if isinstance(one, NotebookItem)]
        else:
            ahead = self._next_after(item)
        for one in ahead:
            # One that might not be run at all waits for its turn.
            if not any(one.get_closest_marker(name) for name in _MAY_PREVENT):
                self._order(one)

    def _next_after(self, item: pytest.Item) -> list[NotebookItem]:
        if self._queue is None:
            items = item.session.items
            self._queue = [one for one in items if isinstance(one, NotebookItem)]
        if item in self._queue:
            del self._queue[: self._queue.index(item)]
        # One is reported, some run, and one has its kernel started.
        return self._queue[: self._jobs + 2]

    def _order(self, item: NotebookItem) -> None:
        if self._press is None:
            self._press = Press(self._jobs)
        self._press.order(
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
        """Wait for what becomes of a notebook."""
        self._order(item)
        assert self._press is not None
        return self._press.answer_for(item.nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Any:
        """Report how long a notebook took, not how long pytest has waited for it."""
        report = yield
        if isinstance(item, NotebookItem) and item.answer is not None and call.when == "call":
            report.duration = item.answer["seconds"]
        return report

    def pytest_unconfigure(self) -> None:
        """End what is left."""
        if self._press is not None:
            self._press.close()
            self._press = None

    def pytest_report_header(self) -> str | None:
        """Say what could surprise."""
        if self._is_shared:
            return "notebooks: one kernel for all; what one leaves behind, the next one finds"
        return None


def _is_in(path: Path, places: list[Path]) -> bool:
    found = path.resolve()
    return any(found == place or place in found.parents for place in places)


class Press:
    """The process that runs notebooks, and what it has answered."""

    def __init__(self, jobs: int) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the process
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), "--serve", "--jobs", str(jobs)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            # Kernels behave differently where they believe to be part of a test.
            env={key: value for key, value in os.environ.items() if key[:7] != "PYTEST_"},
        )
        self._ordered: set[str] = set()
        self._answers: dict[str, dict[str, Any]] = {}
        self._news = threading.Condition()
        self._is_over = False
        threading.Thread(target=self._listen, daemon=True).start()

    def order(self, name: str, order: dict[str, Any]) -> None:
        """Have a notebook run, once."""
        if name in self._ordered:
            return
        self._ordered.add(name)
        assert self._process.stdin is not None
        line = json.dumps({"id": name, **order}) + "\n"
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except OSError:
            # It is gone, which whoever waits for the answer will notice.
            return

    def answer_for(self, name: str) -> dict[str, Any]:
        """Wait for what has become of a notebook, and give it once: it may be run again."""
        with self._news:
            while name not in self._answers and not self._is_over:
                self._news.wait(_CHECK_SECONDS)
            if name in self._answers:
                self._ordered.discard(name)
                return self._answers.pop(name)
        self._process.wait(_END_SECONDS)
        self._said.seek(0)
        words = self._said.read()[-2000:].decode(errors="replace")
        raise RuntimeError(
            f"the process that runs notebooks has left with {self._process.returncode}:\n{words}"
        )

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if not isinstance(answer, dict) or "id" not in answer:
                continue  # something else that this process has loaded has written it
            with self._news:
                self._answers[answer["id"]] = answer
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()

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
        self._said.close()
