"""Start processes that do not outlive us, signal them, and kill what is left by its marker."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time

from .files import CHUNK_BYTES, listed, read_record, say, try_to
from .output import CaseLog, OutputStream, ProcessLog, Redactor

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as signal  # noqa: PLC0414 - others have it from here
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn
else:
    try:
        import _signal as signal  # The public module makes enums of it, which takes 5 ms.
    except ImportError:
        import signal

# How long to try to kill what is left. Only what hangs in the kernel takes long.
SWEEP_SECONDS = 10.0
# How long the monitors of Podman's containers may clean up: each container has one, which removes
# what is left of it with these programs.
KEEPER_SECONDS = 5.0
KEEPER, CLEANERS = b"(conmon", (b"(conmon", b"(podman", b"(runc", b"(crun")
CANNOT_START, NOT_FOUND = 126, 127
# The exit code after an error of our own.
OUR_FAULT = 3
# Where a process in a container leaves how it ended, and what of that counts.
INSIDE, INSIDE_FIELDS = "inside", ("exit_code", "signal", "peak_memory", "cpu_seconds")
# The answer of another node that is asked whether processes are gone.
STILL_THERE = 75

# From linux/prctl.h.
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Grid Engine announces its SIGKILL by SIGUSR2, and a pause by SIGUSR1.
CANCEL_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)
UNHEEDED_SIGNALS = (signal.SIGHUP, signal.SIGUSR1)
FORWARDED_SIGNALS = (
    *ENDING_SIGNALS,
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGALRM, signal.SIGWINCH),
)

LIBC = ctypes.CDLL(None, use_errno=True)
# What Python, or a runner, ignores, but not what it starts.
OUR_IGNORED = [signal.SIGPIPE, signal.SIGXFSZ]


def prctl(option: int, value: int) -> bool:
    """Set a property of this process; False: that is not possible here, as on macOS."""
    call = getattr(LIBC, "prctl", None)
    zero = ctypes.c_ulong(0)
    return call is not None and call(option, ctypes.c_ulong(value), zero, zero, zero) == 0


def spawn(
    command: Sequence[str], environment: Mapping[str, str], prepare: Callable[[], object]
) -> tuple[int, int]:
    """Start a process that does not outlive us; `prepare` is called in it.

    Returns its number, and a pipe that has the reason in it if the command could not be started.
    OSError: there can be no process.
    """
    reason, reason_end = os.pipe()
    ours = os.getpid()

    def become() -> NoReturn:
        status, what = CANNOT_START, f"cannot prepare {command[0]!r}"
        try:
            signal.set_wakeup_fd(-1)
            restore_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            # The kernel kills it when the runner ends, however that ends.
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != ours:
                os._exit(status)  # The runner was just killed, when the kernel did not know of us.
            prepare()
            what = f"cannot start {command[0]!r}"
            try:
                execute(command, environment)
            except FileNotFoundError as error:
                status = NOT_FOUND
                raise OSError(error.strerror) from None  # It names the last place of many on PATH.
        except BaseException as error:
            text = f"{what}: {error}"
            os.write(reason_end, text.encode(errors="backslashreplace"))
            say(text)
        finally:
            os._exit(status)

    # A signal that arrives before the command is there must end it, not run our own handler.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    try:
        process = os.fork()
        if process == 0:
            become()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(reason_end)
    return process, reason


def execute(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Be the command, found on the PATH of its environment; raises OSError.

    As `os.execvpe` does, but that loads `warnings` first, anew in each process.
    """
    name, trouble = command[0], None
    path = environment.get("PATH", os.defpath)
    places = [""] if "/" in name else [f"{folder or '.'}/" for folder in path.split(os.pathsep)]
    for place in places:
        try:
            os.execve(f"{place}{name}", [*command], environment)
        except OSError as error:
            # A folder on PATH that we may not search has no such program, as for a shell.
            if not place or os.path.exists(f"{place}{name}"):
                trouble = trouble or error
    raise trouble or FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def restore_signals() -> None:
    """Set signals to what they would do to a command that was started without us."""
    for number in (*FORWARDED_SIGNALS, signal.SIGCHLD, *OUR_IGNORED):
        if signal.getsignal(number) != signal.SIG_IGN or number in OUR_IGNORED:
            signal.signal(number, signal.SIG_DFL)


def ending(
    code: int | None, number: int | None = None, *, usage: Any = None, reason: str = ""
) -> dict[str, Any]:
    """Return the record of a process that has ended now, with what it used."""
    # The unit of ru_maxrss.
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "exit_code": code,
        "signal": number,
        "ended": time.time(),
        "peak_memory": usage.ru_maxrss * unit if usage else 0,
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 6) if usage else 0.0,
        **({"reason": reason} if reason else {}),
    }


