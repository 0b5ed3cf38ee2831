"""Report formats of other packages, by entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.errors import InputError
from rankwise.plugins import REPORT_FORMATS
from rankwise.reports.model import ReportData, write_report
from rankwise.store import Store
from tests.reports.made_runs import BEGUN, passed_run
from tests.reports.other_packages import install

SOURCE = """\
def write(data):
    lines = [f"{data.run.id} {data.verdict}", *(f"{one.key} {one.state}" for one in data.cases)]
    return "\\n".join(lines) + "\\n"

def write_bytes(data):
    return b"taken"

def fail(data):
    raise KeyError("colour")

def nothing(data):
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "site"
    made.mkdir()
    entries = {"lines": "write", "html": "write_bytes", "fails": "fail", "nothing": "nothing"}
    group = "rankwise.report_formats"
    install(made, "someformats", SOURCE, group=group, **entries)
    return made


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of ours where the other package is installed."""
    return subprocess.run(
        [sys.executable, "-P", "-m", *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_format_of_ours_can_be_loaded() -> None:
    for name in REPORT_FORMATS.ours:
        assert callable(REPORT_FORMATS.load(name)), name


def test_a_format_of_another_package_is_written(store: Store, folder: Path) -> None:
    run = passed_run(store)
    base = ("rankwise.cli.main", "report", run, "--store", str(store.folder))
    file = folder / "report.txt"
    done = run_python(folder, *base, "--format", "lines", "--output", str(file))
    assert done.returncode == 0, done
    assert file.read_text() == f"{run} passed\ntrain passed\n"
    done = run_python(folder, *base, "--format", "lines")
    assert done.stdout == file.read_text(), done
    done = run_python(folder, *base, "--format", "line")
    assert done.returncode == 2, done
    assert "there is no report format `line`; did you mean `lines`?" in done.stderr
    done = run_python(folder, *base, "--output", "x.html")
    assert done.returncode == 2, done
    assert "--format NAME" in done.stderr


def test_a_step_writes_the_format_that_its_file_is_named_after(store: Store, folder: Path) -> None:
    run = passed_run(store)
    base = ("rankwise.steps", "report", "--store", str(store.folder), "--run", run)
    for name, begin in (("a.lines", f"{run} passed\n"), ("a.junit", f"# {run}"), ("a", f"# {run}")):
        done = run_python(folder, *base, str(folder / name))
        assert done.returncode == 0, done
        assert (folder / name).read_text().startswith(begin)


def test_another_package_takes_the_place_of_no_format_of_ours(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    data = ReportData(store=store, run=store.run(passed_run(store)), now=BEGUN)
    assert write_report(data, "html").startswith(b"<!doctype html>")
    for name, complaint in (("fails", "failed: KeyError: 'colour'"), ("nothing", "NoneType")):
        with pytest.raises(InputError, match=complaint):
            write_report(data, name)
