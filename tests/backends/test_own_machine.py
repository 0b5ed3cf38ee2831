"""What is said of this machine: by real ranks, and by stand-ins for what is broken."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from rankwise.backends.doctor import Finding
from rankwise.backends.this_machine import check_machine


def findings(store: Path, words: str) -> list[Finding]:
    return [one for one in check_machine(store) if words in one.what]


def bad_mpiexec(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an mpiexec first that does something else."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    mpiexec = folder / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\n{script}\n")
    for one in (python, mpiexec):
        one.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


def test_two_ranks_find_each_other(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, "MPI: ")
    assert found.is_well
    assert "two ranks found each other, MPICH Version: 5" in found.what


def test_ranks_that_are_alone_belong_to_different_mpis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_mpiexec(tmp_path, 'shift 2; exec "$@"', monkeypatch)
    (found,) = findings(tmp_path, "MPI: ")
    assert not found.is_well
    assert not found.is_needed
    assert "are of different MPIs" in found.what


def test_an_mpiexec_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad_mpiexec(tmp_path, "echo no fabric today >&2; exit 3", monkeypatch)
    (found,) = findings(tmp_path, "MPI: ")
    assert found.what.endswith("could not start two ranks: no fabric today")
    assert found.remedy


def test_advice_around_the_answer_of_the_ranks_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shlex.quote(str(Path(sys.executable).with_name("mpiexec")))
    script = f'echo 1 node is busy; echo 3 things to know >&2; {real} "$@" && echo 0 errors'
    bad_mpiexec(tmp_path, script, monkeypatch)
    (found,) = findings(tmp_path, "MPI: ")
    assert found.is_well, found
    assert "two ranks found each other, MPICH Version: 5" in found.what
    assert "errors" not in found.what


@pytest.mark.parametrize(
    "script",
    ["echo 2 ranks", "echo rankwise-trial: 2 MPICH; exit 3", "echo rankwise-trial: 2 MPICH >&2"],
)
def test_the_right_words_in_the_wrong_way_are_no_ranks(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_mpiexec(tmp_path, script, monkeypatch)
    (found,) = findings(tmp_path, "MPI: ")
    assert not found.is_well
    assert "could not start two ranks: " in found.what


def test_a_store_that_cannot_be_written_must_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    (found,) = findings(tmp_path / "store", "the store")
    assert (found.is_well, found.is_needed) == (False, True)


def test_what_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwise.backends.this_machine.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    remedies = " ".join(one.remedy for one in check_machine(tmp_path))
    for extra in ("notebooks", "kubernetes", "web", "report", "measure"):
        assert f"pip install 'rankwise[{extra}]'" in remedies
    assert findings(tmp_path, "not installed, each needed only for its purpose: sbatch (Slurm)")
