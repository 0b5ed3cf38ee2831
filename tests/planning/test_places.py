"""What is wrong with names and folders is said with the place where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.errors import InputError
from rankwise.planning import plan_from

_JOB = """\
type: MpiJob
launcher:
  spec:
    command: mpirun -np 2 python train.py
    environment: azureml:pytorch-1.7:1
    code:
      path: ./source
compute:
  target: gpu-cluster
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "job.yaml").write_text(_JOB)
    return tmp_path / "job.yaml"


def test_strict_errors_name_the_place_in_the_document(job: Path) -> None:
    with pytest.raises(InputError) as found:
        plan_from([job], strict=True)
    compute, runtime = str(found.value).splitlines()
    assert compute.startswith(f'{job}:9:11: compute "gpu-cluster" is not in')
    assert runtime.startswith(f'{job}:5:18: runtime "azureml:pytorch-1.7:1" is not in')


def test_a_missing_folder_of_code_is_found_before_anything_runs(job: Path) -> None:
    (job.parent / "source").rmdir()
    with pytest.raises(InputError) as found:
        plan_from([job])
    source = job.parent / "source"
    assert str(found.value) == f"{job}:7:13: the folder of the code is not there: {source}"
    source.touch()
    with pytest.raises(InputError, match="is a file, not a folder"):
        plan_from([job])


def test_a_success_that_the_launcher_decides_is_in_the_plan(job: Path) -> None:
    plan, _ = plan_from([job])
    assert not plan.tasks[0].processes[0].speaks_for_ranks
    job.write_text(_JOB + "success: launcher\n")
    plan, _ = plan_from([job])
    assert plan.tasks[0].processes[0].speaks_for_ranks
