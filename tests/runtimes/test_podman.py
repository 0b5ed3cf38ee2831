"""Real containers: jobs, tests and cells of a matrix in an image, by Podman."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from containers import (
    IMAGE,
    USER,
    Podman,
    RootlessPodman,
    obstacle,
    podman,
    rootless,
    rootless_obstacle,
)
from environments import ENVIRONMENTS, ROOT, why_unavailable

from rankwise.errors import ComputeFailure
from rankwise.plan import RuntimeChoice
from rankwise.runtimes.preparing import prepare
from rankwise.store import Store
from tests.acceptance.jobs import Shop, opened, wait_for
from tests.backends.places import need

SITE = f'[runtime.box]\nimage = "{IMAGE}"\nengine = "podman"\n'
SECRET = "s3cret-of-the-container"
# Says what it sees, leaves a file, and the second of two fails.
RANKS = """\
import json, os, pathlib, sys, time
names = ("RANK", "WORLD_SIZE", "PLAIN", "NOT_PASSED")
seen = {name: os.environ.get(name) for name in names}
secret = os.environ["TOKEN"]
seen |= {"secret": len(secret), "python": sys.executable, "user": os.getuid()}
mine = pathlib.Path(f"seen-{seen['RANK']}.json")
mine.write_text(json.dumps(seen))
print("the token is", secret, file=sys.stderr)
while len(list(pathlib.Path().glob("seen-*"))) < 2:
    time.sleep(0.01)
sys.exit(7 if seen["RANK"] == "1" else 0)
"""
# Does not listen to anybody.
STUBBORN = """\
import signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
open("here", "w").write("x")
time.sleep(100)
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Podman]:
    need(obstacle())
    with podman([one.folder for one in ENVIRONMENTS.values() if not why_unavailable(one)]) as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, engine: Podman) -> Iterator[Shop]:
    with opened(tmp_path / "shop") as made:
        made.variables |= {**engine.variables, "TOKEN": SECRET}
        made.write("rankwise.toml", SITE)
        yield made
        assert no_container_is_left(engine)


def no_container_is_left(engine: Podman) -> bool:
    """Wait a little: the last step of a container's end is taken by a process of its own."""
    deadline = time.monotonic() + 30
    while left := engine.containers():
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    return True


def write_job(shop: Shop, program: str, *, processes: int = 1) -> None:
    shop.write("code/program.py", program)
    shop.write(
        "job.yaml",
        f"""\
        type: PytorchJob
        name: job
        worker:
          spec:
            code: code
            command: exec python program.py
            environment: box
        environment_variables: {{PLAIN: "two words"}}
        secrets: [TOKEN]
        process_count_per_instance: {processes}
        """,
    )


def states(shop: Shop, run: str) -> dict[str, str]:
    with Store.open(shop.folder / ".rankwise", read_only=True) as store:
        return {row.key: str(row.state) for row in store.task_rows(run)}


def test_a_job_has_its_variables_and_leaves_its_files_and_exit_code(shop: Shop) -> None:
    write_job(shop, RANKS, processes=2)
    said = shop.rankwise("run", "job.yaml", variables={"NOT_PASSED": "x"})
    assert said.exit_code == 7, said
    assert "job failed: worker-1 exited with code 7" in said.output, said
    assert "worker 1 | the token is ***" in said.output, said
    found = sorted(shop.folder.glob(".rankwise/runs/job-1/**/seen-*.json"))
    for rank, path in enumerate(found):
        assert json.loads(path.read_text()) == {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "PLAIN": "two words",
            "NOT_PASSED": None,
            "secret": len(SECRET),
            "python": "/usr/local/bin/python",
            "user": os.getuid(),
        }
        assert (path.stat().st_uid, path.stat().st_gid) == (os.getuid(), os.getgid())
    assert len(found) == 2
    written = [path for path in shop.folder.glob(".rankwise/**/*") if path.is_file()]
    assert not [path for path in written if SECRET.encode() in path.read_bytes()]


def test_a_job_of_azure_sees_its_inputs_and_outputs_in_its_image(shop: Shop) -> None:
    shop.write("my data/x.txt", "hello\n")
    shop.write("code/program.py", "")
    shop.write(
        "azure.yaml",
        f"""\
        type: command
        command: |
          read said < ${{{{inputs.data}}}}/x.txt
          echo $said > ${{{{outputs.kept}}}}/y.txt; echo $said > ${{{{outputs.own}}}}/z.txt
        code: code
        environment: {{image: {IMAGE}}}
        inputs: {{data: {{path: ./my data}}}}
        outputs: {{kept: {{path: ./kept here}}, own: }}
        """,
    )
    said = shop.rankwise("run", "azure.yaml")
    assert said.exit_code == 0, said
    assert (shop.folder / "kept here" / "y.txt").read_text() == "hello\n"
    [own] = shop.folder.glob(".rankwise/runs/azure-1/azure/1/outputs/own/z.txt")
    assert own.read_text() == "hello\n"


