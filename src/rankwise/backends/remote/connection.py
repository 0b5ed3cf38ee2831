"""Commands on a machine elsewhere: the connection, and our own files put there."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import re
import shlex
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from rankwise.backends.base import Unreachable
from rankwise.backends.orders import MAIN, digest_of, own_files, start_words
from rankwise.errors import ComputeFailure
from rankwise.node.agent import BEGIN, DATA, END
from rankwise.plan import Resources

_ANSWER = re.compile(f"{BEGIN}([A-Za-z0-9_=-]*){END}".encode())
# A login may print this much (a message of the day, a profile) before anything of ours.
_NOISE_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 20
Sink = IO[bytes] | None
"""A file for what a command writes; None: it is returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended, and what it wrote."""

    exit_code: int
    output: bytes
    errors: str
    is_late: bool = False
    """Whether it took too long and was killed."""

    @property
    def last_line(self) -> str:
        """Return the last line of its errors, or else of its output, for people."""
        text = self.errors.strip() or self.output.decode(errors="replace").strip()
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.exit_code}"


class HostConnection(Protocol):
    """One machine, and how to get there."""

    name: str
    """For people."""

    def call(
        self, command: str, *, given: Iterable[bytes] = (), seconds: float = 60.0, into: Sink = None
    ) -> CommandResult:
        """Run a line in the shell there, with `given` as its standard input.

        Unreachable: no answer, or the connection broke. ComputeFailure: it cannot be reached.
        """

    def is_there(self) -> bool | None:
        """Return whether the machine still exists; None: only a call can find out."""

    def close(self) -> None:
        """Keep no connection for later."""


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    """Return what is left in a file, piece by piece."""
    return iter(lambda: file.read(_CHUNK_BYTES), b"")


def exchange(
    words: Sequence[str], *, given: Iterable[bytes] = (), seconds: float = 60.0, into: Sink = None
) -> CommandResult:
    """Run a command with `given` as its input; after `seconds` it is killed.

    ComputeFailure: there is no such command.
    """
    # Errors go to a file: two pipes that are read in turn can block each other.
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE if given else subprocess.DEVNULL,
                stdout=into if into is not None else subprocess.PIPE,
                stderr=errors,
                # Ctrl-C is for the client, which has things to end elsewhere.
                start_new_session=True,
            )
        except OSError as error:
            raise ComputeFailure(f"{words[0]} cannot be started: {error.strerror}") from None
        feeder = threading.Thread(target=_feed, args=(process, given), daemon=True)
        feeder.start()
        timer = threading.Timer(seconds, process.kill)
        timer.daemon = True
        timer.start()
        try:
            output = process.stdout.read() if process.stdout is not None else b""
            code = process.wait()
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
            if process.stdout is not None:
                process.stdout.close()
        # It ends with the process: writing to a closed pipe fails.
        feeder.join()
        errors.seek(0)
        text = errors.read().decode(errors="replace")
        # A command that ended by itself just before the timer has a result that counts.
        is_late = is_late and code < 0
        text = f"no answer in {seconds:g} s" if is_late else text
        return CommandResult(exit_code=code, output=output, errors=text, is_late=is_late)


def _feed(process: subprocess.Popen[bytes], given: Iterable[bytes]) -> None:
    """Write to a process, while what it writes is read."""
    if process.stdin is not None:
        # A process that does not read all of it has ended, and says why.
        with contextlib.suppress(OSError), process.stdin as stream:
            for chunk in given:
                stream.write(chunk)


LEAST_PYTHON = (3, 10)
# Code may have gigabytes, and the line may be slow.
_SEND_SECONDS = 3600.0
_TOO_OLD = "rankwise-too-old:"
_FOREIGN = "rankwise-foreign:"
# By this code a shell says that there is no such command.
_NOT_FOUND_CODE = 127
# Runs on any Python 3, to report one that is too old: makes a folder that is ours, unpacks our
# files into it, and starts one of them. By its real path: others could change a link later.
_INSTALL = (
    "import os,sys,tarfile;"
    "v=sys.version_info;"
    f"v<{LEAST_PYTHON!r} and sys.exit('{_TOO_OLD}%d.%d'%v[:2]);"
    "r=os.path.realpath(os.path.expanduser(sys.argv[1]));"
    "os.makedirs(r,mode=0o700,exist_ok=True);s=os.stat(r);"
    f"(s.st_uid!=os.getuid() or s.st_mode&0o22) and sys.exit('{_FOREIGN}'+r);"
    "n=os.path.join(r,'%s.%d'%(sys.argv[2],os.getpid()));os.makedirs(n,mode=0o700);"
    "tarfile.open(fileobj=sys.stdin.buffer,mode='r|').extractall(n);"
    "os.environ.update(RANKWISE_ROOT=r,RANKWISE_PARTS=sys.argv[2]);"
    "os.execv(sys.executable,[sys.executable,'-I','-S',os.path.join(n,'"
    f"{MAIN}'),'hello'])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a machine has."""

    root: str
    """Our folder there."""
    python: str
    version: str
    host: str
    platform: str
    cores: float
    memory: int
    gpus: tuple[str, ...] = ()
    uid: int = 0
    gid: int = 0
    uv: str = ""
    engines: Mapping[str, str] = field(default_factory=dict)

    @property
    def resources(self) -> Resources:
        return Resources(cores=self.cores, memory=self.memory, gpus=len(self.gpus))


