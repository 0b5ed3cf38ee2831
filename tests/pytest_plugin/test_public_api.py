"""The public API: exports, parallel assertions, and which suites use rankwise."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import pytest_parallel
import rankwise
from rankwise import parallel_assert
from rankwise.pytest_plugin.worker_session import OPTIONS, has_option, is_used
from tests.pytest_plugin.conftest import ALONE

ROOT = Path(__file__).resolve().parent.parent.parent


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has loaded after a statement."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(shown.stdout.split())


def test_all_lists_exactly_what_is_exported() -> None:
    assert list(rankwise.__all__) == sorted(rankwise.__all__)
    for name in rankwise.__all__:
        assert getattr(rankwise, name) is not None
    own = {name for name in vars(rankwise) if name.isidentifier() and not name.startswith("_")}
    # Modules of the package show up as its attributes once they were imported.
    modules = {path.stem for path in Path(rankwise.__file__).parent.iterdir()}
    assert own - modules - {"annotations", "TYPE_CHECKING", "Any"} <= set(rankwise.__all__)


def test_a_name_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(AttributeError, match="'nonsense'"):
        rankwise.nonsense  # noqa: B018


def test_importing_rankwise_loads_neither_pytest_nor_mpi() -> None:
    loaded = loaded_by("import rankwise; rankwise.__version__")
    assert "rankwise" in loaded
    assert not {"pytest", "_pytest", "mpi4py"} & loaded


def test_the_plugin_does_not_load_mpi() -> None:
    loaded = loaded_by("import rankwise.pytest_plugin.plugin")
    assert "rankwise.pytest_plugin.plugin" in loaded
    assert not {"mpi4py", "mpi4py.MPI"} & loaded


def test_a_plain_pytest_run_does_not_load_mpi(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass")
    loaded = loaded_by(f"import pytest; assert pytest.main(['-q', {str(tmp_path)!r}]) == 0")
    assert "rankwise.pytest_plugin.plugin" in loaded
    assert "mpi4py" not in loaded


def test_a_plain_pytest_run_loads_options_hooks_and_fixtures_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A variable of ours does not look like a launcher's.
    monkeypatch.setenv("RANKWISE_REQUIRE_ALL", "1")
    (tmp_path / "test_it.py").write_text("def test_it(): pass")
    loaded = loaded_by(f"import pytest; assert pytest.main(['-q', {str(tmp_path)!r}]) == 0")
    testing = {f"rankwise.pytest_plugin.{name}" for name in ("fixtures", "options", "plugin")}
    ours = {name for name in loaded if name.split(".")[0] == "rankwise"}
    assert ours == {"rankwise", "rankwise.pytest_plugin", *testing}


def test_pytest_rewrites_no_assertions_of_what_the_plugin_loads(tmp_path: Path) -> None:
    """It would take longer than loading it, in every process."""
    (tmp_path / "test_it.py").write_text(
        "from rankwise.pytest_plugin import marks, plugin\n\n"
        "def test_it():\n"
        "    print(*(type(one.__spec__.loader).__name__ for one in (marks, plugin)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "SourceFileLoader SourceFileLoader" in done.stdout


def test_the_coordinator_needs_only_the_standard_library() -> None:
    """It starts without site-packages."""
    module = "rankwise.pytest_plugin.mpirun_coordinator"
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import {module}"
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, timeout=60)


def test_policies_know_neither_pytest_nor_mpi() -> None:
    loaded = loaded_by("import rankwise.pytest_plugin.schedulers")
    assert not {"pytest", "_pytest", "mpi4py", "socket", "selectors"} & loaded


def test_pytest_parallel_has_the_same_marks_by_another_name() -> None:
    assert pytest_parallel.__all__ == ["mark"]
    for name in pytest_parallel.mark.__all__:
        assert hasattr(rankwise.mark, name)


def test_the_version_is_that_of_the_package() -> None:
    document = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert document["project"]["version"] == rankwise.__version__


def test_type_checkers_are_told_that_the_packages_are_typed() -> None:
    for module in (rankwise, pytest_parallel):
        assert module.__file__ is not None
        assert (Path(module.__file__).parent / "py.typed").exists()


# Assertions that all ranks make together


class Null:
    """Is false, as MPI.COMM_NULL is, and refuses every operation."""

    def __bool__(self) -> bool:
        return False

    def allgather(self, value: object) -> list[object]:
        raise RuntimeError(f"{value} on a null communicator")


def test_a_null_communicator_is_not_replaced_by_that_of_the_test() -> None:
    null: Any = Null()
    with pytest.raises(RuntimeError, match="True on a null communicator"):
        parallel_assert(True, comm=null)


# Whether a suite uses rankwise


def test_every_option_of_the_plugin_is_known(pytestconfig: pytest.Config) -> None:
    group = pytestconfig._parser.getgroup("rankwise")
    assert {option.dest for option in group.options} <= set(OPTIONS)


def test_options_and_settings_count_whatever_they_are_set_to(pytester: pytest.Pytester) -> None:
    assert not has_option(pytester.parseconfig())
    for option in ("--scheduler=static", "--test-timeout=0", "--world", "--rank-output=failed"):
        assert has_option(pytester.parseconfig(option)), option
    assert not has_option(pytester.parseconfig("-x", "--rank-output=all"))
    pytester.makeini("[pytest]\nrank_grace = 3")
    assert has_option(pytester.parseconfig())


@pytest.mark.parametrize(
    ("source", "used"),
    [
        ("def test_it(tmp_path): pass", False),
        ("def test_it(comm): pass", True),
        ("import pytest\n@pytest.mark.mpi\ndef test_it(): pass", True),
        ("import pytest\n@pytest.fixture\ndef comm(): pass\ndef test_it(comm): pass", False),
        ("import pytest\n@pytest.fixture\ndef mine(comm): pass\ndef test_it(mine): pass", True),
        ("import unittest\nclass T(unittest.TestCase):\n    def test_it(self): pass", False),
    ],
)
def test_marks_and_fixtures_of_ours_count(
    pytester: pytest.Pytester, source: str, used: bool
) -> None:
    pytester.makepyfile(source)
    items, _ = pytester.inline_genitems(*ALONE)
    assert len(items) == 1
    assert is_used(items[0].config) == used


def test_marks_that_pytest_mpi_is_asked_to_act_on_are_not_ours(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        def pytest_addoption(parser):
            parser.addoption("--with-mpi", action="store_true")
        """
    )
    pytester.makepyfile("import pytest\n@pytest.mark.mpi(min_size=2)\ndef test_it(): pass")
    for option, used in (("--with-mpi", False), ("-v", True)):
        items, _ = pytester.inline_genitems(*ALONE, option)
        assert is_used(items[0].config) == used, option