def test_the_tests_of_a_suite_end_as_they_would_without_a_container(shop: Shop) -> None:
    shop.write("code/stubborn.py", STUBBORN)
    shop.write(
        "suite.yaml",
        """\
        type: Suite
        name: boxed
        environment: box
        code: code
        tests:
          - {run: "echo forty; echo two >&2; : > made", name: good,
             checks: [{contains: two}, {exists: made}]}
          - {run: "exit 3", name: code}
          - {run: "python -c 'import os; os.abort()'", name: shell}
          - {run: "exec python -c 'import os; os.abort()'", name: signal}
          - {run: "exec python stubborn.py", name: slow, timeout: 1s}
        """,
    )
    said = shop.rankwise("run", "suite.yaml")
    assert states(shop, "boxed-1") == {
        "good": "passed",
        "code": "failed",
        "shell": "failed",
        "signal": "crashed",
        "slow": "timed out",
    }, said
    assert "worker-0 exited with code 3" in said.output
    assert "exited with code 134: so do shells whose command was ended by signal 6 (SIGABRT)" in (
        said.output
    )
    assert "worker-0 was ended by signal 6 (SIGABRT)" in said.output
    shop.wait_until_empty()


RANKS_OF_MPI = """\
import os, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
print("rank", comm.rank, "of", comm.allreduce(1), "on", os.environ["RANKWISE_NODE"], flush=True)
comm.Barrier()
if comm.rank == 1 and sys.argv[1:] == ["exit"]:
    sys.exit(7)
if comm.rank == 1 and sys.argv[1:] == ["kill"]:
    os.kill(os.getpid(), 11)
comm.Barrier()
"""


OPEN_MPI = ("openmpi5", "openmpi4")


@pytest.mark.parametrize(
    "name",
    ["mpich", *(pytest.param(one, marks=pytest.mark.full_length) for one in OPEN_MPI)],
)
def test_ranks_of_mpi_are_in_one_container_and_leave_their_records(shop: Shop, name: str) -> None:
    environment = ENVIRONMENTS[name]
    need(why_unavailable(environment))
    shop.write("ranks.py", RANKS_OF_MPI)
    shop.write(
        "suite.yaml",
        f"""\
        type: Suite
        name: ranks
        environment: box
        environment_variables: {{PATH: "{environment.folder}/bin:/usr/local/bin:/usr/bin:/bin"}}
        tests:
          - run: mpirun -np 2 python ranks.py
            name: well
            checks: [{{contains: "rank {{rank}} of 2 on node0", rank: all}}]
          - {{run: ranks.py, name: nodes, ranks: 4, nodes: 2, checks: [{{contains: on node1, rank: 3}}]}}
          - {{run: mpirun -np 2 python ranks.py exit, name: exits}}
          - {{run: mpirun -np 2 python ranks.py kill, name: killed}}
        """,
    )
    said = shop.rankwise("run", "suite.yaml")
    assert states(shop, "ranks-1") == {
        "well": "passed",
        "nodes": "passed",
        "exits": "failed",
        "killed": "crashed",
    }, said
    assert "exits failed: rank 1 exited with code 7" in said.output, said
    assert "killed crashed: rank 1 was ended by signal 11 (SIGSEGV)" in said.output, said
    shop.wait_until_empty()


LIMITED = """\
type: {kind}
name: job
{role}:
  spec:
    command: {command}
    code: code
    environment: box
{limits}
"""
HOG = """\
import os, sys
print("begins", flush=True)
if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK", "1")) == "1":
    data = b"x" * (300 << 20)
"""


def test_a_process_in_a_container_has_the_memory_of_its_role(shop: Shop) -> None:
    shop.write("code/hog.py", HOG)
    limits = "    resource_limits: {memory: 200Mi}"
    line = "python hog.py"
    text = LIMITED.format(kind="PytorchJob", role="worker", command=line, limits=limits)
    shop.write("job.yaml", f"{text}process_count_per_instance: 1\n")
    said = shop.rankwise("run", "job.yaml")
    assert said.exit_code == 1, said
    assert "worker-0 exceeded its memory limit of 200Mi (MemoryError)" in said.output, said


