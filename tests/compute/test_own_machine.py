"""What is said of this machine: by real ranks, and by stand-ins for what is broken."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rankwise.compute.finding import Finding
from rankwise.compute.own_machine import check_machine


def findings(store: Path, words: str) -> list[Finding]:
    return [one for one in check_machine(store) if words in one.what]


def bad_mpiexec(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an mpiexec first that does something else."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
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


def test_a_store_that_cannot_be_written_must_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    (found,) = findings(tmp_path / "store", "the store")
    assert (found.is_well, found.is_needed) == (False, True)


def test_what_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankwise.compute.own_machine.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    remedies = " ".join(one.remedy for one in check_machine(tmp_path))
    for extra in ("notebooks", "kubernetes", "web", "report", "measure"):
        assert f"pip install 'rankwise[{extra}]'" in remedies
    assert findings(tmp_path, "not here, and only needed for what it is for: sbatch (Slurm)")
