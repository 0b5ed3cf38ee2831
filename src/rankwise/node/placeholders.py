"""Fill in the marks of an order, and make the files and variables of its processes.

Marks stand for what is known only where an order is carried out: addresses, names of hosts, free
ports, folders.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time

from .files import is_plain, own_command, parse, read_text, say, shell_quote, temporary, write_file
from .rank import node_variables

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .order import Order

# Below the ports that the kernel gives out by itself.
PORTS = range(20000, 32768)
OPEN, CLOSE = "\ue000", "\ue001"


class Ports:
    """Free ports, kept from other runners of this user until this process ends."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._locks = -1

    def get(self, name: str, address: str) -> int:
        """Return the port of that name, always the same one; raises OSError when none is free."""
        if name not in self._numbers:
            # Not the first free one: there, runners of two users that start at once would meet.
            start = time.time_ns() // 1000 + os.getpid() * 97
            turned = (PORTS[(start + offset) % len(PORTS)] for offset in range(len(PORTS)))
            found = next((port for port in turned if self._take(port, address)), None)
            if found is None:
                raise OSError(errno.EADDRINUSE, f"no port of {PORTS[0]}-{PORTS[-1]} is free")
            self._numbers[name] = found
        return self._numbers[name]

    def _take(self, port: int, address: str) -> bool:
        return port not in self._numbers.values() and self.lock(port) and is_free(port, address)

    def lock(self, number: int) -> bool:
        """Keep a number, of a port or a core, from other runners of this user."""
        try:
            if self._locks < 0:
                # No link is followed: another user could have made one in /tmp.
                flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
                self._locks = os.open(f"/tmp/rankwise-ports-{os.getuid()}", flags, 0o600)
            # A lock of one byte is released by the kernel when the runner ends, however it ends.
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except BlockingIOError:
            return False
        except OSError:
            pass  # No such folder, or no locks in it: that the port is free must suffice.
        return True


def is_free(port: int, address: str) -> bool:
    """Return whether a process could listen on a port, at that address and at all of them."""
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

    def __init__(self, order: Order) -> None:
        self._nodes = order.nodes
        self._folder = plain_path(order)
        self._ports = Ports()

    def fill_in(self, text: str, *, is_line: bool = False) -> str:
        """Replace every mark; raises ValueError for one that is not known.

        In a line for the shell, folders stand between single quotes, which they may have in them.
        """
        if OPEN not in text:
            return text
        head, *rest = text.split(OPEN)
        for part in rest:
            what, _, tail = part.partition(CLOSE)
            value = self._value(what)
            head += (shell_quote(value)[1:-1] if is_line else value) + tail
        return head

    def fill_in_all(self, values: Mapping[str, str]) -> dict[str, str]:
        return {name: self.fill_in(value) for name, value in values.items()}

    def arguments(self, command: str | Sequence[str]) -> list[str]:
        """Make arguments of a command: a line is the shell's."""
        if isinstance(command, str):
            return ["/bin/sh", "-c", self.fill_in(command, is_line=True)]
        return list(map(self.fill_in, command))

    def _value(self, what: str) -> str:
        kind, _, rest = what.partition(":")
        _, _, number = rest.rpartition("@")
        try:
            if kind == "folder" and not rest:
                return self._folder
            if kind == "own":
                return os.path.dirname(own_command()[-1])
            node = self._nodes[int(number)]
            match kind:
                case "address":
                    return node.address
                case "host":
                    return node.host or node.name
                case "port":
                    return str(self._ports.get(rest, node.address))
                case "folder":
                    return node.folder
        except (ValueError, LookupError):
            pass
        raise ValueError(f"the order has a mark that is not known: {what!r}")


