"""Where ranks are: they are asked for their stacks, which are read and described."""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import os
import re
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


def describe_ranks(ranks: Iterable[int], size: int) -> str:
    """Name ranks as people do: "rank 1 of 2", "ranks 0-2, 5 of 8", "all 4 ranks"."""
    numbers = sorted(ranks)
    if len(numbers) == size:
        return f"all {size} ranks" if size > 1 else "its rank"
    # Only here: most tests pass on all ranks.
    from rankwise.wording import ranges

    return f"rank{'s' * (len(numbers) > 1)} {ranges(numbers)} of {size}"


# Real-time signals are used by hardly anyone, unlike SIGUSR1 and SIGUSR2. macOS has none of them;
# Windows has no such signal at all, and ranks there are not asked (0).
_USUAL_SIGNAL = getattr(signal, "SIGUSR2", 0)
STACK_SIGNAL: int = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else _USUAL_SIGNAL

_LOOK_SECONDS = 0.01

# Patterns are compiled when a rank is looked for: every rank loads this module, few are.
_THREAD = r"^(?P<current>Current thread|Thread) 0x(?P<thread>[0-9a-f]+)\b"
# What faulthandler writes instead when it has been told to write one thread only.
_ONE_THREAD = "Stack (most recent call first):"
_MAIN = r"(?m)^Main thread 0x(?P<thread>[0-9a-f]+)$"
_FRAME = r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$'
# It writes ASCII: é is \xe9, ∇ is \u2207.
_ESCAPED = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))"
_FATAL = "Fatal Python error: "

# Frames of these are how a test is run, not what it does. Our own by their full place: people
# may well keep their work in a folder of the name rankwise.
_MACHINERY = ("/_pytest/", "/pluggy/", "/pytest/__main__.py", f"{Path(__file__).parents[1]}/")
_FROZEN = "<frozen "

_WAITS_IN_PYTHON = (
    r"(?i)\bsleep\(|\.\w*(?:barrier|bcast|gather|scatter|alltoall|reduce|scan|probe|send|recv|wait|split"
    r"|dup|create_group|fence|lock)\w*\("
)
_BARRIER = r"(?i)\bI?barrier\b"


class Frame(NamedTuple):
    """One line of a stack."""

    file: str
    line: int
    """0 if not known."""
    function: str

    @property
    def source(self) -> str:
        """The text of the line, as far as it can be read."""
        return linecache.getline(self.file, self.line).strip()


Stack = tuple[Frame, ...]
"""The innermost frame first."""


# A rank's side


class StackFile:
    """The file that the stacks of this process are written to when STACK_SIGNAL comes."""

    def __init__(self, path: Path) -> None:
        # Never closed: the handler writes to it at any moment until the process ends.
        self._file = path.open("wb", buffering=0)
        # The signal may reach any thread, and a thread's place in the list is no promise.
        self._file.write(f"Main thread 0x{threading.main_thread().ident:016x}\n".encode())
        if STACK_SIGNAL:
            faulthandler.register(STACK_SIGNAL, file=self._file, all_threads=True, chain=False)


# The asking side


class _Question(NamedTuple):
    """A process that has been asked for its stacks."""

    process: int
    path: Path
    start: int
    """How long the file was before."""
    deaf: frozenset[str]
    """The threads that had the signal blocked before."""

    def answer(self) -> Stack | None:
        """Return the stack of its main thread; None as long as it is not written whole."""
        try:
            # In this order: once there is something, the handler has begun, and its thread has
            # the signal blocked until all is written.
            if self.path.stat().st_size <= self.start or _deaf_threads(self.process) - self.deaf:
                return None
            text = self.path.read_bytes()
            if not _shows_processes():
                time.sleep(_LOOK_SECONDS)
                if self.path.stat().st_size > len(text):
                    return None
        except OSError:
            return None
        header, new = text[: self.start].partition(b"\n")[0], text[self.start :]
        return parse_stack(b"\n".join((header, new)).decode(errors="replace"))


