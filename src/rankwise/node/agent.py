"""The agent on a host with a login: takes attempts in, starts their runners, reports on them.

    agent VERB REQUEST        REQUEST is JSON in base64
    hello                     once our files are unpacked in a folder that they do not stay in

Answers are JSON in base64 between two words, so that they are found in whatever a login or a
provider's command line writes around them.

The folder of an attempt is made beside its place and moved there, and its runner is started under
a lock; the runner's own claim sees to it that there is never a second one. So every verb may be
called again when the answer to it was lost on its way.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import sys
import time

from .files import (
    Locked,
    discard,
    end_of_log,
    give_up,
    listed,
    own_command,
    read_json,
    redirect,
    rename,
    write_file,
)
from .mirror import is_log, news_of
from .outcome import CANCELLED, write_end
from .processes import read_small, sweep_marked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

BEGIN, END = "rankwise-answer:", ":rankwise-end"
# Comes before a stream: a login may write a message of the day before it.
DATA = b"\nrankwise-data:\n"
# The last file of a parcel: without it, its end is missing.
WHOLE = ".whole"
# The last file but the end of what is fetched. It names what could not be read, and why.
FETCHED = ".fetched"
GOING, COMPILED = "going.json", "__pycache__"
# Files of ours that the client does not need. The end is sent apart, after all others.
_STAY = {WHOLE, ".came", GOING, "claim", "order.json", "placement.json", "runtime.json", "end.json"}
# The most of all logs in one answer.
_LOG_BYTES = 512 * 1024
_LOOK_SECONDS = 0.03
# How long the process may take that becomes the runner, until it has noted itself.
_START_SECONDS = 30.0
# How long it is noted that an attempt never begins: a copy of it may still be on its way.
_TOMBSTONE_SECONDS = 86400.0


def answer(data: object) -> None:
    """Write an answer where it is found."""
    text = base64.urlsafe_b64encode(json.dumps(data).encode()).decode()
    sys.stdout.write(f"\n{BEGIN}{text}{END}\n")
    sys.stdout.flush()


# Processes that were noted


def birth_of(pid: int) -> str:
    """Return when a process began, which tells it from a later one of its number; empty: gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def is_alive(going: dict[str, Any]) -> bool:
    """Return whether the process that was noted is there, and no other of its number."""
    return bool(going) and birth_of(going["pid"]) == going["birth"] != ""


def boot() -> str:
    """Return what identifies this start of the machine; empty: it does not say."""
    return read_small("/proc/sys/kernel/random/boot_id").decode().strip()


