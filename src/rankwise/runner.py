"""Run the processes of one attempt and write down what became of them.

    python -I -S runner.py gang FOLDER                         all processes of FOLDER/order.json
    python -I -S runner.py starter                             gangs, each by a copy of itself
    python -I -S runner.py rank COMMAND…                       one rank, called by its launcher
    python -I -S runner.py node FOLDER [OPTIONS] HOST LINE…    a line on another node, like ssh
    python -I -S runner.py seat FOLDER NAME COMMAND…           a process of the order, over there

A node is virtual, a part of this machine, unless it has `reach`: the words that start something
there, such as those of srun. None are needed for the node that the gang itself is on.

One file that needs the standard library only and imports nothing of rankwise: it is copied to
other machines. It avoids most modules to start in a few milliseconds: what `json`, `signal` and
`pathlib` load would take twice as long as everything else.

The records of a process are in processes/NAME: start.json, end.json, a heartbeat and its output.
The output is kept in up to three files that never hold more than `log_bytes` together: output.log,
which is written, output.log.1, which it was before it was full, and output.log.first, the
beginning, where settings and versions stand; it ends in a line that says how much is missing.
With RANKWISE_STREAMS=apart there are stdout.log and stderr.log as well, in the same way.
What all of them use over time is in usage.json, beside `processes`: for those on another node, in
their own folders.
"""

# Neither pathlib nor contextlib: they take longer to load than all the rest.
# ruff: noqa: PTH100, PTH103, PTH104, PTH105, PTH108, PTH109, PTH110, PTH112, PTH119
# ruff: noqa: PTH120, PTH123, PTH202, PTH208, SIM105

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, NoReturn
else:
    try:
        import _signal as signal  # The public module makes enums of it, which takes 5 ms.
    except ImportError:
        import signal

try:
    # The public module loads `re`, which takes 10 ms.
    import _json

    class _Reading:
        strict = True
        object_hook = object_pairs_hook = None
        parse_float, parse_int, parse_constant = float, int, float

    quote: Callable[[str], str] = _json.encode_basestring_ascii
    scan: Callable[[str, int], tuple[Any, int]] = _json.make_scanner(_Reading)  # type: ignore[arg-type]  # any object with these will do
except ImportError:
    import json

    quote, scan = json.dumps, json.JSONDecoder().raw_decode

VERSION = 1
CHUNK_BYTES = 65536
# The most that a pipe holds, unless root has made it larger.
PIPE_BYTES = 1 << 20
LOG_BYTES = 50_000_000
NOTICE_BYTES = 100
HEARTBEAT_SECONDS = 5.0
# How often the records of ranks are looked at that a launcher has started.
LOOK_SECONDS = 0.25
# How often it is looked at what processes use, at first; with how many looks kept at most; and how
# many times longer than a look takes the pause after it is at least.
USAGE_SECONDS, USAGE_POINTS, USAGE_PAUSE = 0.5, 200, 200
# How long records are tried to be written while that fails, by a gang and by a rank, for which its
# launcher waits.
PATIENCE_SECONDS, RANK_PATIENCE_SECONDS = 15.0, 5.0
# Within which time it is not certain which of two processes ended first.
AT_ONCE_SECONDS = 0.25
# How long to try to kill what is left. Only what hangs in the kernel takes long.
SWEEP_SECONDS = 10.0
# How long the keepers of Podman's containers may clear up after them: each has one, which removes
# what is left of it, by these programs.
KEEPER_SECONDS = 5.0
KEEPER, CLEANERS = b"(conmon", (b"(conmon", b"(podman", b"(runc", b"(crun")
# Below the ports that the kernel gives out by itself.
PORTS = range(20000, 32768)

TIMED_OUT, CANCELLED, LOST = 124, 130, 1
OUR_FAULT = 3
CANNOT_START, NOT_FOUND = 126, 127
SSH_FAULT = 255

OPEN, CLOSE = "\ue000", "\ue001"
RANK_VARIABLES = (
    *("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID"),
    *("HOROVOD_RANK", "RANK", "SLURM_PROCID"),
)
# Where Open MPI keeps what the ranks of a node share: under names that hold the name of the host.
SHARED_MEMORY_VARIABLES = (
    "OMPI_MCA_btl_vader_backing_directory",
    "OMPI_MCA_btl_sm_backing_directory",
    "OMPI_MCA_osc_sm_backing_directory",
    "OMPI_MCA_osc_rdma_backing_directory",
    "OMPI_MCA_shmem_mmap_backing_file_base_dir",
)
# Where the daemons of Open MPI 4 and 5 keep their files. Those that are killed leave them.
TEMPORARY_VARIABLES = ("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base")
# What a batch system says of itself: of another node, or of a job that ours is not.
BATCH_VARIABLES = ("SLURM", "SRUN_")
BATCH_KEPT = ("SLURM_CONF",)
# How long the records of another node may take to be seen here.
RECORD_SECONDS = 5.0
# Options of ssh that have a value.
SSH_OPTIONS = frozenset(f"-{letter}" for letter in "bcDEeFIiJLlmOopQRSWwB")

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWUTS = 0x00020000, 0x04000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
CRASHES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
FORWARDED_SIGNALS = (
    *ENDING_SIGNALS,
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, signal.SIGALRM, signal.SIGWINCH),
)


def say(text: str) -> None:
    """Tell people, in the runner's own log."""
    data = f"rankwise runner: {text}\n".encode(errors="backslashreplace")
    try:
        os.write(2, data)
    except OSError:
        pass  # Nobody listens.


# Files


def parse(text: str) -> Any:
    """Read one JSON value; raises ValueError."""
    text = text.strip(" \t\r\n")
    try:
        value, end = scan(text, 0)
        if end == len(text):
            return value
    except (StopIteration, SystemError):
        pass  # The latter where the exceptions of the public module are not loaded.
    import json  # It takes long to load, but can say what is wrong.

    return json.loads(text)


def to_json(value: Any) -> str:
    """Write plain data as JSON."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case list():
            return f"[{', '.join(map(to_json, value))}]"
        case dict():
            return f"{{{', '.join(f'{quote(key)}: {to_json(value[key])}' for key in value)}}}"
    return str(quote(str(value)))


def read_json(path: str) -> Any:
    """Read a file; raises OSError or ValueError."""
    with open(path, encoding="utf-8") as file:
        return parse(file.read())


def write_file(path: str, text: str, mode: int = 0o666) -> None:
    """Write a file beside its place and move it there; makes its folder if need be."""
    new = f"{path}.{os.getpid()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        descriptor = os.open(new, flags, mode)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(new, flags, mode)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.replace(new, path)
    except OSError:
        os.unlink(new)
        raise


def touch(path: str) -> None:
    """Show that we live, if that is possible."""
    try:
        os.utime(path)
    except OSError:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
        except OSError:
            pass


class Records:
    """Files with what happened; those that cannot be written now are tried again."""

    def __init__(self) -> None:
        self._unwritten: dict[str, str] = {}

    def put(self, path: str, data: Mapping[str, Any]) -> None:
        self._unwritten[path] = to_json(data) + "\n"
        self.retry()

    def retry(self) -> bool:
        """Write what is not written yet; tells whether nothing is left."""
        for path, text in list(self._unwritten.items()):
            try:
                write_file(path, text)
            except OSError as error:
                say(f"cannot write {path}: {error.strerror}; trying again")
            else:
                del self._unwritten[path]
        return not self._unwritten

    def insist(self, seconds: float) -> bool:
        """Try for so long; tells whether all is written."""
        deadline = time.monotonic() + seconds
        while not self.retry():
            if time.monotonic() >= deadline:
                say(f"gave up after {seconds:g} s: {', '.join(self._unwritten)}")
                return False
            time.sleep(1)
        return True


# Values that are known now


class Ports:
    """Free ports, kept from other runners of this user until this process ends."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._locks = -1

    def get(self, name: str, address: str) -> int:
        """Give the port of that name, always the same one; raises OSError when none is free."""
        if name not in self._numbers:
            start = time.time_ns() // 1000 + os.getpid() * 97
            turned = (PORTS[(start + offset) % len(PORTS)] for offset in range(len(PORTS)))
            found = next((port for port in turned if self._take(port, address)), None)
            if found is None:
                raise OSError(errno.EADDRINUSE, f"no port of {PORTS[0]}-{PORTS[-1]} is free")
            self._numbers[name] = found
        return self._numbers[name]

    def _take(self, port: int, address: str) -> bool:
        """Lock the byte of that number in a file that all runners of this user have."""
        if port in self._numbers.values():
            return False
        try:
            if self._locks < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                self._locks = os.open(f"/tmp/rankwise-ports-{os.getuid()}", flags, 0o600)
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except BlockingIOError:
            return False
        except OSError:
            pass  # No such place, or no locks in it: whether the port is free has to do.
        return is_free(port, address)