def ask_for_stacks(
    files: Mapping[int, tuple[int, Path]], *, limit: float = 2.0
) -> dict[int, Stack]:
    """Return the stack of each rank's main thread, by rank.

    `files` has each rank's process on this machine, and the path of its StackFile. A rank that is
    gone, stopped, has no StackFile or does not answer within `limit` seconds is missing. So is
    one with more than a hundred threads: faulthandler writes the latest hundred.
    """
    deadline = time.monotonic() + limit
    asked = {rank: _ask(process, path) for rank, (process, path) in files.items()}
    open_questions = {rank: question for rank, question in asked.items() if question}
    stacks: dict[int, Stack] = {}
    while open_questions and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        for rank, question in list(open_questions.items()):
            # In this order: what a process has written is there when it is gone.
            gone = not _can_answer(question.process)
            stack = question.answer()
            if stack:
                stacks[rank] = stack
            # An empty stack is an answer, too: faulthandler has left the main thread out.
            if stack is not None or gone:
                del open_questions[rank]
    return dict(sorted(stacks.items()))


def _ask(process: int, path: Path) -> _Question | None:
    # It may be gone at any moment.
    with contextlib.suppress(OSError):
        if _can_answer(process):
            # Before the signal is sent: the length of the file, and which threads have it blocked.
            question = _Question(process, path, path.stat().st_size, _deaf_threads(process))
            os.kill(process, STACK_SIGNAL)
            return question
    return None


def _can_answer(process: int) -> bool:
    """Return whether the process runs and has our handler; the signal would end any other."""
    status = _status(Path(f"/proc/{process}/status"))
    if not status and not _shows_processes():
        # Its StackFile is all that tells of the handler.
        return is_alive(process)
    return status.get("State", "X")[0] not in "TtXZ" and _has_signal(status.get("SigCgt", "0"))


def _shows_processes() -> bool:
    """Return whether there are files that say what processes are at: not so on macOS."""
    return Path("/proc/self").exists()


def is_alive(process: int) -> bool:
    """Return whether a process exists; False on Windows, where 0 is Ctrl-C."""
    if STACK_SIGNAL:
        with contextlib.suppress(OSError):
            os.kill(process, 0)
            return True
    return False


def _deaf_threads(process: int) -> frozenset[str]:
    """Find the threads that have the signal blocked; none of a process that is gone."""
    statuses = Path(f"/proc/{process}/task").glob("*/status")
    return frozenset(
        path.parent.name for path in statuses if _has_signal(_status(path).get("SigBlk", "0"))
    )


