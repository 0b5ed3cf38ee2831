"""Where ranks are, asked from outside of processes that do not listen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from rankwise.pytest_plugin import stacks as hang
from rankwise.pytest_plugin.stacks import (
    STACK_SIGNAL,
    Frame,
    Stack,
    ask_for_stacks,
    describe_stacks,
    hint_at_world,
    of_the_test,
    parse_stack,
    read_crash,
)

LIMIT_SECONDS = 30

# What the process under observation begins with.
_PRELUDE = """
import sys
from pathlib import Path
from rankwise.pytest_plugin.stacks import StackFile, STACK_SIGNAL

keep = StackFile(Path(sys.argv[1]))
"""


class Process:
    """A process whose stacks can be asked for."""

    def __init__(self, folder: Path, script: str, *, prelude: str = _PRELUDE) -> None:
        self.script = folder / "script.py"
        self.script.write_text(prelude + textwrap.dedent(script))
        self.path = folder / "stack"
        self.popen = subprocess.Popen(
            [sys.executable, self.script, self.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_for_line(self) -> None:
        assert self.popen.stdout is not None
        assert self.popen.stdout.readline() == "ready\n"

    def send_line(self) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write("\n")
        self.popen.stdin.flush()

    def ask(self, *, limit: float = 10.0) -> Stack | None:
        return ask_for_stacks({3: (self.popen.pid, self.path)}, limit=limit).get(3)

    def stack_in(self, function: str) -> Stack:
        """Ask until the main thread is in `function`, which it may take a moment to come to."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < deadline:
            stack = self.ask()
            if stack and function in [frame.function for frame in stack]:
                return stack
        pytest.fail(f"the process never came to {function}")

    def end(self) -> None:
        self.popen.kill()
        self.popen.communicate(timeout=LIMIT_SECONDS)


Start = Callable[..., Process]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start processes, each in a folder of its own; all are ended."""
    processes: list[Process] = []

    def start_one(script: str, folder: str = "", **options: str) -> Process:
        place = tmp_path / (folder or f"process-{len(processes)}")
        place.mkdir()
        processes.append(Process(place, script, **options))
        processes[-1].wait_for_line()
        return processes[-1]

    yield start_one
    for process in processes:
        process.end()


# Real processes


def test_a_process_that_is_blocked_in_a_system_call_is_seen(start: Start) -> None:
    process = start("""
        import os

        def wait_for_message():
            reading, writing = os.pipe()
            print("ready", flush=True)
            os.read(reading, 1)

        wait_for_message()
    """)
    stack = process.stack_in("wait_for_message")
    assert [frame.function for frame in stack] == ["wait_for_message", "<module>"]
    assert {frame.file for frame in stack} == {str(process.script)}
    assert stack[1].source == "wait_for_message()"


def test_a_process_that_computes_in_python_is_seen(start: Start) -> None:
    process = start("""
        def spin():
            while True:
                pass

        print("ready", flush=True)
        spin()
    """)
    stack = process.stack_in("spin")
    assert stack[0].source in ("while True:", "pass")


def test_a_process_that_never_lets_go_of_the_interpreter_is_seen(start: Start) -> None:
    process = start("""
        def hold():
            print("ready", flush=True)
            sum(range(10**12))  # one call in C: no other thread and no Python handler gets a turn

        hold()
    """)
    deadline = time.monotonic() + LIMIT_SECONDS
    while not process.stack_in("hold")[0].source.startswith("sum("):
        assert time.monotonic() < deadline


_THREADS = """
    import signal, threading

    def thread_waits():
        threading.Event().wait()

    def main_waits():
        print("ready", flush=True)
        threading.Event().wait()

    for _ in range(5):
        threading.Thread(target=thread_waits, daemon=True).start()
