"""Commands on a machine elsewhere: the connection, and our own files put there."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from rankwise.backends.orders import MAIN, digest_of, own_files, start_words
from rankwise.errors import ComputeFailure
from rankwise.node.agent import BEGIN, DATA, END
from rankwise.plan import Resources

_ANSWER = re.compile(f"{BEGIN}([A-Za-z0-9_=-]*){END}".encode())
# What a login may have to say before anything of ours comes.
_NOISE_BYTES = 1 << 20


class LineAway(ComputeFailure):
    """Nobody answers: what was asked for may have been done or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What came of a command over there."""

    exit_code: int
    output: bytes
    errors: str


class HostConnection(Protocol):
    """One machine, and how to get there."""

    name: str
    """As people call it."""

    def call(
        self,
        command: str,
        *,
        data: bytes = b"",
        body: IO[bytes] | None = None,
        seconds: float = 60.0,
        into: IO[bytes] | None = None,
    ) -> Said:
        """Run a line for the shell there, with `data` and then `body` as its standard input.

        What it writes goes `into` a file if there is one, byte by byte as it is. LineAway: it
        could not be reached, or the line was cut. ComputeFailure: it never will be.
        """

    def is_there(self) -> bool | None:
        """Return whether there still is such a machine; None: only a call can tell."""

    def close(self) -> None:
        """Keep no connection for later."""


def pack(request: Mapping[str, Any]) -> str:
    """Write a request as one word of a command line."""
    return base64.urlsafe_b64encode(json.dumps(request).encode()).decode()


def read_answer(line: HostConnection, said: Said) -> dict[str, Any]:
    """Find the answer in what a call has written; LineAway: there is none."""
    found = _ANSWER.search(said.output)
    if found is None:
        raise LineAway(f"{line.name} does not answer: {last_words(said)}")
    data: dict[str, Any] = json.loads(base64.urlsafe_b64decode(found[1]))
    if "error" in data:
        raise ComputeFailure(f"{line.name}: {data['error']}")
    return data


def find_data(line: HostConnection, said: Said, file: IO[bytes]) -> None:
    """Go to where the stream begins in what a call has written; LineAway: there is none."""
    file.seek(0)
    before, mark, _ = file.read(_NOISE_BYTES).partition(DATA)
    if not mark or said.exit_code:
        raise LineAway(f"{line.name} does not answer: {last_words(said)}")
    file.seek(len(before) + len(mark))


def last_words(said: Said) -> str:
    """Return the last line of what went wrong."""
    text = said.errors.strip() or said.output.decode(errors="replace").strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {said.exit_code}"


def exchange(
    words: Sequence[str],
    *,
    data: bytes = b"",
    body: IO[bytes] | None = None,
    seconds: float = 60.0,
    into: IO[bytes] | None = None,
) -> Said | None:
    """Call a command with `data` and then `body` as its input; None: it took too long.

    ComputeFailure: there is no such command.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE if data or body is not None else subprocess.DEVNULL,
                stdout=into if into is not None else subprocess.PIPE,
                stderr=errors,
                # Ctrl-C is for the client, which has things to end elsewhere.
                start_new_session=True,
            )
        except OSError as error:
            raise ComputeFailure(f"{words[0]} cannot be started: {error.strerror}") from None
        feeder = _feed(process, data, body)
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
        feeder.join()
        if is_late and code < 0:
            return None
        errors.seek(0)
        return Said(exit_code=code, output=output, errors=errors.read().decode(errors="replace"))


def _feed(
    process: subprocess.Popen[bytes], data: bytes, body: IO[bytes] | None
) -> threading.Thread:
    """Hand over what is to be sent, while what comes back is read."""

    def feed() -> None:
        if process.stdin is None:
            return
        # Whoever does not want all of it has left, or says why.
        with contextlib.suppress(OSError), process.stdin as stream:
            stream.write(data)
            if body is not None:
                shutil.copyfileobj(body, stream, 1 << 20)

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    return feeder


