"""One machine elsewhere: our own files are put there, and then it is asked for things."""

from __future__ import annotations

import functools
import hashlib
import io
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rankwise import runner
from rankwise.compute.remote import agent, equipment
from rankwise.compute.remote.line import Line, find_data, last_words, pack, read_answer
from rankwise.errors import ComputeFailure
from rankwise.plan import Resources

LEAST_PYTHON = (3, 10)
_PARTS = {"agent.py": agent, "equipment.py": equipment, "runner.py": runner}
_SEND_SECONDS = 3600.0
_TOO_OLD = "rankwise-too-old:"
# Runs by any Python 3: makes a folder, unpacks our files into it, and says where it is.
_INSTALL = (
    "import os,sys,tarfile;"
    "v=sys.version_info;"
    f"v<{LEAST_PYTHON!r} and sys.exit('{_TOO_OLD}%d.%d'%v[:2]);"
    "r=os.path.abspath(os.path.expanduser(sys.argv[1]));p=os.path.join(r,sys.argv[2]);"
    "n='%s.%d'%(p,os.getpid());os.makedirs(n,mode=0o700);"
    "tarfile.open(fileobj=sys.stdin.buffer,mode='r|').extractall(n);"
    "os.path.isdir(p) or os.rename(n,p);"
    "os.environ.update(RANKWISE_ROOT=r,RANKWISE_NEW=n);"
    "os.execv(sys.executable,[sys.executable,'-I','-S',os.path.join(p,'hello.py')])"
)
# A line has no room for more: it tells the root, and the agent does the rest.
_HELLO = """\
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import agent
root = os.environ["RANKWISE_ROOT"]
agent.discard(os.environ["RANKWISE_NEW"])
agent.answer({**agent.hello({"root": root}), "root": root})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
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
        self, line: Line, *, folder: str, python: str = "", init: Sequence[str] = ()
    ) -> None:
        self.line = line
        self.found: Found | None = None
        """None: it was not reached yet."""
        self._folder = folder
        self._python = python or "python3"
        self._init = "".join(f"{one}\n" for one in init)

    @property
    def name(self) -> str:
        return self.line.name

    def reach(self) -> Found:
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
            data = read_answer(self.line, said)
            self.found = Found(**{**data, "gpus": tuple(data["gpus"])})
            self._agent = f"{self.found.root}/parts-{digest}/agent.py"
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

    def forget(self) -> None:
        """Look at it anew the next time: it may have been made new meanwhile."""
        self.found = None

    def _words(self, verb: str, request: Mapping[str, Any]) -> str:
        found = self.reach()
        words = [found.python, "-I", "-S", self._agent, verb, pack({"root": found.root, **request})]
        return self._shell(words) if verb == "start" else f"exec {shlex.join(words)}"

    def _shell(self, words: Sequence[str]) -> str:
        """Write a line that any login shell hands on to a plain one, with `init` before it."""
        if not self._init:
            return f"exec {shlex.join(words)}"
        return f"exec /bin/sh -c {shlex.quote(self._init + 'exec ' + shlex.join(words))}"


@functools.cache
def _parts() -> tuple[str, bytes]:
    """Give our own files for the other side as a tar, and a name for what is in them."""
    contents = {name: Path(str(part.__file__)).read_bytes() for name, part in _PARTS.items()}
    contents["hello.py"] = _HELLO.encode()
    digest = hashlib.sha256(b"".join(contents.values())).hexdigest()[:12]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as parcel:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            parcel.addfile(member, io.BytesIO(content))
    return digest, packed.getvalue()