"""


def test_the_main_thread_is_told_from_others(start: Start) -> None:
    process = start(f"{_THREADS}\n    main_waits()")
    functions = [frame.function for frame in process.stack_in("main_waits")]
    assert functions[-2:] == ["main_waits", "<module>"]
    assert process.path.read_text().count("thread_waits") >= 5


def test_the_main_thread_is_found_when_the_signal_reaches_another(start: Start) -> None:
    process = start(f"""{_THREADS}
    signal.pthread_sigmask(signal.SIG_BLOCK, [STACK_SIGNAL])
    main_waits()
    """)
    assert [frame.function for frame in process.stack_in("main_waits")][-1] == "<module>"
    assert "Current thread" in process.path.read_text()


def test_each_question_is_answered_with_where_the_process_is_then(start: Start) -> None:
    process = start("""
        def first():
            print("ready", flush=True)
            sys.stdin.readline()

        def second():
            print("ready", flush=True)
            sys.stdin.readline()

        first()
        second()
    """)
    assert "second" not in [frame.function for frame in process.stack_in("first")]
    process.send_line()
    process.wait_for_line()
    assert "first" not in [frame.function for frame in process.stack_in("second")]


def test_names_beyond_ascii_are_read(start: Start) -> None:
    process = start(
        """
        def läuft_Ω():
            print("ready", flush=True)
            sys.stdin.readline()

        läuft_Ω()
        """,
        folder="größe-∇-𝄞",
    )
    stack = process.stack_in("läuft_Ω")
    assert stack[-1].file == str(process.script)
    assert stack[-1].source == "läuft_Ω()"


def test_many_processes_are_asked_at_once(start: Start) -> None:
    script = """
        def wait_here():
            print("ready", flush=True)
            sys.stdin.readline()

        wait_here()
    """
    processes = {rank: start(script) for rank in (2, 0, 1)}
    for process in processes.values():
        process.stack_in("wait_here")
    files = {rank: (process.popen.pid, process.path) for rank, process in processes.items()}
    stacks = ask_for_stacks(files, limit=LIMIT_SECONDS)
    assert list(stacks) == [0, 1, 2]
    assert {stack[-1].file for stack in stacks.values()} == {
        str(process.script) for process in processes.values()
    }


def test_a_process_that_is_gone_is_missing_and_the_others_are_not(start: Start) -> None:
    script = 'print("ready", flush=True)\nsys.stdin.readline()'
    there, gone, dead = start(script), start(script), start(script)
    gone.end()
    dead.popen.kill()  # not waited for: still in the table of processes
    files = {
        rank: (process.popen.pid, process.path) for rank, process in enumerate((gone, there, dead))
    }
    assert list(ask_for_stacks(files, limit=LIMIT_SECONDS)) == [1]


def test_a_stopped_process_is_missing(start: Start) -> None:
    process = start('print("ready", flush=True)\nsys.stdin.readline()')
    process.popen.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(process) == "T")
    assert process.ask() is None
    process.popen.send_signal(signal.SIGCONT)
    assert process.stack_in("<module>")


def test_a_process_that_does_not_answer_is_missing(start: Start) -> None:
    process = start("""
        import signal
        signal.pthread_sigmask(signal.SIG_BLOCK, [STACK_SIGNAL])
        print("ready", flush=True)
        sys.stdin.readline()
    """)
    assert process.ask(limit=0.2) is None


def test_a_process_without_our_handler_is_left_in_peace(start: Start) -> None:
    process = start('import sys\nprint("ready", flush=True)\nsys.stdin.readline()', prelude="")
    process.path.touch()
    assert process.ask() is None
    process.send_line()
    assert process.popen.wait(LIMIT_SECONDS) == 0


def test_a_process_whose_file_is_not_there_is_missing(start: Start) -> None:
    process = start('print("ready", flush=True)\nsys.stdin.readline()')
    process.path.unlink()
    assert process.ask() is None
    assert process.popen.poll() is None


def test_half_an_answer_is_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    process = start(f"{_THREADS}\n    main_waits()")
    process.stack_in("main_waits")
    before = process.path.stat().st_size
    question = hang._Question(process.popen.pid, process.path, before, frozenset())
    assert question.answer() is None  # nothing yet
    process.ask()
    monkeypatch.setattr(hang, "_deaf_threads", lambda _: frozenset({"7"}))
    assert question.answer() is None  # still in the handler
    monkeypatch.setattr(hang, "_deaf_threads", lambda _: frozenset())
    assert question.answer()


def test_an_earlier_answer_is_not_given_again(tmp_path: Path) -> None:
    path = tmp_path / "stack"
    main = "Thread 0x1 (most recent call first):\n"
    path.write_text(f"Main thread 0x1\n{main}{MAIN}")
    question = hang._Question(os.getpid(), path, path.stat().st_size, frozenset())
    with path.open("a") as file:
        file.write(f"Thread 0x2 (most recent call first):\n{WORKER}...\n")
    assert question.answer() == ()
    with path.open("a") as file:
        file.write(f"{main}{MAIN}")
    assert question.answer() == MAIN_STACK


def state_of(process: Process) -> str:
    return Path(f"/proc/{process.popen.pid}/stat").read_text().rpartition(") ")[2][0]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# What faulthandler writes

WORKER = """\
  File "/usr/lib/python3/threading.py", line 982 in run
