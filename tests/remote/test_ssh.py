"""Jobs on hosts with a login, over a real sshd."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import time
import venv
from pathlib import Path

import pytest
from sshd import Sshd

from rankwise.backends.doctor import check_compute
from rankwise.documents.site import find_site
from rankwise.git import git
from rankwise.web.store_access import update_stale_runs
from tests.acceptance.jobs import wait_for
from tests.backends.places import wait_until
from tests.lengths import part
from tests.remote.shops import (
    gets_packages,
    job,
    kill_after,
    left_on_hosts,
    recorded,
    run,
    ssh_shop,
)

ME = ("-c", "user.name=me", "-c", "user.email=me@example.org")


def test_a_job_runs_on_a_host_and_comes_back(tmp_path: Path, server: Sshd) -> None:
    """Its code goes there, what it writes and makes comes back, and nothing stays there."""
    with ssh_shop(tmp_path, server) as shop:
        shop.write("data.txt", "from here\n")
        shop.write("prog.py", "import os; print('in', os.environ['RANKWISE_NODE_RANK'])\n")
        shop.variables["TOKEN_OF_MINE"] = "xyzzy-plugh-plover"
        line = (
            "cat data.txt; python prog.py; echo secret=$TOKEN_OF_MINE; "
            "python -c 'import sys; print(sys.executable)'; echo 42 > made.txt; exit 5"
        )
        said = run(shop, job(line, more="secrets: [TOKEN_OF_MINE]"))

        assert said.exit_code == 5, said
        assert "from here" in said.output
        assert "in 0" in said.output
        assert "secret=***" in said.output
        assert "job-1 failed" in said.output
        work = shop.folder / ".rankwise/runs/job-1/job/1/nodes/node0"
        assert sorted(one.name for one in work.iterdir()) == ["made.txt"], "only what is new"
        assert left_on_hosts(tmp_path) == []
        assert recorded(shop) == []
        assert "xyzzy" not in "".join(
            one.read_text(errors="replace") for one in tmp_path.rglob("*") if one.is_file()
        )


def test_cases_of_a_driver_come_back_with_its_logs(tmp_path: Path, server: Sshd) -> None:
    with ssh_shop(tmp_path, server) as shop:
        shop.write("driver.py", "print('Case: one')\nprint('Case: two')\nraise SystemExit(3)\n")
        test = "{run: python driver.py, name: driver, cases: 'Case:'}"
        said = run(shop, f"type: Suite\ncompute: hosts\ncode: .\ntests: [{test}]\n")
        assert said.exit_code == 3, said
        assert "1 of 2 tests failed: two" in said.output, said


def test_a_connection_is_made_where_the_name_of_the_temporary_folder_is_long_and_awkward(
    tmp_path: Path, server: Sshd
) -> None:
    """The socket of a connection has a name that ssh has room for and does not read as its own."""
    with ssh_shop(tmp_path, server) as shop:
        for number, name in enumerate(("x" * 90, "it's a %n")):
            place = tmp_path / name
            place.mkdir()
            shop.variables["TMPDIR"] = str(place)
            said = run(shop, job(f"echo number {number}"))
            assert said.exit_code == 0, said
            assert f"number {number}" in said.output, said


def test_hosts_that_cannot_be_used_say_what_to_type(tmp_path: Path, server: Sshd) -> None:
    with ssh_shop(tmp_path, server, hosts='"unknown"') as shop:
        said = run(shop, job("true"))
        assert said.exit_code == 1, said
        assert "Host key verification failed" in said.output
        assert f"ssh -F {server.config} unknown true" in said.output

        [finding] = check_compute("hosts", find_site(shop.folder), shop.folder)
        assert not finding.is_well
        assert "Host key verification failed" in finding.what
        assert f"ssh -F {server.config} unknown true" in finding.remedy


def test_a_broken_connection_loses_nothing(tmp_path: Path, own_server: Sshd) -> None:
    """The server is killed with its connections while a job runs, and comes back."""
    with ssh_shop(tmp_path, own_server) as shop:
        shop.write("job.yaml", job(f"echo begun; touch {tmp_path}/begun; sleep 2; echo ended"))
        client = shop.start("run", "job.yaml")
        wait_until("it has begun", (tmp_path / "begun").exists)
        own_server.kill()
        time.sleep(1.0)
        own_server.start()
        output, errors = client.communicate(timeout=120)
        assert client.returncode == 0, (output, errors)
        assert output.count("begun") == 1
        assert output.count("ended") == 1
        assert "answers again" in output + errors
        assert left_on_hosts(tmp_path) == []


def test_a_client_resumes_after_a_killed_one(tmp_path: Path, server: Sshd) -> None:
    """Killed while its job runs: the next one finds it, and it runs once."""
    with ssh_shop(tmp_path, server) as shop:
        line = f"echo x >> {tmp_path}/count; echo begun; while ! test -e {tmp_path}/go; do sleep 0.1; done"
        shop.write("job.yaml", job(line + "; echo ended"))
        client = shop.start("run", "job.yaml")
        wait_for(tmp_path / "count")
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate()

        clean = shop.rankwise("clean")
        assert clean.exit_code == 1
        assert "rankwise resume job-1" in clean.output, "it may run there: not to be removed"
        (tmp_path / "go").touch()
        said = shop.rankwise("resume", "job-1")
        assert said.exit_code == 0, said
        assert (tmp_path / "count").read_text() == "x\n"
        log = shop.folder / ".rankwise/runs/job-1/job/1/processes/worker-0/output.log"
        assert log.read_text() == "begun\nended\n"
        assert left_on_hosts(tmp_path) == []
        assert recorded(shop) == []


def test_a_page_or_a_status_fetches_and_removes_nothing_which_is_for_the_driver(
    tmp_path: Path, server: Sshd
) -> None:
    """The job has passed on the host while no process drove it: readers leave it there."""
    with ssh_shop(tmp_path, server) as shop:
        line = f"echo x >> {tmp_path}/count; while ! test -e {tmp_path}/go; do sleep 0.1; done"
        shop.write("job.yaml", job(line))
        client = shop.start("run", "job.yaml")
        wait_for(tmp_path / "count")
        os.killpg(client.pid, signal.SIGKILL)
        client.communicate()
        (tmp_path / "go").touch()
        places = tmp_path / "there" / "attempts"
        wait_until("it is over there", lambda: bool(list(places.glob("*/end.json"))))

        there, threads = left_on_hosts(tmp_path), set(threading.enumerate())
        update_stale_runs(shop.folder / ".rankwise")
        status = shop.rankwise("status")
        assert "rankwise resume job-1" in status.output, status
        # Servers of other tests in this process may have threads that come and go.
        wait_until("what a look has begun ends", lambda: set(threading.enumerate()) <= threads)
        assert left_on_hosts(tmp_path) == there == recorded(shop)

        said = shop.rankwise("resume", "job-1")
        assert said.exit_code == 0, said
        assert (tmp_path / "count").read_text() == "x\n"
        assert left_on_hosts(tmp_path) == recorded(shop) == []


@pytest.mark.parametrize("seed", range(part(1, 20)))
def test_a_client_killed_at_any_moment_loses_nothing(
    tmp_path: Path, server: Sshd, seed: int
) -> None:
    """Each task runs once in the end, and nothing stays on the hosts."""
    with ssh_shop(tmp_path, server, hosts='"here", "here-2"') as shop:
        count = tmp_path / "count"
        tests = "".join(
            f'  - {{name: t{n}, run: "echo {n} >> {count}; sleep 0.3"}}\n' for n in range(3)
        )
        shop.write("job.yaml", f"type: Suite\nname: job\ncompute: hosts\ntests:\n{tests}")
        client = shop.start("run", "job.yaml")
        kill_after(client.pid, shop, random.Random(seed).uniform(0.2, 3.0))
        client.communicate()
        said = shop.rankwise("resume", "job-1")
        assert said.exit_code == 0, said
        assert sorted(count.read_text().split()) == ["0", "1", "2"]
        assert left_on_hosts(tmp_path) == recorded(shop) == []


def test_a_matrix_makes_its_runtimes_on_the_host(tmp_path: Path, server: Sshd) -> None:
    """An environment that is made there, once for two tests, and interpreters that are or not."""
    with ssh_shop(tmp_path, server) as shop:
        site = shop.folder / "rankwise.toml"
        base = Path(sys.base_prefix) / "bin" / "python3"
        site.write_text(
            f"{site.read_text()}{gets_packages()}\n"
            f'[runtime.theirs]\npython = "{base}"\n[runtime.nowhere]\npython = "/nowhere/python"\n'
        )
        shop.write("packages.lock", "iniconfig==2.0.0\n")
        shop.write("where.py", "import sys; print(sys.prefix)\n")
        shop.write(
            "job.yaml",
            """\
            type: Matrix
            name: job
            machines: {there: {compute: hosts}}
            runtimes:
              made: {lock: packages.lock, tests: [{name: has, run: "python -c 'import iniconfig'"}]}
              theirs: theirs
              nowhere: nowhere
            tests: [where.py]
            """,
        )
        said = shop.rankwise("run", "job.yaml")
        assert said.exit_code == 1, said
        assert "/nowhere/python is no Python on" in said.output + said.errors
        tasks = shop.folder / ".rankwise/runs/job-1"
        log = "1/processes/worker-0/output.log"
        made = (tasks / "made@there@where.py" / log).read_text()
        assert made.startswith(f"{tmp_path}/there/runtimes/"), said
        assert (tasks / "theirs@there@where.py" / log).read_text() == f"{sys.base_prefix}\n"
        assert (tasks / "made@there@has" / "1" / "end.json").exists()
        assert left_on_hosts(tmp_path) == recorded(shop) == []


SUITE = """
type: Suite
name: job
compute: hosts
repository: {url: ../tests of mine, ref: $REF}
secrets: [TOKEN_OF_MINE]
tests: [sub/test.sh, {run: "git status --short; git log --format=%s", name: history}]
"""


def test_a_repository_is_cloned_on_the_host_and_kept_there(tmp_path: Path, server: Sshd) -> None:
    origin = tmp_path / "tests of mine"
    git("init", "--quiet", "--initial-branch=main", str(origin))
    (origin / "sub").mkdir()
    for text in ("one", "two"):
        (origin / "sub" / "test.sh").write_text(f"echo 'this is {text}'; echo > made\n")
        git("add", ".", folder=origin)
        git(*ME, "commit", "--quiet", "--message", text, folder=origin)
    with ssh_shop(tmp_path, server) as shop:
        shop.variables |= {"REF": "main", "XDG_CACHE_HOME": str(tmp_path / "cache")}
        shop.variables["TOKEN_OF_MINE"] = "xyzzy-plugh-plover"
        said = run(shop, SUITE)
        assert said.exit_code == 0, said
        assert "this is two" in shop.rankwise("logs", "--task", "test").output
        # All of it is as it was committed, with its history.
        log = shop.rankwise("logs", "--task", "history").output
        assert [line.rpartition("| ")[2] for line in log.splitlines()] == ["two", "one"], log
        # Only what a test has made came here; the clone is kept there for the next one.
        work = shop.folder / ".rankwise/runs/job-1/test/1/nodes/node0"
        assert [path.name for path in work.rglob("*") if path.is_file()] == ["made"]
        (kept,) = (tmp_path / "there" / "repositories").iterdir()
        assert (kept / "git" / "HEAD").exists()
        assert left_on_hosts(tmp_path) == []
        # A commit that the host has is cloned there without the origin.
        shop.variables["REF"] = "main~1"
        (tmp_path / "there" / "repositories" / kept.name / "git" / "FETCH_HEAD").unlink()
        said = run(shop, SUITE)
        assert said.exit_code == 0, said
        assert "this is one" in shop.rankwise("logs", "job-2", "--task", "test").output
        assert not (kept / "git" / "FETCH_HEAD").exists(), "it was fetched once more"


def test_a_repository_that_a_host_cannot_reach_is_named(tmp_path: Path, server: Sshd) -> None:
    git("init", "--quiet", "--initial-branch=main", str(tmp_path / "origin"))
    git(*ME, "commit", "--quiet", "--allow-empty", "--message", "x", folder=tmp_path / "origin")
    more = f'init = ["export PATH={tmp_path}/bin:$PATH"]'
    with ssh_shop(tmp_path, server, more) as shop:
        shop.variables["XDG_CACHE_HOME"] = str(tmp_path / "cache")
        # The host has a git that reaches nothing.
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "git").write_text("#!/bin/sh\necho no route >&2; exit 128\n")
        (tmp_path / "bin" / "git").chmod(0o755)
        text = "type: Suite\nname: job\ncompute: hosts\nrepository: ../origin\ntests: ['true']\n"
        said = run(shop, text)
        assert said.exit_code == 1, said
        assert "not run" in said.output, said
        assert "origin could not be cloned on" in said.output, said
        assert "git init: no route" in said.output, said


_ROLES = """\
type: TensorflowJob
name: roles
compute: hosts
worker:
  num_replicas: 1
  spec: {command: python say.py, code: ./src, environment: current}
