"""Interpreters that commands find as `python`: ours, and those that people have made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankwise.errors import ComputeFailure
from rankwise.plan import RuntimeChoice
from rankwise.runtimes.base import Command, PreparedRuntime
from rankwise.runtimes.interpreter import folders_for
from rankwise.runtimes.preparing import prepare

LIMIT_SECONDS = 60
WHO = "import sys; print(sys.prefix)"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def silent(text: str) -> None:
    raise AssertionError(f"there is nothing to say: {text}")


def run_in(runtime: PreparedRuntime, *command: str) -> str:
    """Run a command as a runner would, and give what it prints."""
    environment = {n: v for n, v in os.environ.items() if n not in runtime.unset}
    environment |= runtime.environment
    environment["PATH"] = os.pathsep.join([*runtime.path, environment["PATH"]])
    return subprocess.run(
        ["/usr/bin/env", *command],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    ).stdout.strip()


def make_venv(folder: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=LIMIT_SECONDS
    )
    return folder


def test_the_current_interpreter_is_found_as_python() -> None:
    runtime = prepare(RuntimeChoice(), silent)
    assert run_in(runtime, "python", "-c", WHO) == sys.prefix
    assert run_in(runtime, "python3", "-c", WHO) == sys.prefix
    assert str(Path(sys.executable).parent) in runtime.path


def test_the_active_environment_is_that_of_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIRTUAL_ENV", "/another")
    made = make_venv(tmp_path / "venv")
    code = "from rankwise.runtimes import prepare; from rankwise.plan import RuntimeChoice; p = prepare(RuntimeChoice(), print); print(p.environment.get('VIRTUAL_ENV', p.unset))"
    source = str(Path(__file__).parents[2] / "src")

    def environment_of(python: str) -> str:
        return subprocess.run(
            [python, "-c", code],
            env={**os.environ, "PYTHONPATH": source},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=LIMIT_SECONDS,
        ).stdout.strip()

    assert environment_of(str(made / "bin/python")) == str(made)
    assert environment_of(f"{sys.base_prefix}/bin/python3") == "('VIRTUAL_ENV',)"


def test_an_environment_without_a_link_called_python_is_found_too(tmp_path: Path) -> None:
    made = make_venv(tmp_path / "a folder's venv")
    target = (made / "bin/python").resolve()
    for name in ("python", "python3"):
        (made / "bin" / name).unlink()
    alone = made / "bin/python3.99"
    alone.unlink(missing_ok=True)
    alone.symlink_to(target)
    stand_ins, own = folders_for(str(alone))
    assert own == str(made / "bin")
    runtime = prepare(RuntimeChoice(kind="python", python=str(alone)), silent)
    assert runtime.path == (stand_ins, own)
    for name in ("python", "python3"):
        assert run_in(runtime, name, "-c", WHO, "with blanks") == str(made)
    assert runtime.environment == {"VIRTUAL_ENV": str(made)}


def test_another_python_in_the_same_folder_does_not_take_its_place(tmp_path: Path) -> None:
    made = make_venv(tmp_path / "venv")
    (made / "bin/python3").unlink()
    (made / "bin/python3").write_text("#!/bin/sh\necho another\n")
    (made / "bin/python3").chmod(0o755)
    runtime = prepare(RuntimeChoice(kind="python", python=str(made)), silent)
    assert run_in(runtime, "python3", "-c", WHO) == str(made)


def test_stand_ins_are_written_again_if_they_are_damaged(tmp_path: Path) -> None:
    executable = tmp_path / "bin" / "other"
    executable.parent.mkdir()
    executable.symlink_to(sys.executable)
    folder = Path(folders_for(str(executable))[0])
    (folder / "python").write_text("damaged")
    assert Path(folders_for(str(executable))[0]) == folder
    assert "damaged" not in (folder / "python").read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["python", "python3"]


def test_the_folder_of_the_systems_python_does_not_go_before_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has much else in it, which would hide what the user has put first."""
    monkeypatch.setattr("rankwise.runtimes.interpreter._SHARED", {Path(sys.executable).parent})
    path = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", path)
    assert folders_for(sys.executable) == ()
    monkeypatch.setenv("PATH", "/nowhere")
    [stand_ins] = folders_for(sys.executable)
    assert stand_ins != path


