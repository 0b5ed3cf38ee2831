"""What shells complete, asked as they ask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rankwise.cli.completion import fitting
from rankwise.cli.main import VERBS, first_words, main, verb_typed
from rankwise.store import State, Store
from rankwise.store.samples import Sample
from tests.cli.test_compare import measured
from tests.reports.made_runs import BEGUN, make_run, one_task, passed_run

SITE = """\
[compute.gpu-cluster]
type = "local"
[compute."many-*"]
type = "local"
[compute."$(touch oops)"]
[notify.team]
type = "file"
what = "is checked by others"
"""
Complete = Callable[..., list[str]]


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complete:
    """Ask as bash does, in this process."""

    def ask(*words: str) -> list[str]:
        monkeypatch.setenv("_RANKWISE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(["rankwise", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        capsys.readouterr()
        assert main([]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out.split()

    return ask


def test_verbs_and_what_may_stand_in_their_place(complete: Complete) -> None:
    assert complete("") == [*VERBS, "help"]
    assert complete("re") == [verb for verb in VERBS if verb.startswith("re")]
    assert complete("--v") == ["--version"]
    assert complete("help", "sta") == ["status"]
    assert complete("frobnicate", "s") == []


def test_options_of_the_verb_that_is_typed(complete: Complete) -> None:
    assert complete("run", "--re") == ["--repeat"]
    assert complete("logs", "--") == [
        "--follow",
        "--rank",
        "--process",
        "--task",
        "--attempt",
        "--store",
        "--help",
    ]


def test_runs_and_their_tasks(complete: Complete, store: Store, project: Path) -> None:
    keys = ["load", "train.1", "train.2", "say $(touch oops)"]
    run = make_run(store, *(one_task(key, ranks=1) for key in keys), name="deep")
    store.run_started(run, now=BEGUN)
    passed_run(store)
    assert complete("status", "") == ["job-1", "deep-1"]
    assert complete("explain", "de") == ["deep-1"]
    assert complete("logs", "deep-1", "--task", "") == ["load", "train.1", "train.2"]
    # Of the run that is meant if none is named: the newest.
    assert complete("logs", "--task", "") == ["train"]
    store.task_over(run, "load", State.PASSED, exit_code=0, now=BEGUN)
    for words in (["run", "job.yaml", "--only"], ["submit", "job.yaml", "--from"]):
        assert complete(*words, "tr") == ["train"], words
    assert complete("run", "other.yaml", "--only", "") == []
    elsewhere = project / "elsewhere"
    assert complete("status", "--store", str(elsewhere), "") == []
    assert not elsewhere.exists()


def test_names_of_the_site_file(complete: Complete, project: Path) -> None:
    assert complete("run", "job.yaml", "--on", "") == ["local"]
    (project / "rankwise.toml").write_text(SITE)
    assert complete("run", "job.yaml", "--on", "") == ["gpu-cluster", "local"]
    assert complete("doctor", "g") == ["gpu-cluster"]
    assert complete("export", "job.yaml", "--on", "gpu") == ["gpu-cluster"]
    assert complete("run", "job.yaml", "--notify", "") == ["team"]
    (project / "rankwise.toml").write_text("[broken")
    assert complete("run", "job.yaml", "--on", "") == ["local"]


def test_a_site_file_that_others_can_write_is_not_looked_into(
    complete: Complete, project: Path
) -> None:
    (project / "rankwise.toml").write_text(SITE)
    (project / "rankwise.toml").chmod(0o666)
    assert complete("run", "job.yaml", "--on", "") == ["local"]


def test_a_broken_store_completes_nothing(complete: Complete, project: Path) -> None:
    (project / ".rankwise").mkdir()
    (project / ".rankwise" / "store.db").write_text("no database")
    assert complete("status", "") == []


def test_what_commands_take_is_offered(complete: Complete) -> None:
    assert complete("init", "T") == ["TensorflowJob"]
    assert complete("init", "--ci", "git") == ["github", "gitlab"]
    assert complete("init", "Suite", "--launcher", "") == ["mpi", "pytorch"]
    assert complete("init", "Matrix", "--runtimes", "cur") == ["current"]
    assert complete("init", "Matrix", "--on", "lo") == ["local"]
    assert complete("schema", "s") == ["site"]
    assert complete("export", "job.yaml", "--to", "kubeflow") == ["kubeflow-v1", "kubeflow-trainer"]
    assert "junit" in complete("report", "--format", "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("init Ten", "TensorflowJob"),
        ("compare j", "job-1"),
        ("explain j", "job-1"),
        ("sta", "status"),
    ],
)
def test_zsh_and_fish_complete_commands_and_arguments(
    shell: str,
    *,
    typed: str,
    offered: str,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    passed_run(store)
    monkeypatch.setenv("_RANKWISE_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"rankwise {typed}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    assert main([]) == 0
    assert offered in capsys.readouterr().out


def test_what_was_measured_and_where_is_offered(complete: Complete, store: Store) -> None:
    rate = Sample(metric="rate", value=5.0, unit="MB/s")
    measured(store, [1.0], sizes=(8, 16), tags={"git.branch": "main"}, more=(rate,))
    assert complete("trend", "la") == ["latency"]
    assert complete("trend", "latency", "--name", "") == ["osu"]
    assert complete("compare", "osu-1", "osu-2", "--metric", "r") == ["rate"]
    assert complete("compare", "") == ["main", "osu-1"]
    assert complete("compare", "main", "os") == ["osu-1"]


def test_processes_of_the_run_are_offered(complete: Complete, store: Store) -> None:
    run = passed_run(store)
    assert complete("logs", run, "--process", "worker-") == ["worker-0", "worker-1"]


def test_files_are_left_to_the_shell(complete: Complete, project: Path) -> None:
    (project / "job.yaml").touch()
    assert complete("run", "jo") == []


@pytest.mark.parametrize("name", ["a b", "$(a)", "`a`", "a;b", "a'b", 'a"b', "\x1b[2J", "a\nb", ""])
def test_only_what_a_shell_takes_for_a_name_is_offered(name: str) -> None:
    assert fitting([name, "plain@here@answer.py"], "") == ["plain@here@answer.py"]


@pytest.mark.parametrize(
    ("typed", "verb"),
    [
        ("rankwise ", None),
        ("rankwise run", None),
        ("rankwise run ", "run"),
        ("rankwise run job.yaml --o", "run"),
        ("rankwise nothing ", None),
        ("", None),
    ],
)
def test_zsh_and_fish_tell_it_otherwise(typed: str, verb: str | None) -> None:
    environment = {"_RANKWISE_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": typed}
    assert verb_typed(environment) == verb
    assert first_words(environment) is None


LOADED = """
import sys, json
from rankwise.cli.main import main
code = main([])
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
sys.exit(code)
"""


def _loaded(words: list[str], shell: str = "bash") -> tuple[str, set[str]]:
    environment = {
        **os.environ,
        "_RANKWISE_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": " ".join(["rankwise", *words]),
    }
    if shell == "bash":
        environment |= {"COMP_WORDS": " ".join(["rankwise", *words]), "COMP_CWORD": str(len(words))}
    line = [sys.executable, "-c", LOADED]
    done = subprocess.run(
        line, capture_output=True, text=True, check=True, timeout=60, env=environment
    )
    return done.stdout, set(json.loads(done.stderr))


def test_completion_loads_only_what_it_needs(store: Store) -> None:
    passed_run(store)
    said, loaded = _loaded(["sta"])
    assert said.split() == ["status"]
    assert "typer" not in loaded
    said, loaded = _loaded(["status", "j"])
    assert said.split() == ["job-1"]
    heavy = {
        "pydantic",
        "rich",
        "yaml",
        "rankwise.engine.runs",
        "rankwise.documents",
        "rankwise.documents.site",
    }
    assert not loaded & heavy
    names = ("run", "documents", "results", "operations", "log_reader", "foreground")
    others = {f"rankwise.cli.{name}" for name in names}
    assert not loaded & others


def test_zsh_gets_verbs_with_what_they_are_about() -> None:
    said, loaded = _loaded(["sta"], shell="zsh")
    assert '"status":"Show how a run stands"' in said
    assert "rankwise.cli.run" not in loaded


def test_a_real_bash_completes(tmp_path: Path, store: Store) -> None:
    """The script that `--install-completion` writes, in a shell that presses no key."""
    passed_run(store)
    program = tmp_path / "rankwise"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rankwise.cli.main "$@"\n')
    program.chmod(0o755)
    asked = """
    eval "$(rankwise --show-completion bash)"
    COMP_WORDS=(rankwise explain j) COMP_CWORD=2
    complete -p rankwise
    _rankwise_completion rankwise j explain
    echo "${COMPREPLY[@]}"
    """
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    line = ["bash", "--norc", "-c", asked]
    done = subprocess.run(
        line, capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "complete -o default -F _rankwise_completion rankwise",
        "job-1",
    ]
