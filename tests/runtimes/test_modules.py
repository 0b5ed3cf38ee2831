"""Environment modules around commands, by a `module` that really changes the environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rankwise.plan import RuntimeChoice
from rankwise.runtimes.base import Command
from rankwise.runtimes.preparing import prepare

# As environment modules have it: a function of the shell, from a file that is read first.
INIT = """\
module() {
    if [ "$2" = broken ]; then echo "Unable to locate a modulefile for '$2'" >&2; return 1; fi
    export "LOADED=${LOADED:-}[$2]"
}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "init").mkdir()
    (tmp_path / "init" / "bash").write_text(INIT)
    return tmp_path


def run(home: Path, command: Command, *modules: str) -> subprocess.CompletedProcess[str]:
    choice = RuntimeChoice(name="m", kind="modules", modules=modules)
    wrap = prepare(choice, lambda text: None).wrap
    assert wrap is not None
    wrapped = wrap(command, folder=str(home))
    environment = {"PATH": os.environ["PATH"], "MODULESHOME": str(home)}
    return subprocess.run(
        wrapped, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def test_modules_are_loaded_in_their_order_before_a_line_or_arguments(home: Path) -> None:
    assert run(home, "echo $LOADED 'a b'", "gcc/13", "my python").stdout == (
        "[gcc/13][my python] a b\n"
    )
    assert run(home, ("printenv", "LOADED"), "gcc").stdout == "[gcc]\n"


def test_a_module_that_is_not_there_ends_it_with_the_modules_words(home: Path) -> None:
    done = run(home, "echo never", "gcc", "broken")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Unable to locate a modulefile for 'broken'" in done.stderr
    assert "module load broken failed" in done.stderr


def test_the_exit_code_is_the_commands(home: Path) -> None:
    assert run(home, "exit 7", "gcc").returncode == 7
