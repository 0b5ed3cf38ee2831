"""The page about CI and performance on Theta: from a Jenkinsfile to one pipeline.

What needs a queue is held by tests/slurm/test_pipeline.py, on a real Slurm.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from environments import PYTHON, ROOT

from rankwise.store import Store
from tests.acceptance.jobs import Said, Shop, opened
from tests.seeds.sentences import sentence

PAGE = "theta-ci-performance"
SMALL = "a build tool and a program of a few lines"

PIPELINE = """\
type: Pipeline
name: tensorflow
env: {BUILD_ROOT: build, RELEASE_ROOT: releases}
stages:
  environment: source env-setup.sh
  bazel: source build-bazel.sh
  checkout: {checkout: {repository: upstream, into: source}}
  tensorflow: ./build-tensorflow.sh
  sanity-check:
    ranks: 2
    run: python "$BUILD_ROOT/printRank.py"
    checks: [rank 0 of 2, rank 1 of 2]
  deploy: {deploy: {from: build, to: $RELEASE_ROOT, name: only}}
  benchmark: |
    export RANKWISE_STORE=$PWD/$RELEASE_ROOT/database
    python -m rankwise.cli.main submit osu.yaml
  summary: {when: always, report: summary.md}
"""
BUILD_BAZEL = """\
mkdir -p "$BUILD_ROOT/bin"
tar -xf bazel.tar -C "$BUILD_ROOT"
python -m zipapp "$BUILD_ROOT/bazel" -p "/usr/bin/env python" -o "$BUILD_ROOT/bin/bazel"
export PATH="$PWD/$BUILD_ROOT/bin:$PATH"
"""
# The tool that is built first: it has a compiler make a library of each source.
BAZEL = """\
import os, pathlib, subprocess, sys
source, built = map(pathlib.Path, sys.argv[1:])
for file in source.glob("*.c"):
    line = ["cc", "-shared", "-fPIC", *os.environ["CFLAGS"].split(), str(file)]
    subprocess.run([*line, "-o", str(built / f"{file.stem}.so")], check=True)
for file in source.glob("*.py"):
    (built / file.name).write_bytes(file.read_bytes())
"""
SESSION = "int optimized(void) {\n#ifdef __OPTIMIZE__\n  return 1;\n#endif\n  return 0;\n}\n"
PRINT_RANK = """\
import ctypes, pathlib
from mpi4py import MPI
session = ctypes.CDLL(pathlib.Path(__file__).with_name("session.so"))
rank = f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}"
print(f"{rank}, optimized: {session.optimized()}")
"""
# As the benchmarks of OSU print it, which come with the source of mpi4py.
BENCH = """\
import time
from pathlib import Path
from mpi4py import MPI

comm = MPI.COMM_WORLD
while not Path("go").exists():
    time.sleep(0.05)
ranks = comm.allreduce(1)
if comm.rank == 0:
    print("# OSU MPI Latency Test")
    print("# Size [B]        Latency [us]")
    print(f"1    0.{ranks}")