LEAST_PYTHON = (3, 10)
_SEND_SECONDS = 3600.0
_TOO_OLD = "rankwise-too-old:"
_FOREIGN = "rankwise-foreign:"
# Runs by any Python 3: makes a folder that is ours, unpacks our files into it, and starts one of
# them. Under its real name: others could have a link lead elsewhere later.
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
    """What a machine says of itself."""

    root: str
    """The folder there that is ours."""
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
    """Asks one machine, over its line."""

    def __init__(
        self, line: HostConnection, *, folder: str, python: str = "", init: Sequence[str] = ()
    ) -> None:
        self.line = line
        self.found: HostFacts | None = None
        """None: it was not reached yet."""
        self._folder = folder
        self._python = python or "python3"
        self._init = "".join(f"{one}\n" for one in init)

    @property
    def name(self) -> str:
        return self.line.name

    def reach(self) -> HostFacts:
        """Put our files there, and have it say what it has.

        LineAway: it does not answer. ComputeFailure: it cannot be used, and why.
        """
        if self.found is None:
            digest, parts = _parts()
            words = [self._python, "-I", "-S", "-c", _INSTALL, self._folder, f"parts-{digest}"]
            said = self.line.call(self._shell(words), data=parts)
            if _TOO_OLD in said.errors:
                has = said.errors.partition(_TOO_OLD)[2].split()[0]
                least = ".".join(map(str, LEAST_PYTHON))
                raise ComputeFailure(
                    f"{self.name}: {self._python} is Python {has} there, and {least} or newer is "
                    f'needed; name another one with python = "…" in its table'
                )
            if said.exit_code == 127:
                raise ComputeFailure(
                    f"{self.name}: there is no {self._python} ({last_words(said)}); name the "
                    f'machine\'s Python with python = "…" in its table'
                )
            if _FOREIGN in said.errors:
                folder = said.errors.partition(_FOREIGN)[2].splitlines()[0]
                raise ComputeFailure(
                    f"{self.name}: {folder} is not yours alone there: it belongs to another user, "
                    f"or others may write into it, and programs are run from it; chmod go-w it, or "
                    f'name another one with folder = "…" in its table'
                )
            data = read_answer(self.line, said)
            self.found = HostFacts(**{**data, "gpus": tuple(data["gpus"])})
            self._agent = f"{self.found.root}/parts-{digest}"
        return self.found

    def ask(
        self, verb: str, request: Mapping[str, Any], *, seconds: float = 60.0
    ) -> dict[str, Any]:
        """Have the agent there do something, and give its answer."""
        return read_answer(self.line, self.line.call(self._words(verb, request), seconds=seconds))

    def start(self, request: Mapping[str, Any], head: bytes, body: IO[bytes]) -> dict[str, Any]:
        """Send a parcel, and have it started."""
        said = self.line.call(
            self._words("start", request), data=head, body=body, seconds=_SEND_SECONDS
        )
        return read_answer(self.line, said)

    def fetch(self, marker: str, into: IO[bytes]) -> None:
        """Get what an attempt has left, as a tar; the file is at its beginning then."""
        words = self._words("fetch", {"marker": marker})
        said = self.line.call(words, seconds=_SEND_SECONDS, into=into)
        find_data(self.line, said, into)

    def send_program(self, source: Path, name: str) -> None:
        """Put a program there, for all attempts."""
        root = self.reach().root
        place = shlex.quote(f"{root}/bin/{name}")
        line = f"mkdir -p {shlex.quote(root)}/bin && cat > {place}.new && chmod 700 {place}.new"
        with source.open("rb") as body:
            said = self.line.call(
                f"{line} && mv {place}.new {place}", body=body, seconds=_SEND_SECONDS
            )
        if said.exit_code:
            raise ComputeFailure(f"{self.name}: {name} could not be sent: {last_words(said)}")

    def _words(self, verb: str, request: Mapping[str, Any]) -> str:
        found = self.reach()
        asked = pack({"root": found.root, **request})
        words = [*start_words(found.python, self._agent), "agent", verb, asked]
        return self._shell(words) if verb == "start" else f"exec {shlex.join(words)}"

    def _shell(self, words: Sequence[str]) -> str:
        """Write a line that any login shell hands on to a plain one, with `init` before it."""
        if not self._init:
            return f"exec {shlex.join(words)}"
        return f"exec /bin/sh -c {shlex.quote(self._init + 'exec ' + shlex.join(words))}"


@functools.cache
def _parts() -> tuple[str, bytes]:
    """Give our own files for the other side as a tar, and a name for what is in them."""
    contents = own_files()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as parcel:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            parcel.addfile(member, io.BytesIO(content))
    return digest_of(contents), packed.getvalue()
