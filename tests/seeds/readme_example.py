"""The example of the readme of pytest_parallel, and notes of what ran."""

from __future__ import annotations

import pytest

from tests.acceptance.harness import Outcome, Project

VERDICTS = {"test_A[2]": "failed", "test_B": "passed", "test_C[3]": "passed", "test_D": "failed"}

NOTES = """
    import os
    from pathlib import Path

    def note(*words):
        '''Write a line that is whole whatever other processes write.'''
        text = " ".join(map(str, words)) + "\\n"
        number = os.open(Path(__file__).with_name("notes.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(number, text.encode())
        os.close(number)
"""


def notes(project: Project) -> list[list[str]]:
    """Return what the tests noted, and forget it."""
    file = project.folder / "notes.txt"
    found = [line.split() for line in file.read_text().splitlines()]
    file.unlink()
    return found


def check(outcome: Outcome, *said: str) -> None:
    assert outcome.verdicts == VERDICTS, outcome
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome
    assert all(words in outcome.output for words in said), outcome
