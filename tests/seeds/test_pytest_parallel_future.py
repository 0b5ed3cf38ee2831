"""The readme of pytest_parallel: its future work, one sentence after the other."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cluster import Cluster
from environments import ROOT

from tests.acceptance.conftest import CREWS
from tests.acceptance.harness import Project
from tests.seeds.readme_example import check, notes
from tests.seeds.sentences import sentence
from tests.seeds.typed import type_line
from tests.slurm.conftest import require_slurm
from tests.support.machines import obstacle, seeing, two_domains

README = "pytest_parallel"
MADE = "a made /sys with two domains of a core each"


def require_two_cores() -> None:
    if not {0, 1} <= os.sched_getaffinity(0):
        pytest.skip("needs the cores 0 and 1")


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """The beginning of a command that sees a machine with two domains of every kind."""
    require_two_cores()
    made = two_domains(tmp_path / "a machine's")
    if why := obstacle(made):
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail(why)
        pytest.skip(why)
    return shlex.join(seeing(made))


def in_turns(line: str) -> str:
    """Return the line of an mpirun of 4 ranks that binds them to the two cores in turns."""
    return "mpirun " + " : ".join(f"-np 1 taskset -c {rank % 2} {line}" for rank in range(4))


# Binding


BOUND = """
    import os

    import pytest_parallel
    from notes import note

    @pytest_parallel.mark.parallel({size})
    def test_cores(comm):
        note(comm.rank, ",".join(map(str, sorted(os.sched_getaffinity(0)))))
"""


def cores_of_ranks(project: Project) -> list[str]:
    return [cores for _, cores in sorted(notes(project))]


@sentence(
    README,
    ran="pytest --n-workers=2 --scheduler=pool|shell --bind=core|none|map:1,0-1",
)
@pytest.mark.parametrize("scheduler", ["pool", "shell"])
def test_ranks_are_bound_as_the_option_says(example: Project, scheduler: str) -> None:
    """Future work: more configuration options for the binding of MPI processes."""
    require_two_cores()
    example.write({"test_bound.py": BOUND.format(size=2)})
    expected = {"map:1,0-1": "1 0,1"}
    if scheduler == "pool":
        expected |= {"core": "0 1", "none": "0,1 0,1"}
    for bind, cores in expected.items():
        line = f"pytest --n-workers=2 --scheduler={scheduler} --bind={bind} test_bound.py"
        outcome = type_line(example, f"taskset -c 0,1 {line}")
        assert outcome.counts() == {"passed": 1}, outcome
        assert cores_of_ranks(example) == cores.split(), outcome


@sentence(
    README,
    ran="pytest --n-workers=4 --bind=… on 2 cores: l3, numa, socket, and core of the wider ones",
    stand_in=MADE,
    said="Future work: binding to caches, NUMA domains and sockets.",
)
def test_ranks_are_bound_to_domains(example: Project, machine: str) -> None:
    """The first two of four workers are in the first of two domains."""
    example.write({"test_bound.py": BOUND.format(size=4)})
    expected = {"l3": "0 0 1 1", "numa": "0 0 1 1", "socket": "0 0 1 1", "core": "0,1 " * 4}
    for bind, cores in expected.items():
        line = f"{machine} pytest --n-workers=4 --bind={bind} test_bound.py"
        outcome = type_line(example, line)
        assert outcome.counts() == {"passed": 1}, outcome
        assert cores_of_ranks(example) == cores.split(), outcome
        has_notice = "--bind=core has no effect with more than 2 workers" in outcome.output
        assert has_notice == (bind == "core"), outcome


@sentence(
    README,
    ran="mpirun -np 2 pytest --bind=core",
    said="Future work: binding under mpirun is left to the launcher.",
)
def test_under_mpirun_the_launcher_binds(example: Project) -> None:
    require_two_cores()
    example.write({"test_bound.py": BOUND.format(size=2)})
    line = "pytest --bind=core test_bound.py"
    outcome = type_line(example, f"mpirun -np 1 taskset -c 1 {line} : -np 1 taskset -c 0 {line}")
    assert outcome.counts() == {"passed": 1}, outcome
    assert "--bind has no effect under mpirun, which binds ranks itself" in outcome.output
    assert cores_of_ranks(example) == ["1", "0"], outcome


@pytest.mark.parametrize(
    ("bind", "said"),
    [
        ("cores", "'cores' is none of core, l3, numa, socket, none, and no map of cores"),
        ("map:0;1", "'0;1' is no list of cores such as 0,2-3,4+6"),
        ("map:0", "--bind=map:0 has cores for 1 of 2 workers: add an entry for each"),
        ("map:0,9999", "--bind=map:0,9999: core 9999 is none of those that the workers may use"),
    ],
)
def test_a_wrong_binding_is_refused_with_the_remedy(example: Project, bind: str, said: str) -> None:
    outcome = type_line(example, f"pytest --n-workers=2 '--bind={bind}' test_pytest_parallel.py")
    assert outcome.exit_code == pytest.ExitCode.USAGE_ERROR, outcome
    assert said in outcome.errors, outcome
    assert outcome.reports == [], outcome


# Domains of one test alone


ALONE = """
    import os
    import time

    import pytest
    import pytest_parallel
    from notes import note

    def noted(name, seconds=0.02):
        where = os.environ.get("SLURMD_NODENAME", "here")
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        note("begin", name, where, cores)
        time.sleep(seconds)
        note("end", name, where, cores)

    @pytest.mark.parametrize("number", range(8))
    def test_other(number):
        noted(f"other{number}-LEVEL")

    @pytest_parallel.mark.parallel(2)
    def test_pair(comm):
        noted(f"pair{comm.rank}-LEVEL")

    @pytest.mark.parametrize("number", range(2))
    @pytest_parallel.mark.parallel(1, exclusive_numa_domain='LEVEL')
    def test_alone(comm, number):
        noted(f"alone{number}-LEVEL", 0.1)
