"""Run the real plugin under a real mpirun, and read what came of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from environments import LAUNCH_VARIABLES, Environment

# Loaded into every inner run: writes what is reported, by the process that reports it.
_RECORDER = """
import json, os
from pathlib import Path

_FILE = Path(os.environ["RANKWISE_TEST_RECORD"])
_RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "0")))
_config = None

def pytest_configure(config):
    global _config
    _config = config

def pytest_runtest_logreport(report):
    if hasattr(report, "wasxfail"):
        outcome = "xfailed" if report.skipped else "xpassed"
    else:
        outcome = report.outcome
    # Ranks that are copies of this process have loaded this module where it was no rank's.
    if _RANK or hasattr(_config, "workerinput"):
        return
    with _FILE.open("a") as file:
        file.write(json.dumps([report.nodeid, report.when, outcome]) + "\\n")
"""

_RECORDED = ("-p", "rankwise_test_recorder")

# Other plugins take longer to load than all the rest.
_ONLY_RANKWISE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p rankwise"}
# These import more than the others, numpy among it.
_ALL_PLUGINS = {"PYTEST_ADDOPTS": "-p no:anyio -p no:randomly -p no:hypothesispytest"}
# Variables of this very run that an inner one must not see.
_SCRUBBED = ("PYTEST_", "COV_", "OMPI_", "PMI", "PMIX_", "RANKWISE_RANK")
# By these pytest knows a CI, where it prints more than elsewhere.
_SCRUBBED_NAMES = ("CI", "BUILD_NUMBER")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an inner run printed, returned and reported."""

    command: str
    exit_code: int
    output: str
    errors: str
    reports: Sequence[tuple[str, str, str]] = field(default=())

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdict on each test, by what follows the file name in its id."""
        found: dict[str, str] = {}
        for nodeid, when, outcome in self.reports:
            name = nodeid.split("::", 1)[-1]
            if outcome == "failed" and when != "call":
                found[name] = f"error in {when}"
            elif when == "call" or outcome != "passed":
                found.setdefault(name, outcome)
        return found

    def counts(self) -> dict[str, int]:
        """How many tests have each verdict."""
        counted: dict[str, int] = {}
        for verdict in self.verdicts.values():
            counted[verdict] = counted.get(verdict, 0) + 1
        return counted

    def __str__(self) -> str:
        return f"$ {self.command}\nexit {self.exit_code}\n{self.output}\n--- stderr\n{self.errors}"


class Project:
    """A folder with a test-suite of its own that is run with one MPI."""

    loads_plugins = False
    """Whether inner runs load the plugins that are installed, as a user's do."""

    def __init__(self, folder: Path, mpi: Environment) -> None:
        self.folder = folder
        self.mpi = mpi
        self._runs = 0
        self.write({"rankwise_test_recorder.py": _RECORDER})

    def write(self, files: Mapping[str, str]) -> None:
        """Put files into the folder; their text may be indented as the test is."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip("\n"))

    def variables(self, record: Path) -> dict[str, str]:
        """Return the environment of an inner run that writes its reports there."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(_SCRUBBED) and name not in _SCRUBBED_NAMES
        }
        return kept | {
            **LAUNCH_VARIABLES,
            "RANKWISE_TEST_RECORD": str(record),
            **(_ALL_PLUGINS if self.loads_plugins else _ONLY_RANKWISE),
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "COLUMNS": "100",
            "NO_COLOR": "1",
        }

    def pytest(self, *arguments: str, ranks: int | None = 4, **options: object) -> Outcome:
        """Run pytest on so many ranks of mpirun; None: without mpirun."""
        launch = [] if ranks is None else [str(self.mpi.mpiexec), "-n", str(ranks)]
        return self.run(
            [*launch, str(self.mpi.python), "-m", "pytest", *_RECORDED, *arguments],
            **options,  # type: ignore[arg-type]
        )

    def run(
        self,
        command: Sequence[str],
        *,
        limit: float = 150.0,
        environment: Mapping[str, str] | None = None,
        interrupt_when: Path | None = None,
    ) -> Outcome:
        """Run a command in a process group of its own; the group is killed at the limit.

        With `interrupt_when`, the group gets Ctrl-C as soon as that file exists.
        """
        self._runs += 1
        record = self.folder / f".record-{self._runs}"
        variables = {**self.variables(record), **(environment or {})}
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        if interrupt_when is not None:
            _wait_for(interrupt_when, limit)
            os.killpg(process.pid, signal.SIGINT)
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            shown = f"{output}\n--- stderr\n{errors}"
            raise AssertionError(f"no end after {limit} s: {' '.join(command)}\n{shown}") from None
        reports = []
        if record.exists():
            reports = [tuple(json.loads(line)) for line in record.read_text().splitlines()]
        return Outcome(
            command=" ".join(command),
            exit_code=process.returncode,
            output=output,
            errors=errors,
            reports=reports,
        )


def _wait_for(path: Path, limit: float) -> None:
    import time

    deadline = time.monotonic() + limit
    while not path.exists():
        if time.monotonic() > deadline:
            raise AssertionError(f"{path} did not appear within {limit} s")
        time.sleep(0.02)
