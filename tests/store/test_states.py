"""The states."""

from __future__ import annotations

import subprocess
import sys

from rankwise.store.rows import State


def test_green_is_what_passed_or_was_not_needed() -> None:
    green = [state for state in State if state.is_green]
    assert green == [State.PASSED, State.SKIPPED]


def test_what_waits_or_runs_is_not_over() -> None:
    open_ones = [state for state in State if not state.is_over]
    assert open_ones == [State.QUEUED, State.SUBMITTING, State.RUNNING]


def test_states_read_as_words() -> None:
    assert f"{State.TIMED_OUT}, {State.NOT_RUN}" == "timed out, not run"


def test_who_needs_only_the_states_does_not_load_a_database() -> None:
    program = (
        "import sys; from rankwise.store import RunRow, State; print('sqlite3' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
