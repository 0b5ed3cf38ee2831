"""Whoever waits at a terminal sees what the ranks are at."""

from __future__ import annotations

import shlex

import pytest

from tests.acceptance.harness import Project

_SUITE = {
    "test_slow.py": """
    import time, rankwise

    def test_bad():
        assert False

    @rankwise.mark.parallel(2)
    def test_pair(comm):
        time.sleep(3.5)
    """
}


@pytest.mark.parametrize("is_wanted", [True, False])
def test_what_runs_is_shown_below_what_pytest_writes(project: Project, is_wanted: bool) -> None:
    project.write(_SUITE)
    inner = [str(project.mpi.python), "-m", "pytest", "--n-workers=2"]
    inner += ["--policy=sequential", "--color=no"]
    line = f"stty rows 30 cols 90; exec {shlex.join(inner)}"
    unset = ["-u", "CI", *(["-u", "NO_COLOR"] if is_wanted else [])]
    outcome = project.run(["env", *unset, "TERM=xterm", "script", "-qec", line, "/dev/null"])
    assert "1 failed, 1 passed" in outcome.output, outcome
    is_shown = "all 2 ranks  test_slow.py::test_pair" in outcome.output
    assert is_shown == is_wanted, outcome
    assert ("1 of 2, 1 failed" in outcome.output) == is_wanted, outcome
    assert ("\x1b7" in outcome.output) == is_wanted, outcome
