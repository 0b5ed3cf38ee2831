"""Environments made from requirements, with the real uv and the real index."""

from __future__ import annotations

import dataclasses
import fcntl
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankwise.errors import ComputeFailure
from rankwise.plan import RuntimeChoice
from rankwise.runtimes import uv
from rankwise.runtimes.base import PreparedRuntime, cache_folder
from rankwise.runtimes.preparing import prepare
from rankwise.runtimes.uv import COMPLETE, digest_of, find_uv, made_once, settings_for_uv

LIMIT_SECONDS = 240


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # uv keeps its own downloads where it always does.
    if "UV_CACHE_DIR" not in os.environ:
        uv_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv"
        monkeypatch.setenv("UV_CACHE_DIR", str(uv_cache))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def choice(*requirements: str, python: str = "") -> RuntimeChoice:
    return RuntimeChoice(name="test:1", kind="uv", requirements=requirements, python=python)


CONDA = """\
#!/bin/sh -e
echo "$0 $*" >> "$CALLS"
while [ "$1" != --prefix ]; do shift; done
[ -z "$FAILS" ] || { echo "no channel answers" >&2; exit 3; }
mkdir -p "$2/bin"
cp "$4" "$2/environment"
"""


@pytest.mark.parametrize("tool", ["micromamba", "conda"])
def test_conda_makes_an_environment_once(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, calls = tmp_path / "it's bin" / tool, tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(CONDA)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(calls))
    text = json.dumps({"dependencies": ["r-base"]})
    chosen = RuntimeChoice(name="r", kind="conda", engine=tool, requirements=(text,))
    monkeypatch.setenv("FAILS", "1")
    with pytest.raises(ComputeFailure, match=r'runtime "r" [\s\S]*no channel answers'):
        prepare(chosen, lambda _: None)
    monkeypatch.setenv("FAILS", "")
    ready = [prepare(chosen, lambda _: None) for _ in range(2)]
    folder = Path(ready[0].path[0]).parent
    assert ready[0] == ready[1]
    assert (folder / "environment").read_text() == text
    told = calls.read_text().splitlines()
    how = "create --yes" if tool == "micromamba" else "env create"
    listed = folder.parent / "environment.yml"
    assert told == [f"{program} {how} --quiet --prefix {folder} --file {listed}"] * 2


def run_in(runtime: PreparedRuntime, *command: str) -> str:
    path = os.pathsep.join([*runtime.path, os.environ["PATH"]])
    return subprocess.run(
        ["/usr/bin/env", *command],
        env={**os.environ, **runtime.environment, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=LIMIT_SECONDS,
    ).stdout.strip()


def stub_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str) -> Path:
    """Put something else in uv's place, which writes its arguments into a file."""
    stub, calls = tmp_path / "stub-uv", tmp_path / "calls"
    calls.write_text("")
    stub.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n{textwrap.dedent(script)}\n')
    stub.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv", lambda: (str(stub),))
    return calls


@pytest.mark.usefixtures("package_index")
def test_an_environment_is_made_from_requirements_and_kept(tmp_path: Path) -> None:
    said: list[str] = []
    runtime = prepare(choice("iniconfig==2.0.0"), said.append)
    code = "import iniconfig, sys; print(iniconfig.__file__); print(sys.prefix)"
    file, prefix = run_in(runtime, "python", "-c", code).splitlines()
    assert file.startswith(prefix)
    assert Path(prefix).is_relative_to(tmp_path / "cache/rankwise/runtimes")
    assert runtime.environment == {"VIRTUAL_ENV": prefix}
    assert runtime.path == (f"{prefix}/bin",)
    [line] = said
    assert line == f'making the environment of runtime "test:1" in {prefix}: iniconfig==2.0.0'
    assert prepare(choice("iniconfig==2.0.0"), said.append) == runtime
    assert len(said) == 1


@pytest.mark.usefixtures("package_index")
def test_its_commands_are_found_and_have_the_right_interpreter() -> None:
    """They hold the place of their environment, which therefore must not move."""
    runtime = prepare(choice("pygments==2.19.2"), print)
    assert run_in(runtime, "pygmentize", "-V").startswith("Pygments version 2.19.2")