parameter_server:
  spec:
    command: python say.py
    code: ./servers
    environment: other
    resource_limits: {memory: 1Gi}
"""


def test_each_role_has_its_environment_and_code_on_the_host(tmp_path: Path, server: Sshd) -> None:
    other = tmp_path / "other"
    venv.create(other, with_pip=False)
    said = "import os, resource, sys; limit = resource.getrlimit(resource.RLIMIT_DATA)[0]\n"
    said += "print(NAME, sys.prefix, os.environ.get('VIRTUAL_ENV'), limit, flush=True)\n"
    table = f'[runtime.other]\npython = "{other}"\n'
    with ssh_shop(tmp_path, server, table) as shop:
        shop.write("src/say.py", said.replace("NAME", "'worker'") + "import time; time.sleep(1)\n")
        shop.write(
            "servers/say.py", said.replace("NAME", "'server'") + "open('made', 'w').close()\n"
        )
        ended = run(shop, _ROLES)
        assert ended.exit_code == 0, ended
        words = {
            line.split()[0]: line.split()[1:] for line in re.findall(r"\| (\w+ /.*)", ended.output)
        }
        assert words["server"][:2] == [str(other)] * 2
        assert words["worker"][0] == sys.prefix
        # Where the host has cgroups for us, there is no rlimit.
        assert words["server"][2] in (str(1 << 30), words["worker"][2])
        made = shop.folder.glob(".rankwise/runs/roles-1/roles/1/nodes/*/made")
        assert [path.parent.name for path in made] == ["node0-parameter_server"]
