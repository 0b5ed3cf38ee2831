"""Options and settings: time limits, and what becomes of the options for Slurm."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from rankwise.backends.batch.slurm import read_mpi_types
from rankwise.pytest_plugin.failure_report import explain_step
from rankwise.pytest_plugin.marks import limit_of
from rankwise.pytest_plugin.options import (
    DEFAULT_GRACE,
    DEFAULT_LIMIT,
    grace_from,
    limit_from,
    seconds_option,
)
from rankwise.pytest_plugin.workers.run_options import SlurmOptions, read_slurm_options, value_of
from rankwise.pytest_plugin.workers.slurm_allocation import make_script, read_memory, tasks_on_nodes
from rankwise.pytest_plugin.workers.slurm_nodes import Srun
from tests.pytest_plugin.conftest import ALONE


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("2.5", 2.5), ("1e3", 1000.0)])
def test_a_number_of_seconds_is_read(text: str, seconds: float) -> None:
    assert seconds_option(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "inf", "nan", "1e999", "5s"])
def test_what_is_no_number_of_seconds_is_refused_by_name(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        seconds_option(text)
    assert repr(text) in str(caught.value)


# Settings


def test_without_a_setting_the_limits_are_the_usual_ones(pytester: pytest.Pytester) -> None:
    config = pytester.parseconfig(*ALONE)
    assert (limit_from(config), grace_from(config)) == (DEFAULT_LIMIT, DEFAULT_GRACE)


def test_limits_can_be_given_in_the_configuration(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntest_timeout = 30\nrank_grace = 0.5")
    config = pytester.parseconfig(*ALONE)
    assert (limit_from(config), grace_from(config)) == (30.0, 0.5)


def test_the_command_line_comes_before_the_configuration(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntest_timeout = 30\nrank_grace = 0.5")
    config = pytester.parseconfig(*ALONE, "--test-timeout=0", "--rank-grace=7")
    assert (limit_from(config), grace_from(config)) == (0.0, 7.0)


@pytest.mark.parametrize("option", ["--test-timeout=soon", "--rank-grace=-1"])
def test_nonsense_on_the_command_line_is_refused(pytester: pytest.Pytester, option: str) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess(*ALONE, option)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{option.partition('=')[0]}*is not a number of seconds*"])


def test_nonsense_in_the_configuration_is_refused_with_its_place(pytester: pytest.Pytester) -> None:
    path = pytester.makeini("[pytest]\ntest_timeout = soon")
    config = pytester.parseconfig(*ALONE)
    with pytest.raises(pytest.UsageError) as caught:
        limit_from(config)
    assert str(caught.value) == f"{path}: test_timeout: 'soon' is not a number of seconds"


# Marks


def marked(pytester: pytest.Pytester, *marks: str, plugin: str = "no:timeout") -> pytest.Item:
    decorators = "\n".join(f"@pytest.mark.{mark}" for mark in marks)
    pytester.makepyfile(test_it=f"import pytest\n{decorators}\ndef test_func(): pass")
    (item,), _ = pytester.inline_genitems(*ALONE, "-p", plugin)
    return item


@pytest.mark.parametrize(
    ("mark", "seconds"),
    [
        ("timeout(5)", 5.0),
        ("timeout(0.5)", 0.5),
        ("timeout(timeout=5)", 5.0),
        ("timeout(5, method='signal')", 5.0),
        ("timeout(0)", 0.0),
        ("timeout(None)", 0.0),
        ("mpi(ranks=2, timeout=5)", 5.0),
        ("mpi(ranks=2, timeout=5, unit='s')", 5.0),
        ("mpi(ranks=2, timeout=5, unit='m')", 300.0),
        ("mpi(ranks=2, timeout=0.5, unit='h')", 1800.0),
        ("mpi(ranks=2)", 99.0),
        ("parallel(2)", 99.0),
    ],
)
def test_a_mark_gives_a_test_its_own_limit(
    pytester: pytest.Pytester, mark: str, seconds: float
) -> None:
    assert limit_of(marked(pytester, mark), 99.0) == seconds


def test_the_closest_mark_wins(pytester: pytest.Pytester) -> None:
    item = marked(pytester, "timeout(2)", "timeout(3)")
    assert limit_of(item, 99.0) == 3.0, "the one next to the function"


def test_a_plugin_that_ends_tests_at_the_same_limit_from_within_comes_first(
    pytester: pytest.Pytester,
) -> None:
    pytest.importorskip("pytest_timeout")
    assert limit_of(marked(pytester, "timeout(5)", plugin="timeout"), 99.0) > 5.0
    assert limit_of(marked(pytester, "timeout(0)", plugin="timeout"), 99.0) == 0.0


@pytest.mark.parametrize(
    "mark", ["timeout('5')", "timeout(-1)", "timeout(True)", "mpi(timeout=[5])"]
)
def test_a_mark_without_a_number_is_refused_with_its_test(
    pytester: pytest.Pytester, mark: str
) -> None:
    with pytest.raises(pytest.UsageError, match=r"::test_func: @pytest\.mark.* is not a number"):
        limit_of(marked(pytester, mark), 99.0)


# What the command line says about Slurm, and what becomes of it

USUAL = {
    "slurm_options": None,
    "slurm_srun_options": None,
    "slurm_export_env": True,
    "slurm_init_cmds": None,
    "slurm_file": None,
    "use_srun": True,
    "detach": False,
    "slurm_wait": 0.0,
    "slurm_address": None,
    "scheduler": "slurm",
    "n_workers": "8",
}
JOB = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "6"}


def read(environment: dict[str, str] | None = None, **given: object) -> SlurmOptions:
    return read_slurm_options(argparse.Namespace(**{**USUAL, **given}), environment or {})


def test_workers_are_the_tasks_of_the_allocation() -> None:
    options = read(slurm_options="--time=00:30:00 --qos='my queue' -c 4")
    assert options.tasks == 8
    assert options.options == ("--time=00:30:00", "--qos=my queue", "-c", "4")
    assert options.cores_per_task == 4
    assert options.job == ""


@pytest.mark.parametrize("option", ["-n 4", "-n4", "--ntasks=4", "--ntasks 4"])
def test_a_number_of_tasks_among_the_options_is_refused(option: str, tmp_path: Path) -> None:
    with pytest.raises(pytest.UsageError, match="the number of tasks is that of --n-workers"):
        read(slurm_options=f"--time=1 {option}")
    file = tmp_path / "job.sh"
    file.write_text(f"#!/bin/bash\n#SBATCH {option}\n")
    with pytest.raises(pytest.UsageError, match=r"job\.sh"):
        read(slurm_file=str(file))


def test_lines_of_a_job_script_are_read_as_slurm_reads_them(tmp_path: Path) -> None:
    """What it takes for a comment, or does not read at all, cannot be a mistake."""
    file = tmp_path / "job.sh"
    file.write_text(
        "#!/bin/bash\n"
        "#SBATCH --comment=\"it's fine\" # it's a comment, with -n 4 in it\n"
        "#SBATCH -c 3 #-n 4\n"
        "\n"
        "# this isn't one\n"
        " #SBATCH -n 4 isn't either\n"
        "module load it\n"
        "#SBATCH -n 4 isn't read\n"
    )
    assert read(slurm_file=str(file)).cores_per_task == 3


@pytest.mark.parametrize("line", ["--comment=it's", '--comment="a', "-c 2\\"])
def test_a_line_of_a_job_script_that_slurm_cannot_read_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "job.sh"
    file.write_text(f"#!/bin/bash\n#SBATCH --qos=x\n#SBATCH {line}\n")
    with pytest.raises(pytest.UsageError, match=r"job\.sh:3: Slurm cannot read this line: No "):
        read(slurm_file=str(file))


@pytest.mark.parametrize("option", ["--ntasks-per-node=4", "--nodes=2", "-N2", "--nice=3"])
def test_options_that_only_look_like_it_are_taken(option: str) -> None:
    assert read(slurm_options=option).options == (option,)


def test_within_an_allocation_its_tasks_are_the_workers() -> None:
    assert read(JOB, n_workers=None).tasks == 6
    assert read(JOB, n_workers="4").tasks == 4
    assert read(JOB, n_workers="4").job == "7"
    with pytest.raises(pytest.UsageError, match="job 7 has 6 tasks"):
        read(JOB, n_workers="8")
    with pytest.raises(pytest.UsageError, match="needs --n-workers=N"):
        read(n_workers=None)


def test_a_detached_run_asks_for_a_job_of_its_own() -> None:
    assert read(JOB, detach=True).job == ""


@pytest.mark.parametrize(
    ("words", "value"),
    [(("-o", "a"), "a"), (("-oa",), "a"), (("--output=a", "--output", "b"), "b"), ((), "")],
)
def test_the_last_value_of_an_option_counts(words: tuple[str, ...], value: str) -> None:
    assert value_of(("-o", "--output"), words) == value


def test_a_job_script_is_the_users_own_then_commands_then_the_program() -> None:
    options = SlurmOptions(tasks=1, script="#SBATCH --qos=x\nmodule load a\n", commands=("b; c",))
    assert make_script(options, ["python", "a b"]) == (
        "#!/bin/bash\n#SBATCH --qos=x\nmodule load a\nb; c\nexec python 'a b'\n"
    )


def test_tasks_on_nodes_are_counted() -> None:
    assert tasks_on_nodes(["a", "b", "c"], {"SLURM_TASKS_PER_NODE": "4(x2),1"}) == [4, 4, 1]
    assert tasks_on_nodes(["a"], {}) == [0]


@pytest.mark.parametrize(
    ("text", "size"),
    [("400M", 400 << 20), ("4GB", 4 << 30), ("2048", 2 << 30), ("1.5G", 3 << 29), ("", 0)],
)
def test_memory_is_read_as_slurm_writes_it(text: str, size: int) -> None:
    assert read_memory(text) == size


def test_a_step_has_cores_of_its_own_until_a_node_is_lost() -> None:
    options = SlurmOptions(tasks=8, cores_per_task=2, srun_options=("--mem=1G",))
    srun = Srun(wishes=options, job="7", nodes=["a", "b"], mpi_type="pmi2")
    line = srun.of_world(3, 2, is_alone=True)
    assert {"--jobid=7", "--exact", "--ntasks=3", "--cpus-per-task=4", "--mpi=pmi2"} <= set(line)
    assert line[-1] == "--mem=1G"
    assert "--overlap" in srun.of_world(3, 1, is_alone=False)
    srun.lost.append("b")
    line = srun.of_world(3, 1, is_alone=True)
    assert {"--overlap", "--overcommit", "--nodelist=a", "--nodes=1"} <= set(line)
    assert "--exact" not in line


def test_kinds_of_mpi_are_read_from_old_and_new_slurms() -> None:
    new = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v5"
    old = "srun: MPI types are...\nsrun: none\nsrun: pmi2\n"
    assert read_mpi_types(new) == ["pmix", "pmi2", "pmix_v5"]
    assert read_mpi_types(old) == ["pmi2"]


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (
            "slurmstepd: error: *** STEP 1.2 ON n1 CANCELLED AT … DUE TO TIME LIMIT ***",
            "time limit",
        ),
        ("slurmstepd: error: *** STEP 1.2 ON n1 CANCELLED AT 2026 ***", "scancel"),
        ("slurmstepd: error: Step 1.2 exceeded memory limit", "memory"),
        ("", "from outside"),
    ],
)
def test_what_slurm_prints_when_it_ends_a_step_is_understood(said: str, meaning: str) -> None:
    assert meaning in explain_step(said)