def test_rankwise_itself_is_not_in_it() -> None:
    runtime = prepare(choice(), print)
    code = "import importlib.util; print(importlib.util.find_spec('rankwise'))"
    assert run_in(runtime, "python", "-c", code) == "None"


@pytest.mark.usefixtures("package_index")
def test_what_cannot_be_resolved_is_a_clear_failure_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ComputeFailure) as raised:
        prepare(choice("iniconfig==99.0"), print)
    text = str(raised.value)
    first, *said, last = text.splitlines()
    assert first == (
        'the environment of runtime "test:1" (iniconfig==99.0) could not be made: uv ended with '
        "exit code 1:"
    )
    assert "iniconfig==99.0" in " ".join(said)
    assert "\x1b" not in text
    assert last.startswith("correct it in rankwise.toml or in the document; if the package ")
    assert not list(tmp_path.rglob("complete.json"))


def test_a_python_that_is_not_to_be_had_is_a_clear_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    with pytest.raises(ComputeFailure, match=r"\(empty, Python 3.99\) could not be made: uv ended"):
        prepare(choice(python="3.99"), print)


@pytest.mark.usefixtures("package_index")
def test_without_uv_it_is_made_with_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uv, "find_uv", lambda: None)
    wanted = f"{sys.version_info[0]}.{sys.version_info[1]}"
    runtime = prepare(choice("iniconfig==2.0.0", python=wanted), print)
    assert run_in(runtime, "python", "-c", "import iniconfig; print('there')") == "there"


def test_without_uv_what_pip_says_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uv, "find_uv", lambda: None)
    python = tmp_path / "bin" / "python3.7"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho no ensurepip; exit 3\n")
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(python.parent), prepend=os.pathsep)
    with pytest.raises(ComputeFailure, match="venv ended with exit code 3:\n    no ensurepip\n"):
        prepare(choice(python="3.7"), print)
    with pytest.raises(ComputeFailure, match=r"wants Python 3.99, and this is .*; install uv"):
        prepare(choice(python="3.99"), print)


def test_the_words_and_the_python_decide_which_environment_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'for last; do :; done; case "$*" in *venv*) mkdir -p "$last/bin"; touch "$last/bin/python";; esac'
    calls = stub_uv(monkeypatch, tmp_path, script)
    paths = {
        prepare(one, print).path
        for one in (
            choice("a", "b"),
            choice("b", "a"),
            choice("a", "b", python="3.12"),
            choice("a", "b", python="3.13"),
            choice("a"),
        )
    }
    assert len(paths) == 4
    lines = calls.read_text().splitlines()
    assert len(lines) == 8
    assert "venv --python 3.12 " in calls.read_text()
    # Requirements may hold secrets, and everybody sees the arguments of a process.
    assert lines[1].endswith("/requirements.txt")


def test_a_half_made_environment_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'for last; do :; done; mkdir -p "$last/bin"; touch "$last/bin/python"; exit 9'
    with monkeypatch.context() as patch:
        stub_uv(patch, tmp_path, script)
        with pytest.raises(ComputeFailure, match="exit code 9"):
            prepare(choice(), print)
    assert run_in(prepare(choice(), print), "python", "-c", "print('whole')") == "whole"


KILLED_CLIENT = """
import sys
from rankwise.plan import RuntimeChoice
from rankwise.runtimes import prepare, uv
uv.find_uv = lambda: (sys.argv[1],)
prepare(RuntimeChoice(name="test:1", kind="uv"), print)
"""


def test_after_a_kill_of_the_client_its_uv_ends_before_another_begins(tmp_path: Path) -> None:
    begun, leave, ended = tmp_path / "begun", tmp_path / "leave", tmp_path / "ended"
    stub = tmp_path / "stub-uv"
    stub.write_text(
        f"#!/bin/sh\ntouch {begun}\nwhile [ ! -e {leave} ]; do sleep 0.05; done\ntouch {ended}\n"
    )
    stub.chmod(0o755)
    said = []

    def say(text: str) -> None:
        said.append((text.partition(" ")[0], ended.exists()))
        leave.touch()

    client = subprocess.Popen([sys.executable, "-c", KILLED_CLIENT, stub])
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not begun.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        client.kill()
        client.wait(LIMIT_SECONDS)
        runtime = prepare(choice(), say)
    finally:
        leave.touch()
        client.kill()
        client.wait(LIMIT_SECONDS)
    assert said == [("waiting", False), ("making", True)]
    assert run_in(runtime, "python", "-c", "print('whole')") == "whole"


