"""What a rank shows to the user: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter


# Final for people who would change what it prints; this one prints nothing, and plugins that ask
# for the terminal reporter expect one of this class.
class SilentReporter(TerminalReporter):  # type: ignore[misc]
    """Stands where other plugins look for the terminal reporter, and says nothing."""

    def __init__(self, config: pytest.Config) -> None:
        # Never closed: other plugins may write to it until the process ends.
        super().__init__(config, Path("/dev/null").open("w"))  # noqa: SIM115

    def pytest_runtest_logstart(self) -> None:  # type: ignore[override]
        pass

    def pytest_runtest_logreport(self) -> None:  # type: ignore[override]
        pass

    def pytest_runtest_logfinish(self) -> None:
        pass

    def pytest_internalerror(self) -> bool:  # type: ignore[override]
        """Leave it to pytest to show this on stderr, for nobody else knows what happened."""
        return False
