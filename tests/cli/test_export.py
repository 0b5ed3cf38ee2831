"""`rankwise export`: where it writes, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Said
from tests.export.exporting import read_back

Rankwise = Callable[..., Said]
JOB = """\
type: MpiJob
launcher:
  spec: {command: mpirun -np 2 -bind-to none ./a, code: src, environment: "azureml:mpi:1"}
"""


@pytest.fixture(autouse=True)
def jobs(project: Path) -> None:
    (project / "src").mkdir()
    for name in ("one", "two"):
        (project / f"{name}.yaml").write_text(JOB)


def test_jobs_are_one_stream_with_notes_beside_it(rankwise: Rankwise) -> None:
    said = rankwise("export", "one.yaml", "two.yaml", "--to", "azureml")
    assert said.code == 0
    assert [job["display_name"] for job in read_back(said.out)] == ["one", "two"]
    lost = "launcher.spec.command: `-bind-to none`: Azure ML writes the mpirun itself (lost)"
    assert [line for line in said.err.splitlines() if "lost" in line] == [
        f"{name}.yaml:3:10: {lost}" for name in ("one", "two")
    ]


def test_strictly_nothing_is_written_that_loses_anything(rankwise: Rankwise) -> None:
    said = rankwise("export", "one.yaml", "--to", "azureml", "--strict", "-o", "job.yaml")
    assert (said.code, said.out) == (2, "")
    assert "one.yaml:3:10: launcher.spec.command: `-bind-to none`" in said.err
    assert not Path("job.yaml").exists()
    Path("one.yaml").write_text(JOB.replace("-bind-to none ", ""))
    assert rankwise("export", "one.yaml", "--to", "azureml", "--strict").code == 0


def test_files_and_folders(rankwise: Rankwise) -> None:
    assert rankwise("export", "one.yaml", "--to", "azureml", "-o", "made/job.yaml").out == ""
    [job] = read_back(Path("made/job.yaml").read_text())
    assert job["code"] == "../src"
    said = rankwise("export", "one.yaml", "two.yaml", "--to", "azureml", "-o", "all/")
    assert said.code == 0
    assert sorted(path.name for path in Path("all").iterdir()) == ["one.yaml", "two.yaml"]
    said = rankwise("export", "one.yaml", "--to", "azureml", "-o", "one.yaml/x")
    assert said.code == 2
    assert "one.yaml/x: cannot be written: " in said.err.splitlines()[-1]


def test_who_is_unknown_is_told_who_is_known(rankwise: Rankwise) -> None:
    said = rankwise("export", "one.yaml", "--to", "kubflow")
    assert said.code == 2
    assert "kubeflow-v1" in said.err


def test_all_mistakes_in_all_documents_are_told(rankwise: Rankwise) -> None:
    Path("bad.yaml").write_text("type: MpiJob\n")
    said = rankwise("export", "bad.yaml", "one.yaml", "missing.yaml", "--to", "mpi-operator")
    assert (said.code, said.out) == (2, "")
    for name in ("bad.yaml", "one.yaml:3:75", "missing.yaml"):
        assert name in said.err