def test_an_environment_whose_python_is_gone_is_made_anew() -> None:
    runtime = prepare(choice(), print)
    python = Path(runtime.path[0], "python")
    python.unlink()
    python.symlink_to("/gone")
    assert prepare(choice(), print) == runtime
    assert run_in(runtime, "python", "-c", "print('back')") == "back"


def test_settings_that_would_mislead_uv_are_kept_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VIRTUAL_ENV", "UV_PYTHON", "FORCE_COLOR"):
        monkeypatch.setenv(name, "misleading")
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror/simple")
    monkeypatch.delenv("UV_DEFAULT_INDEX", raising=False)
    stub_uv(monkeypatch, tmp_path, f"env > {tmp_path}/environment; pwd > {tmp_path}/where; exit 1")
    with pytest.raises(ComputeFailure):
        prepare(choice(), print)
    environment = (tmp_path / "environment").read_text()
    assert "misleading" not in environment
    assert "UV_DEFAULT_INDEX=https://mirror/simple" in environment
    # Not where the user is: a project there may have settings of its own.
    assert (tmp_path / "where").read_text().strip() == str(tmp_path / "cache/rankwise")


def test_a_uv_that_does_not_start_is_a_clear_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv, "find_uv", lambda: (str(tmp_path / "gone"),))
    with pytest.raises(ComputeFailure, match=r"gone did not start: .*/gone: No such file or dir"):
        prepare(choice(), print)