"""


def alone_at(level: str) -> str:
    return ALONE.replace("LEVEL", level)


def spans_of(found: Sequence[Sequence[str]]) -> Iterator[tuple[str, str, set[str], list[int]]]:
    """Return of each rank of a test its name, its node, its cores, and when it was there."""
    times: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for moment, (_, *which) in enumerate(found):
        times[tuple(which)].append(moment)
    for (name, where, cores), when in times.items():
        yield name, where, set(cores.split(",")), when


def check_alone(found: Sequence[Sequence[str]], *, is_node: bool = False) -> int:
    """Make sure that no other test is where an exclusive one is; return how many of those ran."""
    spans = list(spans_of(found))
    exclusive = [span for span in spans if span[0].startswith("alone")]
    for name, where, cores, (begin, end) in exclusive:
        for other, there, others, (start, stop) in spans:
            if other != name and there == where and start < end and begin < stop:
                assert not is_node, (name, other)
                assert not cores & others, (name, other)
    return len(exclusive)


LEVELS = ("core", "l3", "cpu", "numa", "socket", "node")


@sentence(
    README,
    ran="mpirun -np 4 pytest --scheduler=sequential|static|dynamic: core, l3, cpu, numa, socket, node",
    stand_in=MADE,
    said="Reserve more procs than declared: exclusive_numa_domain under mpirun.",
)
@pytest.mark.parametrize("scheduler", ["sequential", "static", "dynamic"])
def test_a_test_of_an_mpirun_has_its_domain_alone(
    example: Project, machine: str, scheduler: str
) -> None:
    """Ranks 0 and 2 are in one domain, 1 and 3 in the other."""
    files = {f"test_{level}.py": alone_at(level) for level in LEVELS}
    example.write(files)
    shared = " ".join(name for name in files if name != "test_node.py")
    for names, is_node in ((shared, False), ("test_node.py", True)):
        line = in_turns(f"pytest --scheduler={scheduler} --timeline=it.json {names}")
        outcome = type_line(example, f"{machine} {line}")
        assert set(outcome.counts()) == {"passed"}, outcome
        found = notes(example)
        assert check_alone(found, is_node=is_node) == (2 if is_node else 10)
        # On the timeline, no rank of its domain is idle; rank 0 reports its own tests by itself.
        bars = json.loads((example.folder / "it.json").read_text())["bars"]
        lanes = {tuple(bar["lanes"]) for bar in bars if "alone" in bar["name"]}
        if scheduler == "sequential" or is_node:
            assert lanes == {(0,)}
        else:
            assert (1, 3) in lanes
            assert lanes <= {(0,), (1, 3)}
        assert {cores for _, _, _, cores in found} == {"0", "1"}


@sentence(
    README,
    ran="pytest --n-workers=4 --policy=static|dynamic: exclusive_numa_domain",
    stand_in=MADE,
    said="Reserve more procs than declared: ranks of a pool are bound for it.",
)
@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_ranks_of_a_pool_stay_in_domains_when_a_test_wants_one_alone(
    example: Project, machine: str, policy: str
) -> None:
    example.write({"test_numa.py": alone_at("cpu")})
    line = f"pytest --n-workers=4 --policy={policy} --timeline=it.json test_numa.py"
    outcome = type_line(example, f"{machine} {line}")
    assert outcome.counts() == {"passed": 11}, outcome
    found = notes(example)
    assert check_alone(found) == 2
    assert {cores for _, _, _, cores in found} == {"0", "1"}
    # Ranks that may run anywhere have nothing alone but the machine.
    outcome = type_line(example, f"{machine} {line} --bind=none")
    assert outcome.counts() == {"passed": 11}, outcome
    assert check_alone(notes(example), is_node=True) == 2


def test_a_test_that_needs_more_ranks_than_there_are_is_skipped_by_name(example: Project) -> None:
    wide = """
        import pytest_parallel

        @pytest_parallel.mark.parallel(4, exclusive_numa_domain='socket')
        def test_wide(comm):
            pass
    """
    example.write({"test_wide.py": wide})
    outcome = type_line(example, "mpirun -np 2 pytest -rs --scheduler=dynamic test_wide.py")
    assert outcome.verdicts == {"test_wide[4]": "skipped"}, outcome
    assert "needs 4 ranks, has 2 ranks: run it with mpirun -np 4 pytest" in outcome.output
    outcome = type_line(example, "mpirun -np 2 pytest --too-few=error test_wide.py")
    assert outcome.exit_code == pytest.ExitCode.TESTS_FAILED, outcome


# Ranks of one domain


PAIRS = """
    import os

    import pytest
    import pytest_parallel

    def cores():
        return os.environ.get("SLURMD_NODENAME"), tuple(os.sched_getaffinity(0))

    @pytest.mark.parametrize("number", range(6))
    @pytest_parallel.mark.parallel(2)
    def test_near(comm, number):
        assert len(set(comm.allgather(cores()))) == 1

    @pytest_parallel.mark.parallel(3)
    def test_of_both(comm):
        assert len(set(comm.allgather(cores()))) == 2
