"""Real containers: jobs, tests and cells of a matrix in an image, by Podman."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from containers import IMAGE, Podman, obstacle, podman

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
    with podman() as made:
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
          - {run: "python -c 'import os; os.abort()'", name: signal}
          - {run: "exec python stubborn.py", name: slow, timeout: 1s}
        """,
    )
    said = shop.rankwise("run", "suite.yaml")
    assert states(shop, "boxed-1") == {
        "good": "passed",
        "code": "failed",
        "signal": "failed",
        "slow": "timed out",
    }, said
    assert "worker-0 exited with code 3" in said.output
    assert "exited with code 134: so do shells whose command was ended by signal 6 (SIGABRT)" in (
        said.output
    )
    shop.wait_until_empty()


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