def test_uv_is_looked_for_beside_python_then_on_path_then_as_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, on_path = tmp_path / "beside", tmp_path / "path"
    for folder in (beside, on_path):
        folder.mkdir()
        (folder / "uv").write_text("#!/bin/sh\n")
        (folder / "uv").chmod(0o755)
    python = str(beside / "python")
    monkeypatch.setattr(sys, "executable", python)
    monkeypatch.setenv("PATH", str(on_path))
    assert find_uv() == (str(beside / "uv"),)
    (beside / "uv").unlink()
    assert find_uv() == (str(on_path / "uv"),)
    shutil.rmtree(on_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert find_uv() == (python, "-m", "uv")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert find_uv() is None


def locked(lock: Path) -> RuntimeChoice:
    return RuntimeChoice(name="locked", kind="uv", lock=str(lock), lock_digest=digest_of(lock))


@pytest.mark.usefixtures("package_index")
def test_the_content_of_a_lock_is_the_key_not_its_name(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("iniconfig==2.0.0\n")
    made = prepare(locked(lock), lambda text: None)
    asked = "from importlib.metadata import version; print(version('iniconfig'))"
    assert run_in(made, "python", "-c", asked).strip() == "2.0.0"
    moved = dataclasses.replace(locked(lock), lock=str(tmp_path / "moved.lock"))
    assert prepare(moved, lambda text: None).path == made.path


def test_a_lock_that_has_changed_since_it_was_planned_is_not_made(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text("iniconfig==2.0.0\n")
    wanted = locked(lock)
    lock.write_text("iniconfig==2.1.0\n")
    with pytest.raises(ComputeFailure, match=r"some\.lock has changed: run it again"):
        prepare(wanted, lambda text: None)
    assert not list(tmp_path.rglob("complete.json"))


# Things that are made once and kept

CACHE_LIMIT_SECONDS = 60


class Workshop:
    """Makes things, and counts them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0
        self.said: list[str] = []

    def make(self, place: Path, lock: int) -> Mapping[str, object]:
        assert not place.exists()
        os.fstat(lock)
        self.made += 1
        place.mkdir()
        (place / "thing").write_text(str(self.made))
        return {"by": "a test"}

    def get(self) -> Path:
        return made_once(
            self.folder,
            self.make,
            is_sound=lambda place: (place / "thing").exists(),
            say=self.said.append,
            what="the thing",
        )


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "cache" / "thing")


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + CACHE_LIMIT_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.01)


def test_a_thing_is_made_once(workshop: Workshop) -> None:
    assert workshop.get() == workshop.get()
    assert workshop.made == 1
    assert json.loads((workshop.folder / COMPLETE).read_text()) == {"by": "a test"}


def test_a_thing_that_was_left_half_made_is_made_anew(workshop: Workshop) -> None:
    half = workshop.folder / "content"
    half.mkdir(parents=True)
    (half / "thing").write_text("half")
    assert (workshop.get() / "thing").read_text() == "1"


def test_a_thing_that_has_broken_is_made_anew(workshop: Workshop) -> None:
    (workshop.get() / "thing").unlink()
    assert (workshop.get() / "thing").read_text() == "2"


def test_a_failure_leaves_nothing_behind(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(place: Path, lock: int) -> Mapping[str, object]:
        del lock
        place.mkdir()
        (place / "thing").write_text("half")
        raise ComputeFailure("no")

    with monkeypatch.context() as patch:
        patch.setattr(workshop, "make", fail)
        with pytest.raises(ComputeFailure, match="no"):
            workshop.get()
    assert [path.name for path in workshop.folder.iterdir()] == ["lock"]
    assert (workshop.get() / "thing").read_text() == "1"


def test_many_at_once_make_a_thing_once(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_slowly(place: Path, lock: int) -> Mapping[str, object]:
        time.sleep(0.2)  # so that the others come meanwhile
        return Workshop.make(workshop, place, lock)

    monkeypatch.setattr(workshop, "make", make_slowly)
    threads = [threading.Thread(target=workshop.get) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(CACHE_LIMIT_SECONDS)
    assert workshop.made == 1


# Its child goes on when it is killed, as uv would.
KILLED_MAKER = """
import subprocess, sys
from pathlib import Path
from rankwise.runtimes.uv import made_once

def make(place, lock):
    place.mkdir()
    child = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch()\\nwhile not pathlib.Path(sys.argv[2]).exists(): time.sleep(0.01)\\npathlib.Path(sys.argv[3]).touch()"
    subprocess.run([sys.executable, "-c", child, *sys.argv[2:]], pass_fds=(lock,))
    return {}

made_once(Path(sys.argv[1]), make, is_sound=Path.exists, say=print, what="the thing")
"""


def test_after_a_kill_no_runner_begins_before_the_children_have_ended(
    workshop: Workshop, tmp_path: Path
) -> None:
    begun, leave, ended = tmp_path / "begun", tmp_path / "leave", tmp_path / "ended"
    killed = subprocess.Popen(
        [sys.executable, "-c", KILLED_MAKER, workshop.folder, begun, leave, ended]
    )
    try:
        wait_for(begun)
        killed.send_signal(signal.SIGKILL)
        killed.wait(CACHE_LIMIT_SECONDS)
        was_ended: list[bool] = []

        def make(place: Path, lock: int) -> Mapping[str, object]:
            was_ended.append(ended.exists())
            return Workshop.make(workshop, place, lock)

        def say(text: str) -> None:
            workshop.said.append(text)
            leave.touch()

        made_once(workshop.folder, make, is_sound=Path.exists, say=say, what="the thing")
    finally:
        leave.touch()
        killed.kill()
        killed.wait(CACHE_LIMIT_SECONDS)
    assert workshop.said == ["waiting for another process that makes the thing"]
    assert was_ended == [True]


def test_a_wait_has_an_end_that_names_the_lock(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uv, "_WAIT_SECONDS", 0.0)
    workshop.folder.mkdir(parents=True)
    holder = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", holder, workshop.folder / "lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(ComputeFailure, match=f"see who has {workshop.folder}/lock open"):
            workshop.get()
        process.kill()
    assert workshop.made == 0


def test_a_cache_that_is_emptied_while_it_is_locked_does_no_harm(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is then on a file that is gone, and the next one would lock another."""
    flock = fcntl.flock
    emptied: list[bool] = []

    def empty_first(lock: int, operation: int) -> None:
        flock(lock, operation)
        if not emptied:
            emptied.append(True)
            shutil.rmtree(workshop.folder)
            workshop.folder.mkdir()

    monkeypatch.setattr(fcntl, "flock", empty_first)
    workshop.get()
    assert (workshop.folder / "lock").exists()
    assert workshop.made == 1


def test_a_folder_that_cannot_be_made_is_a_clear_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ComputeFailure) as raised:
        Workshop(tmp_path / "file" / "thing").get()
    assert str(raised.value) == (
        f"the thing cannot be kept in {tmp_path}/file/thing: Not a directory; make room there, or "
        "set XDG_CACHE_HOME to another folder"
    )


def test_the_cache_is_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/rankwise")
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_folder() == tmp_path / ".cache/rankwise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == tmp_path / ".cache/rankwise"


# pip's settings, as uv takes them


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def write(file: Path, *lines: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def settings(home: Path, **variables: str) -> dict[str, str]:
    return settings_for_uv({"HOME": str(home), **variables}, root=home.parent / "root")


def test_without_settings_there_are_none(home: Path) -> None:
    assert settings(home) == {}


def test_the_index_of_pip_is_taken(home: Path) -> None:
    write(
        home / ".config/pip/pip.conf",
        "[global]",
        "index-url = https://mirror/simple",
        "cert = /etc/ca.pem",
        "trusted-host = mirror",
        "[install]",
        "no-index = true",
        "find-links =",
        "    /opt/wheels",
        "    /opt/more",
    )
    assert settings(home) == {
        "UV_DEFAULT_INDEX": "https://mirror/simple",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_INSECURE_HOST": "mirror",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": "/opt/wheels,/opt/more",
    }


def test_more_indexes_are_all_looked_at_as_pip_does(home: Path) -> None:
    variables = {"PIP_EXTRA_INDEX_URL": "file:///a  file:///b"}
    assert settings(home, **variables) == {
        "UV_INDEX": "file:///a file:///b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert settings(home, **variables, UV_INDEX_STRATEGY="first-index") == {
        "UV_INDEX": "file:///a file:///b"
    }


def test_later_files_go_before_earlier_ones_and_variables_before_all(home: Path) -> None:
    def index(**variables: str) -> str:
        return settings(home, **variables)["UV_DEFAULT_INDEX"]

    told = home / "told.conf"
    write(told, "[global]", "index-url = told")
    assert index(PIP_CONFIG_FILE=str(told)) == "told"
    write(home.parent / "root/etc/pip.conf", "[global]", "index-url = machine")
    assert index(PIP_CONFIG_FILE=str(told)) == "machine"
    write(home / ".pip/pip.conf", "[global]", "index_url = old place")
    assert index() == "old place"
    write(home / ".config/pip/pip.conf", "[global]", "index-url = user")
    assert index() == "user"
    write(home / "xdg/pip/pip.conf", "[global]", "index-url = xdg")
    assert index(XDG_CONFIG_HOME=str(home / "xdg")) == "xdg"
    write(home.parent / "root/etc/pip.conf", "[install]", "index-url = for install")
    assert index() == "for install"
    assert index(PIP_INDEX_URL="variable") == "variable"
    assert settings(home, PIP_CONFIG_FILE=os.devnull) == {}


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS"])
def test_a_uv_that_has_been_told_itself_is_left_alone(home: Path, name: str) -> None:
    pip = {"PIP_INDEX_URL": "a", "PIP_EXTRA_INDEX_URL": "b", "PIP_CERT": "c"}
    assert settings(home, **pip, **{name: "own"}) == {"SSL_CERT_FILE": "c"}
    assert settings(home, **pip, **{name: "own"}, SSL_CERT_FILE="own") == {}


def test_a_uv_with_a_file_of_its_own_is_left_alone(home: Path) -> None:
    write(home / ".config/uv/uv.toml", "")
    assert settings(home, PIP_INDEX_URL="a") == {}


def test_files_that_pip_could_not_read_are_left_to_it(home: Path) -> None:
    write(home / ".config/pip/pip.conf", "index-url = outside of a section")
    (home / ".pip").mkdir()
    (home / ".pip/pip.conf").write_bytes(b"[global]\nindex-url = \xff\n")
    (home / "folder").mkdir()
    assert settings(home, PIP_CONFIG_FILE=str(home / "folder")) == {}