def read(path: str) -> dict[str, Any]:
    """Read a record; nothing: there is none, or not all of it. OSError: that is not known."""
    try:
        data = read_json(path)
    except (FileNotFoundError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def exists(path: str) -> bool:
    """Return whether there is a file; OSError: that is not known, as `os.path.exists` hides."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def place_of(root: str, marker: str) -> str:
    return os.path.join(root, "attempts", os.path.basename(marker))


def alone(root: str, marker: str) -> Locked:
    """Keep other calls from starting an attempt, or giving it up, at the same time."""
    os.makedirs(os.path.join(root, "attempts"), exist_ok=True)
    return Locked(f"{place_of(root, marker)}.lock")


# Verbs


def hello(request: dict[str, Any]) -> dict[str, Any]:
    """Return what this machine has, and remove notes on attempts of long ago."""
    from .equipment import inventory

    attempts = os.path.join(request["root"], "attempts")
    os.makedirs(attempts, mode=0o700, exist_ok=True)
    for path in [os.path.join(attempts, name) for name in listed(attempts)]:
        # Another client may remove the same note at this moment.
        with contextlib.suppress(FileNotFoundError):
            is_note = listed(path) == ["claim"]
            if is_note and os.path.getmtime(path) < time.time() - _TOMBSTONE_SECONDS:
                discard(path)
                discard(f"{path}.lock")
    return inventory()


def settle(fresh: str, place: str) -> None:
    """Put our files where they are run from, unless just these are there and nothing else is.

    What is compiled is taken from the fresh ones: what the other was made from is not known.
    OSError: something else is there, and cannot be replaced.
    """
    if is_same(fresh, place):
        discard(f"{place}/{COMPILED}")
        with contextlib.suppress(OSError):
            rename(f"{fresh}/{COMPILED}", f"{place}/{COMPILED}")
    else:
        discard(place)
        try:
            rename(fresh, place)
        except OSError:
            # Another client may have put them there in between.
            if not is_same(fresh, place):
                raise
    discard(fresh)


def is_same(fresh: str, place: str) -> bool:
    """Return whether a folder is ours and has the same files, all ours, as they were sent."""
    import stat

    def is_ours(path: str, kind: int) -> bool:
        # Another user must not be able to have us run files of theirs.
        status = os.lstat(path)
        return stat.S_IFMT(status.st_mode) == kind and status.st_uid == os.getuid()

    def content(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    try:
        names = set(os.listdir(fresh)) - {COMPILED}
        return (
            is_ours(place, stat.S_IFDIR)
            and set(os.listdir(place)) - {COMPILED} == names
            and all(is_ours(f"{place}/{name}", stat.S_IFREG) for name in names)
            and all(content(f"{fresh}/{name}") == content(f"{place}/{name}") for name in names)
        )
    except FileNotFoundError:
        return False


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Take an attempt in from the standard input, and start its runner unless that was done."""
    root, marker = request["root"], request["marker"]
    folder = place_of(root, marker)
    going = f"{folder}/{GOING}"
    source = sys.stdin.buffer
    secrets = source.read(int(source.readline()))
    with alone(root, marker):
        if not (os.path.exists(f"{folder}/claim") or os.path.exists(going)):
            if not os.path.isdir(folder):
                unpack(source, folder)
            launch(request, folder, secrets)
            deadline = time.monotonic() + _START_SECONDS
            while not os.path.exists(going):
                if time.monotonic() >= deadline:
                    give_up(folder)
                    said = end_of_log(f"{folder}/runner.log").decode(errors="replace").strip()
                    last = said.rpartition("\n")[2] or "no word"
                    raise OSError(f"its runner does not start: {last}")
                time.sleep(0.005)
    return {"pid": read(going).get("pid", 0)}


def unpack(source: Any, folder: str) -> None:
    """Make the folder of an attempt, all of it or nothing."""
    import tarfile

    # It comes from ourselves; links out of the folder are the user's own.
    trusting: dict[str, Any] = (
        {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    )
    beside = f"{folder}.{os.getpid()}.part"
    os.makedirs(beside, mode=0o700)
    try:
        with tarfile.open(fileobj=source, mode="r|") as parcel:
            for member in parcel:
                inside = os.path.normpath(os.path.join(beside, member.name))
                if inside != beside and not inside.startswith(beside + os.sep):
                    raise ValueError(f"{member.name} is no name for a file of an attempt")
                member.uid, member.gid = os.getuid(), os.getgid()
                member.uname = member.gname = ""
                parcel.extract(member, beside, **trusting)
        if not os.path.exists(f"{beside}/{WHOLE}"):
            raise EOFError("the connection ended before all was here")
        write_file(f"{beside}/.came", json.dumps(came_with(beside)))
        rename(beside, folder)
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        discard(beside)
        raise OSError(f"it did not arrive: {error}") from error


def came_with(folder: str) -> dict[str, list[int]]:
    """Return time and size of what a parcel had in it: what has not changed need not go back."""
    found = ((path, os.lstat(f"{folder}/{path}")) for path in files_in(folder))
    return {path: [status.st_mtime_ns, status.st_size] for path, status in found}


def files_in(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*names, *links):
            yield os.path.relpath(os.path.join(place, name), folder)


def launch(request: dict[str, Any], folder: str, secrets: bytes) -> None:
    """Start the process that becomes the runner, without a parent and in a session of its own."""
    if first := os.fork():
        os.waitpid(first, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        # A group of its own, so that it can be killed with all that makes the runtime.
        os.setpgid(0, 0)
        # What is open here leads to the client, which waits until all processes have closed it.
        held = os.memfd_create("secrets")
        os.write(held, secrets)
        os.lseek(held, 0, os.SEEK_SET)
        redirect(folder, held)
        os.closerange(3, 256)
        become_runner(request, folder)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def become_runner(request: dict[str, Any], folder: str) -> None:
    """Make the runtime ready, and turn this process into the runner."""
    from .equipment import CannotEquip, equip

    pid = os.getpid()
    about = {"pid": pid, "birth": birth_of(pid), "boot": boot(), "host": os.uname().nodename}
    write_file(f"{folder}/{GOING}", json.dumps(about))
    try:
        equip(folder, request["root"])
        # What was cloned came by another way, and need not go back either.
        write_file(f"{folder}/.came", json.dumps(came_with(folder)))
    except (CannotEquip, OSError, ValueError, LookupError) as reason:
        if give_up(folder):
            write_end(folder, "not run", 1, str(reason))
        os._exit(1)
    os.chdir(folder)
    os.execv(sys.executable, [*own_command(), "run", folder])


def state_of(folder: str) -> dict[str, Any]:
    """Return the state of an attempt; OSError: it is not known here, or now."""
    going = read(f"{folder}/{GOING}")
    is_running = is_alive(going)
    has_begun = exists(f"{folder}/claim")
    # In this order: its runner writes the end before it exits.
    if exists(f"{folder}/end.json"):
        state = "over"
    elif is_running:
        state = "running"
    else:
        here = os.uname().nodename
        if going and going["boot"] != boot() and going.get("host", here) != here:
            # One name may stand for several login hosts with one disk: another one answers now.
            raise OSError(f"it was started on {going['host']}, and {here} answers")
        state = "lost" if going else "absent"
    was_restarted = bool(going) and going["boot"] != boot()
    about = {"state": state, "has_begun": has_begun, "was_restarted": was_restarted}
    return {**about, "pid": going.get("pid", 0)}


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Return the states of attempts, with what is new in their logs; waits a little for that."""
    deadline = time.monotonic() + request.get("wait", 0.0)
    while True:
        left = [_LOG_BYTES]
        found = {}
        for marker, about in request["attempts"].items():
            folder = place_of(request["root"], marker)
            found[marker] = {**state_of(folder), "files": news_of(folder, about["files"], left)}
        is_new = any(
            one["files"] or [one["state"], one["has_begun"]] != request["attempts"][marker]["known"]
            for marker, one in found.items()
        )
        if is_new or time.monotonic() >= deadline:
            return {"attempts": found}
        time.sleep(_LOOK_SECONDS)


def fetch(request: dict[str, Any]) -> None:
    """Write what an attempt has made as a tar, without its logs, and the end last of all."""
    import io
    import tarfile

    folder = place_of(request["root"], request["marker"])
    came = read(f"{folder}/.came")
    out = sys.stdout.buffer
    out.write(DATA)
    with tarfile.open(fileobj=out, mode="w|") as parcel:
        tried = ((path, put(parcel, folder, path, came)) for path in files_in(folder))
        left = [f"{path}: {why}" for path, why in tried if why]
        said = json.dumps(left).encode()
        member = tarfile.TarInfo(FETCHED)
        member.size = len(said)
        parcel.addfile(member, io.BytesIO(said))
        if exists(f"{folder}/end.json"):
            parcel.add(f"{folder}/end.json", "end.json")
    out.flush()


def put(parcel: Any, folder: str, path: str, came: dict[str, Any]) -> str:
    """Put a file into a tar, unless the client has it or does not need it; return what fails.

    OSError: the tar itself cannot be written.
    """
    import tarfile

    if path in _STAY:
        return ""
    full = os.path.join(folder, path)
    is_mirrored = is_log(path) and path.startswith(("processes/", "runner.log"))
    try:
        status = os.lstat(full)
        if came.get(path) == [status.st_mtime_ns, status.st_size] or not is_plain(full):
            return ""
        member = parcel.gettarinfo(full, path)
        file = open(full, "rb") if os.path.isfile(full) and not member.issym() else None  # noqa: SIM115
    except FileNotFoundError:  # A process that is left of the attempt has removed it meanwhile.
        return ""
    except OSError as error:
        return error.strerror or str(error)
    if file is None:
        parcel.addfile(member)
        return ""
    with file:
        if is_mirrored:
            return ""
        if member.islnk():  # A second name of a file: some clients take no links.
            member.type, member.size, member.linkname = tarfile.REGTYPE, status.st_size, ""
        source = SizedFile(file, member.size)
        parcel.addfile(member, source)
    return source.trouble


class SizedFile:
    """A file of which as many bytes are read as its header in the tar says, come what may."""

    def __init__(self, file: Any, size: int) -> None:
        self.trouble = ""
        self._file, self._left = file, size

    def read(self, count: int) -> bytes:
        count = min(count, self._left)
        self._left -= count
        try:
            data: bytes = self._file.read(count)
        except OSError as error:
            self.trouble, data = error.strerror or str(error), b""
        if len(data) < count:
            self.trouble = self.trouble or "it became shorter while it was read"
        return data.ljust(count, b"\0")


def is_plain(path: str) -> bool:
    """Return whether it is a file, a link or a folder, not a socket or a pipe."""
    return os.path.islink(path) or os.path.isfile(path) or os.path.isdir(path)


def end(request: dict[str, Any]) -> dict[str, Any]:
    """Have an attempt end in good order, or never begin."""
    folder = place_of(request["root"], request["marker"])
    if not os.path.isdir(folder):
        return {}
    if give_up(folder):
        write_end(folder, "cancelled", CANCELLED, "cancelled")
        signal_runner(folder, signal.SIGKILL)
    else:
        signal_runner(folder, signal.SIGTERM)
    return {}


def signal_runner(folder: str, number: int) -> None:
    """Send a signal to the runner of an attempt, or to what makes its runtime ready."""
    going = read(f"{folder}/{GOING}")
    if is_alive(going):
        # To the whole group where the runtime is made ready: uv and pip are in it. A runner is
        # asked alone, and ends its own processes.
        send: Callable[[int, int], None] = os.killpg if number == signal.SIGKILL else os.kill
        with contextlib.suppress(OSError):
            send(going["pid"], number)


def abandon(request: dict[str, Any]) -> dict[str, Any]:
    """Make sure that an attempt which has not begun never will, also if it is yet to arrive."""
    folder = place_of(request["root"], request["marker"])
    with alone(request["root"], request["marker"]):
        if os.path.exists(f"{folder}/{GOING}"):
            return {"has_begun": True}
        os.makedirs(folder, mode=0o700, exist_ok=True)
        give_up(folder)
        for name in os.listdir(folder):
            if name != "claim":
                discard(os.path.join(folder, name))
    return {"has_begun": False}


def remove(request: dict[str, Any]) -> dict[str, Any]:
    """Kill what is left of an attempt, its runner first; remove its folder unless it is kept."""
    folder = place_of(request["root"], request["marker"])
    # A runner that is alive would write into the folder once more.
    signal_runner(folder, signal.SIGKILL)
    count = sweep_marked(request["marker"])
    # What only says that an attempt never begins stays for a while.
    is_there = os.path.isdir(folder) and os.listdir(folder) != ["claim"]
    if is_there and not request.get("is_kept"):
        discard(folder)
        is_there = os.path.isdir(folder)
    if not os.path.isdir(folder):
        discard(f"{folder}.lock")
    return {"swept": count, "is_gone": not is_there}


VERBS = {verb.__name__: verb for verb in (hello, start, look, end, abandon, remove)}


def say_hello() -> int:
    """Put our files where they stay, and answer what this machine has."""
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.environ["RANKWISE_ROOT"]
    try:
        found = hello({"root": root})
        settle(here, os.path.join(root, os.environ["RANKWISE_PARTS"]))
        answer({**found, "root": root})
    except OSError as error:
        answer({"error": str(error)})
    return 0


def main(verb: str, text: str) -> int:
    """Do what a client asks for, and answer."""
    request = json.loads(base64.urlsafe_b64decode(text))
    # Code and logs of a user are not for the other users of a login host.
    os.umask(0o077)
    try:
        if verb == "fetch":
            fetch(request)
        else:
            answer(VERBS[verb](request))
    except (OSError, ValueError, LookupError) as error:
        what = f"{type(error).__name__}: {error}"
        if verb == "fetch":  # In the midst of a stream there is no place for an answer.
            sys.stderr.write(f"{what}\n")
            return 1
        answer({"error": what})
    return 0
