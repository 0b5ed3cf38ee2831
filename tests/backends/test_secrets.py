"""Where values of secrets are files for a while, only those may read them whose they are."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankwise.backends.base import Attempt
from rankwise.backends.batch import submitting
from rankwise.backends.batch.submitting import SECRETS, ReadyJob, remove_secrets, write_secrets
from rankwise.backends.kubernetes.objects import objects_for
from rankwise.documents.site_models import ComputeConfig, KubernetesConfig
from rankwise.plan import Process, RuntimeChoice, Task

_VALUES = {"TOKEN": "correct-horse"}


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("is_left", [False, True])
def test_the_file_that_hands_secrets_to_a_slurm_job_is_its_owner_s_alone(
    tmp_path: Path, is_left: bool
) -> None:
    """Also where a client was killed before, and left one open to all."""
    beside = tmp_path / f".{SECRETS}"
    if is_left:
        beside.write_text("{}")
        beside.chmod(0o644)
    attempt = Attempt(label="run/task/1", marker="rw-1", folder=tmp_path)
    submitting.write_secrets(ReadyJob(attempt=attempt, options=(), script="", secrets=_VALUES))
    place = tmp_path / SECRETS
    assert place.stat().st_mode & 0o777 == 0o600
    assert json.loads(place.read_text()) == _VALUES
    assert not beside.exists()


@pytest.mark.parametrize(("user", "mode"), [(1000, 0o440), (0, 0o440), (None, 0o444)])
def test_secrets_in_pods_are_files_of_their_user_s_group(user: int | None, mode: int) -> None:
    """Where the image says who the user is, a volume can be given to no user in particular."""
    task = Task(
        key="task",
        processes=(Process(name="worker-0", role="worker", command="true"),),
        runtime=RuntimeChoice(name="image", kind="container", image="here:1"),
        folder="/code",
        compute="k8s",
    )
    choice = ComputeConfig(name="k8s", backend="kubernetes", kubernetes=KubernetesConfig(user=user))
    objects = objects_for(task, choice, run="run", attempt="rw-1", secrets=_VALUES)
    [job] = [one for one in objects if one["kind"] == "Job"]
    pod = job["spec"]["template"]["spec"]
    [volume] = [one for one in pod["volumes"] if "secret" in one]
    assert volume["secret"]["defaultMode"] == mode
    [mount] = [one for one in pod["containers"][0]["volumeMounts"] if one["name"] == volume["name"]]
    assert mount["readOnly"] is True


# The values of secrets on their way to a Slurm job: in a file that only we can read


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