"""
SWEEP = """\
type: Sweep
name: osu
command: python bench.py
nodes: [1, 2]
ranks_per_node: [1, 2]
trials: 2
metrics: [osu]
report: when-complete
"""


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org")
    line = ["git", "-C", str(folder), *who, *words]
    subprocess.run(line, check=True, capture_output=True)


def write_sources(shop: Shop) -> None:
    """Write the scripts, the package of the build tool, and the repository of the program."""
    shop.write("pipeline.yaml", PIPELINE)
    shop.write("env-setup.sh", "export CFLAGS=-O2\n")
    shop.write("build-bazel.sh", BUILD_BAZEL)
    script = '#!/bin/bash\nbazel source "$BUILD_ROOT"\n'
    shop.write("build-tensorflow.sh", script).chmod(0o755)
    tool = shop.write("packed/bazel/__main__.py", BAZEL)
    with tarfile.open(shop.folder / "bazel.tar", "w") as package:
        package.add(tool.parent, "bazel")
    shop.write("upstream/printRank.py", PRINT_RANK)
    shop.write("upstream/session.c", SESSION)
    git(shop.folder / "upstream", "init")
    git(shop.folder / "upstream", "add", ".")
    git(shop.folder / "upstream", "commit", "--message", "first")
    shop.write("bench.py", BENCH)
    shop.write("osu.yaml", SWEEP)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    if shutil.which("cc") is None:
        missing = "there is no C compiler (cc)"
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    with opened(tmp_path_factory.mktemp("theta")) as shop:
        shop.variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        write_sources(shop)
        yield shop
        shop.wait_until_empty()


@pytest.fixture(scope="module")
def pipeline(shop: Shop) -> Said:
    """What the pipeline said. The benchmarks that it submits begin when there is a file `go`."""
    said = shop.rankwise("run", "pipeline.yaml", "--strict")
    assert said.exit_code == 0, said
    return said


def states(shop: Shop, run: str) -> dict[str, str]:
    status = json.loads(shop.rankwise("status", run, "--json").output)
    return {task["key"]: task["state"] for task in status["tasks"]}


RAN = "rankwise run pipeline.yaml"


@sentence(PAGE, ran=RAN, stand_in=SMALL)
def test_a_pipeline_has_these_stages(shop: Shop, pipeline: Said) -> None:
    """The pipeline has stages: setup, build tool, build from source, sanity check, deploy."""
    stages = ["environment", "bazel", "checkout", "tensorflow", "sanity-check", "deploy"]
    assert list(states(shop, "tensorflow-1")) == [*stages, "benchmark", "summary"]
    assert set(states(shop, "tensorflow-1").values()) == {"passed"}


@sentence(PAGE, ran=RAN, stand_in=SMALL)
@sentence(PAGE, ran=RAN, stand_in=SMALL, said="3. TensorFlow checkout and build from source.")
def test_one_build_from_source_is_the_tool_of_the_next(shop: Shop, pipeline: Said) -> None:
    """2. Bazel download and build from source."""
    assert (shop.folder / "build" / "bin" / "bazel").read_bytes().startswith(b"#!")
    assert (shop.folder / "build" / "session.so").read_bytes().startswith(b"\x7fELF")
    assert "rank 1 of 2, optimized: 1" in pipeline.output, pipeline


@sentence(PAGE, ran=RAN, stand_in=SMALL)
def test_a_build_is_deployed_and_its_measurement_launched(shop: Shop, pipeline: Said) -> None:
    """5. Deploy, and launch a performance measurement job (NOT IMPLEMENTED)."""
    assert (shop.folder / "releases" / "current").readlink() == Path("only")
    assert (shop.folder / "releases" / "current" / "printRank.py").is_file()
    assert "osu-1" in pipeline.output, pipeline


@sentence(
    PAGE,
    ran="rankwise run embedded.yaml: a program in lines of a stage, and a stage for each value",
    said="A flexible language which can embed scripts for more complex workflows.",
)
def test_a_stage_may_have_a_program_of_any_language_in_it(shop: Shop) -> None:
    shop.write(
        "embedded.yaml",
        """\
        type: Pipeline
        name: embedded
        stages:
          decide:
            run: |
              python3 - > decided <<'END'
              print("debug" if 2 + 2 == 4 else "production")
              END
              export QUEUE="$(cat decided)"
          each: {matrix: {size: [1, 2]}, run: "echo size ${{matrix.size}} in $QUEUE"}
        """,
    )
    said = shop.rankwise("run", "embedded.yaml")
    assert said.exit_code == 0, said
    assert "size 1 in debug" in said.output
    assert "size 2 in debug" in said.output


@sentence(PAGE, ran="rankwise run scripts.yaml, which runs the scripts as they are")
@sentence(
    PAGE,
    ran="rankwise run scripts.yaml",
    said="The build is split into env-setup.sh, build-cython.sh and build-mpi4py.sh.",
)
def test_a_pipeline_is_a_series_of_shell_scripts(shop: Shop) -> None:
    """The Jenkinsfile defines the stages declaratively, and orchestrates shell scripts."""
    shop.write("env-setup.sh", "export CFLAGS=-O2 CC=cc\n")
    shop.write("build-cython.sh", '#!/bin/bash\necho "cython with $CC $CFLAGS" > cython\n')
    shop.write("build-mpi4py.sh", '#!/bin/bash\necho "mpi4py after $(cat cython)"\n')
    for name in ("build-cython.sh", "build-mpi4py.sh"):
        (shop.folder / name).chmod(0o755)
    shop.write(
        "scripts.yaml",
        """\
        type: Pipeline
        name: scripts
        stages:
          environment: source env-setup.sh
          cython: ./build-cython.sh
          mpi4py: {run: ./build-mpi4py.sh, checks: [mpi4py after cython with cc -O2]}
        """,
    )
    said = shop.rankwise("run", "scripts.yaml")
    assert said.exit_code == 0, said


@sentence(PAGE, ran="rankwise run sanity.yaml: `grep -q` in the stage, and `checks`")
@sentence(
    PAGE,
    ran="rankwise run sanity.yaml",
    said="4. Sanity check: a quick test that the build was successful and can run.",
)
def test_a_wrong_output_fails_the_pipeline_at_the_sanity_check(shop: Shop) -> None:
    """grep -q tests whether printRank.py had the correct output; if not, the pipeline fails."""
    shop.write("printRank.py", "print('rank 0 of 1')\n")
    shop.write(
        "sanity.yaml",
        """\
        type: Pipeline
        name: sanity
        stages:
          good: python printRank.py > out.txt; grep -q 'rank 0 of 1' out.txt
          checked: {run: python printRank.py, checks: [rank 0 of 1]}
          wrong: {needs: good, run: "python printRank.py > out.txt; grep -q 'rank 1 of' out.txt"}
          unchecked: {needs: good, run: python printRank.py, checks: [rank 1 of]}
          deploy: {needs: [wrong, unchecked], run: touch deployed}
        """,
    )
    said = shop.rankwise("run", "sanity.yaml")
    assert said.exit_code == 1, said
    assert states(shop, "sanity-1") == {
        "good": "passed",
        "checked": "passed",
        "wrong": "failed",
        "unchecked": "failed",
        "deploy": "not run",
    }
    assert not (shop.folder / "deployed").exists()


@pytest.fixture(scope="module")
def measured(shop: Shop, pipeline: Said) -> Shop:
    """The shop when the benchmarks are over, which began after the pipeline had passed."""
    store = ("--store", "releases/database")
    asked = shop.rankwise("status", "osu-1", "--json", *store)
    assert json.loads(asked.output)["state"] == "running", asked
    (shop.folder / "go").touch()
    deadline = time.monotonic() + 120
    while (
        json.loads(shop.rankwise("status", "osu-1", "--json", *store).output)["state"] != "passed"
    ):
        assert time.monotonic() < deadline, shop.rankwise("status", "osu-1", *store)
        time.sleep(0.2)
    return shop


@sentence(PAGE, ran="rankwise submit osu.yaml in a stage; rankwise status later")
def test_the_pipeline_ends_when_the_benchmarks_are_submitted(measured: Shop) -> None:
    """The pipeline exits upon submitting the benchmarks; it is up to us to check on results."""
    said = measured.rankwise("status", "osu-1", "--store", "releases/database")
    assert "8 tasks: 8 passed" in said.output, said


@sentence(PAGE, ran="RANKWISE_STORE=$RELEASE_ROOT/database rankwise submit osu.yaml")
def test_a_store_in_the_release_has_the_benchmarks(measured: Shop) -> None:
    """A new database is initialized in RELEASE_ROOT and populated with benchmark tasks."""
    here = measured.rankwise("list")
    assert "osu-1" not in here.output, here
    there = measured.rankwise("list", "--store", "releases/database")
    assert "osu-1" in there.output, there
    assert "tensorflow-1" not in there.output, there


@sentence(PAGE, ran="rankwise submit osu.yaml: nodes, ranks_per_node, trials")
def test_a_sweep_measures_every_combination(measured: Shop) -> None:
    """A big parameter sweep (trials, nodes, ranks-per-node), executed automatically."""
    with Store.open(measured.folder / "releases" / "database", read_only=True) as store:
        values = sorted(row.value for row in store.samples_of_run("osu-1"))
    # The number of ranks stands behind the point: 1, 1x2, 2x1 and 2x2, two trials each.
    assert values == [0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.4, 0.4]


@sentence(PAGE, ran="rankwise run summary.yaml: the stages `sweep`, an analysis, `report`")
def test_a_last_stage_makes_a_summary_for_people(measured: Shop) -> None:
    """An analysis job as a final "summary" stage organizes the data in a readable format."""
    measured.write(
        "summary.yaml",
        """\
        type: Pipeline
        name: ensemble
        stages:
          benchmark: {sweep: osu.yaml}
          analysis: |
            python -m rankwise.cli.main report ensemble-1 --csv data.csv
            cut -d, -f9,15 data.csv | sort -u > by-ranks.txt
          summary: {report: summary.md}
          page: {report: page.html}
        """,
    )
    said = measured.rankwise("run", "summary.yaml")
    assert said.exit_code == 0, said
    assert (measured.folder / "by-ranks.txt").read_text().split() == [
        *(",", "1,0.1", "1,0.2", "2,0.2", "2,0.4", "ranks_per_node,value")
    ]
    summary = (measured.folder / "summary.md").read_text()
    assert "| latency | ranks=4 nodes=2 size=1 | 0.4 | us | 0.4 - 0.4 | 2 |" in summary, summary
    assert "latency" in (measured.folder / "page.html").read_text()


@sentence(
    PAGE,
    ran="rankwise store merge of two sites' stores, then `rankwise run osu.yaml --only analysis`",
    said="An analysis organizes the ensemble data into a friendly, human-readable format.",
)
def test_the_ensembles_of_two_sites_have_one_analysis(tmp_path: Path) -> None:
    with opened(tmp_path / "sites") as shop:
        for site, sizes in (("a", "[1, 2]"), ("b", "[3, 4]")):
            shop.write(
                f"{site}/osu.yaml",
                f"""\
                type: Sweep
                command: echo "took ${{{{size}}}} s"
                parameters: {{size: {sizes}}}
                trials: 2
                metrics: [{{name: time, unit: s, pattern: 'took ([0-9.]+) s'}}]
                """,
            )
            store = ("--store", f"{site}/.rankwise")
            said = shop.rankwise("run", f"{site}/osu.yaml", "--quiet", *store)
            assert said.exit_code == 0, said
        for known in (0, 1):
            said = shop.rankwise("store", "merge", "b/.rankwise", "--store", "a/.rankwise")
            merged = f"{1 - known} run{'s' * known} merged with {4 - 4 * known} samples"
            assert said.output.splitlines()[0] == merged, said
        text = (shop.folder / "a/osu.yaml").read_text().replace("[1, 2]", "[1, 2, 3, 4]")
        analysis = """analysis: 'cut -d, -f15 "$RANKWISE_SAMPLES" | sort | uniq -c > found'"""
        (shop.folder / "a/osu.yaml").write_text(f"{text}{analysis}\n")
        line = ("run", "a/osu.yaml", "--only", "analysis", "--store", "a/.rankwise")
        said = shop.rankwise(*line)
        assert said.exit_code == 0, said
        found = (shop.folder / "a/found").read_text().split("\n")
        assert [one.split() for one in found] == [
            *(["2", "1.0"], ["2", "2.0"], ["2", "3.0"], ["2", "4.0"], ["1", "value"], [])
        ]
        shop.wait_until_empty()


@sentence(PAGE, ran="rankwise run osu.yaml: `python fetch.py`, then its osu_latency.py")
@pytest.mark.usefixtures("package_index")
def test_the_benchmarks_come_with_mpi4py(tmp_path: Path) -> None:
    """The OSU MPI benchmarks come for free, with the source of mpi4py (demo/osu_*.py)."""
    with opened(tmp_path / "osu") as shop:
        for name in ("fetch.py", "small.py"):
            shop.write(name, (ROOT / "examples" / "osu" / name).read_text())
        shop.write(
            "osu.yaml",
            f"""\
            type: Sweep
            prepare: {PYTHON} fetch.py
            command: python small.py osu_latency
            ranks_per_node: [2]
            trials: 1
            metrics: [osu]
            """,
        )
        said = shop.rankwise("run", "osu.yaml")
        assert said.exit_code == 0, said
        with Store.open(shop.folder / ".rankwise", read_only=True) as store:
            assert all(row.value > 0 for row in store.samples_of_run("osu-1"))
            assert {row.metric for row in store.series(name="osu")} == {"latency"}
        assert len(list((shop.folder / ".benchmarks").glob("osu_*.py"))) > 10
        shop.wait_until_empty()
