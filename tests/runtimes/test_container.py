"""Command lines for container engines, by stand-ins that do what they are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankwise.errors import ComputeFailure
from rankwise.plan import RuntimeChoice, later
from rankwise.runtimes import container as container_module
from rankwise.runtimes import images
from rankwise.runtimes.base import Command
from rankwise.runtimes.container import Container
from rankwise.runtimes.preparing import prepare

LIMIT_SECONDS = 60
IMAGE = "pytorch/pytorch:2.4"
NAME = "worker-0"
OWN = later("own")
INSIDE = ("-c", Path(container_module.__file__).with_suffix(".sh").read_text(), "rankwise")
BY_US = (*INSIDE, f"{OWN}/__main__.py", NAME)
"""What the shell of the image gets before the command itself."""


def wrap(engine: str, command: Command, image: str = IMAGE, **around: Any) -> tuple[str, ...]:
    user = {name: around.pop(name) for name in ("uid", "gid") if name in around}
    made = Container(engine=engine, executable=f"/bin/{engine}", image=image, **user)
    return made(command, name=NAME, **around)


# Gives the inner command those variables only that it was told the names of.
STAND_IN = """\
#!{python}
import json, os, subprocess, sys
arguments = sys.argv[1:]
with open({log!r}, "a") as log:
    print(json.dumps(arguments), file=log)
if arguments[0] != "run":
    sys.exit({others})
environment, entry, folder = dict(), None, None
arguments.pop(0)
while arguments[0].startswith("--"):
    option = arguments.pop(0)
    if option in ("--rm", "--init"):
        continue
    value = arguments.pop(0)
    if option == "--env" and "=" in value:
        name, _, given = value.partition("=")
        environment[name] = given
    elif option == "--env" and value in os.environ:
        environment[value] = os.environ[value]
    elif option == "--entrypoint":
        entry = value
    elif option == "--workdir":
        folder = value
sys.exit(subprocess.call([entry, *arguments[1:]], env=environment, cwd=folder))
"""


def container(image: str = IMAGE, engine: str = "") -> RuntimeChoice:
    return RuntimeChoice(name="azureml:p:1", kind="container", image=image, engine=engine)


def stand_in(tmp_path: Path, engine: str, *, others: str = "0") -> Path:
    """Put a stand-in for an engine into `bin`, and give the file with its calls."""
    log = tmp_path / f"{engine}.log"
    path = tmp_path / "bin" / engine
    path.parent.mkdir(exist_ok=True)
    path.write_text(STAND_IN.format(python=sys.executable, log=str(log), others=others))
    path.chmod(0o755)
    return log


def calls(log: Path) -> list[list[str]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.fixture(autouse=True)
def _only_stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def test_docker_gets_the_whole_command_line() -> None:
    assert wrap(
        "docker",
        ("python", "train.py"),
        folder="/run/nodes/node0",
        mounts=["/run", "/data", "/run"],
        names=["WORLD_SIZE", "RANK", "RANK"],
        gpus=2,
    ) == (
        *("/bin/docker", "run", "--rm", "--init", "--network", "host", "--ipc", "host"),
        *("--user", f"{os.getuid()}:{os.getgid()}"),
        *("--gpus", "all"),
        *("--volume", "/run/nodes/node0:/run/nodes/node0"),
        *("--volume", "/run:/run", "--volume", "/data:/data", "--volume", f"{OWN}:{OWN}:ro"),
        *("--workdir", "/run/nodes/node0"),
        *("--env", "RANK", "--env", "RANKWISE_ATTEMPT", "--env", "WORLD_SIZE"),
        *("--env", "HOME=/tmp"),
        *("--entrypoint", "/bin/sh", IMAGE, *BY_US, "python", "train.py"),
    )


def test_a_line_is_run_by_a_shell_in_the_image() -> None:
    command = wrap("docker", "cd a && python train.py | tee log", folder="/f")
    assert command[-4:] == (NAME, "/bin/sh", "-c", "cd a && python train.py | tee log")
    assert "--gpus" not in command


def test_a_home_of_ones_own_is_kept() -> None:
    command = wrap("docker", "true", folder="/f", names=["HOME"])
    assert "HOME" in command
    assert "HOME=/tmp" not in command


def test_podman_keeps_the_user_in_its_own_way() -> None:
    command = wrap("podman", "true", folder="/f", gpus=1, uid=1000)
    assert command[8:10] == ("--userns", "keep-id")
    assert command[10:12] == ("--device", "nvidia.com/gpu=all")
    assert "--user" in wrap("podman", "true", folder="/f", uid=0)


def test_apptainer_has_network_user_and_variables_anyway() -> None:
    assert wrap("apptainer", "a; b", folder="/f", mounts=["/m"], names=["SECRET"], gpus=1) == (
        *("/bin/apptainer", "exec", "--nv", "--bind", "/f:/f", "--bind", "/m:/m"),
        *("--bind", f"{OWN}:{OWN}:ro", "--pwd", "/f", f"docker://{IMAGE}", "/bin/sh", *BY_US),
        *("/bin/sh", "-c", "a; b"),
    )


def test_a_folder_may_have_another_name_too() -> None:
    for engine in ("docker", "apptainer"):
        command = wrap(engine, "true", folder="/f", aliases={"/a b": "/tmp/rankwise-1.folder"})
        assert "/a b:/tmp/rankwise-1.folder" in command


def test_without_queues_a_users_podman_shares_the_memory_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user cannot mount what the machine lacks."""
    monkeypatch.setattr(container_module, "_QUEUES", tmp_path)
    assert container_module.shared_memory("podman", 1000) == ("--ipc", "host")
    monkeypatch.setattr(container_module, "_QUEUES", tmp_path / "none")
    assert container_module.shared_memory("podman", 1000) == ("--volume", "/dev/shm:/dev/shm")
    assert container_module.shared_memory("podman", 0) == ("--ipc", "host")


