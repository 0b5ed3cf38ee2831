"""The way in: help, versions, wrong words, and how little is loaded for them."""

from __future__ import annotations

import errno
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from rankwise import __version__
from rankwise.cli.main import VERBS, guarded, main
from rankwise.cli.options import make_app
from rankwise.errors import InputError, StoreFailure
from tests.cli.conftest import Said

Rankwise = Callable[..., Said]
# Not pydantic: typer 0.29 loads it for itself.
HEAVY = {"ruamel", "rich", "sqlite3", "pytest"}


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["help"]])
def test_help_names_every_verb(rankwise: Rankwise, arguments: list[str]) -> None:
    said = rankwise(*arguments)
    assert said.code == 0
    for verb, summary in VERBS.items():
        assert f"  {verb.ljust(8)}  {summary}\n" in said.out


def test_help_fits_into_a_narrow_window(
    rankwise: Rankwise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert all(len(line) <= 40 for line in rankwise("--help").out.splitlines())


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_printed(rankwise: Rankwise, option: str) -> None:
    assert rankwise(option).out == f"rankwise {__version__}\n"


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("statuz", "rankwise: there is no command 'statuz': did you mean `status`?\n"),
        ("frobnicate", "rankwise: there is no command 'frobnicate': see rankwise --help\n"),
        ("--verbose", "rankwise: there is no option '--verbose': see rankwise --help\n"),
    ],
)
def test_wrong_words_are_refused(rankwise: Rankwise, word: str, expected: str) -> None:
    said = rankwise(word)
    assert (said.code, said.out, said.err) == (2, "", expected)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_command_ends_with_examples_that_it_understands(
    rankwise: Rankwise, verb: str
) -> None:
    said = rankwise(verb, "--help")
    assert said.code == 0
    assert VERBS[verb] + "." in " ".join(said.out.split())
    _, examples = said.out.split("\n  For example:\n")
    lines = examples.splitlines()
    assert len(lines) >= 2
    application: Any = typer.main.get_command(make_app(VERBS))
    for line in lines:
        for found in re.findall(r"rankwise ([^|>)&]+)", line):
            command, *arguments = shlex.split(found)
            assert application.commands[command].make_context(command, arguments).params


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, ["rankwise init MpiJob job.yaml"]),
        (
            {"a b.yaml": "# A job.\ntype: MpiJob\n"},
            ["rankwise plan 'a b.yaml'", "rankwise run 'a b.yaml'"],
        ),
        ({"service.yaml": "spec:\n  type: NodePort\n"}, ["rankwise init MpiJob job.yaml"]),
        (
            {"tests/test_a.py": "@pytest.mark.parallel(4)\n"},
            ["pytest --n-workers=4 tests/test_a.py"],
        ),
        (
            {"rankwise.toml": "", ".rankwise/store.db": "", "\x1b[2J.yaml": "type: MpiJob"},
            ["rankwise status", "rankwise doctor", "rankwise init MpiJob job.yaml"],
        ),
    ],
)
def test_without_a_command_the_next_steps_in_this_folder_are_shown(
    rankwise: Rankwise, project: Path, files: dict[str, str], expected: list[str]
) -> None:
    os.mkfifo(project / "pipe.yaml")
    for name, text in files.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    said = rankwise()
    steps = [line.strip().split("  ")[0] for line in said.out.splitlines() if line.startswith("  ")]
    assert (said.code, steps) == (0, [*expected, "rankwise --help"])