def exit_code_of(status: int) -> int:
    """Return the exit code from the status of a process; of a signal, its number with a minus.

    As `os.waitstatus_to_exitcode`, which Python 3.8 in a container has not.
    """
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def signal_name(number: int) -> str:
    """Return ` (SIGKILL)` for 9, and nothing for what is no signal."""
    names = (name for name in dir(signal) if name.startswith("SIG") and "_" not in name)
    return next((f" ({name})" for name in names if getattr(signal, name) == number), "")


def send(process: int, number: int) -> None:
    """Send a signal to a process and its group, if there is one."""
    if process <= 0:
        return  # Not started yet. To the kernel, 0 is our own group.
    # It has no group yet, if it has just been started; it may also have just ended.
    if not try_to(os.killpg, process, number):
        try_to(os.kill, process, number)


def wake_up_by_signals() -> int:
    """Return a descriptor that can be read once a signal has arrived."""
    # A poll that waits for output returns for a signal too; no signal falls between two polls.
    source, sink = os.pipe()
    os.set_blocking(source, False)
    os.set_blocking(sink, False)
    signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return source


def empty(descriptor: int) -> None:
    """Read what can be read at once, and drop it."""
    try_to(os.read, descriptor, CHUNK_BYTES)


def reaped() -> Iterator[tuple[int, int, Any]]:
    """Return process, status and usage of each child that has ended."""
    while True:
        try:
            found = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not found[0]:
            return
        yield found


def be_prompt() -> None:
    """Run before processes that compute, if that is permitted: we note the time when they end."""
    try_to(os.setpriority, os.PRIO_PROCESS, 0, -10)


class Child:
    """A process that we start, and its records."""

    def __init__(self, folder: str, about: Mapping[str, Any], log_bytes: int) -> None:
        self.folder = folder
        self.log = ProcessLog(folder, log_bytes)
        self.streams: list[OutputStream] = []
        self.pid = 0
        self.end: dict[str, Any] | None = None
        self.is_ended_by_us = False
        self._about = {name: about.get(name) for name in ("name", "role", "node", "rank")}
        self._started = 0.0
        self._reason = -1
        self._log_bytes = log_bytes

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        prepare: Callable[[], object],
        redactor: Redactor | None,
    ) -> None:
        """Start it, with a log if there is a redactor; one that cannot be has ended at once."""
        self._started = time.time()
        sinks = self._open_streams(redactor, environment) if redactor else []

        def connect_and_prepare() -> None:
            for number, sink in ((1, sinks[0]), (2, sinks[-1])) if sinks else ():
                os.dup2(sink, number)
            prepare()

        try:
            self.pid, self._reason = spawn(command, environment, connect_and_prepare)
        except OSError as error:
            self.fail(f"cannot start a process: {error.strerror}")
        finally:
            for sink in sinks:
                os.close(sink)

    def _open_streams(self, redactor: Redactor, environment: Mapping[str, str]) -> list[int]:
        """Make a pipe for all that it writes, or one for each stream; return the ends to write."""
        sinks = []
        is_apart = environment.get("RANKWISE_STREAMS") == "apart"
        begin = environment.get("RANKWISE_CASES")
        for names in (["stdout.log"], ["stderr.log"]) if is_apart else ([],):
            source, sink = os.pipe()
            own = [ProcessLog(self.folder, self._log_bytes, name) for name in names]
            if begin:
                own.append(CaseLog(self.folder, self._log_bytes, begin))
            for log in (self.log, *own):
                log.check()
            self.streams.append(OutputStream(source, redactor.twin(), [self.log, *own]))
            sinks.append(sink)
        return sinks

    def note_end(self, status: int, usage: Any) -> None:
        """Note how it ended, with all that it has written."""
        code = exit_code_of(status)
        reason = os.read(self._reason, CHUNK_BYTES).decode()
        os.close(self._reason)
        if code < 0:
            self._finish(ending(None, -code, usage=usage))
        else:
            self._finish({**ending(code, usage=usage, reason=reason), **self._end_inside(code)})

    def _end_inside(self, code: int) -> dict[str, Any]:
        """Return how it ended in its container, as that says; of the engine, only a code is known.

        Empty: it was in none, or the engine does not say the same, and its word counts.
        """
        record = read_record(f"{self.folder}/{INSIDE}/end.json", *INSIDE_FIELDS)
        if not record:
            return {}
        number = record["signal"]
        if code != (128 + number if number else record["exit_code"]):
            return {}
        return {name: record[name] for name in INSIDE_FIELDS}

    def fail(self, reason: str) -> None:
        """Note that it could not be started, so that there is nothing to wait for."""
        self._started = self._started or time.time()
        say(reason)
        self.log.write(f"rankwise runner: {reason}\n".encode(errors="backslashreplace"))
        self._finish(ending(CANNOT_START, reason=reason))

    def give_up(self) -> None:
        """Note that it could not be killed."""
        self._finish(ending(None, reason="it could not be killed"))

    def start_record(self) -> dict[str, Any]:
        return {**self._about, "pid": self.pid, "started": self._started}

    def _finish(self, end: dict[str, Any]) -> None:
        for stream in self.streams:
            stream.drain()
            self.log.check()
        by_us = self.is_ended_by_us
        self.end = {**end, "started": self._started, "by_us": by_us, "log_lost": self.log.lost}