"""
MAIN = """\
  File "/home/me/solve.py", line 41 in heavy
  File "/home/me/test_solve.py", line 7 in <module>
"""
MAIN_STACK = (
    Frame("/home/me/solve.py", 41, "heavy"),
    Frame("/home/me/test_solve.py", 7, "<module>"),
)
WORKER_STACK = (Frame("/usr/lib/python3/threading.py", 982, "run"),)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            f"Thread 0x00007f22493476c0 (most recent call first):\n{WORKER}\n"
            f"Current thread 0x00007f224a0adb80 (most recent call first):\n{MAIN}",
            id="3.11 to 3.13",
        ),
        pytest.param(
            f"Thread 0x00007f22493476c0 [worker] (most recent call first):\n{WORKER}\n"
            f"Current thread 0x00007f224a0adb80 [python3] (most recent call first):\n{MAIN}",
            id="with names",
        ),
        pytest.param(
            f"Current thread 0x00007f22493476c0 (most recent call first):\n{WORKER}\n"
            f"Thread 0x00007f224a0adb80 (most recent call first):\n{MAIN}",
            id="the signal reached another thread",
        ),
        pytest.param(f"Stack (most recent call first):\n{MAIN}", id="one thread"),
        pytest.param(
            "Main thread 0x00007f224a0adb80\n"
            f"Current thread 0x00007f224a0adb80 (most recent call first):\n{MAIN}\n"
            f"Thread 0x00007f22493476c0 (most recent call first):\n{WORKER}",
            id="in another order",
        ),
        pytest.param(
            f"Current thread 0x00007f224a0adb80 (most recent call first):\n  Garbage-collecting\n{MAIN}",
            id="collecting garbage",
        ),
    ],
)
def test_the_stack_of_the_main_thread_is_read(text: str) -> None:
    assert parse_stack(text) == MAIN_STACK


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00\ufffd garbage\n\n",
        MAIN,  # of which thread?
        "Current thread 0x1 (most recent call first):\n  <no Python frame>\n",
        f"Main thread 0x2\nThread 0x1 (most recent call first):\n{WORKER}...\n",
    ],
)
def test_a_text_without_the_main_threads_frames_gives_an_empty_stack(text: str) -> None:
    assert parse_stack(text) == ()


def test_what_does_not_look_like_a_frame_is_left_out() -> None:
    text = f'Current thread 0x1 (most recent call first):\n{MAIN}  File "cut o\n  ...\n\x00'
    assert parse_stack(text) == MAIN_STACK


def test_a_line_that_is_not_known_is_zero() -> None:
    text = 'Stack (most recent call first):\n  File "/a.py", line ??? in f\n'
    assert parse_stack(text) == (Frame("/a.py", 0, "f"),)
    assert parse_stack(text)[0].source == ""


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        (
            (
                "Fatal Python error: Segmentation fault\n\n"
                f"Current thread 0x01 (most recent call first):\n{WORKER}\n"
                f"Thread 0x02 (most recent call first):\n{MAIN}\n"
                "Extension modules: mpi4py.MPI (total: 1)\n"
            ),
            WORKER_STACK,
        ),
        (
            (
                "noise\nFatal Python error: Aborted\n\n"
                f"Thread 0x02 [a] (most recent call first):\n{WORKER}\n"
                f"Current thread 0x01 [b] (most recent call first):\n{MAIN}\n"
                "Current thread's C stack trace (most recent call first):\n"
                '  Binary file "/usr/lib/libc.so.6", at gsignal+0x12 [0x7f]\n'
            ),
            MAIN_STACK,
        ),
        (
            (
                "Fatal Python error: _enter_buffered_busy: could not acquire lock\n"
                f"Python runtime state: finalizing (tstate=0x1)\n\nStack (most recent call first):\n{MAIN}"
            ),
            MAIN_STACK,
        ),
        # The thread was none of Python's.
        (
            f"Fatal Python error: Bus error\n\nThread 0x02 (most recent call first):\n{MAIN}",
            (),
        ),
        (f"Current thread 0x01 (most recent call first):\n{MAIN}", None),
        ("", None),
    ],
)
def test_the_stack_of_the_thread_that_crashed_is_read(text: str, stack: Stack | None) -> None:
    assert read_crash(text) == stack


def test_a_real_crash_is_read(tmp_path: Path) -> None:
    script = tmp_path / "crash.py"
    script.write_text(
        textwrap.dedent("""
            import ctypes, faulthandler, sys, threading

            def touch_nothing():
                ctypes.string_at(0)

            faulthandler.enable(open(sys.argv[1], "w"))
            thread = threading.Thread(target=touch_nothing)
            thread.start()
            thread.join()
        """)
    )
    report = tmp_path / "report"
    done = subprocess.run([sys.executable, script, report], check=False, timeout=LIMIT_SECONDS)
    assert done.returncode == -signal.SIGSEGV
    stack = read_crash(report.read_text())
    assert stack is not None
    assert "touch_nothing" in [frame.function for frame in stack]
    assert "<module>" not in [frame.function for frame in stack]


def test_the_signal_is_a_real_time_signal() -> None:
    assert signal.SIGRTMIN < STACK_SIGNAL < signal.SIGRTMAX


# The part that is the test's

PYTEST = Frame("/venv/lib/python3.12/site-packages/_pytest/python.py", 159, "pytest_pyfunc_call")
PLUGGY = Frame("/venv/lib/python3.12/site-packages/pluggy/_callers.py", 103, "_multicall")
OURS = Frame(hang.__file__, 3, "run_rank")
COMMAND = Frame("/venv/bin/pytest", 8, "<module>")
TEST = Frame("/home/me/rankwise/test_solve.py", 7, "test_solve")
SOLVER = Frame("/home/me/rankwise/solve.py", 41, "heavy")
IMPORT = Frame("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed")


@pytest.mark.parametrize(
    ("stack", "own"),
    [
        ((SOLVER, TEST, PYTEST, PLUGGY, OURS, COMMAND), (SOLVER, TEST)),
        ((PYTEST, SOLVER, PLUGGY, TEST, PYTEST), (SOLVER, TEST)),  # a fixture that asks for another
        ((SOLVER, IMPORT, TEST, OURS), (SOLVER, TEST)),
        ((SOLVER, TEST), (SOLVER, TEST)),
        ((PLUGGY, PYTEST, COMMAND), (PLUGGY, PYTEST, COMMAND)),
        ((), ()),
    ],
)
def test_how_a_test_was_called_is_left_out(stack: Stack, own: Stack) -> None:
    assert of_the_test(stack) == own


# Text

SOURCE = """\
def test_solve(comm):
    if comm.rank == 2:
        heavy()
    comm.Barrier()
    if comm.rank == 2:
        heavy()
    comm.recv()