def _status(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _has_signal(mask: str) -> bool:
    # Bit 0 is signal 1.
    return bool(int(mask, 16) >> (STACK_SIGNAL - 1) & 1)


# What faulthandler writes


class _Thread(NamedTuple):
    number: int | None
    current: bool
    frames: list[Frame]


def parse_stack(text: str) -> Stack:
    """Read the main thread's stack out of what faulthandler wrote; empty if it is not there.

    Without a StackFile's first line the main thread is the last one: later ones come first.
    """
    threads = _parse_threads(text)
    if main := re.search(_MAIN, text):
        threads = [thread for thread in threads if thread.number == int(main["thread"], 16)]
    return tuple(threads[-1].frames) if threads else ()


def read_crash(text: str) -> Stack | None:
    """Read the stack of the thread that a fatal signal hit; None if `text` tells of no crash.

    It is empty if that was not a thread of Python's.
    """
    _, fatal, report = text.partition(_FATAL)
    if not fatal:
        return None
    threads = _parse_threads(report)
    return next((tuple(thread.frames) for thread in threads if thread.current), ())


def _parse_threads(text: str) -> list[_Thread]:
    threads: list[_Thread] = []
    for line in text.splitlines():
        if header := re.match(_THREAD, line):
            current = header["current"] != "Thread"
            threads.append(_Thread(int(header["thread"], 16), current, []))
        elif line == _ONE_THREAD:
            threads.append(_Thread(None, True, []))
        elif threads and (found := re.match(_FRAME, line)):
            number = int(found["line"]) if found["line"].isdecimal() else 0
            threads[-1].frames.append(
                Frame(_unescape(found["file"]), number, _unescape(found["function"]))
            )
    return threads


def _unescape(text: str) -> str:
    return re.sub(_ESCAPED, lambda found: chr(int("".join(filter(None, found.groups())), 16)), text)


def of_the_test(stack: Stack) -> Stack:
    """Leave out how the test was called; all of the stack if nothing would be left."""
    # The innermost frame is first. What is behind the machinery has started it: the pytest
    # command, or a script of the user's.
    machinery = [i for i, frame in enumerate(stack) if _is_machinery(frame)]
    inside = stack[: machinery[-1]] if machinery else stack
    return tuple(frame for frame in inside if not _is_machinery(frame)) or stack


def _is_machinery(frame: Frame) -> bool:
    return frame.file.startswith(_FROZEN) or any(part in frame.file for part in _MACHINERY)


# Text


def describe_stacks(stacks: Mapping[int, Stack], size: int, root: Path) -> list[str]:
    """Say where ranks are: equal stacks once, those that are elsewhere than most named first.

    Paths are shown relative to `root` if they are below it. Ranks without a stack are not named.
    """
    ranks_by_stack: dict[Stack, list[int]] = {}
    for rank, stack in sorted(stacks.items()):
        ranks_by_stack.setdefault(of_the_test(stack), []).append(rank)
    groups = sorted(ranks_by_stack.items(), key=lambda group: (len(group[1]), group[1]))
    lines = _name_the_odd(groups, root)
    for stack, ranks in groups:
        lines.append(f"{describe_ranks(ranks, size)}:")
        lines += _show_stack(stack, root)
    return lines


def hint_at_world(stacks: Mapping[int, Stack], size: int, world: int) -> str:
    """Say what ranks may wait for outside of a test that has `size` ranks of a larger world.

    Empty if it has all of them, or if a rank is in a call of mpi4py's: that reaches these alone.
    """
    # A call of mpi4py reaches the ranks of the test: what hangs there is another thing.
    if size >= world or not stacks or any(_is_in_mpi4py(stack) for stack in stacks.values()):
        return ""
    more = ""
    if size == 1:
        more = "\nA test that needs more ranks says so with @rankwise.mark.parallel(n)."
    return (
        f"The test has {size} of the {world} ranks of its world. MPI.COMM_WORLD of mpi4py has the "
        f"same {size},\nbut C code that uses MPI_COMM_WORLD waits for all {world}: "
        f"world=True, --world or --scheduler=shell\ngive it a world of the test's size.{more}"
    )


def _is_in_mpi4py(stack: Stack) -> bool:
    """Return whether the innermost line that is known looks like a call of mpi4py's, or a sleep."""
    frames = of_the_test(stack)
    return bool(frames) and re.search(_WAITS_IN_PYTHON, frames[0].source) is not None


def _name_the_odd(groups: Sequence[tuple[Stack, list[int]]], root: Path) -> list[str]:
    """Name the one rank that is not where all the others are together."""
    # With one rank on each side, neither is the odd one.
    if len(groups) != 2 or len(groups[0][1]) != 1 or len(groups[1][1]) < 2:
        return []
    (odd, (rank,)), (most, _) = groups
    if not odd or not most:
        return []
    verb = "never reached" if _is_before(odd, most) else "is not at"
    waiting, elsewhere = _innermost(most, root), _innermost(odd, root)
    there = _place_and_source(waiting, root)
    if re.search(_BARRIER, waiting.source):
        there = f"the barrier ({there})"
    return [f"rank {rank} {verb} {there}: it is in {_place_and_source(elsewhere, root)}"]


def _innermost(stack: Stack, root: Path) -> Frame:
    """Find the innermost frame that is the user's own; the innermost of all if none is."""
    own = (
        frame
        for frame in stack
        if Path(frame.file).is_relative_to(root) and "/site-packages/" not in frame.file
    )
    return next(own, stack[0])


def _is_before(stack: Stack, other: Stack) -> bool:
    """Return whether a stack is at an earlier line of the function in which the two part ways."""
    for frame, there in zip(reversed(stack), reversed(other), strict=False):
        if frame != there:
            same_function = frame._replace(line=0) == there._replace(line=0)
            return same_function and frame.line < there.line
    return False


def _show_stack(stack: Stack, root: Path) -> Iterable[str]:
    for frame in stack:
        yield f"    {_place(frame, root)} in {frame.function}"
        if frame.source:
            yield f"        {frame.source}"
    if not stack:
        yield "    not in Python code"


def _place_and_source(frame: Frame, root: Path) -> str:
    source = f" `{frame.source}`" if frame.source else f" in {frame.function}"
    return _place(frame, root) + source


def _place(frame: Frame, root: Path) -> str:
    path = Path(frame.file)
    shown = path.relative_to(root) if path.is_relative_to(root) else path
    return f"{shown}:{frame.line}"