class Machine:
    """Our agent on one machine, called over its connection."""

    def __init__(
        self, line: HostConnection, *, folder: str, python: str = "", init: Sequence[str] = ()
    ) -> None:
        self.line, self.name = line, line.name
        self.found: HostFacts | None = None
        """None: it was not reached yet."""
        self._folder = folder
        self._python = python or "python3"
        self._init = "".join(f"{one}\n" for one in init)

    def reach(self) -> HostFacts:
        """Install our files there, and return what the machine has; only once.

        Unreachable: it does not answer. ComputeFailure: it cannot be used, and why.
        """
        if self.found is None:
            digest, parts = _parts()
            words = [self._python, "-I", "-S", "-c", _INSTALL, self._folder, f"parts-{digest}"]
            result = self.line.call(self._shell(words), given=[parts])
            if reason := self._refusal(result):
                raise ComputeFailure(f"{self.name}: {reason}")
            data = self._answer(result)
            self.found = HostFacts(**{**data, "gpus": tuple(data["gpus"])})
            self._agent = f"{self.found.root}/parts-{digest}"
        return self.found

    def _refusal(self, result: CommandResult) -> str:
        """Return why our files could not be installed; empty: none of the known reasons."""
        if _TOO_OLD in result.errors:
            has = result.errors.partition(_TOO_OLD)[2].split()[0]
            return (
                f"{self._python} is Python {has} there, and {'.'.join(map(str, LEAST_PYTHON))} or "
                f'newer is needed; name another one with python = "…" in its table'
            )
        if result.exit_code == _NOT_FOUND_CODE:
            return (
                f"there is no {self._python} ({result.last_line}); name the machine's Python with "
                f'python = "…" in its table'
            )
        if _FOREIGN in result.errors:
            folder = result.errors.partition(_FOREIGN)[2].splitlines()[0]
            return (
                f"{folder} is not yours alone there: it belongs to another user, or others may "
                f"write into it, and programs are run from it; chmod go-w it, or name another one "
                f'with folder = "…" in its table'
            )
        return ""

    def ask(self, verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Have the agent do something, and return its answer."""
        return self._answer(self.line.call(self._words(verb, request)))

    def start(self, request: Mapping[str, Any], package: Iterable[bytes]) -> dict[str, Any]:
        """Send an attempt, and have it started."""
        words = self._words("start", request)
        return self._answer(self.line.call(words, given=package, seconds=_SEND_SECONDS))

    def fetch(self, marker: str, into: IO[bytes]) -> None:
        """Write what an attempt has left into a file, as a tar, and go to its start."""
        words = self._words("fetch", {"marker": marker})
        result = self.line.call(words, seconds=_SEND_SECONDS, into=into)
        into.seek(0)
        # A login may print something first: the agent marks where the tar begins.
        before, mark, _ = into.read(_NOISE_BYTES).partition(DATA)
        if not mark or result.exit_code:
            raise self._no_answer(result)
        into.seek(len(before) + len(mark))

    def send_program(self, source: Path, name: str) -> None:
        """Install a program there, for all attempts."""
        root = self.reach().root
        place = shlex.quote(f"{root}/bin/{name}")
        # Moved into place: an attempt may start the program meanwhile.
        line = (
            f"mkdir -p {shlex.quote(root)}/bin && cat > {place}.new && chmod 700 {place}.new"
            f" && mv {place}.new {place}"
        )
        with source.open("rb") as body:
            result = self.line.call(line, given=chunks_of(body), seconds=_SEND_SECONDS)
        if result.exit_code:
            raise ComputeFailure(f"{self.name}: {name} could not be sent: {result.last_line}")

    def _answer(self, result: CommandResult) -> dict[str, Any]:
        """Return the agent's answer among what a call has written; Unreachable: there is none."""
        # A login may print before the answer, and a wrapper after it.
        found = _ANSWER.search(result.output)
        if found is None:
            raise self._no_answer(result)
        data: dict[str, Any] = json.loads(base64.urlsafe_b64decode(found[1]))
        if "error" in data:
            raise ComputeFailure(f"{self.name}: {data['error']}")
        return data

    def _no_answer(self, result: CommandResult) -> Unreachable:
        return Unreachable(f"{self.name} does not answer: {result.last_line}")

    def _words(self, verb: str, request: Mapping[str, Any]) -> str:
        found = self.reach()
        asked = json.dumps({"root": found.root, **request})
        # One word of a command line, whatever login shell reads it.
        packed = base64.urlsafe_b64encode(asked.encode()).decode()
        # The Python that installed our files, not the first on a PATH that may change.
        words = [*start_words(found.python, self._agent), "agent", verb, packed]
        # `init` is for what the attempt runs: other calls are many, and need nothing of it.
        return self._shell(words) if verb == "start" else f"exec {shlex.join(words)}"

    def _shell(self, words: Sequence[str]) -> str:
        """Return a line that any login shell passes on to a plain one, with `init` before it."""
        if not self._init:
            return f"exec {shlex.join(words)}"
        return f"exec /bin/sh -c {shlex.quote(self._init + 'exec ' + shlex.join(words))}"


@functools.cache
def _parts() -> tuple[str, bytes]:
    """Return a digest of our own files for the other side, and the files as a tar."""
    contents = own_files()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in contents.items():
            add_file(archive, name, content)
    return digest_of(contents), packed.getvalue()


def add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file that only its owner may read."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o600
    archive.addfile(member, io.BytesIO(content))