def test_an_active_environment_is_not_taken_for_the_systems_python_that_it_links_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Path(sys.base_prefix) / "bin" / "python3"
    monkeypatch.setattr("rankwise.runtimes.interpreter._SHARED", {base.parent})
    made = make_venv(tmp_path / "venv")
    monkeypatch.setenv("PATH", f"{made / 'bin'}{os.pathsep}{os.environ['PATH']}")
    runtime = prepare(RuntimeChoice(kind="python", python=str(base)), silent)
    assert run_in(runtime, "python", "-c", WHO) == sys.base_prefix
    assert run_in(runtime, "python3", "-c", WHO) == sys.base_prefix


def test_a_folder_for_stand_ins_that_cannot_be_written_is_a_clear_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = tmp_path / "other"
    executable.symlink_to(sys.executable)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ComputeFailure, match="cannot be written: Not a directory; set XDG_CACHE"):
        folders_for(str(executable))


@pytest.mark.parametrize("part", ["", "bin/python", "bin/python3"])
def test_a_virtual_environment_is_named_by_its_folder_or_interpreter(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHOME", sys.base_prefix)
    with monkeypatch.context() as patch:
        patch.delenv("PYTHONHOME")
        made = make_venv(tmp_path / "venv")
    runtime = prepare(RuntimeChoice(kind="python", python=str(made / part)), silent)
    assert runtime.path == (str(made / "bin"),)
    assert runtime.environment == {"VIRTUAL_ENV": str(made)}
    assert runtime.unset == ("PYTHONHOME",)
    assert run_in(runtime, "python", "-c", WHO) == str(made)


def test_an_interpreter_that_is_no_environment_leaves_the_active_one() -> None:
    base = f"{sys.base_prefix}/bin/python3"
    runtime = prepare(RuntimeChoice(kind="python", python=base), silent)
    assert runtime.environment == {}
    assert runtime.unset == ("PYTHONHOME", "VIRTUAL_ENV")
    assert run_in(runtime, "python", "-c", WHO) == sys.base_prefix


def test_what_an_interpreter_prints_at_its_start_does_not_matter(tmp_path: Path) -> None:
    made = make_venv(tmp_path / "venv")
    (packages,) = made.glob("lib/python3*/site-packages")
    (packages / "advice.pth").write_text(
        "import sys; print('[1, 2]'); sys.stderr.write('[3, 4]')\n"
    )
    runtime = prepare(RuntimeChoice(kind="python", python=str(made)), silent)
    assert runtime.environment == {"VIRTUAL_ENV": str(made)}


def test_an_answer_with_a_failing_exit_code_is_none(tmp_path: Path) -> None:
    made = make_venv(tmp_path / "venv")
    wrapper = tmp_path / "python"
    wrapper.write_text(f"#!/bin/sh\n'{made}/bin/python' \"$@\"; echo no licence >&2; exit 3\n")
    wrapper.chmod(0o755)
    with pytest.raises(ComputeFailure, match="python is no Python 3: no licence;"):
        prepare(RuntimeChoice(kind="python", python=str(wrapper)), silent)


def test_what_is_no_interpreter_is_a_clear_failure(tmp_path: Path) -> None:
    def failure(path: Path) -> str:
        with pytest.raises(ComputeFailure) as raised:
            prepare(RuntimeChoice(name="r:1", kind="python", python=str(path)), silent)
        return str(raised.value)

    missing, plain, other = tmp_path / "missing", tmp_path / "plain", tmp_path / "other"
    plain.write_text("")
    other.write_text("#!/bin/sh\necho no >&2\n")
    other.chmod(0o755)
    assert failure(missing) == (
        f'runtime "r:1": {missing} does not exist; `python` of its table in rankwise.toml must be '
        "an interpreter, or the folder of a virtual environment"
    )
    assert f"the folder {tmp_path} has no bin/python;" in failure(tmp_path)
    assert f"{plain} does not start: Permission denied;" in failure(plain)
    assert f"{other} is no Python 3: no;" in failure(other)


def test_a_kind_that_is_not_known_is_a_clear_failure() -> None:
    with pytest.raises(ComputeFailure, match='not known: "vm"; there are current, python, uv'):
        prepare(RuntimeChoice(kind="vm"), silent)


def test_commands_need_nothing_around_them() -> None:
    assert prepare(RuntimeChoice(), silent).wrap is None


# Environment modules around commands, by a `module` that really changes the environment

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