def plain_path(order: Order) -> str:
    """Return a name of the attempt's folder that needs no quotes in a shell.

    Launchers pass paths to shells without quotes, here and on other nodes. On other machines, there
    is no such name; containers have the folder under it too.
    """
    folder = order.folder
    is_elsewhere = any(node.reach for node in order.nodes)
    if is_plain(folder) or is_elsewhere:
        return folder
    path = f"{temporary(order.marker)}.folder"
    try:
        os.symlink(folder, path)
    except FileExistsError:
        pass  # It is ours: another user cannot guess its name.
    except OSError as error:
        say(f"cannot make {path}: {error.strerror}; launchers may not understand {folder}")
        return folder
    return path


def hosts_file(order: Order) -> str:
    """Return this machine's /etc/hosts with the virtual nodes in it."""
    try:
        present = read_text("/etc/hosts").rstrip("\n")
    except OSError:
        present = "127.0.0.1 localhost"
    return "\n".join([present, *(f"{node.address} {node.name}" for node in order.nodes), ""])


def write_files(order: Order, marks: Marks) -> None:
    """Write what processes will need: the order's files, and our own commands."""
    folder = order.folder
    for name, text in order.files.items():
        write_file(f"{folder}/{name}", marks.fill_in(text))
    write_file(f"{folder}/etc-hosts", hosts_file(order))
    for path in (*(node.folder for node in order.nodes), *map(marks.fill_in, order.folders)):
        os.makedirs(path, exist_ok=True)
    python, *own = own_command()
    program, start = shell_quote(python), "#!/bin/sh\n"
    if order.is_contained:
        # In a container the Python of its image; where that has none, ranks leave no records.
        start += f'[ "${{RANKWISE_PYTHON+set}}" ] || RANKWISE_PYTHON={program}\n'
        start += '[ "$RANKWISE_PYTHON" ] || exec "$@"\n'
        program = '"$RANKWISE_PYTHON"'
    for name, arguments in (("rank", ["rank"]), ("node", ["node", folder])):
        line = " ".join([program, *map(shell_quote, (*own, *arguments))])
        script = f'{start}exec {line} "$@"\n'
        # Paths as the system has them: not every locale is one of UTF-8.
        write_file(f"{folder}/bin/rankwise-{name}", os.fsencode(script), 0o777)


def common_environment(order: Order, marks: Marks) -> dict[str, str]:
    """Return the variables of all processes."""
    unset = set(order.unset)
    inherited = {name: value for name, value in os.environ.items() if name not in unset}
    own = f"{plain_path(order)}/bin"
    path = [*order.path, own, inherited.get("PATH", os.defpath)]
    return {
        **inherited,
        "PATH": os.pathsep.join(path),
        **marks.fill_in_all(order.environment),
        "RANKWISE_ATTEMPT": order.marker,
        "RANKWISE_FOLDER": order.folder,
        "RANKWISE_HOSTS": " ".join(
            node.host or node.name for node in order.nodes if not node.is_apart
        ),
    }


def prepare(order: Order) -> list[tuple[list[str], dict[str, str]]]:
    """Write what processes will need; returns the command and the variables of each.

    ValueError: there is a mark that is not known.
    """
    marks = Marks(order)
    write_files(order, marks)
    common = common_environment(order, marks)
    found = []
    for one in order.processes:
        own = {**marks.fill_in_all(one.environment), **node_variables(order, one.node)}
        if one.path:
            own["PATH"] = os.pathsep.join([*one.path, common["PATH"]])
        kept = {name: value for name, value in common.items() if name not in one.unset}
        found.append((marks.arguments(one.command), {**kept, **own}))
    return found


def check_secrets(order: Order, given: Mapping[str, str] | None) -> dict[str, str]:
    """Return the values of secrets, from the standard input if need be; raises ValueError."""
    if not order.secrets:
        return {}
    values = parse(sys.stdin.read()) if given is None else given
    missing = [name for name in order.secrets if not isinstance(values.get(name), str)]
    if missing:
        raise ValueError(f"the values of these secrets did not arrive: {', '.join(missing)}")
    return {name: values[name] for name in order.secrets}
