"""A run that goes into a job as a whole: this process only hands it in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankwise.errors import ComputeFailure
from rankwise.testing.crew import allocation
from rankwise.testing.crew.slurm_options import SlurmWishes, value_of


class DetachedRun:
    """Takes the place of everything that pytest would do."""

    def __init__(self, config: pytest.Config, wishes: SlurmWishes) -> None:
        self._wishes = wishes
        self._arguments = [
            str(argument)
            for argument in config.invocation_params.args
            # Within the job it is a run like any other, in an allocation that is there.
            if str(argument) != "--detach"
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self) -> int:
        """Hand the run in, and say where its report will be."""
        program = [sys.executable, "-m", "pytest", *self._arguments]
        name = f"pytest-{Path.cwd().name}"
        asked = value_of(("-o", "--output"), self._wishes.options)
        output = asked or "pytest-%j.out"
        try:
            handed_in = allocation.submit_run(self._wishes, program, name, output)
        except ComputeFailure as failure:
            raise pytest.UsageError(str(failure)) from None
        file = Path.cwd() / output.replace("%j", handed_in.job)
        print(f"rankwise: job {handed_in.job} runs the tests; its report will be in {file}")
        return int(pytest.ExitCode.OK)
