"""A real sshd of this machine, in a folder, on a port and with keys of its own.

    python3 scripts/sshd.py --install                no sshd, only what is needed for one
    python3 scripts/sshd.py ssh here hostname        one command while it is there

It listens on the loopback only, lets in only with the key that is made with it, and ends with
this process, whatever happens to it. Needs Debian's openssh-server; without root it lets in
only the user that has started it.

Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from children import end_with_parent
from debian import add_option, install, refuse

PACKAGES = ("openssh-server", "openssh-client")
START_SECONDS = 20.0
_SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey "{folder}/host_key"
PidFile "{folder}/sshd.pid"
AuthorizedKeysFile "{folder}/authorized_keys"
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
MaxSessions 100
LogLevel VERBOSE
Subsystem sftp internal-sftp
"""
_CLIENT = """\
Host here here-* unknown
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile "{folder}/user_key"
  IdentitiesOnly yes
  HostKeyAlias rankwise-sshd

Host here here-*
  UserKnownHostsFile "{folder}/known_hosts"

Host unknown
  UserKnownHostsFile /dev/null
"""


@dataclass(slots=True)
class Sshd:
    """A server that can be stopped and started again, on the same port."""

    folder: Path
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> Path:
        """Return the file for `ssh -F`: `here` and `here-2` are this machine, `unknown` too, but
        its key is in no list of known hosts."""
        return self.folder / "config"

    def prepare(self) -> None:
        """Make the keys and the settings."""
        self.port = self.port or _free_port()
        for name in ("host_key", "user_key"):
            _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)])
        public = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"rankwise-sshd {public}")
        shutil.copy(self.folder / "user_key.pub", self.folder / "authorized_keys")
        words = {"port": self.port, "folder": self.folder, "user": getpass.getuser()}
        (self.folder / "sshd_config").write_text(_SERVER.format(**words))
        self.config.write_text(_CLIENT.format(**words))

    def start(self) -> None:
        """Start it and wait until it answers."""
        if os.geteuid() == 0:
            # Where it confines itself before a login; who is not root cannot be confined.
            Path("/run/sshd").mkdir(exist_ok=True)
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(_sshd()), "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509  there are no threads
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 1),
            ):
                return
            if time.monotonic() > deadline or self._process.poll() is not None:
                said = (self.folder / "sshd.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"sshd does not answer: {said}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it with all its connections, as if the network were gone."""
        if self._process is None:
            return
        children = _children(self._process.pid)
        self._process.kill()
        self._process.wait()
        for child in children:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        self._process = None


def _children(pid: int) -> list[int]:
    """Return the connections of a server: its children, and those that they handed them to."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*"):
            with contextlib.suppress(OSError):
                children = [int(word) for word in (task / "children").read_text().split()]
                found += [child for child in children if _is_sshd(child)]
    return found[1:]


def _is_sshd(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "sshd" in Path(f"/proc/{pid}/comm").read_text()
    return False


@contextlib.contextmanager
def sshd() -> Iterator[Sshd]:
    """Start a server that ends with the block."""
    with tempfile.TemporaryDirectory(prefix="rankwise-sshd-", ignore_cleanup_errors=True) as folder:
        made = Sshd(Path(folder))
        made.prepare()
        made.start()
        try:
            yield made
        finally:
            made.kill()


def _sshd() -> str | None:
    return shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def obstacle() -> str | None:
    """Say why there can be no sshd here, or None."""
    if _sshd() is None or shutil.which("ssh") is None:
        return f"sshd cannot be found: apt-get install {' '.join(PACKAGES)}"
    return None


def _free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_option(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    if why := install(PACKAGES, obstacle):
        return refuse(f"no sshd here: {why}", chosen, environment)
    if chosen.install:
        return 0
    with sshd() as made:
        first, *rest = chosen.command
        own = ["-F", str(made.config)] if first == "ssh" else []
        variables = {**environment, "RANKWISE_SSH_CONFIG": str(made.config)}
        return subprocess.run([first, *own, *rest], env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