def test_ranks_in_a_container_have_the_memory_of_their_node(shop: Shop) -> None:
    environment = ENVIRONMENTS["mpich"]
    need(why_unavailable(environment))
    shop.write("code/hog.py", HOG)
    limits = "    resource_limits: {memory: 100Mi}\nworker:\n  resource_limits: {memory: 200Mi}"
    line = "mpirun -np 2 python hog.py"
    text = LIMITED.format(kind="MpiJob", role="launcher", command=line, limits=limits)
    path = f"{environment.folder}/bin:/usr/local/bin:/usr/bin:/bin"
    shop.write("job.yaml", f'{text}environment_variables: {{PATH: "{path}"}}\n')
    said = shop.rankwise("run", "job.yaml")
    assert said.exit_code == 1, said
    assert "rank 1 exceeded its memory limit of 200Mi (MemoryError)" in said.output, said


def test_an_image_without_python_runs_ranks_that_leave_no_records(shop: Shop) -> None:
    """Nothing is on its PATH but a launcher, which is a script."""
    shop.write("code/bin/mpirun", '#!/bin/sh\nshift 2\n"$@" && "$@"\n').chmod(0o755)
    shop.write(
        "job.yaml",
        """\
        type: MpiJob
        name: job
        launcher:
          spec: {code: code, command: mpirun -n 2 /bin/sh -c 'echo a rank', environment: box}
        environment_variables: {PATH: bin}
        """,
    )
    said = shop.rankwise("run", "job.yaml")
    assert said.exit_code == 0, said
    assert said.output.count("| a rank\n") == 2, said
    assert not list(shop.folder.glob(".rankwise/**/rank-*"))


BUILT = """\
type: Suite
name: built
image: {build: docker/Dockerfile, args: {WHO: ada}}
tests:
  - {run: "read line < /made/data.txt; echo $line", name: copied, checks: [first]}
  - {run: "read line < /made/who.txt; echo $line", name: run, checks: [hello ada]}
"""
DOCKERFILE = f"""\
FROM {IMAGE}
ARG WHO=nobody
COPY data.txt /made/data.txt
RUN echo "hello $WHO" > /made/who.txt
"""


def images(engine: Podman) -> set[str]:
    lines = engine.ask("images", "--format", "{{.Repository}}:{{.Tag}}").splitlines()
    return {line for line in lines if line.startswith("localhost/rankwise:")}


@pytest.fixture
def built(shop: Shop, engine: Podman) -> Iterator[Shop]:
    """Have a suite with an image to build, and a cache of its own."""
    shop.variables["XDG_CACHE_HOME"] = str(shop.folder / "it's a cache")
    shop.write("suite.yaml", BUILT)
    shop.write("docker/Dockerfile", DOCKERFILE)
    shop.write("docker/data.txt", "first\n")
    before = images(engine)
    yield shop
    for image in images(engine) - before:
        engine.ask("rmi", "--force", image)


def test_an_image_is_built_once_for_all_tests_and_runs_until_its_files_change(
    built: Shop, engine: Podman
) -> None:
    plan = built.rankwise("plan", "suite.yaml")
    image = re.search(r"built: (localhost/rankwise:\w+), built from .*Dockerfile\n", plan.output)
    assert image is not None, plan
    assert images(engine) == set()
    said = built.rankwise("run", "suite.yaml")
    assert said.exit_code == 0, said
    assert images(engine) == {image[1]}
    assert said.output.count("building the image of") == 1, said
    assert "built: STEP 4/4: RUN echo" in said.output, said
    log = re.search(r"log: (.*output\.log)", said.output)
    assert log is not None
    assert "COPY data.txt" in Path(log[1]).read_text()
    again = built.rankwise("run", "suite.yaml")
    assert f'the image of runtime "built" is there already: {image[1]}' in again.output, again
    assert "building" not in again.output, again
    built.write("docker/data.txt", "second\n")
    said = built.rankwise("run", "suite.yaml")
    assert "building the image of" in said.output, said
    assert states(built, said.output.split()[0]) == {"copied": "failed", "run": "passed"}
    assert len(images(engine)) == 2