def is_free(port: int, address: str) -> bool:
    """Tell whether nobody listens there, at that address or at all."""
    import socket

    places = ((socket.AF_INET, address), (socket.AF_INET, ""), (socket.AF_INET6, "::"))
    for family, host in places:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as line:
                line.bind((host, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
    return True


class Marks:
    """The values of what stands in an order as a mark."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._nodes = order["nodes"]
        self._folder = str(order["folder"])
        self._ports = Ports()

    def fill_in(self, text: str) -> str:
        """Replace every mark; raises ValueError for one that is not known."""
        if OPEN not in text:
            return text
        head, *rest = text.split(OPEN)
        parts = [part.partition(CLOSE) for part in rest]
        return head + "".join(self._value(what) + tail for what, _, tail in parts)

    def fill_in_all(self, values: Mapping[str, str]) -> dict[str, str]:
        return {name: self.fill_in(value) for name, value in values.items()}

    def _value(self, what: str) -> str:
        kind, _, rest = what.partition(":")
        _, _, number = rest.rpartition("@")
        try:
            node = self._nodes[int(number)] if number else {}
            match kind:
                case "address":
                    return str(node["address"])
                case "host":
                    return str(node.get("host") or node["name"])
                case "port":
                    return str(self._ports.get(rest, node["address"]))
                case "folder":
                    return str(node["folder"]) if rest else self._folder
        except (ValueError, LookupError):
            pass
        raise ValueError(f"the order has a mark that is not known: {what!r}")


# Output


class Redactor:
    """Puts *** for secret values in a stream, wherever it is cut.

    Only what may be the beginning of a value is held back.
    """

    def __init__(self, values: Sequence[str]) -> None:
        # People print the lines of a key one by one.
        lines = [line for value in values for line in value.splitlines() if len(line) >= 8]
        encoded = {text.encode(errors="surrogateescape") for text in (*values, *lines) if text}
        self._secrets = sorted(encoded, key=len, reverse=True)
        self._held = b""

    def twin(self) -> Redactor:
        """Give one for another stream with the same secrets."""
        other = Redactor(())
        other._secrets = self._secrets
        return other

    def feed(self, data: bytes, *, is_last: bool = False) -> bytes:
        if not self._secrets:
            return data
        data, done, start = self._held + data, [], 0
        while True:
            end = len(data) if is_last else self._unfinished(data, start)
            found = min(self._matches(data, start, end), default=None)
            if found is None:
                done.append(data[start:end])
                self._held = data[end:]
                return b"".join(done)
            done += [data[start : found[0]], b"***"]
            start = found[0] - found[1]

    def _matches(self, data: bytes, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Give where values begin before `end`, with their negative length: the longest first."""
        for secret in self._secrets:
            place = data.find(secret, start)
            if 0 <= place < end:
                yield place, -len(secret)

    def _unfinished(self, data: bytes, start: int) -> int:
        """Find the first place from which on the rest may be the beginning of a value."""
        first = len(data)
        for secret in self._secrets:
            place = data.find(secret[:1], max(start, len(data) - len(secret) + 1), first)
            while place >= 0 and not secret.startswith(data[place:]):
                place = data.find(secret[:1], place + 1, first)
            first = place if place >= 0 else first
        return first


class Log:
    """The output of one process, never more than so many bytes of it."""

    def __init__(self, folder: str, limit: int, name: str = "output.log") -> None:
        self.lost = 0
        """How many bytes are in none of the files."""
        self._path = f"{folder}/{name}"
        limit = max(limit, 10 * NOTICE_BYTES)
        self._head = limit // 5
        self._part = (limit - self._head - 3 * NOTICE_BYTES) // 2
        self._file = -1
        self._size = 0
        self._cut = 0
        self._gap = 0

    def write(self, data: bytes) -> None:
        """Append it; what does not fit on the disk is counted and left out."""
        while data:
            try:
                self._make_ready()
                if self._gap:
                    self._append(f"\n[rankwise: {self._gap} bytes could not be written]\n".encode())
                    self._gap = 0
                data = data[self._append(data[: max(1, self._part - self._size)]) :]
            except OSError:
                self._gap += len(data)
                self.lost += len(data)
                return

    def check(self) -> None:
        """Have a file, even if nothing was written, and see whether what was is still there."""
        try:
            if self._file < 0 or self._is_gone():
                self._reopen()
        except OSError:
            pass

    def close(self) -> None:
        self.check()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, data: bytes) -> int:
        written = os.write(self._file, data)
        self._size += written
        return written

    def _make_ready(self) -> None:
        """Have a file that is there, open and not full."""
        if self._file < 0 or self._is_gone():
            self._reopen()
        elif self._size >= self._part:
            self._rotate()
            self._reopen()

    def _is_gone(self) -> bool:
        """Tell whether somebody has removed the file; what stood in it is lost then."""
        is_gone = os.fstat(self._file).st_nlink == 0
        self.lost += self._size if is_gone else 0
        return is_gone

    def _reopen(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file, self._size = -1, 0
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def _rotate(self) -> None:
        """Put the full file aside; the one that was there makes place, but for the beginning."""
        older, first = f"{self._path}.1", f"{self._path}.first"
        try:
            dropped = os.path.getsize(older)
            if not self._cut:
                os.truncate(older, self._head)
                os.rename(older, first)
                dropped -= self._head
            self._cut += dropped
            self.lost += dropped
            os.truncate(first, self._head)
            with open(first, "ab") as file:
                file.write(f"\n[rankwise: {self._cut} bytes are left out here]\n".encode())
        except OSError:
            pass  # There is none yet, or somebody has removed it.
        os.replace(self._path, older)


class Stream:
    """What a process writes, on its way into its log, or into several."""

    def __init__(self, source: int, redactor: Redactor, logs: Sequence[Log]) -> None:
        self.source = source
        self._logs = logs
        self._redactor = redactor
        os.set_blocking(source, False)

    def pump(self) -> bool:
        """Take what is there; tells whether more may come at once."""
        try:
            data = os.read(self.source, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self._write(self._redactor.feed(data))
        return True

    def drain(self) -> None:
        """Take what the pipe can hold, and no more: somebody may write without end."""
        for _ in range(PIPE_BYTES // CHUNK_BYTES):
            if self.source < 0 or not self.pump():
                return

    def close(self) -> None:
        if self.source >= 0:
            os.close(self.source)
            self.source = -1
            self._write(self._redactor.feed(b"", is_last=True))
            for log in self._logs:
                log.close()

    def _write(self, data: bytes) -> None:
        for log in self._logs:
            log.write(data)


# Processes

LIBC = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> bool:
    """Set a property of this process, on Linux; tells whether it could be."""
    call = getattr(LIBC, "prctl", None)
    zero = ctypes.c_ulong(0)
    return call is not None and call(option, ctypes.c_ulong(value), zero, zero, zero) == 0


def spawn(
    command: Sequence[str], environment: Mapping[str, str], prepare: Callable[[], object]
) -> tuple[int, int]:
    """Start a process that does not outlive us; `prepare` is called in it.

    Gives its id and a pipe that will hold the reason if the command could not be started. Raises
    OSError if not even a process could be.
    """
    reason, reason_end = os.pipe()
    ours = os.getpid()
    # A signal that arrives before the command is there must end it, not run our own handler.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    try:
        process = os.fork()
        if process == 0:
            _become(command, environment, prepare, parent=ours, reason=reason_end, mask=before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(reason_end)
    return process, reason


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    prepare: Callable[[], object],
    *,
    parent: int,
    reason: int,
    mask: set[Any],
) -> NoReturn:
    """Turn this new process into the command."""
    status, what = CANNOT_START, f"cannot prepare {command[0]!r}"
    try:
        signal.set_wakeup_fd(-1)
        restore_signals()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(status)  # It has just been killed, and the kernel did not know of us yet.
        prepare()
        what = f"cannot start {command[0]!r}"
        try:
            execute(command, environment)
        except FileNotFoundError as error:
            status = NOT_FOUND
            raise OSError(error.strerror) from None  # It names the last place of many on PATH.
    except BaseException as error:
        text = f"{what}: {error}"
        os.write(reason, text.encode(errors="backslashreplace"))
        say(text)
    finally:
        os._exit(status)


def execute(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Be the command, found on the PATH that it is given; raises OSError.

    As `os.execvpe`, which loads `warnings` for it, anew in each process that does nothing else.
    """
    name, trouble = command[0], None
    path = environment.get("PATH", os.defpath)
    places = [""] if "/" in name else [f"{folder or '.'}/" for folder in path.split(os.pathsep)]
    for place in places:
        try:
            os.execve(f"{place}{name}", [*command], environment)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            trouble = trouble or error
    raise trouble or missing


# What Python, or a gang, ignores, but not what it starts.
OUR_IGNORED = [signal.SIGPIPE, signal.SIGXFSZ]


def restore_signals() -> None:
    """Let signals do to what we start what they would do without us."""
    for number in (*FORWARDED_SIGNALS, signal.SIGCHLD, *OUR_IGNORED):
        if signal.getsignal(number) != signal.SIG_IGN or number in OUR_IGNORED:
            signal.signal(number, signal.SIG_DFL)


def ending(
    code: int | None, number: int | None = None, *, usage: Any = None, reason: str = ""
) -> dict[str, Any]:
    """Say how a process ended, now, and what it used."""
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "exit_code": code,
        "signal": number,
        "ended": time.time(),
        "peak_memory": usage.ru_maxrss * unit if usage else 0,
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 6) if usage else 0.0,
        **({"reason": reason} if reason else {}),
    }


def failed(record: Mapping[str, Any]) -> bool:
    """Tell whether a process failed by itself."""
    return not record["by_us"] and (record["exit_code"] != 0 or record["signal"] is not None)


def in_words(who: str, record: Mapping[str, Any]) -> str:
    """Say what became of a process."""
    code, number = record["exit_code"], record["signal"]
    if number is not None:
        return f"{who} was ended by signal {number}{signal_name(number)}"
    text = f"{who} left with exit code {code}"
    if record.get("reason"):
        return f"{text}: {record['reason']}"
    if code is not None and code > 128 and (name := signal_name(code - 128)):
        return f"{text}: so do shells whose command was ended by signal {code - 128}{name}"
    return text


def signal_name(number: int) -> str:
    """Give ` (SIGKILL)` for 9, and nothing for what is no signal."""
    names = (name for name in dir(signal) if name.startswith("SIG") and "_" not in name)
    return next((f" ({name})" for name in names if getattr(signal, name) == number), "")


def send(process: int, number: int) -> None:
    """Send a signal to a process and its group, if there is one."""
    if process <= 0:
        return  # Not started yet. To the kernel it would mean our own group.
    try:
        os.killpg(process, number)
    except OSError:
        try:
            os.kill(process, number)  # It has no group yet.
        except OSError:
            pass  # It has just ended.


def wake_up_by_signals() -> int:
    """Give a descriptor that can be read once a signal has arrived."""
    source, sink = os.pipe()
    os.set_blocking(source, False)
    os.set_blocking(sink, False)
    signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return source


def empty(descriptor: int) -> None:
    """Throw away what can be read at once."""
    try:
        os.read(descriptor, CHUNK_BYTES)
    except BlockingIOError:
        pass


def be_prompt() -> None:
    """Be woken before those who compute, if that is permitted: when they end, we note the time."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except OSError:
        pass


class Child:
    """A process that we start, and its records."""

    def __init__(self, folder: str, about: Mapping[str, Any], log_bytes: int) -> None:
        self.folder = folder
        self.log = Log(folder, log_bytes)
        self.streams: list[Stream] = []
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
        is_apart = environment.get("RANKWISE_STREAMS") == "apart"
        sinks = self._open_streams(redactor, is_apart=is_apart) if redactor else []

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

    def _open_streams(self, redactor: Redactor, *, is_apart: bool) -> list[int]:
        """Make a pipe for all that it writes, or one for each stream, and give where to write."""
        self.log.check()
        if not is_apart:
            source, sink = os.pipe()
            self.streams = [Stream(source, redactor, [self.log])]
            return [sink]
        sinks = []
        for name in ("stdout.log", "stderr.log"):
            source, sink = os.pipe()
            own = Log(self.folder, self._log_bytes, name)
            own.check()
            self.streams.append(Stream(source, redactor.twin(), [self.log, own]))
            sinks.append(sink)
        return sinks

    def note_end(self, status: int, usage: Any) -> None:
        """Take down how it ended, with all that it has written."""
        code = os.waitstatus_to_exitcode(status)
        reason = os.read(self._reason, CHUNK_BYTES).decode()
        os.close(self._reason)
        if code < 0:
            self._finish(ending(None, -code, usage=usage))
        else:
            self._finish(ending(code, usage=usage, reason=reason))

    def fail(self, reason: str) -> None:
        """Take down that there was nothing to wait for."""
        self._started = self._started or time.time()
        say(reason)
        self.log.write(f"rankwise runner: {reason}\n".encode(errors="backslashreplace"))
        self._finish(ending(CANNOT_START, reason=reason))

    def give_up(self) -> None:
        """Take down that it could not be killed."""
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
    """Kill everything that this process has started, in however many steps; gives what is left."""
    began = time.monotonic()
    while True:
        has_children = True
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            has_children = False
        # Whatever loses its parent becomes the child of a reaper: without any, there is nothing.
        found, keepers = leftovers(marker) if has_children or not is_reaper else ([], [])
        spent = time.monotonic() - began
        if spent > SWEEP_SECONDS or not (found or (has_children and is_reaper)):
            return found
        for process in found:
            if process in keepers and spent < KEEPER_SECONDS:
                continue
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.05 if found == keepers else 0.005)


def leftovers(marker: str) -> tuple[list[int], list[int]]:
    """Find what descends from this process or has its marker, and is alive.

    Gives all, and those among them that clear up after containers whose processes are dead.
    """
    wanted = f"RANKWISE_ATTEMPT={marker}".encode()
    parents: dict[int, int] = {}
    dead, found, keepers, cleaners = {os.getpid()}, set(), set(), set()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
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
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\0"):
                    found.add(int(name))
        except (OSError, ValueError):
            continue
    kept = set(keepers)
    for process in parents:
        ancestor = process
        while ancestor in parents:
            ancestor = parents[ancestor]
            if ancestor in keepers:
                kept.add(process)
            if ancestor == os.getpid():
                found.add(process)
                break
    return sorted(found - dead), sorted((found & kept & cleaners) - dead)


# The machine


def machine_reading() -> dict[str, Any]:
    """Read what the machine is and does now, for those who judge what was measured on it."""
    found: dict[str, Any] = {
        "time": time.time(),
        "clock": time.monotonic(),
        "host": os.uname().nodename,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        "all_cores": os.cpu_count() or 1,
        "load": os.getloadavg()[0],
    }
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = (line for line in file if line.startswith("model name"))
            found["cpu"] = next(lines, "").partition(":")[2].strip()
        with open("/proc/stat", encoding="utf-8") as file:
            found["ticks"] = [int(field) for field in file.readline().split()[1:9]]
        with open("/proc/pressure/cpu", encoding="utf-8") as file:
            words = [word.partition("=") for word in file.readline().split()]
        told = {name: value for name, _, value in words}
        found["psi_avg10"], found["psi_total"] = float(told["avg10"]), int(told["total"])
    except (OSError, ValueError, LookupError):
        pass  # What a machine does not tell is not there.
    return found


# What processes use


def read_small(path: str) -> bytes:
    """Read a file of the kernel's; empty if it is gone."""
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
    """Give all that a process has started, in however many steps, where the kernel tells that."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        for child in read_small(f"/proc/{pid}/task/{thread}/children").split():
            yield int(child)
            yield from descendants(int(child))


def used_by(pids: Iterator[int]) -> tuple[float, int]:
    """Give the seconds of CPU and the bytes of memory that processes use together.

    With the seconds of those that they have waited for. What processes share is counted once.
    """
    ticks = pages = most_shared = 0
    for pid in pids:
        fields = read_small(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        memory = read_small(f"/proc/{pid}/statm").split()
        if len(fields) < 15 or len(memory) < 3:
            continue  # It has just ended.
        ticks += sum(map(int, fields[11:15]))
        pages += int(memory[1]) - int(memory[2])
        most_shared = max(most_shared, int(memory[2]))
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    return seconds, (pages + most_shared) * os.sysconf("SC_PAGE_SIZE")


def cpu_of_ended() -> float:
    """Give the seconds of CPU of all that this process has waited for."""
    times = os.times()
    return times.children_user + times.children_system


class Gpus:
    """What the GPUs do, asked of NVIDIA's library in a thread: a broken driver lets one wait."""

    def __init__(self, visible: str) -> None:
        self.latest: tuple[float, int] | None = None
        """How busy the busiest is, from 0 to 1, and the bytes in use on all; None: not known."""
        self._is_wanted = True
        try:
            self._library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        import _thread

        numbers = visible.split(",")
        self._wanted = [int(text) for text in numbers] if all(map(str.isdigit, numbers)) else None
        _thread.start_new_thread(self._watch, ())

    def stop(self) -> None:
        """Ask no more."""
        self._is_wanted = False

    def _watch(self) -> None:
        try:
            if self._library.nvmlInit_v2() == 0:
                devices = self._devices()
                while devices and self._is_wanted:
                    self.latest = self._ask(devices)
                    time.sleep(USAGE_SECONDS)
        except AttributeError:
            pass  # It is too old, or something else.

    def _devices(self) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        found = []
        for number in range(count.value):
            if self._wanted is not None and number not in self._wanted:
                continue
            device = ctypes.c_void_p()
            ask = self._library.nvmlDeviceGetHandleByIndex_v2
            if ask(ctypes.c_uint(number), ctypes.byref(device)) == 0:
                found.append(device)
        return found

    def _ask(self, devices: Sequence[ctypes.c_void_p]) -> tuple[float, int]:
        busiest, used = 0, 0
        for device in devices:
            rates = (ctypes.c_uint * 2)()  # of the processor, of its memory
            if self._library.nvmlDeviceGetUtilizationRates(device, rates) == 0:
                busiest = max(busiest, rates[0])
            sizes = (ctypes.c_ulonglong * 3)()  # total, free, used
            if self._library.nvmlDeviceGetMemoryInfo(device, sizes) == 0:
                used += sizes[2]
        return busiest / 100, used


class Usage:
    """What everything that this process has started uses, over time; in a file of bounded size."""

    def __init__(self, path: str, visible_gpus: str) -> None:
        self.due = time.monotonic() + USAGE_SECONDS
        """When to look next."""
        self._path = path
        self._visible_gpus = visible_gpus
        self._gpus: Gpus | None = None
        self._began, self._started = time.time(), time.monotonic()
        self._last, self._last_cpu = self._started, cpu_of_ended()
        self._every = USAGE_SECONDS
        self._points: list[list[float]] = []
        """The time since the start, cores, bytes; and with GPUs how busy they are, and bytes."""
        self._peak = 0
        self._is_new = False

    def look(self) -> None:
        """Look at what is used now."""
        now = time.monotonic()
        self._gpus = self._gpus or Gpus(self._visible_gpus)
        cpu, memory = used_by(descendants(os.getpid()))
        cpu += cpu_of_ended()
        rate = max(0.0, cpu - self._last_cpu) / max(now - self._last, 1e-3)
        gpu = self._gpus.latest or (0.0, 0)
        self._points.append([round(now - self._started, 2), round(rate, 3), memory, *gpu])
        self._last, self._last_cpu, self._is_new = now, max(cpu, self._last_cpu), True
        self._peak = max(self._peak, memory)
        if len(self._points) >= USAGE_POINTS:
            self._thin()
        pause = max(self._every, USAGE_PAUSE * (time.monotonic() - now))
        self.due = now + pause

    def _thin(self) -> None:
        """Make one point of two: the mean of what flows, the most of what is there."""
        pairs = zip(self._points[::2], self._points[1::2], strict=False)
        self._points = [
            [b[0], round((a[1] + b[1]) / 2, 3), max(a[2], b[2]), (a[3] + b[3]) / 2, max(a[4], b[4])]
            for a, b in pairs
        ]
        self._every *= 2

    def write(self) -> None:
        """Write what is new; one look alone tells nothing."""
        if not self._is_new or len(self._points) < 2:
            return
        names = ["time", "cpu", "memory"]
        if self._gpus and self._gpus.latest:
            names += ["gpu", "gpu_memory"]
        columns = zip(*self._points, strict=True)
        data = {
            "version": VERSION,
            "began": self._began,
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
            "cpu_seconds": round(max(self._last_cpu, cpu_of_ended()), 2),
            "peak_memory": self._peak,
            **{name: list(column) for name, column in zip(names, columns, strict=False)},
        }
        try:
            write_file(self._path, to_json(data) + "\n")
        except OSError:
            pass  # Nobody's outcome depends on it.
        self._is_new = False

    def close(self) -> None:
        """Write the last of it: what was used since the last look is known now."""
        self._is_new = True
        self.write()
        if self._gpus:
            self._gpus.stop()


def usage_for(order: Mapping[str, Any], folder: str) -> Usage | None:
    """Have it looked at what is used; not where something is measured, which is left alone."""
    if order.get("is_measured") or not os.path.isdir("/proc/self/task"):
        return None
    variables = {**os.environ, **order.get("environment", {})}
    return Usage(f"{folder}/usage.json", variables.get("CUDA_VISIBLE_DEVICES", ""))


# Virtual nodes


def node_variables(order: Mapping[str, Any], number: int) -> dict[str, str]:
    """Give what a process is told about its node."""
    name = str(order["nodes"][number]["name"])
    return {"RANKWISE_NODE": name, "RANKWISE_NODE_RANK": str(number), "HOSTNAME": name}


def settle(order: Mapping[str, Any], number: int) -> bool:
    """Move this process to a virtual node; tells whether it has the node's host name now."""
    node = order["nodes"][number]
    if node.get("cores"):
        try:
            os.sched_setaffinity(0, node["cores"])
        except (OSError, AttributeError):
            pass  # A machine with other cores, or without the notion.
    os.chdir(node["folder"])
    if has_own_name(node) and (len(order["nodes"]) == 1 or "reach" in node):
        return True
    return take_host_name(node["name"], f"{order['folder']}/etc-hosts")


def has_own_name(node: Mapping[str, Any]) -> bool:
    """Tell whether a node is called as this machine is, with or without a domain."""
    name = str(node["name"])
    return os.uname().nodename.partition(".")[0] == name.partition(".")[0]


def take_host_name(name: str, hosts: str) -> bool:
    """Give this process, and what it starts, a host name and an /etc/hosts of its own.

    Only where that is permitted: elsewhere the variables have to do.
    """
    if not hasattr(LIBC, "unshare") or LIBC.unshare(CLONE_NEWNS | CLONE_NEWUTS) != 0:
        return False
    # What is mounted later outside is to be seen inside, but not the other way round.
    steps = ((b"none", b"/", MS_REC | MS_SLAVE), (hosts.encode(), b"/etc/hosts", MS_BIND))
    for source, target, flags in steps:
        if LIBC.mount(source, target, None, ctypes.c_ulong(flags), None) != 0:
            return False
    encoded = name.encode()
    return bool(LIBC.sethostname(encoded, ctypes.c_size_t(len(encoded))) == 0)


def hosts_file(order: Mapping[str, Any]) -> str:
    """Write this machine's /etc/hosts with the virtual nodes in it."""
    try:
        with open("/etc/hosts", encoding="utf-8", errors="surrogateescape") as file:
            present = file.read().rstrip("\n")
    except OSError:
        present = "127.0.0.1 localhost"
    lines = [f"{node['address']} {node['name']}" for node in order["nodes"]]
    return "\n".join([present, *lines, ""])


def own_command() -> list[str]:
    """Give the words that start this very file."""
    return [sys.executable, "-I", "-S", os.path.abspath(sys.argv[0])]


def leave_batch_system() -> None:
    """Forget what the batch system says, which is about the line that has led us here."""
    for name in [*os.environ]:
        if name.startswith(BATCH_VARIABLES) and name not in BATCH_KEPT:
            del os.environ[name]


def run_on_node(folder: str, arguments: Sequence[str], *, is_there: bool = False) -> int:
    """Do what ssh would be asked to do by a launcher: run a line on another node."""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        del rest[: 2 if rest[0] in SSH_OPTIONS else 1]
    if not rest:
        say("rankwise-node: no host is given: rankwise-node [OPTIONS] HOST COMMAND")
        return SSH_FAULT
    host = rest.pop(0).rpartition("@")[2]
    try:
        order = read_json(f"{folder}/order.json")
    except (OSError, ValueError) as error:
        say(f"rankwise-node: cannot read {folder}/order.json: {error}")
        return SSH_FAULT
    names = [node["name"] for node in order["nodes"]]
    known = [*names, *(node["address"] for node in order["nodes"])]
    if host not in known:
        say(f"rankwise-node: no node of this job is called {host!r}; there are {', '.join(names)}")
        return SSH_FAULT
    number = known.index(host) % len(names)
    reach = order["nodes"][number].get("reach")
    if is_there:
        leave_batch_system()
    elif reach and os.environ.get("RANKWISE_NODE") != names[number]:
        restore_signals()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(reach[0], [*reach, *own_command(), "there", folder, host, *rest])
    try:
        has_name = settle(order, number)
    except OSError as error:
        say(f"rankwise-node: cannot work on {host}: {error}")
        return SSH_FAULT
    os.environ.update(node_variables(order, number))
    if not has_name:
        keep_apart(order["marker"], names[number])
    restore_signals()
    return os.execv("/bin/sh", ["/bin/sh", "-c", " ".join(rest)])


def keep_apart(marker: str, node: str) -> None:
    """Keep Open MPI from taking daemons and ranks of nodes with one host name for the same."""
    memory, files = f"{shared_memory(marker)}/{node}", f"{temporary(marker)}/{node}"
    try:
        os.makedirs(memory, exist_ok=True)
    except OSError as error:
        say(f"rankwise-node: cannot make {memory}: {error.strerror}")
        return
    for name in SHARED_MEMORY_VARIABLES:
        os.environ.setdefault(name, memory)
    for name in TEMPORARY_VARIABLES:
        os.environ.setdefault(name, files)


def shared_memory(marker: str) -> str:
    """Name the folder for what the ranks of one attempt share."""
    return f"{'/dev/shm' if os.path.isdir('/dev/shm') else '/tmp'}/rankwise-{marker}"


def temporary(marker: str) -> str:
    """Name the folder for what launchers leave; short enough for sockets in it."""
    return f"/tmp/rankwise-{marker}"


# One rank, started by a launcher


def run_rank(command: Sequence[str]) -> int:
    """Run a rank that a launcher starts, and be to the launcher what the rank would be."""
    folder = os.environ.get("RANKWISE_FOLDER", "")
    if not folder:
        say("RANKWISE_FOLDER is not set: this rank leaves no records")
        restore_signals()
        os.execvp(command[0], [*command])
    try:
        order = read_json(f"{folder}/order.json")
    except (OSError, ValueError):
        order = {}
    number = rank_from(os.environ)
    node = find_node(order)
    if node is not None:
        os.environ.update(node_variables(order, node))
        move_to_own_folder(order, node)
        if "reach" in order["nodes"][node] and not has_own_name(order["nodes"][node]):
            keep_apart(order["marker"], order["nodes"][node]["name"])
    path = own_folder(f"{folder}/processes", number)
    about = {"name": os.path.basename(path), "role": "rank", "node": node or 0, "rank": number}
    return Rank(path, about, order).run(command)


def rank_from(environment: Mapping[str, str]) -> int | None:
    """Read the number that the launcher has given."""
    for name in RANK_VARIABLES:
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    return None


def own_folder(processes: str, number: int | None) -> str:
    """Make a folder for a rank that has none yet: it may be started more than once."""
    name = f"rank-{number}" if number is not None else f"rank-pid{os.getpid()}"
    path, times = f"{processes}/{name}", 1
    while True:
        try:
            os.makedirs(path)
        except FileExistsError:
            times += 1
            path = f"{processes}/{name}.{times}"
        except OSError as error:
            say(f"cannot make {path}: {error.strerror}")
            return path
        else:
            return path


def find_node(order: Mapping[str, Any]) -> int | None:
    """Find out on which virtual node this process is.

    Some launchers give every rank the variables of the node that they themselves are on. What
    started this process there, however, has its own.
    """
    names = [node["name"] for node in order.get("nodes", ())]
    # Where Slurm itself starts ranks, it tells them the node's name; our own have no such variable.
    told = os.environ.get("SLURMD_NODENAME", "")
    candidates = [os.uname().nodename, told, os.environ.get("RANKWISE_NODE", "")]
    try:
        with open(f"/proc/{os.getppid()}/environ", "rb") as file:
            variables = file.read().decode(errors="replace").split("\0")
        found = [text[14:] for text in variables if text.startswith("RANKWISE_NODE=")]
        candidates[2:2] = found
    except OSError:
        pass
    return next((names.index(name) for name in candidates if name in names), None)


def move_to_own_folder(order: Mapping[str, Any], number: int) -> None:
    """Go to the place in this node's folder that the launcher has named in its own."""
    own = order["nodes"][number]["folder"].rstrip("/")
    try:
        here = os.getcwd()
        for other in (node["folder"].rstrip("/") for node in order["nodes"]):
            if f"{here}/".startswith(f"{other}/"):
                return os.chdir(own + here[len(other) :])
    except OSError:
        pass  # The program has made it, over there, or has removed it.
    return None


class Rank(Child):
    """One rank: a process that is passed on what its launcher sends to us."""

    def __init__(self, folder: str, about: Mapping[str, Any], order: Mapping[str, Any]) -> None:
        super().__init__(folder, about, int(order.get("log_bytes", LOG_BYTES)))
        self._beat = float(order.get("heartbeat", HEARTBEAT_SECONDS))
        self._records = Records()
        self._signals: list[int] = []
        self._line = -1
        """Where it is heard that we are to end it, because nobody is at the other end."""
        self._usage: Usage | None = None

    def run(self, command: Sequence[str], *, leave: bool = True) -> int:
        """Run it to its end, and end in the same way; or only say how."""
        awake = wake_up_by_signals()
        for number in FORWARDED_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._forward)
        names = os.environ.get("RANKWISE_SECRETS", "").split(",")
        redactor = Redactor([os.environ.get(name, "") for name in names])
        self.start(command, os.environ, self.prepare, redactor if self.has_log() else None)
        be_prompt()
        for early in self._signals:
            send(self.pid, early)
        self._records.put(f"{self.folder}/start.json", self.start_record())
        self._wait(awake)
        for stream in self.streams:
            stream.close()
        if self._usage:
            self._usage.close()
        assert self.end is not None
        self.end["may_restart"] = may_restart(os.environ)
        self._records.put(f"{self.folder}/end.json", self.end)
        self._records.insist(RANK_PATIENCE_SECONDS)
        if leave:
            return leave_like(self.end)
        return 128 + self.end["signal"] if self.end["signal"] else int(self.end["exit_code"] or 0)

    def prepare(self) -> None:
        """Give it its own group: a signal to the launcher's is passed on once, not twice."""
        os.setpgid(0, 0)

    def has_log(self) -> bool:
        """Tell whether its output is kept, or handed on to the launcher."""
        return os.environ.get("RANKWISE_RANK_OUTPUT") == "own"

    def _forward(self, number: int, _: object) -> None:
        self._signals.append(number)
        self.is_ended_by_us |= number in ENDING_SIGNALS
        send(self.pid, number)

    def _wait(self, awake: int) -> None:
        poll = select.poll()
        poll.register(awake, select.POLLIN)
        streams = {stream.source: stream for stream in self.streams}
        for source in streams:
            poll.register(source, select.POLLIN)
        if self._line >= 0:
            poll.register(self._line, select.POLLIN)
        beat = 0.0
        while self.end is None:
            if time.monotonic() >= beat:
                touch(f"{self.folder}/heartbeat")
                self._records.retry()
                if self._usage:
                    self._usage.write()
                beat = time.monotonic() + self._beat
            seconds = self._beat
            if self._usage:
                if time.monotonic() >= self._usage.due:
                    self._usage.look()
                seconds = max(0.0, min(seconds, self._usage.due - time.monotonic()))
            for source, _ in poll.poll(seconds * 1000 + 1):
                if source == awake:
                    empty(awake)
                elif source == self._line:
                    poll.unregister(source)
                    self._forward(signal.SIGTERM, None)
                elif not streams[source].pump() and streams[source].source < 0:
                    poll.unregister(source)
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.note_end(status, usage)


class Seat(Rank):
    """A process of the order on a node that the gang is not on."""

    def __init__(self, folder: str, about: Mapping[str, Any], order: Mapping[str, Any]) -> None:
        super().__init__(folder, about, order)
        self._order = order
        self._node = int(about.get("node", 0))
        # Not by a signal: Slurm sends those to all that descends from us as well.
        self._line = 0
        # Sooner than the gang loses patience, so that it is us who write down how it ended.
        self._patience = 0.8 * float(order.get("grace", 5.0))
        # Of the ranks of launchers, those look at it who have started the launcher.
        self._usage = usage_for(order, folder)

    def prepare(self) -> None:
        """Put it on its node, as a gang does."""
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if settle(self._order, self._node):
            for name in TEMPORARY_VARIABLES:
                os.environ.setdefault(name, temporary(self._order["marker"]))

    def has_log(self) -> bool:
        return True

    def note_end(self, status: int, usage: Any) -> None:
        """Take down how it ended; a signal that has ended it may be on its way to us too."""
        if status and not self._signals:
            time.sleep(AT_ONCE_SECONDS)
        super().note_end(status, usage)

    def _forward(self, number: int, frame: object) -> None:
        if number == signal.SIGALRM:
            return send(self.pid, signal.SIGKILL)
        if number in ENDING_SIGNALS:
            signal.setitimer(signal.ITIMER_REAL, self._patience)
        return super()._forward(number, frame)


def run_seat(folder: str, name: str, command: Sequence[str]) -> int:
    """Run a process that a gang on another node wants to have here."""
    leave_batch_system()
    try:
        order = read_json(f"{folder}/order.json")
        about = next(one for one in order["processes"] if one["name"] == name)
    except (OSError, ValueError, LookupError, StopIteration) as error:
        say(f"cannot use {folder}/order.json for {name}: {error!r}")
        return OUR_FAULT
    is_reaper = prctl(PR_SET_CHILD_SUBREAPER, 1)
    seat = Seat(f"{folder}/processes/{name}", about, order)
    code = seat.run(command, leave=False)
    # Only what descends from us: others of this attempt may be on this machine.
    sweep("", is_reaper=is_reaper)
    return code


def may_restart(environment: Mapping[str, str]) -> bool:
    """Tell whether torchrun would start this rank anew if it failed."""
    most = environment.get("TORCHELASTIC_MAX_RESTARTS", "")
    done = environment.get("TORCHELASTIC_RESTART_COUNT", "")
    return most.isdecimal() and done.isdecimal() and int(done) < int(most)


def leave_like(record: Mapping[str, Any]) -> int:
    """End this process the way that the one of the record ended."""
    number = record["signal"]
    if number is None:
        return int(record["exit_code"])
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # One core file is enough.
        signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError):
        pass  # Nobody needs to reset SIGKILL.
    os.kill(os.getpid(), number)
    return 128 + int(number)


class RankRecords:
    """What the ranks of launchers have written about themselves."""

    def __init__(self, processes: str, others: Sequence[str]) -> None:
        self._folder = processes
        self._others = frozenset(others)
        self._ended: dict[str, dict[str, Any]] = {}

    def look(self) -> None:
        """Read what is new."""
        for name in self.names():
            if name not in self._ended:
                try:
                    record = read_json(f"{self._folder}/{name}/end.json")
                    needed = {key: record[key] for key in ("exit_code", "signal", "by_us", "ended")}
                    self._ended[name] = {**record, **needed, "who": name}
                except (OSError, ValueError, LookupError, TypeError):
                    continue  # Not yet, or not ours.

    def names(self) -> list[str]:
        try:
            found = os.listdir(self._folder)
        except OSError:
            return []
        return [name for name in found if name.startswith("rank-") and name not in self._others]

    def failures(self) -> list[dict[str, Any]]:
        """Give the ranks that failed and were not started again, nor will be."""
        return [
            record
            for record in self._ended.values()
            if failed(record) and not record.get("may_restart") and not self._was_restarted(record)
        ]

    def all_failures(self) -> list[dict[str, Any]]:
        return [record for record in self._ended.values() if failed(record)]

    def complete(self, records: Records, attempt: Mapping[str, Any]) -> None:
        """Write the end of ranks that were killed together with their wrapper."""
        for name in self.names():
            if name not in self._ended and not os.path.exists(f"{self._folder}/{name}/end.json"):
                is_culprit = attempt["culprit"] == name
                record = ending(None, int(signal.SIGKILL))
                if is_culprit:
                    record |= {key: attempt[key] for key in ("exit_code", "signal", "reason")}
                record |= {"started": self._started(name), "by_us": not is_culprit, "log_lost": 0}
                records.put(f"{self._folder}/{name}/end.json", record)

    def _was_restarted(self, record: Mapping[str, Any]) -> bool:
        name, _, times = record["who"].partition(".")
        started = self._started(f"{name}.{int(times or 1) + 1}")
        return started is not None and started >= record["ended"]

    def _started(self, name: str) -> float | None:
        try:
            return float(read_json(f"{self._folder}/{name}/start.json")["started"])
        except (OSError, ValueError, LookupError):
            return None


# All processes of an attempt


class Process(Child):
    """One process of the order."""

    def __init__(self, order: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        self.name = str(about["name"])
        folder = f"{order['folder']}/processes/{self.name}"
        super().__init__(folder, about, int(order.get("log_bytes", LOG_BYTES)))
        self.about = about
        self.node = int(about.get("node", 0))
        self.is_awaited = bool(about.get("is_awaited", True))
        self.is_vital = bool(about.get("is_vital", True))
        self.speaks_for_ranks = bool(about.get("speaks_for_ranks", False))

        self.reach: Sequence[str] = ()
        """The words that start something on its node; none: it is the gang's own."""
        self.line = -1
        """To its seat; nothing is said there, but that nobody is at this end any more."""
        self.has_own_records = False
        """Whether its seat has written how it ended."""

    def note_end(self, status: int, usage: Any) -> None:
        super().note_end(status, usage)
        assert self.end is not None
        self.hang_up()
        if self.reach:
            self.end = self._said_over_there() or {**self.end, "is_lost": True}
            return
        # A shell says in this way that its command has crashed.
        number = (self.end["exit_code"] or 0) - 128
        if isinstance(self.about["command"], str) and number in (*CRASHES, signal.SIGABRT):
            self.end |= {"exit_code": None, "signal": number}

    def _said_over_there(self) -> dict[str, Any] | None:
        deadline = time.monotonic() + RECORD_SECONDS
        while True:
            try:
                record: dict[str, Any] = read_json(f"{self.folder}/end.json")
                self.has_own_records = True
                return {**record, "by_us": bool(record["by_us"])}
            except (OSError, ValueError, LookupError, TypeError):
                if time.monotonic() > deadline or self.is_ended_by_us:
                    return None
                time.sleep(0.1)

    def ask_to_end(self) -> None:
        """Have it end by itself, if it will."""
        self.is_ended_by_us = True
        if self.reach:
            self.hang_up()
        else:
            send(self.pid, signal.SIGTERM)

    def hang_up(self) -> None:
        """Close the line to its seat, which ends it then."""
        if self.line >= 0:
            os.close(self.line)
            self.line = -1

    def kill(self) -> None:
        """Have it killed; srun kills what it has started when it is asked to end."""
        send(self.pid, signal.SIGTERM if self.reach else signal.SIGKILL)


class Gang:
    """All processes of an attempt, from their start to the end of the last one.

    One that fails ends all: the others may end by themselves for a while (`grace`), are then asked
    to, and killed if that does not help within `grace` again.
    """

    def __init__(self, order: Mapping[str, Any], awake: int) -> None:
        self.processes = [Process(order, about) for about in order["processes"]]
        if not any(process.is_awaited for process in self.processes):
            for process in self.processes:
                process.is_awaited = True
        self.cause = ""
        """What ends it before its time: `failed`, `timed out`, `cancelled`."""
        self.signals: list[int] = []
        self._order = order
        self._awake = awake
        self._records = Records()
        names = [process.name for process in self.processes]
        self._ranks = RankRecords(f"{order['folder']}/processes", names)
        self._grace = float(order.get("grace", 5.0))
        self._beat_every = float(order.get("heartbeat", HEARTBEAT_SECONDS))
        self._poll = select.poll()
        self._poll.register(awake, select.POLLIN)
        self._streams: dict[int, Stream] = {}
        self._limit = self._next_beat = self._next_look = float("inf")
        self._deadline: float | None = None
        """When the patience with those that still run ends."""
        self._is_ending = False
        self._before: dict[str, Any] | None = None
        self._usage: Usage | None = None

    def start(self, secrets: Mapping[str, str]) -> None:
        """Start all processes, or none if somebody has cancelled it already."""
        order, marks = self._order, Marks(self._order)
        self._before = machine_reading() if order.get("is_measured") else None
        write_files(order, marks)
        common = common_environment(order, marks)
        # All before the first one starts: a wrong mark must not leave half of them.
        prepared = [
            (process, arguments_of(process.about["command"], marks), own_variables(process, marks))
            for process in self.processes
        ]
        fixed = dict(secrets)
        if secrets:
            fixed["RANKWISE_SECRETS"] = ",".join(secrets)
        for process, command, variables in prepared:
            environment = {**common, **variables, **node_variables(order, process.node), **fixed}
            if self.signals:
                self.cause = "cancelled"
                process.is_ended_by_us = True
                process.fail("it was cancelled before it started")
            else:
                self._start(process, command, environment, list(secrets.values()))
            self._note_start(process)
        be_prompt()
        now = time.monotonic()
        if order.get("timeout") is not None:
            self._limit = now + float(order["timeout"])
        self._next_beat, self._next_look = now, now + LOOK_SECONDS
        self._usage = usage_for(order, order["folder"])

    def _start(
        self,
        process: Process,
        command: Sequence[str],
        environment: dict[str, str],
        secrets: Sequence[str],
    ) -> None:
        process.reach = self._order["nodes"][process.node].get("reach") or ()
        if process.reach:
            folder = self._order["folder"]
            seat = [*own_command(), "seat", folder, process.name, *command]
            there, process.line = os.pipe()

            def connect() -> None:
                os.setsid()
                os.dup2(there, 0)

            process.start([*process.reach, *seat], environment, connect, None)
            os.close(there)
        else:
            prepare = self._preparation(process, environment)
            process.start(command, environment, prepare, Redactor(secrets))

    def _preparation(self, process: Process, environment: dict[str, str]) -> Callable[[], object]:
        def prepare() -> None:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            if settle(self._order, process.node):
                # A launcher hands it on to its daemons, which need names that tell them apart.
                for name in TEMPORARY_VARIABLES:
                    environment.setdefault(name, temporary(self._order["marker"]))

        return prepare

    def _note_start(self, process: Process) -> None:
        if not process.reach or process.end:
            self._records.put(f"{process.folder}/start.json", process.start_record())
        for stream in process.streams:
            self._streams[stream.source] = stream
            self._poll.register(stream.source, select.POLLIN)
        self._note_end(process)

    def _note_end(self, process: Process) -> None:
        self._forget_closed()
        if process.end and not process.has_own_records:
            self._records.put(f"{process.folder}/end.json", process.end)

    def wait(self) -> None:
        """Wait until all have ended, or cannot be waited for any longer."""
        while running := self._running():
            self._pump()
            self._reap()
            now = time.monotonic()
            self._show_life(now)
            if self._is_ending and self._deadline is not None and now >= self._deadline:
                for process in running:
                    process.is_ended_by_us = True
                return
            self._decide(now)

    def finish(self, *, is_reaper: bool) -> dict[str, Any]:
        """Kill what is left and write everything down; gives the attempt's outcome."""
        self._reap_killed()
        if left := sweep(self._order["marker"], is_reaper=is_reaper):
            say(f"could not kill {', '.join(map(str, left))}")
        for stream in list(self._streams.values()):
            stream.drain()
            stream.close()
        if self._usage:
            self._usage.close()
        if self._before is not None:
            readings = {"before": self._before, "after": machine_reading()}
            self._records.put(f"{self._order['folder']}/conditions.json", readings)
        self._ranks.look()
        end = self._judge()
        self._ranks.complete(self._records, end)
        for path in (shared_memory(self._order["marker"]), temporary(self._order["marker"])):
            remove_folder(path)
        return end

    def _running(self) -> list[Process]:
        return [process for process in self.processes if process.end is None]

    def _pump(self) -> None:
        """Wait until something happens, and take what processes have written."""
        times = [self._next_beat, self._next_look, self._limit, self._deadline or self._next_beat]
        if self._usage:
            times.append(self._usage.due)
        seconds = max(0.0, min(times) - time.monotonic())
        for descriptor, _ in self._poll.poll(seconds * 1000 + 1):
            if descriptor == self._awake:
                empty(self._awake)
                continue
            self._streams[descriptor].pump()
        self._forget_closed()

    def _forget_closed(self) -> None:
        closed = [number for number, stream in self._streams.items() if stream.source < 0]
        for descriptor in closed:
            self._poll.unregister(descriptor)
            del self._streams[descriptor]

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            process = next((one for one in self._running() if one.pid == pid), None)
            if process:  # Others lost their parent, and we are in its place.
                process.note_end(status, usage)
                self._note_end(process)

    def _reap_killed(self) -> None:
        """Kill the groups that did not end when asked, and wait for the processes of the order."""
        for process in self._running():
            process.kill()
        deadline = time.monotonic() + SWEEP_SECONDS
        while self._running() and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.005)
        for process in self._running():
            process.give_up()
            self._note_end(process)

    def _show_life(self, now: float) -> None:
        if now >= self._next_beat:
            self._records.retry()
            for process in self._running():
                if not process.reach:
                    touch(f"{process.folder}/heartbeat")
            if self._usage:
                self._usage.write()
            self._next_beat = now + self._beat_every
        if self._usage and now >= self._usage.due:
            self._usage.look()
        if now >= self._next_look:
            self._ranks.look()
            self._next_look = now + LOOK_SECONDS

    def _decide(self, now: float) -> None:
        """See whether it is time to end the processes."""
        if self.signals:
            self._forgive_the_signalled()
            self._end_all(now, "cancelled")
            if len(self.signals) > 1:
                self._deadline = now  # Whoever asks twice is in a hurry.
        elif now >= self._limit:
            self._end_all(now, "timed out")
        elif not any(process.is_awaited for process in self._running()):
            self._end_all(now, "")
        elif self._is_ending:
            return
        elif not self._failures():
            self._deadline = None  # A rank that had failed was started again.
        elif self._deadline is None:
            self._deadline = now + self._grace
        elif now >= self._deadline:
            self._end_all(now, "failed")

    def _failures(self) -> list[dict[str, Any]]:
        """Give the records of what has failed by itself."""
        vital = [process for process in self.processes if process.is_vital]
        own = [{**one.end, "who": one.name} for one in vital if one.end and failed(one.end)]
        is_spoken_for = any(process.speaks_for_ranks for process in self.processes)
        return own if is_spoken_for else own + self._ranks.failures()

    def _forgive_the_signalled(self) -> None:
        """Don't blame those who have ended at once with us: batch systems signal everybody."""
        if self._is_ending or "reach" not in self._order["nodes"][0]:
            return
        for process in self.processes:
            end = process.end
            if end and failed(end) and end["ended"] >= time.time() - AT_ONCE_SECONDS:
                end["by_us"] = True
                self._note_end(process)

    def _end_all(self, now: float, cause: str) -> None:
        """Ask all that run to end; only once, as the first cause is the one that counts."""
        if self._is_ending:
            return
        self.cause = "failed" if self._failures() else cause
        self._is_ending = True
        self._limit = float("inf")
        self._deadline = now + self._grace
        for process in self._running():
            process.ask_to_end()

    def _judge(self) -> dict[str, Any]:
        """Find out what the outcome is, and who is to blame."""
        match self.cause:
            case "timed out":
                reason = f"the time limit of {self._order['timeout']:g} s was reached"
                return outcome("timed out", TIMED_OUT, reason)
            case "cancelled":
                number = self.signals[0]
                return outcome("cancelled", CANCELLED, f"by signal {number}{signal_name(number)}")
        failures = self._failures()
        if not failures:
            return outcome("passed", 0, "")
        # Launchers fail because of their ranks, whatever they say.
        known = {process.name for process in self.processes}
        ranks = [record for record in failures if record["who"] not in known]
        ranks = ranks or self._ranks.all_failures() or self._aborted(failures)
        first = first_of(ranks or failures)
        if signal.SIGPIPE in (first["signal"], (first["exit_code"] or 0) - 128):
            # While it aborted, it wrote to a launcher that had left because of that.
            aborted = [one for one in self._aborted(failures) if one["who"] == first["who"]]
            first = next(iter(aborted), first)
        return blame(first, is_wrapped=bool(ranks))

    def _aborted(self, failures: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Find the rank that called MPI_Abort, if it was killed before it could end by itself."""
        names = self._ranks.names()
        for who in (*(record["who"] for record in failures), *names) if names else ():
            found = aborting_rank(f"{self._order['folder']}/processes/{who}/output.log")
            if found is not None:
                number, code = found
                record = {"who": f"rank-{number}", "exit_code": code, "signal": None}
                return [{**failures[0], **record, "reason": "it called MPI_Abort"}]
        return []

    def close(self, end: Mapping[str, Any]) -> None:
        """Write the attempt's end, after everything else."""
        self._records.insist(PATIENCE_SECONDS)
        self._records.put(f"{self._order['folder']}/end.json", end)
        self._records.insist(PATIENCE_SECONDS)


def first_of(failures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Find the one that failed first.

    Ends that are almost at once may be seen in another order. Then most of them are the
    consequences of one, and alike: the one that is not, or that no program brings about, is first.
    """
    begin = min(one["ended"] for one in failures)
    near = [one for one in failures if one["ended"] - begin <= AT_ONCE_SECONDS]
    ways = [(one["exit_code"], one["signal"]) for one in near]

    def rank(one: dict[str, Any]) -> tuple[int, bool, float]:
        alike = ways.count((one["exit_code"], one["signal"]))
        return alike, one["signal"] not in CRASHES, one["ended"]

    return min(near, key=rank)


def aborting_rank(log: str) -> tuple[int, int] | None:
    """Read in the output what MPICH and Intel MPI say about an abort: by whom, and its code."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.path.getsize(log) - CHUNK_BYTES))
            text = file.read().partition(b"application called MPI_Abort(")[2]
    except OSError:
        return None
    code, _, rest = text.partition(b") - process ")
    words = rest.split(maxsplit=1)
    number, last = words[0] if words else b"", code.rpartition(b",")[2].strip()
    # The system keeps eight bits of a code, and with none of them set it would be a success.
    return (int(number), int(last) & 0xFF or 1) if number.isdigit() and last.isdigit() else None


def outcome(name: str, code: int, reason: str) -> dict[str, Any]:
    return {"outcome": name, "exit_code": code, "signal": None, "culprit": None, "reason": reason}


def blame(record: Mapping[str, Any], *, is_wrapped: bool) -> dict[str, Any]:
    """Make the outcome of the record of who failed first."""
    name, number = record["who"], record["signal"]
    who = name.replace("-", " ", 1) if is_wrapped else name
    if record.get("is_lost"):
        reason = f"{who} is gone, and the node that it was on gave no account of it"
        return {**outcome("lost", LOST, reason), "culprit": name}
    return {
        "outcome": "failed" if number is None else "crashed",
        "exit_code": record["exit_code"] if number is None else 128 + number,
        "signal": number,
        "culprit": name,
        "reason": in_words(who, record),
    }


def remove_folder(path: str) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if os.path.isdir(path):
        import shutil

        shutil.rmtree(path, ignore_errors=True)


def write_files(order: Mapping[str, Any], marks: Marks) -> None:
    """Write what processes will need: the order's files, and our own commands."""
    folder = order["folder"]
    for name, text in order.get("files", {}).items():
        write_file(f"{folder}/{name}", marks.fill_in(text))
    write_file(f"{folder}/etc-hosts", hosts_file(order))
    for node in order["nodes"]:
        os.makedirs(node["folder"], exist_ok=True)
    own = own_command()
    for name, arguments in (("rank", ["rank"]), ("node", ["node", folder])):
        line = " ".join(shell_quote(word) for word in (*own, *arguments))
        write_file(f"{folder}/bin/rankwise-{name}", f'#!/bin/sh\nexec {line} "$@"\n', 0o777)


def shell_quote(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"


def common_environment(order: Mapping[str, Any], marks: Marks) -> dict[str, str]:
    """Give the variables of all processes."""
    unset = set(order.get("unset", ()))
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    path = [*order.get("path", ()), f"{order['folder']}/bin", inherited.get("PATH", os.defpath)]
    return {
        **inherited,
        "PATH": os.pathsep.join(path),
        **marks.fill_in_all(order.get("environment", {})),
        "RANKWISE_ATTEMPT": order["marker"],
        "RANKWISE_FOLDER": order["folder"],
        "RANKWISE_HOSTS": " ".join(
            node.get("host") or node["name"] for node in order["nodes"] if not node.get("is_apart")
        ),
    }


def own_variables(process: Process, marks: Marks) -> dict[str, str]:
    return marks.fill_in_all(process.about.get("environment", {}))


def arguments_of(command: str | Sequence[str], marks: Marks) -> list[str]:
    """Make arguments of a command: a line is the shell's."""
    if isinstance(command, str):
        return ["/bin/sh", "-c", marks.fill_in(command)]
    return [marks.fill_in(word) for word in command]


def take_lock(file: int) -> None:
    """Lock a file, unless it is where there are no locks: then others must know otherwise."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        say(f"no lock on the claim: {error.strerror}")


def claim(folder: str) -> int | None:
    """Take the attempt; None if somebody else has.

    The lock is held by the open file that is given. The file says who has it, for those who want to
    send a signal; that is worth something only while it is locked.
    """
    new = f"{folder}/claim.{os.getpid()}"
    file = os.open(new, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.write(file, to_json({"pid": os.getpid(), "started": time.time()}).encode())
        take_lock(file)
        os.link(new, f"{folder}/claim")
    except FileExistsError:
        return None
    finally:
        os.unlink(new)
    return file


def check_secrets(order: Mapping[str, Any], given: Mapping[str, str] | None) -> dict[str, str]:
    """Give the values of secrets, from the standard input if need be; raises ValueError."""
    if not order.get("secrets"):
        return {}
    values = parse(sys.stdin.read()) if given is None else given
    missing = [name for name in order["secrets"] if not isinstance(values.get(name), str)]
    if missing:
        raise ValueError(f"the values of these secrets did not arrive: {', '.join(missing)}")
    return {name: values[name] for name in order["secrets"]}


def run_gang(folder: str, given: Mapping[str, str] | None = None) -> int:
    """Run an order to its end; gives the exit code. Secrets are given, or come from the input."""
    started = time.time()
    try:
        order = read_json(f"{folder}/order.json")
        if order["version"] != VERSION:
            raise ValueError(f"its version is {order['version']!r}, and this is for {VERSION}")
        signals: list[int] = []
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        OUR_IGNORED.append(signal.SIGHUP)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: signals.append(number))
        gang = Gang(order, wake_up_by_signals())
        gang.signals = signals
        lock = claim(folder)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        say(f"cannot use {folder}/order.json: {error!r}")
        return OUR_FAULT
    if lock is None:
        say(f"somebody else has taken {folder}")
        return OUR_FAULT
    is_reaper = prctl(PR_SET_CHILD_SUBREAPER, 1)
    end: dict[str, Any] = outcome("failed", OUR_FAULT, "")
    try:
        gang.start(check_secrets(order, given))
        gang.wait()
        end = gang.finish(is_reaper=is_reaper)
    except Exception as error:  # Whatever it is, somebody waits for an outcome.
        end["reason"] = f"the runner could not go on: {error}"
        import traceback

        traceback.print_exc()
        sweep(order["marker"], is_reaper=is_reaper)
    gang.close({**end, "started": started, "ended": time.time()})
    return int(end["exit_code"]) & 0xFF or int(end["outcome"] != "passed")


def run_starter() -> int:
    """Start a gang for each line of the standard input, and answer with its process number.

    A copy of this process is there in a tenth of the time that a new Python takes. Gangs go on when
    the input ends and this process with it. Where there can be no copy, the answer is the error's
    number, with a minus.
    """
    poll, rest = select.poll(), b""
    awake = wake_up_by_signals()
    for source in (0, awake):
        poll.register(source, select.POLLIN)
    while True:
        for source, _ in poll.poll():
            if source == awake:
                empty(awake)
                continue
            data = os.read(0, CHUNK_BYTES)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                os.write(1, f"{start_copy(parse(line.decode()))}\n".encode())
            if not data:
                reap_copies()
                return 0
        reap_copies()


def start_copy(about: Mapping[str, Any]) -> int:
    """Give the process number of a runner, which this process becomes in its copy."""
    try:
        process = os.fork()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)
    if process == 0:
        signal.set_wakeup_fd(-1)
        os._exit(start_gang(about))
    return process


def reap_copies() -> None:
    """Let those go that have ended: how is in their records, and what they used is ours then."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def start_gang(about: Mapping[str, Any]) -> int:
    """Be the runner of one attempt, with nothing in common with who has started it."""
    folder = about["folder"]
    try:
        os.setsid()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        log = os.open(f"{folder}/runner.log", flags, 0o666)
        for target, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
            os.dup2(descriptor, target)
    except OSError as error:
        say(f"cannot begin in {folder}: {error.strerror}")
        return OUR_FAULT
    return run_gang(folder, about["secrets"])


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["starter"]:
            return run_starter()
        case ["gang", folder]:
            return run_gang(os.path.abspath(folder))
        case ["rank", *command] if command:
            return run_rank(command)
        case ["node", folder, *rest]:
            return run_on_node(folder, rest)
        case ["there", folder, *rest]:
            return run_on_node(folder, rest, is_there=True)
        case ["seat", folder, name, *command] if command:
            return run_seat(folder, name, command)
    say(
        "usage: runner.py gang FOLDER | starter | rank COMMAND… "
        "| node FOLDER [OPTIONS] HOST COMMAND… | seat FOLDER NAME COMMAND…"
    )
    return 2


if __name__ == "__main__":
    # Not sys.exit: tidying up takes time, and there is nothing to tidy up.
    os._exit(main(sys.argv[1:]))
