"""Waiting for a job of a batch system, by its own commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.errors import ComputeFailure, InputError
from rankwise.steps.wait import BatchCommands, submit_and_wait


def wish(state: str, *, gone: bool = True) -> BatchCommands:
    return BatchCommands(
        submit="echo 7",
        state=state,
        job="[0-9]+",
        done="COMPLETED",
        failed="FAILED",
        interval=0.001,
        is_done_when_gone=gone,
    )


def test_one_query_that_fails_is_not_the_end_of_a_job(tmp_path: Path) -> None:
    """It answers, fails once, and says what became of the job."""
    count = tmp_path / "count"
    state = f"echo x >> {count}; case $(wc -l < {count}) in 2) exit 1;; 3) echo FAILED;; *) echo R;; esac"
    with pytest.raises(ComputeFailure, match="7 has failed"):
        submit_and_wait(wish(state))


def test_a_job_that_is_not_known_any_more_is_done_where_that_is_said() -> None:
    submit_and_wait(wish("exit 1"))
    with pytest.raises(ComputeFailure, match="the state of 7"):
        submit_and_wait(wish("exit 1", gone=False))


@pytest.mark.parametrize("state", ["there-is-no-such-program $JOB", "/dev/null $JOB"])
def test_a_query_that_cannot_be_run_says_nothing_of_the_job(state: str) -> None:
    with pytest.raises(ComputeFailure, match="the state of 7"):
        submit_and_wait(wish(state))


@pytest.mark.parametrize("option", ["job", "done", "failed"])
def test_a_wrong_pattern_is_said_before_anything_is_submitted(tmp_path: Path, option: str) -> None:
    given = {"submit": f"touch {tmp_path}/submitted", "state": "true", "job": "1", "done": "x"}
    with pytest.raises(InputError, match=f"`{option}`: '\\(x' is no regular expression"):
        submit_and_wait(BatchCommands(**{**given, option: "(x"}))  # type: ignore[arg-type]
    assert not (tmp_path / "submitted").exists()