def sweep(marker: str, *, is_reaper: bool) -> list[int]:
    """Kill all descendants of this process, and all with the marker; return what is left."""

    def find() -> tuple[list[int], list[int], bool]:
        has_children = True
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            has_children = False
        # A process that loses its parent becomes the child of a reaper: if it has no child, there
        # is nothing to look for. Reading /proc takes long on a large machine.
        found, keepers = leftovers(marker) if has_children or not is_reaper else ([], [])
        return found, keepers, has_children and is_reaper

    return kill_all(find)[0]


def sweep_marked(marker: str) -> int:
    """Kill all that an attempt has left whose runner is gone, and return how many that were."""
    killed = kill_all(lambda: (*leftovers(marker, with_own=False), False))[1]
    from .limits import forget  # late: it needs this module

    forget(marker)
    return len(killed)


def kill_all(find: Callable[[], tuple[list[int], list[int], bool]]) -> tuple[list[int], set[int]]:
    """Kill what `find` finds until that is nothing; return what is left after a while, and killed.

    It returns processes, those among them that clean up after containers, and whether more may
    come. The cleaners get some time before they are killed.
    """
    began = time.monotonic()
    killed: set[int] = set()
    while True:
        found, keepers, may_come = find()
        spent = time.monotonic() - began
        if spent > SWEEP_SECONDS or not (found or may_come):
            return found, killed
        for process in found:
            if process in keepers and spent < KEEPER_SECONDS:
                continue
            if try_to(os.kill, process, signal.SIGKILL):
                killed.add(process)
        time.sleep(0.05 if found == keepers else 0.005)


def leftovers(marker: str, *, with_own: bool = True) -> tuple[list[int], list[int]]:
    """Return what is alive and has a marker, or with `with_own` descends from this process.

    Returns all, and those among them that clean up after containers whose processes are dead.
    """
    parents: dict[int, int] = {}
    dead, found, keepers, cleaners = {os.getpid()}, set(), set(), set()
    for name in listed("/proc"):
        try:
            with open(f"/proc/{int(name)}/stat", "rb") as file:
                about, _, rest = file.read().rpartition(b")")
            state, parent = rest.split()[:2]
            parents[int(name)] = int(parent)
            if state == b"Z":
                dead.add(int(name))
            if about.endswith(KEEPER):
                keepers.add(int(name))
            if about.endswith(CLEANERS):
                cleaners.add(int(name))
            if has_marker(int(name), marker):
                found.add(int(name))
        except (OSError, ValueError):
            continue
    # Cleaners are kept if a monitor has started them, in however many steps.
    kept = set(keepers)
    for process in parents:
        ancestor = process
        while ancestor in parents:
            ancestor = parents[ancestor]
            if ancestor in keepers:
                kept.add(process)
            if ancestor == os.getpid():
                if with_own:
                    found.add(process)
                break
    return sorted(found - dead), sorted((found & kept & cleaners) - dead)


def has_marker(pid: int, marker: str) -> bool:
    """Return whether a process is alive and of that attempt."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"RANKWISE_ATTEMPT={marker}".encode() in file.read().split(b"\0")
    except OSError:
        return False


def await_end(marker: str, seconds: str, *pids: str) -> int:
    """Wait until processes of an attempt are gone; returns 0, or `STILL_THERE` after the time."""
    # Polled, because only a parent can wait for a process, and we are not theirs.
    deadline = time.monotonic() + float(seconds)
    for pid in pids:
        while has_marker(int(pid), marker):
            if time.monotonic() >= deadline:
                return STILL_THERE
            time.sleep(0.05)
    return 0


def read_small(path: str) -> bytes:
    """Read a file of the kernel's; empty if it is gone. Faster than `open`: it is called often."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(file, CHUNK_BYTES)
    except OSError:
        return b""
    finally:
        os.close(file)


def descendants(pid: int) -> Iterator[int]:
    """Return all descendants of a process, where the kernel lists children."""
    for thread in listed(f"/proc/{pid}/task"):
        for child in read_small(f"/proc/{pid}/task/{thread}/children").split():
            yield int(child)
            yield from descendants(int(child))
