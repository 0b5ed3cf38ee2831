"""The pipeline of examples/theta on a real Slurm: the check in the queue, the detached benchmarks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mpi4py
import pytest
from cluster import Cluster
from environments import ROOT

from tests.acceptance.jobs import Shop
from tests.notify.mailboxes import mail_server
from tests.seeds.sentences import sentence
from tests.slurm.shops import (
    cluster_shop,
    wait_until,
    wait_until_idle,
)

EXAMPLE = ROOT / "examples" / "theta"
REAL_BUILD = "RANKWISE_BUILD_FROM_SOURCE"
"""Set it to have mpi4py compiled, as the example does; otherwise the one that is here is taken."""


MAIL = """
[notify.team]
host = "127.0.0.1"
port = {port}
security = "none"
from = "robot@example.org"
to = "ada@example.org"
"""


BUILD_CYTHON = """\
#!/bin/bash
mkdir -p "$BUILD_ROOT/wheels" && touch "$BUILD_ROOT/wheels/cython-$CYTHON.whl"
"""
BUILD_MPI4PY = """\
#!/bin/bash
mkdir -p "$BUILD_ROOT/source/mpi4py-$MPI4PY/demo" && touch "$BUILD_ROOT/wheels/mpi4py-$MPI4PY.whl"
cp bench.py "$BUILD_ROOT/source/mpi4py-$MPI4PY/demo/osu_latency.py"
echo "$MPI4PY_HERE" > "$(echo "$BUILD_ROOT"/venv/lib/python3*)/site-packages/here.pth"
"""


def without_the_build(shop: Shop) -> None:
    """Take mpi4py from where it is: compiling it takes minutes, and has nothing to do with Slurm."""
    version = mpi4py.__version__
    text = (EXAMPLE / "pipeline.yaml").read_text().replace("4.1.2", version)
    # It would look for MPI beside the Python that it is loaded into.
    text = text.replace("  MPI4PY: ", f"  MPI4PY_LIBMPI: {sys.prefix}/lib/libmpi.so.12\n  MPI4PY: ")
    text = re.sub(r"(?s)(  download:\n    run: )\|\n.*?(    retries)", r"\1'true'\n\2", text)
    (shop.folder / "pipeline.yaml").write_text(text)
    for name, lines in (("cython", BUILD_CYTHON), ("mpi4py", BUILD_MPI4PY)):
        (shop.folder / f"build-{name}.sh").write_text(lines)
    sweep = (EXAMPLE / "osu.yaml").read_text().replace("4.1.2", version)
    sweep = sweep.replace("[osu_latency.py, osu_bw.py]", "[osu_latency.py]")
    (shop.folder / "osu.yaml").write_text(sweep)
    shop.write("bench.py", BENCH)
    shop.variables["MPI4PY_HERE"] = str(Path(mpi4py.__file__).parents[1])


BENCH = """\
from mpi4py import MPI
if MPI.COMM_WORLD.rank == 0:
    print("# OSU MPI Latency Test")
    print("# Size [B]        Latency [us]")
    print("1    0.5")
MPI.COMM_WORLD.Barrier()
"""


THETA = "theta-ci-performance"
RAN = "rankwise run pipeline.yaml --notify team"


@sentence(
    THETA,
    ran=RAN,
    stand_in="the Python that is here",
    said="1. Virtualenv setup: an environment based on cray-python, for build and test.",
)
@sentence(
    THETA,
    ran=f"{RAN}: `on: theta`, print_rank.py, `checks`",
    stand_in="Slurm",
    said="testMPI4Py.sh is submitted to Cobalt, and runs printRank.py to ensure that MPI is right.",
)
@sentence(
    THETA,
    ran=RAN,
    said="The fresh environment is copied from BUILD_ROOT to a permanent place, RELEASE_ROOT.",
)
@sentence(
    THETA,
    ran=f"{RAN}: `sweep: osu.yaml`, `detach: true`",
    stand_in="Slurm",
    said="The benchmarks are dispatched with Balsam, and execute asynchronously.",
)
def test_the_whole_pipeline_on_a_cluster(tmp_path: Path, slurm: Cluster) -> None:
    with cluster_shop(tmp_path / "shop", slurm) as shop:
        shutil.copytree(EXAMPLE, shop.folder, dirs_exist_ok=True)
        (shop.folder / "rankwise.toml").write_text(
            '[compute.theta]\nbackend = "slurm"\nmpi = "srun-pmi2"\n'
        )
        if not os.environ.get(REAL_BUILD):
            without_the_build(shop)
        with mail_server() as mailbox:
            with (shop.folder / "rankwise.toml").open("a") as site:
                site.write(MAIL.format(port=mailbox.port))
            said = shop.rankwise(
                "run", "pipeline.yaml", "--strict", "--notify", "team", seconds=900.0
            )
            assert said.exit_code == 0, said
            # From here on no client asks: the benchmarks run, and what follows them is done.
            wait_until("the mail of both runs", lambda: len(mailbox.letters) == 2, 600.0)
        subjects = [str(letter["Subject"]) for letter in mailbox.letters]
        assert [one.partition(":")[0] for one in subjects] == [
            "mpi4py-1 passed",
            "mpi4py-benchmark-1 passed",
        ]
        attached = [part.get_filename() for part in mailbox.letters[1].iter_attachments()]
        assert attached == ["mpi4py-benchmark-1.pdf", "mpi4py-benchmark-1.csv"]
        report = shop.folder / ".rankwise" / "runs" / "mpi4py-benchmark-1"
        assert (report / "report.pdf").read_bytes().startswith(b"%PDF-")
        assert "<h3>In short</h3>" in (report / "report.html").read_text()
        assert "rank 1 of 2, mpi4py" in said.output
        assert (shop.folder / "releases" / "current").readlink() == Path("mpi4py-1")
        summary = (shop.folder / "summary.md").read_text()
        assert "| sanity-check | passed |" in summary
        assert "Goes on by itself: mpi4py-benchmark-1" in summary

        status = json.loads(shop.rankwise("status", "mpi4py-1", "--json").output)
        assert [child["state"] for child in status["children"]] == ["passed"]
        again = shop.rankwise("run", "pipeline.yaml", "--from", "deploy")
        assert again.exit_code == 0, again
        assert "sanity-check passed: taken over from mpi4py-1" in again.output
        back = shop.rankwise("rollback", "releases")
        assert back.output.splitlines()[0].startswith("* mpi4py-1"), back
        wait_until_idle(slurm)
        # The benchmarks of the second time go on: one job after the other.
        shop.wait_until_empty(600.0)


CHECKED_OUT = """\
type: Pipeline
name: nightly
stages:
  source: {checkout: {repository: UPSTREAM, into: source}}
  build:
    run: mkdir -p build && cp source/program.sh build/program.sh
    inputs: []
    outputs: build/program.sh
  sanity-check: {on: slurm, run: sh build/program.sh}