def test_a_build_that_fails_is_quoted_with_its_log(built: Shop, engine: Podman) -> None:
    built.write("docker/Dockerfile", f"FROM {IMAGE}\nRUN echo first; no-such-program; exit 9\n")
    said = built.rankwise("run", "suite.yaml")
    assert said.exit_code == 1, said
    assert states(built, "built-1") == {"copied": "not run", "run": "not run"}
    where = f"could not be built from {built.folder}/docker/Dockerfile: podman ended with exit"
    assert where in " ".join(said.output.split()), said
    assert "    /bin/sh: 1: no-such-program: not found\n" in said.output, said
    log = re.search(r"; log: (.*output\.log)", said.output)
    assert log is not None, said
    assert f"the whole log is {log[1]}" in " ".join(said.output.split())
    assert "first\n" in Path(log[1]).read_text()
    assert images(engine) == set()


def test_a_build_that_is_cancelled_leaves_nothing(built: Shop, engine: Podman) -> None:
    line = "python -c \"import time; print('be' + 'gun', flush=True); time.sleep(100)\""
    built.write("docker/Dockerfile", f"FROM {IMAGE}\nCOPY . /made\nRUN {line}\n")
    client = built.start("run", "suite.yaml")
    cache = built.folder / "it's a cache/rankwise/images"
    wait_for_text(cache, "begun")
    client.send_signal(signal.SIGINT)
    output, errors = client.communicate(timeout=60)
    assert client.returncode == 130, output + errors
    assert states(built, "built-1") == {"copied": "cancelled", "run": "cancelled"}
    assert images(engine) == set()
    assert engine.ask("ps", "--all", "--external", "--format", "{{.Names}}") == ""
    assert not list(cache.glob("*/content"))
    built.wait_until_empty()


def wait_for_text(cache: Path, text: str) -> None:
    deadline = time.monotonic() + 60
    while not any(text in log.read_text() for log in cache.glob("*/processes/build/output.log")):
        assert time.monotonic() < deadline, [*cache.rglob("*")]
        time.sleep(0.1)


@pytest.fixture
def user(engine: Podman) -> Iterator[RootlessPodman]:
    need(rootless_obstacle() or why_unavailable(ENVIRONMENTS["mpich"]))
    with rootless(engine, [ENVIRONMENTS["mpich"].folder]) as made:
        yield made


def client_of(user: RootlessPodman) -> tuple[Path, dict[str, str]]:
    """Return a Python that the user may use, with our packages."""
    places = os.pathsep.join(path for path in (str(ROOT / "src"), *sys.path) if path)
    trial = "import rankwise.cli.main, pydantic, sys; print(sys.version_info[:2])"
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(RuntimeError):
            said = user.ask("env", f"PYTHONPATH={places}", python, "-c", trial)
            if said.strip() == str(sys.version_info[:2]):
                client = user.folder / "client"
                client.write_text(f'#!/bin/sh\nexec {shlex.join(user.command(python))} "$@"\n')
                client.chmod(0o755)
                return client, {"PYTHONPATH": places}
    need(f"no Python of this version, with our packages, is there for user {USER}")
    raise AssertionError


def test_a_user_without_rights_builds_an_image_and_runs_ranks_in_it(user: RootlessPodman) -> None:
    folder = ENVIRONMENTS["mpich"].folder
    client, variables = client_of(user)
    with opened(user.folder / "home/a shop's") as shop:
        shop.python = client
        shop.variables |= {**user.variables, **variables, "XDG_CACHE_HOME": f"{user.folder}/cache"}
        shop.write("ranks.py", RANKS_OF_MPI)
        shop.write("Dockerfile", f"FROM {IMAGE}\nRUN echo made > /made\n")
        shop.write(
            "suite.yaml",
            f"""\
            type: Suite
            name: own
            timeout: 40s
            image: {{build: Dockerfile}}
            environment_variables: {{PATH: "{folder}/bin:/usr/local/bin:/usr/bin:/bin"}}
            tests:
              - run: mpirun -np 2 python ranks.py
                name: well
                checks: [{{contains: "rank {{rank}} of 2", rank: all}}]
              - {{run: "read line < /made && echo $line > mine", name: file}}
              - {{run: mpirun -np 2 python ranks.py exit, name: exits}}
              - {{run: "exec python -c 'import os; os.abort()'", name: signal}}
            """,
        )
        shutil.chown(shop.folder, USER, USER)
        said = shop.rankwise("run", "suite.yaml")
        wanted = {"well": "passed", "file": "passed", "exits": "failed", "signal": "crashed"}
        assert states(shop, "own-1") == wanted, said
        assert "exits failed: rank 1 exited with code 7" in said.output, said
        assert (shop.folder / "mine").owner() == USER
        assert (shop.folder / "mine").read_text() == "made\n"
        shop.wait_until_empty()
    assert user.ask("podman", "ps", "--all", "--external", "--quiet") == ""


