"""The suite itself, started as `nohup make test &` starts it: with Ctrl-C ignored."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAMES = ("SIGINT", "SIGQUIT", "SIGHUP", "SIGTERM")
LIMIT_SECONDS = 120
# Prints the ones of these signals that it was started with ignored.
ASK = f"""\
import signal
print([name for name in {NAMES} if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN])
"""
CTRL_C = (
    "tests/acceptance/test_pool_trust.py::"
    "test_ctrl_c_ends_the_run_with_a_summary_of_what_ran[mpich-pool-test_sleeps]"
)


def test_the_suite_may_ignore_a_signal_but_nothing_that_it_starts_does() -> None:
    assert subprocess.check_output([sys.executable, "-I", "-c", ASK], text=True) == "[]\n"
    usual = (signal.SIG_DFL, signal.default_int_handler)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) not in usual:
            signal.raise_signal(number)  # it goes on


OWN = test_the_suite_may_ignore_a_signal_but_nothing_that_it_starts_does


# With xdist, what is started is started by a child of the suite.
@pytest.mark.parametrize(("workers", "more"), [("0", [CTRL_C]), ("1", [])])
def test_ctrl_c_can_be_tested_where_the_suite_was_started_to_ignore_it(
    workers: str, more: list[str]
) -> None:
    ignored = " ".join(name.removeprefix("SIG") for name in NAMES)
    tests = [f"{__file__}::{OWN.__name__}", *more]
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses", workers, *tests]
    done = subprocess.run(
        ["sh", "-c", f'trap "" {ignored}; exec "$@"', "sh", *command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(tests)} passed" in done.stdout