"""


@sentence(
    README,
    ran="mpirun -np 4 pytest --scheduler=dynamic, ranks bound in turns; pytest --n-workers=4 "
    "--bind=map:0,1,0,1",
    stand_in=MADE,
)
@pytest.mark.parametrize("start", ["mpirun", "pool"])
def test_dynamic_prefers_procs_of_one_domain(example: Project, machine: str, start: str) -> None:
    """Dynamic scheduler: the procs of a test belong to some common NUMA domain.

    A test that no domain holds gets procs of several, at once.
    """
    example.write({"test_pairs.py": PAIRS})
    line = "pytest --n-workers=4 --bind=map:0,1,0,1 test_pairs.py"
    if start == "mpirun":
        line = in_turns("pytest --scheduler=dynamic test_pairs.py")
    outcome = type_line(example, f"{machine} {line}")
    assert outcome.counts() == {"passed": 7}, outcome


# On Slurm


ON_NODES = "pytest --n-workers=5 --scheduler={} --bind=map:1,0,1,0 test_bound.py test_socket.py"


@sentence(
    README,
    ran=ON_NODES.format("slurm|slurm-pool"),
    said="Future work: binding on the nodes of Slurm.",
)
@sentence(
    README,
    ran=ON_NODES.format("slurm|slurm-pool"),
    said="Reserve more procs than declared: exclusive_numa_domain on Slurm.",
)
@pytest.mark.parametrize("scheduler", ["slurm", "slurm-pool"])
def test_ranks_on_nodes_are_bound_and_a_test_has_its_domain_alone(
    example: Project, slurm_with_accounting: Cluster, scheduler: str
) -> None:
    """Slurm does not bind here; the fifth worker is the first of the second node."""
    require_two_cores()
    few = alone_at("socket").replace("range(8)", "range(3)")
    example.write({"test_bound.py": BOUND.format(size=5), "test_socket.py": few})
    line = ON_NODES.format(scheduler)
    outcome = type_line(example, line, **slurm_with_accounting.variables)
    assert outcome.counts() == {"passed": 7}, outcome
    found = notes(example)
    assert sorted(one for one in found if len(one) == 2) == [[str(n), "10101"[n]] for n in range(5)]
    assert check_alone([one for one in found if len(one) > 2]) == 2


UNBOUND = "pytest --n-workers=6 --scheduler=slurm-pool test_pairs.py test_cpu.py"


@sentence(
    README,
    ran=UNBOUND,
    said="Reserve more procs than declared: where Slurm binds, whole nodes.",
)
@sentence(
    README,
    ran=UNBOUND,
    said="Dynamic scheduler: the procs of a test belong to some common node of the cluster.",
)
def test_a_test_has_a_node_alone_and_others_are_on_one_if_they_fit(
    example: Project, slurm_with_accounting: Cluster
) -> None:
    pairs = PAIRS.replace("tuple(os.sched_getaffinity(0))", "0").replace("(3)", "(5)")
    example.write({"test_pairs.py": pairs, "test_cpu.py": alone_at("cpu")})
    outcome = type_line(example, UNBOUND, **slurm_with_accounting.variables)
    assert outcome.counts() == {"passed": 18}, outcome
    assert check_alone(notes(example), is_node=True) == 2


BINDS = "--slurm-srun-options=--cpu-bind=map_cpu:0,1,0,1"


@sentence(
    README,
    ran=f"pytest --n-workers=4 --scheduler=slurm-pool {BINDS}",
    stand_in=MADE,
    said="Dynamic scheduler: procs of a common NUMA domain, as Slurm has bound them.",
)
def test_dynamic_knows_where_slurm_has_bound_procs(example: Project, machine: str) -> None:
    require_slurm()
    example.write({"test_pairs.py": PAIRS})
    cluster = f"{machine} {sys.executable} {shlex.quote(str(ROOT))}/scripts/cluster.py --binds"
    line = f"pytest --n-workers=4 --scheduler=slurm-pool {BINDS} test_pairs.py"
    outcome = type_line(example, f"{cluster} {line}")
    assert outcome.counts() == {"passed": 7}, outcome


# Asynchrony


ASLEEP = """
    import os
    import signal
    import time
    from pathlib import Path

    import pytest
    from notes import note

    OTHERS = 40

    def test_asleep():
        # The first test is for the first rank, the one that reports.
        assert os.environ["PMI_RANK"] == "0"
        me = os.getpid()
        if os.fork() == 0:
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and len(list(Path("ended").iterdir())) < OTHERS:
                time.sleep(0.02)
            note(len(list(Path("ended").iterdir())))
            os.kill(me, signal.SIGCONT)
            os._exit(0)
        os.kill(me, signal.SIGSTOP)

    @pytest.mark.parametrize("number", range(OTHERS))
    def test_other(number):
        Path("ended", str(number)).touch()
        print("x" * 500_000)
"""


@sentence(README, ran="mpirun -np 3 pytest --scheduler=dynamic, with a rank 0 that is stopped")
def test_a_rank_that_does_not_listen_holds_up_no_other(example: Project) -> None:
    """Dynamic scheduler: more asynchrony (send -> isend).

    All that is sent to it meanwhile is more than a socket holds.
    """
    example.write({"test_asleep.py": ASLEEP})
    (example.folder / "ended").mkdir()
    outcome = type_line(example, "mpirun -np 3 pytest --scheduler=dynamic test_asleep.py")
    assert outcome.counts() == {"passed": 41}, outcome
    assert notes(example) == [["40"]]


# CI


@sentence(
    README,
    ran=".ci/run: make test, with CI=true; here its pytest --n-workers=4 --scheduler=shell",
)
def test_the_process_isolate_scheduler_is_in_the_ci(example: Project) -> None:
    """Add the process-isolate scheduler to the CI."""
    assert "shell" in CREWS
    assert "make --no-print-directory test" in (ROOT / ".ci/run").read_text()
    line = "pytest --n-workers=4 --scheduler=shell test_pytest_parallel.py"
    check(type_line(example, line, CI="true"), "scheduler shell")
