"""What is said of the MPI that a job would find."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.documents.load import starter
from rankwise.planning.planner import plan_from

REMEDY = 'pip install "rankwise[mpi]"'


def notices(folder: Path, name: str) -> str:
    path = folder / "first.yaml"
    path.write_text(starter(name))
    plan, _ = plan_from([path])
    return "\n".join(plan.notices)


@pytest.mark.parametrize("name", ["MpiJob", "Sweep", "PytorchJob"])
def test_the_extra_that_brings_an_mpi_is_named_where_there_is_none(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    monkeypatch.setattr("sys.executable", str(bare / "python"))
    monkeypatch.setenv("PATH", str(bare))
    assert (REMEDY in notices(tmp_path, name)) == (name != "PytorchJob")
    mpirun = bare / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.0'\n")
    mpirun.chmod(0o755)
    assert REMEDY not in notices(tmp_path, name)
