"""The values of secrets on their way to a Slurm job: in a file that only we can read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from rankwise.backends.base import Attempt
from rankwise.backends.batch.submitting import ReadyJob, remove_secrets, write_secrets


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_the_file_with_secrets_is_for_its_owner_alone_from_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    def forbid(*given: object, **more: object) -> None:
        pytest.fail("its mode is changed when it is there already")

    for name in ("chmod", "fchmod"):
        monkeypatch.setattr(os, name, forbid)
    attempt = Attempt(label="run/task/1", marker="rw-1", folder=tmp_path)
    before = os.umask(umask)
    try:
        for value in ("first", "second"):
            write_secrets(
                ReadyJob(attempt=attempt, options=(), script="", secrets={"TOKEN": value})
            )
            (place,) = tmp_path.iterdir()
            assert json.loads(place.read_text()) == {"TOKEN": value}
            assert stat.S_IMODE(place.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    remove_secrets(attempt)
    remove_secrets(attempt)
    assert [*tmp_path.iterdir()] == []