def test_options_are_there_without_docstrings() -> None:
    """PYTHONOPTIMIZE=2 drops docstrings, where the names and the help of options are."""
    line = [sys.executable, "-OO", "-m", "rankwise.cli.main", "logs", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    assert "-f, --follow    Go on until the run is over." in done.stdout


def test_help_may_come_first(rankwise: Rankwise) -> None:
    assert rankwise("help", "run").out == rankwise("run", "--help").out


def test_wrong_options_are_refused_with_a_hint(rankwise: Rankwise) -> None:
    said = rankwise("status", "--jsno")
    assert said.code == 2
    assert "--json" in said.err
    assert "Traceback" not in said.err


def test_help_loads_next_to_nothing() -> None:
    assert not _loaded() & (HEAVY | {"typer", "pydantic"})
    assert not _loaded("--help") & (HEAVY | {"typer", "pydantic"})


def test_a_verb_loads_nothing_heavy_before_it_acts() -> None:
    for verb in VERBS:
        assert not _loaded(verb, "--help") & HEAVY


def _loaded(*arguments: str) -> set[str]:
    """Return the packages that a command has loaded, at their top."""
    code = (
        "import sys; from rankwise.cli.main import main; main(sys.argv[1:]);"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    line = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stderr.split())


def test_shells_can_ask_for_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_RANKWISE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "rankwise sta")
    monkeypatch.setenv("COMP_CWORD", "1")
    line = [sys.executable, "-m", "rankwise.cli.main"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["status"]


def test_it_can_be_called_from_python() -> None:
    assert main(["--version"]) == 0


# Errors become exit codes: people's mistakes, the machine's troubles, and our own faults

RANKWISE = [sys.executable, "-m", "rankwise.cli.main"]


def fail(error: BaseException) -> object:
    raise error


def test_what_is_given_is_the_exit_code() -> None:
    assert guarded(lambda: None) == 0
    assert guarded(lambda: 7) == 7


@pytest.mark.parametrize("kind", [InputError, StoreFailure])
def test_a_known_error_is_its_text_and_a_2(
    kind: type[Exception], capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(lambda: fail(kind("job.yaml:3:1: no such field\n  did you mean it?"))) == 2
    said = capsys.readouterr()
    assert said.err == "rankwise: job.yaml:3:1: no such field\n  did you mean it?\n"
    assert said.out == ""


def test_an_unknown_error_is_our_fault_and_a_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert guarded(lambda: fail(KeyError("what"))) == 3
    first, second, third = capsys.readouterr().err.splitlines()
    assert first == "rankwise: KeyError: 'what'"
    assert second == "This is a fault of rankwise, please report it."
    place = re.fullmatch(r"Details: (.*)", third)
    assert place
    kept = Path(place[1]).read_text()
    assert "Traceback" in kept
    assert Path(__file__).name in kept


def test_a_fault_that_cannot_be_kept_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    assert guarded(lambda: fail(KeyError("what"))) == 3
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_a_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: fail(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("code", "expected", "text"), [(None, 0, ""), (4, 4, ""), ("sorry", 1, "sorry\n")]
)
def test_sys_exit_decides_the_exit_code(
    code: object, expected: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(lambda: fail(SystemExit(code))) == expected
    assert capsys.readouterr().err == text


def test_the_machine_may_be_to_blame(capsys: pytest.CaptureFixture[str]) -> None:
    error = PermissionError(errno.EACCES, "Permission denied", "/root/job.yaml")
    assert guarded(lambda: fail(error)) == 2
    assert capsys.readouterr().err == "rankwise: /root/job.yaml: Permission denied\n"


def test_other_errors_of_the_system_are_our_fault() -> None:
    assert guarded(lambda: fail(FileNotFoundError(errno.ENOENT, "not there", "x"))) == 3


def test_a_full_disk_is_reported() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*RANKWISE, "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 2
    assert done.stderr == "rankwise: No space left on device\n"


def test_a_reader_that_is_gone_ends_it_like_a_broken_pipe() -> None:
    with subprocess.Popen(
        [*RANKWISE, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_not_change_the_exit_code(closed: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("type: command\ncommand: exit 7\n")
    line = f'exec "$@" run job.yaml {closed}'
    done = subprocess.run(
        ["sh", "-c", line, "sh", *RANKWISE], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 7, done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["status"], ["list"], ["run", "job.yaml"], ["run", "--help"], ["--help"]]
)
def test_a_current_folder_that_was_deleted_is_named_as_such(
    tmp_path: Path, arguments: list[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    # Python looks for modules in the current folder with -m, and not as a program.
    line = 'cd gone && rmdir ../gone && exec "$@"'
    program = "import sys; from rankwise.cli.main import main; sys.exit(main())"
    ran = subprocess.run(
        ["sh", "-c", line, "sh", sys.executable, "-P", "-c", program, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ran.stderr
    if "--help" in arguments:
        assert (ran.returncode, ran.stderr) == (0, "")
    else:
        assert ran.returncode == 2
        assert ran.stderr.startswith("rankwise: the current folder is no longer there"), ran.stderr