def heavy():
    while True: pass
"""


class Places:
    """The lines of SOURCE, as frames."""

    def __init__(self, root: Path) -> None:
        self.file = root / "sub" / "test_solve.py"
        self.file.parent.mkdir()
        self.file.write_text(SOURCE)

    def test(self, line: int) -> Stack:
        return (Frame(str(self.file), line, "test_solve"), PYTEST)

    def heavy(self, line: int) -> Stack:
        return (Frame(str(self.file), 11, "heavy"), *self.test(line))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_a_hang_in_c_code_of_a_part_of_the_world_has_a_hint(places: Places) -> None:
    in_c_code = {0: places.test(3), 1: places.test(3)}
    hint = hint_at_world(in_c_code, 2, 4)
    assert "has 2 of the 4 ranks of its world" in hint
    assert "mark.parallel" not in hint
    assert "mark.parallel" in hint_at_world({0: places.test(3)}, 1, 4)


def test_there_is_no_hint_where_the_world_cannot_be_the_reason(places: Places) -> None:
    in_c_code, in_mpi4py = places.test(3), places.test(4)
    assert not hint_at_world({0: in_c_code, 1: in_c_code}, 2, 2)
    assert not hint_at_world({0: in_c_code, 1: in_mpi4py}, 2, 4)
    assert not hint_at_world({}, 2, 4)


def test_equal_stacks_are_shown_once(places: Places, tmp_path: Path) -> None:
    stacks = {rank: places.test(4) for rank in range(4)}
    assert describe_stacks(stacks, 4, tmp_path) == [
        "all 4 ranks:",
        "    sub/test_solve.py:4 in test_solve",
        "        comm.Barrier()",
    ]


def test_the_one_rank_that_did_not_come_to_the_barrier_is_named_first(
    places: Places, tmp_path: Path
) -> None:
    barrier = places.test(4)
    stacks = {0: barrier, 1: barrier, 2: places.heavy(3), 3: barrier}
    assert describe_stacks(stacks, 4, tmp_path) == [
        (
            "rank 2 never reached the barrier (sub/test_solve.py:4 `comm.Barrier()`): "
            "it is in sub/test_solve.py:11 `while True: pass`"
        ),
        "rank 2 of 4:",
        "    sub/test_solve.py:11 in heavy",
        "        while True: pass",
        "    sub/test_solve.py:3 in test_solve",
        "        heavy()",
        "ranks 0-1, 3 of 4:",
        "    sub/test_solve.py:4 in test_solve",
        "        comm.Barrier()",
    ]


def test_a_rank_that_has_gone_further_is_not_said_to_have_never_been_there(
    places: Places, tmp_path: Path
) -> None:
    stacks = {0: places.test(4), 1: places.test(4), 2: places.heavy(6)}
    assert describe_stacks(stacks, 3, tmp_path)[0].startswith("rank 2 is not at the barrier (sub")


def test_only_a_barrier_is_called_one(places: Places, tmp_path: Path) -> None:
    stacks = {0: places.test(7), 1: places.test(7), 2: places.heavy(3)}
    assert describe_stacks(stacks, 3, tmp_path)[0] == (
        "rank 2 never reached sub/test_solve.py:7 `comm.recv()`: "
        "it is in sub/test_solve.py:11 `while True: pass`"
    )


def test_the_odd_rank_is_named_by_the_users_own_line(places: Places, tmp_path: Path) -> None:
    library = Frame(str(tmp_path / ".venv/lib/site-packages/numpy/core.py"), 1, "dot")
    stacks = {0: places.test(4), 1: places.test(4), 2: (library, *places.test(3))}
    assert "it is in sub/test_solve.py:3 `heavy()`" in describe_stacks(stacks, 3, tmp_path)[0]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param({0: 4, 1: 3}, id="one and one"),
        pytest.param({0: 4, 1: 4, 2: 3, 3: 3}, id="two and two"),
        pytest.param({0: 4, 1: 4, 2: 3, 3: 7}, id="three places"),
    ],
)
def test_without_one_odd_rank_all_places_are_listed(
    lines: Mapping[int, int], places: Places, tmp_path: Path
) -> None:
    stacks = {rank: places.test(line) for rank, line in lines.items()}
    shown = describe_stacks(stacks, len(lines), tmp_path)
    assert not any("reached" in line or "is not at" in line for line in shown)
    for line in set(lines.values()):
        assert f"    sub/test_solve.py:{line} in test_solve" in shown


def test_a_file_that_is_elsewhere_or_cannot_be_read_is_named_in_full(tmp_path: Path) -> None:
    assert describe_stacks({1: (Frame("/elsewhere/a.py", 3, "f"),)}, 2, tmp_path) == [
        "rank 1 of 2:",
        "    /elsewhere/a.py:3 in f",
    ]


def test_an_empty_stack_is_said_to_be_one(tmp_path: Path) -> None:
    assert describe_stacks({0: ()}, 2, tmp_path) == ["rank 0 of 2:", "    not in Python code"]


def test_no_stacks_are_no_lines(tmp_path: Path) -> None:
    assert describe_stacks({}, 2, tmp_path) == []