@pytest.mark.parametrize("image", ["/images/a.sif", "library://a/b", "a.sif"])
def test_apptainer_gets_other_images_as_they_are_named(image: str) -> None:
    assert image in wrap("apptainer", ("true",), image, folder="/f")


def test_marks_for_what_is_known_later_may_stand_everywhere() -> None:
    node, run = later("folder:0"), later("folder")
    command = wrap("docker", ("cat", later("address:0")), folder=node, mounts=[run])
    assert f"{node}:{node}" in command
    assert f"{run}:{run}" in command
    assert later("address:0") in command


def test_folders_that_an_engine_cannot_name_are_refused() -> None:
    with pytest.raises(ComputeFailure, match=r'/a:b cannot be seen .* docker, .* ":"; rename'):
        wrap("docker", "true", folder="/a:b")
    with pytest.raises(ComputeFailure, match=r'/a,b cannot be seen .* apptainer, .* ","; rename'):
        wrap("apptainer", "true", folder="/f", mounts=["/a,b"])
    assert "/a,b:/a,b" in wrap("docker", "true", folder="/a,b")


def test_a_command_runs_in_its_folder_with_its_variables_and_secrets_stay_secret(
    tmp_path: Path,
) -> None:
    log = stand_in(tmp_path, "docker")
    runtime = prepare(container(), pytest.fail)
    assert (runtime.path, runtime.environment, runtime.unset) == ((), {}, ())
    folder = tmp_path / "work here"
    folder.mkdir()
    code = "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))"
    assert runtime.wrap is not None
    command = runtime.wrap(
        (sys.executable, "-c", code),
        name=NAME,
        folder=str(folder),
        names=["TOKEN", "RANK", "NOT_SET"],
    )
    done = subprocess.run(
        command,
        env={"TOKEN": "s3cret", "RANK": "0", "OTHER": "x", "RANKWISE_ATTEMPT": "rw-1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    )
    where, environment = json.loads(done.stdout)
    assert where == str(folder)
    wanted = {"TOKEN": "s3cret", "RANK": "0", "RANKWISE_ATTEMPT": "rw-1", "HOME": "/tmp"}
    assert {name: environment.get(name) for name in wanted} == wanted
    assert "OTHER" not in environment
    assert "s3cret" not in log.read_text()
    assert not any("s3cret" in part for part in command)


def test_the_exit_code_is_that_of_the_command(tmp_path: Path) -> None:
    stand_in(tmp_path, "docker")
    made = prepare(container(), pytest.fail).wrap
    assert made is not None
    command = made("exit 7", name=NAME, folder=str(tmp_path))
    assert subprocess.run(command, check=False, timeout=LIMIT_SECONDS).returncode == 7


def test_an_image_that_is_there_is_not_fetched(tmp_path: Path) -> None:
    log = stand_in(tmp_path, "docker")
    prepare(container(), pytest.fail)
    assert calls(log)[:2] == [["info"], ["image", "inspect", IMAGE]]
    # A container that does nothing is started, for engines that answer and cannot.
    assert calls(log)[2][-5:] == ["--entrypoint", "/bin/sh", IMAGE, "-c", ":"]
    assert len(calls(log)) == 3


def test_an_image_that_is_not_there_is_fetched_and_that_is_said(tmp_path: Path) -> None:
    log = stand_in(tmp_path, "docker", others="arguments[0] == 'image'")
    said: list[str] = []
    prepare(container(), said.append)
    assert said == [f'getting the image of runtime "azureml:p:1": {IMAGE}']
    assert calls(log)[-2] == ["pull", IMAGE]


def test_an_image_that_cannot_be_had_is_a_clear_failure(tmp_path: Path) -> None:
    stand_in(tmp_path, "docker", others="0 if arguments[0] == 'info' else 'denied: no such image'")
    with pytest.raises(ComputeFailure) as raised:
        prepare(container(), print)
    assert str(raised.value) == (
        f'runtime "azureml:p:1": docker cannot get the image {IMAGE}:\n    denied: no such image\n'
        "correct `image` of its table in rankwise.toml, or log in to its registry"
    )


def test_an_engine_without_its_daemon_is_a_clear_failure(tmp_path: Path) -> None:
    said = "Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?"
    stand_in(tmp_path, "docker", others=repr(said))
    with pytest.raises(ComputeFailure) as raised:
        prepare(container(engine="docker"), print)
    assert str(raised.value) == (
        f'runtime "azureml:p:1" is the container image {IMAGE}, and no engine can run it: docker is '
        f"there, but its daemon is not running: `docker info` says: {said}. Start or install one, or "
        "map the name to something else in rankwise.toml"
    )


def test_the_first_engine_that_works_is_taken(tmp_path: Path) -> None:
    stand_in(tmp_path, "docker", others="'the daemon is away'")
    stand_in(tmp_path, "podman")
    made = prepare(container(), pytest.fail).wrap
    assert isinstance(made, Container)
    assert (made.engine, made.executable) == ("podman", str(tmp_path / "bin/podman"))


def test_an_engine_that_is_asked_for_is_not_replaced_by_another(tmp_path: Path) -> None:
    stand_in(tmp_path, "docker")
    with pytest.raises(
        ComputeFailure, match=r"no engine can run it: podman is not on PATH\. Start"
    ):
        prepare(container(engine="podman"), print)


def test_without_any_engine_all_are_named() -> None:
    with pytest.raises(ComputeFailure) as raised:
        prepare(container(), print)
    assert "docker is not on PATH; podman is not on PATH; apptainer is not on PATH" in str(
        raised.value
    )


def test_an_engine_that_does_not_start_is_a_clear_failure(tmp_path: Path) -> None:
    stand_in(tmp_path, "apptainer")
    (tmp_path / "bin/apptainer").write_text("#!/no/such/interpreter\n")
    with pytest.raises(ComputeFailure, match=r"`apptainer --version` says: .* does not start: No"):
        prepare(container(), print)


@pytest.mark.parametrize(
    ("exit_code", "said", "helps"),
    [
        (125, "container-init binary not found on the host", "install catatonit, by which"),
        (126, "error setting rlimit type 7: not permitted", "set `default_ulimits` in"),
        (126, "OCI runtime error: systemd not running", 'set `cgroup_manager = "cgroupfs"`'),
        (125, 'default OCI runtime "crun" not found', "install runc or crun, and name it"),
        (125, "keep-id requires UIDs in /etc/subuid", "have /etc/subuid and /etc/subgid name"),
        (126, "OCI runtime error: exec format error", None),
    ],
)
def test_an_engine_that_cannot_start_anything_is_quoted_with_what_helps(
    tmp_path: Path, exit_code: int, said: str, helps: str | None
) -> None:
    _engine_that_answers(tmp_path, f"echo warning >&2; echo 'Error: {said}' >&2; exit {exit_code}")
    with pytest.raises(ComputeFailure) as raised:
        prepare(container(), print)
    start = f'runtime "azureml:p:1": podman cannot start a container of {IMAGE}: Error: {said}'
    assert str(raised.value).startswith(f"{start}; {helps}" if helps else start)
    assert helps or str(raised.value) == start


@pytest.mark.parametrize("exit_code", [1, 127])
def test_an_image_without_a_shell_is_no_fault_of_the_engine(tmp_path: Path, exit_code: int) -> None:
    _engine_that_answers(tmp_path, f"exit {exit_code}")
    assert isinstance(prepare(container(), pytest.fail).wrap, Container)


def _engine_that_answers(tmp_path: Path, when_it_runs: str) -> None:
    path = tmp_path / "bin" / "podman"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\n[ "$1" = run ] || exit 0\n{when_it_runs}\n')
    path.chmod(0o755)


def test_docker_builds_an_image_under_the_name_of_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = stand_in(tmp_path, "docker", others="arguments[0] == 'image'")
    file = tmp_path / "box" / "Dockerfile"
    file.parent.mkdir()
    file.write_text("FROM base\nCOPY a /\n")
    (file.parent / "a").write_text("1")
    wanted = RuntimeChoice(
        name="box",
        kind="container",
        build=str(file),
        context=str(file.parent),
        build_args=("A=1", "B=x y"),
    )
    choice = images.named(wanted)
    said: list[str] = []
    prepare(choice, said.append)
    place = tmp_path / "cache/rankwise/images" / choice.image.rpartition(":")[2]
    (built,) = [call for call in calls(log) if call[0] == "build"]
    assert built[1:5] == ["--tag", choice.image, "--file", f"{place}/Dockerfile"]
    options = ["--network", "host", "--build-arg", "A=1", "--build-arg", "B=x y"]
    assert built[5:] == [*options, f"{place}/content"]
    assert said[0] == (
        f'building the image of runtime "box" from {file}; log: {place}/processes/build/output.log'
    )
    # What was built is what the name says, or nothing is.
    (file.parent / "a").write_text("2")
    with pytest.raises(ComputeFailure, match="or its context has changed: run it again"):
        prepare(choice, said.append)
    images._name.cache_clear()
    assert images.named(wanted).image != choice.image


@pytest.mark.parametrize(
    ("line", "is_step"),
    [
        ("STEP 2/5: RUN make", True),
        ("[1/2] STEP 1/3: FROM base AS first", True),
        ("Step 2/5 : RUN make", True),
        ("#7 [2/5] RUN make", True),
        ("#7 [first 1/2] FROM docker.io/base", True),
        ("#7 0.512 make: all is done", False),
        ("--> Using cache 0b29", False),
    ],
)
def test_steps_of_a_build_are_known_by_what_engines_write(
    tmp_path: Path, line: str, is_step: bool
) -> None:
    log = tmp_path / "output.log"
    log.write_text(f"{line}\nhalf a l")
    said: list[str] = []
    position = images._tell_steps(log, 0, said.append)
    assert said == ([line] if is_step else [])
    assert position == len(line) + 1