def test_a_dockerfile_that_is_not_there_is_an_error_before_anything_runs(shop: Shop) -> None:
    shop.write("suite.yaml", BUILT)
    said = shop.rankwise("run", "suite.yaml")
    assert said.exit_code == 2, said
    text = " ".join((said.output + said.errors).split())
    assert 'suite.yaml:3:8: runtime "built": ' in text, said
    assert f"{shop.folder}/docker/Dockerfile: No such file or directory; `build` of" in text, said


@pytest.mark.parametrize(
    ("victim", "exit_code"),
    [("run", 130), pytest.param("client", 137, marks=pytest.mark.full_length)],
)
def test_nothing_is_left_of_what_is_cancelled_or_killed(
    shop: Shop, engine: Podman, victim: str, exit_code: int
) -> None:
    """A container does not end with the client that has started it."""
    write_job(shop, STUBBORN)
    run = shop.start("run", "job.yaml")
    wait_for(shop.folder / ".rankwise/runs/job-1/job/1/nodes/node0/here")
    assert len(engine.containers()) == 1
    inside = [one for one in _everybody() if _is_in_container(one, shop)]
    assert inside
    assert not [one for one in _everybody() if SECRET in str(one.info["cmdline"])]
    if victim == "run":
        run.send_signal(signal.SIGINT)
    else:
        next(one for one in _everybody() if _is_client(one, shop)).kill()
    output, errors = run.communicate(timeout=60)
    assert run.returncode == exit_code, output + errors
    assert not [one for one in inside if one.is_running()]
    shop.wait_until_empty()


def _everybody() -> Iterator[psutil.Process]:
    return psutil.process_iter(["name", "cmdline"])


def _is_client(process: psutil.Process, shop: Shop) -> bool:
    line = process.info["cmdline"] or []
    return process.info["name"] == "podman" and "run" in line and str(shop.folder) in str(line)


def _is_in_container(process: psutil.Process, shop: Shop) -> bool:
    try:
        variables = process.environ()
        return "container" in variables and str(shop.folder) in variables["RANKWISE_FOLDER"]
    except (psutil.Error, KeyError):
        return False


def test_a_cell_of_a_matrix_runs_in_an_image(shop: Shop) -> None:
    shop.write("good.sh", '[ "$MACHINE" = here ]\n')
    shop.write("bad.py", "import sys\nprint(sys.executable)\nsys.exit(3)\n")
    cell = {"cell_type": "code", "source": "1", "metadata": {}, "outputs": [], "id": "only"}
    notebook = {"cells": [cell | {"execution_count": None}], "metadata": {}}
    shop.write("a.ipynb", json.dumps({**notebook, "nbformat": 4, "nbformat_minor": 5}))
    shop.write(
        "matrix.yaml",
        f"""\
        type: Matrix
        name: boxes
        runtimes:
          box: {{image: "{IMAGE}", engine: podman}}
        machines:
          here: {{compute: local, environment_variables: {{MACHINE: here}}}}
        tests: [good.sh, bad.py, a.ipynb]
        """,
    )
    said = shop.rankwise("run", "matrix.yaml")
    assert said.exit_code == 3, said
    assert states(shop, "boxes-1") == {
        "box@here@environment": "passed",
        "box@here@good.sh": "passed",
        "box@here@bad.py": "failed",
        "box@here@a.ipynb": "failed",
    }
    assert "  | /usr/local/bin/python\n" in said.output, said
    (log,) = shop.folder.glob(".rankwise/runs/boxes-1/box@here@a.ipynb/**/output.log")
    assert "/usr/local/bin/python has no nbclient: pip install nbclient there" in log.read_text()


def test_an_engine_that_answers_but_starts_nothing_is_quoted(
    engine: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (engine.folder / "containers.conf").read_text()
    wrong = tmp_path / "containers.conf"
    # More than any kernel permits.
    wrong.write_text(re.sub(r"nofile=\d+:\d+", "nofile=9999999999:9999999999", settings))
    for name, value in {**engine.variables, "CONTAINERS_CONF": str(wrong)}.items():
        monkeypatch.setenv(name, value)
    choice = RuntimeChoice(name="box", kind="container", image=IMAGE, engine="podman")
    with pytest.raises(ComputeFailure) as raised:
        prepare(choice, pytest.fail)
    said = str(raised.value)
    assert said.startswith(f'runtime "box": podman cannot start a container of {IMAGE}: Error: ')
    assert "rlimit" in said
    assert said.endswith("set `default_ulimits` in containers.conf to no more than `ulimit -H -n`")
    assert no_container_is_left(engine)