"""
IN_THE_REPOSITORY = """\
type: Pipeline
name: nightly
workspace: UPSTREAM
stages:
  build:
    run: mkdir -p build && cp program.sh build/program.sh
    inputs: program.sh
    outputs: build/program.sh
  sanity-check: {on: slurm, run: sh build/program.sh}
"""


class Upstream:
    """A repository whose program says which version it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init")

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
        line = ["git", "-C", str(self.folder), *who, *words]
        subprocess.run(line, check=True, capture_output=True)

    def commit(self, version: str) -> None:
        (self.folder / "program.sh").write_text(f"echo this is {version}\n")
        self.git("add", "program.sh")
        self.git("commit", "--message", version)


@pytest.mark.parametrize("document", [CHECKED_OUT, IN_THE_REPOSITORY], ids=["checkout", "in place"])
def test_after_a_revert_the_build_of_the_reverted_commit_is_tested(
    tmp_path: Path, slurm: Cluster, document: str
) -> None:
    upstream = Upstream(tmp_path / "upstream")
    with cluster_shop(tmp_path / "shop", slurm) as shop:
        shop.write("pipeline.yaml", document.replace("UPSTREAM", str(upstream.folder)))

        def tested() -> tuple[str, bool]:
            said = shop.rankwise("run", "pipeline.yaml", seconds=120.0)
            assert said.exit_code == 0, said
            found = re.findall(r"this is (version \d)", said.output)
            assert len(found) == 1, said
            return found[0], "build passed: unchanged since" in said.output

        upstream.commit("version 1")
        assert tested() == ("version 1", False)
        assert tested() == ("version 1", True)
        upstream.commit("version 2")
        assert tested() == ("version 2", False)
        upstream.git("revert", "--no-edit", "HEAD")
        assert tested() == ("version 1", False)
        # The very commits of earlier runs: they were built before, but what is there is another.
        upstream.git("reset", "--hard", "HEAD^")
        assert tested() == ("version 2", False)
        upstream.git("reset", "--hard", "HEAD^")
        assert tested() == ("version 1", False)
        assert tested() == ("version 1", True)


def test_what_a_stage_on_a_node_submits_outlives_the_stage(tmp_path: Path, slurm: Cluster) -> None:
    with cluster_shop(tmp_path / "shop", slurm) as shop:
        shop.write(
            "job.yaml",
            """\
            type: command
            name: job
            command: 'touch began; while [ ! -e go ]; do sleep 0.05; done; echo went > went'
            """,
        )
        shop.write(
            "pipeline.yaml",
            f"""\
            type: Pipeline
            name: outer
            stages:
              hand-in:
                on: slurm
                run: |
                  {sys.executable} -m rankwise.cli.main submit job.yaml
                  while [[ ! -e began ]]; do sleep 0.05; done
            """,
        )
        said = shop.rankwise("run", "pipeline.yaml", seconds=120.0)
        assert said.exit_code == 0, said
        wait_until_idle(slurm)
        status = json.loads(shop.rankwise("status", "job-1", "--json").output)
        assert status["state"] == "running", status
        (shop.folder / "go").touch()
        shop.wait_until_empty()
        status = json.loads(shop.rankwise("status", "job-1", "--json").output)
        assert status["state"] == "passed", status
