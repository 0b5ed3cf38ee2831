"""Which tests are run, and the order in which files of them are handed out."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

import pytest

from tests.lengths import IS_FULL
from tests.seeds import sentences

# Side by side, the whole run takes as long as what is begun last: these take longest. What depends on
# time comes after what keeps all cores busy.
_LONGEST = (
    "acceptance/test_documentation.py",
    "node/test_outcome.py",
    "acceptance/test_job_examples.py",
    "acceptance/test_mpirun_flow.py",
    "acceptance/test_jobs.py",
    "slurm/test_job_faults.py",
    "kubernetes/test_trouble.py",
    "acceptance/test_seed_example.py",
    "acceptance/test_many_tests.py",
    "acceptance/test_faults.py",
    "acceptance/test_outcomes.py",
    "acceptance/test_mpirun_limits.py",
    "pytest_plugin/test_mpirun_coordinator.py",
    "slurm/test_job_cancels.py",
    "slurm/test_job_runs.py",
    "batch_systems/test_gridengine.py",
    "acceptance/test_worker_ends.py",
    "seeds/test_gradient.py",
    "seeds/test_azureml.py",
    "seeds/test_pytest_parallel.py",
)
_HERE = Path(__file__).parent


def _stay(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal, but not for children: what they execute gets the default back."""


# `nohup make test &` and some CI agents start us with these ignored, and a program that is executed
# inherits that. The programs under test are to meet Ctrl-C, so they get it; we go on ignoring it.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _stay)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full_length: only with RANKWISE_FULL_LENGTH=1")
    sentences.configure(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files first that take longest; the tests of a file stay together."""
    if not IS_FULL:
        left_out = [item for item in items if _is_for_another_day(item)]
        items[:] = [item for item in items if not _is_for_another_day(item)]
        config.hook.pytest_deselected(items=left_out)
    places = {_HERE / name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    sentences.note(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    sentences.show(terminalreporter)


@pytest.fixture
def package_index() -> None:
    """Skip without the package index, or fail where everything is required."""
    from tests.package_index import obstacle

    if reason := obstacle():
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def _is_for_another_day(item: pytest.Item) -> bool:
    """Return whether a test is run only with RANKWISE_FULL_LENGTH=1.

    Where a test is for two MPIs and two crews, each of them is run every day, but not all pairs.
    """
    if item.get_closest_marker("full_length"):
        return True
    given = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    pair = given.get("project_on_both"), given.get("crew")
    return pair in (("mpich", "shell"), ("openmpi5", "pool"))
