"""Debuggers, output and panes of ranks: `--pdb`, `--rank-output`, `--tmux`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.acceptance.harness import Project
from tests.acceptance.inner import run_pytest
from tests.acceptance.leftovers import check_that_nothing_is_left
from tests.acceptance.pools import run_pool
from tests.acceptance.terminals import Screen, Typed, at_terminal

PROMPT = "(Pdb) "

SUITE = {
    "test_suite.py": """
    import time
    import rankwise

    @rankwise.mark.parallel(2)
    def test_fails(comm):
        value = 40 + comm.rank
        print("words of", comm.rank)
        comm.barrier()
        assert comm.rank == 0
        time.sleep(60)

    def test_passes():
        pass
    """
}


def debug(project: Project, temporary: Path, *script: Typed, arguments: tuple[str, ...]) -> Screen:
    command = [str(project.mpi.python), "-m", "pytest", "-p", "rankwise", "--n-workers=2"]
    screen = at_terminal(
        project,
        [*command, "--policy=sequential", *arguments],
        script,
        environment={"TMPDIR": str(temporary), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )
    check_that_nothing_is_left(project, temporary)
    return screen


def test_a_rank_that_fails_has_the_terminal_for_longer_than_any_limit(
    project: Project, temporary: Path
) -> None:
    project.write(SUITE)
    screen = debug(
        project,
        temporary,
        # No rank is ended meanwhile, though the other is in its call for longer than it may be.
        Typed(PROMPT, "p value + 1000\n", pause=6.0),
        Typed("1041", ""),
        Typed(PROMPT, "\x03"),
        Typed("--KeyboardInterrupt--", ""),
        Typed(PROMPT, "c\n"),
        arguments=("--pdb", "--test-timeout=5", "--rank-grace=1"),
    )
    assert screen.exit_code == 1, screen
    assert "test_suite.py::test_fails failed on rank 1 of 2; the other ranks wait" in screen.text
    assert "> assert comm.rank == 0" in screen.text.replace(">       ", "> "), screen
    # What follows is what follows without a debugger.
    assert "rank 1 of 2 failed, and the others did not end within 1 s" in screen.text, screen
    assert "time limit" not in screen.text, screen
    assert "1 failed, 1 passed" in screen.text, screen


def test_quitting_ends_the_run_as_it_does_without_ranks(project: Project, temporary: Path) -> None:
    project.write(SUITE)
    screen = debug(project, temporary, Typed(PROMPT, "q\n"), arguments=("--pdb",))
    assert screen.exit_code == 2, screen
    assert "Exit: Quitting debugger" in screen.text, screen
    assert "1 passed" not in screen.text, screen


def test_a_breakpoint_stops_its_rank_and_comes_back_to_its_prompt(
    project: Project, temporary: Path
) -> None:
    project.write(
        {
            "test_stop.py": """
            import rankwise

            @rankwise.mark.parallel(2)
            def test_stops(comm):
                place = f"place {comm.rank}"
                if comm.rank == 1:
                    breakpoint()
                comm.barrier()
                place = "behind the barrier"
                assert comm.size == 2
            """
        }
    )
    screen = debug(
        project,
        temporary,
        Typed(PROMPT, "p place\n"),
        Typed("'place 1'", ""),
        # A breakpoint of the debugger's own.
        Typed(PROMPT, "b 10\n"),
        Typed(PROMPT, "c\n"),
        Typed(PROMPT, "p place\n"),
        Typed("'behind the barrier'", ""),
        Typed(PROMPT, "c\n"),
        arguments=(),
    )
    assert screen.exit_code == 0, screen
    assert "test_stop.py::test_stops stopped at a breakpoint on rank 1 of 2" in screen.text, screen
    assert "1 passed" in screen.text, screen


def test_what_cannot_be_debugged_is_said(project: Project, tmp_path: Path) -> None:
    project.write(SUITE)
    trace = run_pytest(project, "--n-workers=2", "--trace", ranks=None)
    assert trace.exit_code == 4, trace
    assert "Write breakpoint() where one rank is to stop" in trace.errors, trace
    world = run_pytest(project, "--pdb", ranks=2)
    assert world.exit_code == 4, world
    assert "With --n-workers in the place of mpirun" in world.errors, world
    alone = run_pytest(project, "--tmux", ranks=None)
    assert alone.exit_code == 4, alone
    assert "--tmux needs --n-workers" in alone.errors, alone
    # Without tmux.
    path = {"PATH": str(tmp_path)}
    missing = run_pytest(project, "--n-workers=2", "--tmux", ranks=None, environment=path)
    assert missing.exit_code == 4, missing
    assert "--tmux needs tmux, and there is none on PATH" in missing.errors, missing


@pytest.mark.parametrize(("which", "shown"), [("0", [0]), ("failed", [1])])
def test_output_is_shown_of_the_ranks_that_are_asked_for(
    project: Project, temporary: Path, which: str, shown: list[int]
) -> None:
    project.write(
        {
            "test_words.py": """
            import rankwise

            @rankwise.mark.parallel(3)
            def test_words(comm):
                print("words of", comm.rank)
                assert comm.rank != 1
            """
        }
    )
    arguments = [f"--rank-output={which}"]
    if which == "0":
        outcome = run_pytest(project, *arguments, ranks=3)
    else:
        outcome = run_pool(project, temporary, *arguments, workers="3")
    found = [rank for rank in range(3) if f"\nwords of {rank}" in outcome.output]
    assert found == shown, outcome


def test_each_rank_has_a_pane_that_shows_its_output_as_it_comes(
    project: Project, temporary: Path
) -> None:
    if shutil.which("tmux") is None:
        if os.environ.get("RANKWISE_REQUIRE_ALL"):
            pytest.fail("tmux is missing: apt install tmux")
        pytest.skip("tmux is missing")
    project.write(
        {
            "test_panes.py": """
            import os, time
            from pathlib import Path
            import rankwise

            @rankwise.mark.parallel(2)
            def test_talks(comm):
                print("before of", comm.rank, flush=True)
                os.system("echo from the shell")
                while not Path("seen").exists():
                    time.sleep(0.02)
                print("after of", comm.rank)
            """
        }
    )
    variables = project.variables(project.folder / ".record-panes")
    # Where a socket has its place: the name of that folder may be long elsewhere.
    sockets = tempfile.mkdtemp(prefix="rw", dir="/tmp")
    variables |= {"TMUX_TMPDIR": sockets, "TMPDIR": str(temporary)}
    variables.pop("TMUX", None)
    variables["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [str(project.mpi.python), "-m", "pytest", "-p", "rankwise", "--n-workers=2", "--tmux"]
    process = subprocess.Popen(
        command, cwd=project.folder, env=variables, stdout=subprocess.PIPE, text=True
    )

    def pane(number: int) -> str:
        line = ["tmux", "capture-pane", "-p", "-t", f":.{number}"]
        done = subprocess.run(line, env=variables, capture_output=True, text=True, check=False)
        return done.stdout

    try:
        for number in range(2):
            # While the test runs.
            await_words(lambda number=number: pane(number), f"before of {number}")
            await_words(lambda number=number: pane(number), "from the shell")
            assert "after of" not in pane(number)
        (project.folder / "seen").touch()
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0, output
        assert "the ranks are seen in: tmux attach -t rankwise-" in output
        for number in range(2):
            await_words(lambda number=number: pane(number), "The run is over")
            shown = pane(number)
            assert shown.count(f"before of {number}") == shown.count(f"after of {number}") == 1
            assert f"of {1 - number}" not in shown.replace(f"rank {number} of 2", "")
    finally:
        process.kill()
        with process:  # Closes what was left of its output.
            process.wait()
        subprocess.run(["tmux", "kill-server"], env=variables, check=False, capture_output=True)
        shutil.rmtree(sockets)


def await_words(look: object, words: str, seconds: float = 60.0) -> None:
    assert callable(look)
    deadline = time.monotonic() + seconds
    while words not in (shown := look()):
        assert time.monotonic() < deadline, f"{words!r} did not come:\n{shown}"
        time.sleep(0.1)
