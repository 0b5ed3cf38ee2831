"""What runs on a machine that is elsewhere: takes attempts in, starts their runners, tells of them.

    python -I -S agent.py VERB REQUEST        REQUEST is JSON in base64

Answers are JSON in base64 between two words, so that they are found in whatever a login or a
provider's command line writes around them. Standard library only, and nothing of rankwise but the
files beside it: all of them are copied to the machine.

The folder of an attempt is made beside its place and moved there, and its runner is started under
a lock; the runner's own claim sees to it that there is never a second one. So every verb may be
called again when the answer to it was lost on its way.
"""

# Not pathlib, and others only where they are needed: this is started for every question.
# ruff: noqa: PTH100, PTH103, PTH104, PTH105, PTH108, PTH110, PTH112, PTH113, PTH114
# ruff: noqa: PTH118, PTH119, PTH120, PTH123, PTH204, PTH208

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

BEGIN, END = "rankwise-answer:", ":rankwise-end"
DATA = b"\nrankwise-data:\n"
"""Comes before a stream; before it there may be what a login has to say."""
WHOLE = ".whole"
"""The last file of a parcel: without it, its end is missing."""
GOING = "going.json"
_LOG_BYTES = 512 * 1024
_PIECE_BYTES = 128 * 1024
_LOOK_SECONDS = 0.03
_START_SECONDS = 30.0
_TOMBSTONE_SECONDS = 86400.0
_CANCELLED = 130
# What starts others while it is killed is found the next time.
_SWEEPS = 20


def answer(data: object) -> None:
    """Write an answer where it is found."""
    text = base64.urlsafe_b64encode(json.dumps(data).encode()).decode()
    sys.stdout.write(f"\n{BEGIN}{text}{END}\n")
    sys.stdout.flush()


def load(name: str) -> Any:
    """Load another of our files, which lies beside this one on the machine."""
    import importlib

    return importlib.import_module(name)


# Who there is


def birth_of(pid: int) -> str:
    """Tell when a process began; with its number, it is known by that. Empty: it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def boot() -> str:
    """Name the time since which this machine has been up."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def write(path: str, data: object) -> None:
    beside = f"{path}.{os.getpid()}.new"
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(data, file)
    os.replace(beside, path)


def place_of(root: str, marker: str) -> str:
    return os.path.join(root, "attempts", os.path.basename(marker))


@contextlib.contextmanager
def alone(root: str, marker: str) -> Iterator[None]:
    """Be the only one who starts an attempt, or gives it up."""
    os.makedirs(os.path.join(root, "attempts"), exist_ok=True)
    lock = os.open(f"{place_of(root, marker)}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def give_up(folder: str) -> bool:
    """Take an attempt that has not begun, so that no runner ever will; False: one has."""
    own = f"{folder}/.claim.{os.getpid()}"
    os.close(os.open(own, os.O_CREAT | os.O_WRONLY, 0o600))
    try:
        os.link(own, f"{folder}/claim")
    except FileExistsError:
        return False
    finally:
        os.unlink(own)
    return True


# Verbs


def hello(request: dict[str, Any]) -> dict[str, Any]:
    """Tell what this machine has, and forget what nobody will ask for again."""
    equipment = load("equipment")
    attempts = os.path.join(request["root"], "attempts")
    os.makedirs(attempts, mode=0o700, exist_ok=True)
    for name in os.listdir(attempts):
        path = os.path.join(attempts, name)
        is_tombstone = os.path.isdir(path) and os.listdir(path) == ["claim"]
        if is_tombstone and os.path.getmtime(path) < time.time() - _TOMBSTONE_SECONDS:
            remove({"root": request["root"], "marker": name})
    found: dict[str, Any] = equipment.inventory()
    return found


def start(request: dict[str, Any]) -> dict[str, Any]:
    """Take an attempt in from the standard input, and start its runner unless somebody has."""
    root, marker = request["root"], request["marker"]
    folder = place_of(root, marker)
    source = sys.stdin.buffer
    secrets = source.read(int(source.readline()))
    with alone(root, marker):
        if os.path.exists(f"{folder}/claim") or os.path.exists(f"{folder}/{GOING}"):
            return {"pid": read(f"{folder}/{GOING}").get("pid", 0)}
        if not os.path.isdir(folder):
            unpack(source, folder)
        launch(request, folder, secrets)
        deadline = time.monotonic() + _START_SECONDS
        while not os.path.exists(f"{folder}/{GOING}") and time.monotonic() < deadline:
            time.sleep(0.005)
        if not os.path.exists(f"{folder}/{GOING}"):
            give_up(folder)
            with open(f"{folder}/runner.log", encoding="utf-8", errors="replace") as file:
                said = file.read().strip().splitlines()
            raise OSError(f"its runner does not start: {said[-1] if said else 'no word'}")
    return {"pid": read(f"{folder}/{GOING}").get("pid", 0)}


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
                member.uid, member.gid, member.uname, member.gname = (
                    os.getuid(),
                    os.getgid(),
                    "",
                    "",
                )
                parcel.extract(member, beside, **trusting)
        if not os.path.exists(f"{beside}/{WHOLE}"):
            raise EOFError("the connection ended before all was here")
        write(f"{beside}/.came", came_with(beside))
        os.rename(beside, folder)
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        discard(beside)
        raise OSError(f"it did not arrive: {error}") from error


def came_with(folder: str) -> dict[str, list[int]]:
    """Note what a parcel had in it: what has not changed need not go back."""
    found = {}
    for path in files_in(folder):
        status = os.lstat(os.path.join(folder, path))
        found[path] = [status.st_mtime_ns, status.st_size]
    return found


def files_in(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*names, *links):
            yield os.path.relpath(os.path.join(place, name), folder)


def launch(request: dict[str, Any], folder: str, secrets: bytes) -> None:
    """Start the process that becomes the runner, as nobody's child and in a session of its own."""
    if first := os.fork():
        os.waitpid(first, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.setpgid(0, 0)
        # What is open here is a line to the client, which must not wait for us.
        log = os.open(f"{folder}/runner.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        held = os.memfd_create("secrets")
        os.write(held, secrets)
        os.lseek(held, 0, os.SEEK_SET)
        for number, file in ((0, held), (1, log), (2, log)):
            os.dup2(file, number)
        os.closerange(3, 256)
        become_runner(request, folder)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def become_runner(request: dict[str, Any], folder: str) -> None:
    """Make the runtime ready, and turn this process into the runner."""
    equipment = load("equipment")
    pid = os.getpid()
    write(f"{folder}/{GOING}", {"pid": pid, "birth": birth_of(pid), "boot": boot()})
    try:
        equipment.equip(folder, request["root"])
    except equipment.CannotEquip as reason:
        if give_up(folder):
            now = time.time()
            write(
                f"{folder}/end.json",
                {"outcome": "not run", "exit_code": 1, "signal": None, "culprit": None}
                | {"reason": str(reason), "started": now, "ended": now},
            )
        os._exit(1)
    os.chdir(folder)
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runner.py")
    os.execv(sys.executable, [sys.executable, "-I", "-S", beside, "gang", folder])


def state_of(folder: str) -> dict[str, Any]:
    """Say how an attempt stands."""
    going = read(f"{folder}/{GOING}")
    is_alive = bool(going) and birth_of(going["pid"]) == going["birth"] != ""
    has_begun = os.path.exists(f"{folder}/claim")
    # In this order: its runner writes the end before it leaves.
    if os.path.exists(f"{folder}/end.json"):
        state = "over"
    elif is_alive:
        state = "running"
    else:
        state = "lost" if going else "absent"
    was_restarted = bool(going) and going["boot"] != boot()
    return {"state": state, "has_begun": has_begun, "was_restarted": was_restarted} | {
        "pid": going.get("pid", 0)
    }


def look(request: dict[str, Any]) -> dict[str, Any]:
    """Tell how attempts stand, with what is new in their logs; waits a little for something new."""
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


def news_of(folder: str, known: dict[str, list[int]], left: list[int]) -> list[list[Any]]:
    """Give pieces of logs that are not known: name, inode, offset, how long it is now, bytes."""
    found = []
    for path in log_files(folder):
        try:
            with open(os.path.join(folder, path), "rb") as file:
                status = os.fstat(file.fileno())
                inode, have = known.get(path, [0, 0])
                if inode != status.st_ino:
                    moved = [size for number, size in known.values() if number == status.st_ino]
                    have = moved[0] if moved else 0
                elif status.st_size == have:
                    continue
                if status.st_size < have:
                    have = 0
                file.seek(have)
                data = file.read(min(_PIECE_BYTES, left[0]))
        except OSError:
            continue
        left[0] -= len(data)
        text = base64.b64encode(data).decode()
        found.append([path, status.st_ino, have, status.st_size, text])
    return found


def log_files(folder: str) -> Iterator[str]:
    """Name the logs, those first that were put aside."""
    if os.path.exists(f"{folder}/runner.log"):
        yield "runner.log"
    try:
        places = sorted(os.listdir(f"{folder}/processes"))
    except OSError:
        return
    for place in places:
        try:
            names = os.listdir(f"{folder}/processes/{place}")
        except OSError:
            continue
        logs = [name for name in names if is_log(name)]
        for name in sorted(logs, key=lambda one: (one.endswith(".log"), not one.endswith("first"))):
            yield f"processes/{place}/{name}"


def is_log(name: str) -> bool:
    return name.endswith((".log", ".log.1", ".log.first"))


def fetch(request: dict[str, Any]) -> None:
    """Write what an attempt has made as a tar, without its logs, and the end last of all."""
    import tarfile

    folder = place_of(request["root"], request["marker"])
    came = read(f"{folder}/.came")
    out = sys.stdout.buffer
    out.write(DATA)
    with tarfile.open(fileobj=out, mode="w|") as parcel:
        for path in sorted(files_in(folder), key=lambda one: one == "end.json"):
            full = os.path.join(folder, path)
            if path in (WHOLE, ".came", GOING, "claim", "order.json", "runtime.json") or (
                is_log(path) and path.startswith(("processes/", "runner.log"))
            ):
                continue
            with contextlib.suppress(OSError):
                status = os.lstat(full)
                if came.get(path) != [status.st_mtime_ns, status.st_size] and is_plain(full):
                    parcel.add(full, path, recursive=False)
    out.flush()


def is_plain(path: str) -> bool:
    """Tell whether it is a file, a link or a folder, and no socket or pipe."""
    return os.path.islink(path) or os.path.isfile(path) or os.path.isdir(path)


def end(request: dict[str, Any]) -> dict[str, Any]:
    """Have an attempt end in good order, or never begin."""
    folder = place_of(request["root"], request["marker"])
    if not os.path.isdir(folder):
        return {}
    if give_up(folder):
        now = time.time()
        write(
            f"{folder}/end.json",
            {"outcome": "cancelled", "exit_code": _CANCELLED, "signal": None, "culprit": None}
            | {"reason": "cancelled", "started": now, "ended": now},
        )
        signal_runner(folder, signal.SIGKILL)
    else:
        signal_runner(folder, signal.SIGTERM)
    return {}


def signal_runner(folder: str, number: int) -> None:
    going = read(f"{folder}/{GOING}")
    if going and birth_of(going["pid"]) == going["birth"] != "":
        # What makes a runtime ready has processes of its own; a runner ends its own by itself.
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
    """Kill what is left of an attempt, its runner first, and remove its folder."""
    folder = place_of(request["root"], request["marker"])
    # One that is alive would write into the folder once more.
    signal_runner(folder, signal.SIGKILL)
    count = 0
    for _ in range(_SWEEPS):
        found = sweep(request["marker"])
        count += found
        if not found:
            break
        time.sleep(0.02)
    if os.path.isdir(folder) and os.listdir(folder) != ["claim"]:
        discard(folder)
    if not os.path.isdir(folder):
        discard(f"{folder}.lock")
    return {"swept": count, "is_gone": not os.path.isdir(folder)}


def sweep(marker: str) -> int:
    wanted = f"RANKWISE_ATTEMPT={marker}".encode()
    count = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{int(name)}/environ", "rb") as file:
                is_ours = wanted in file.read().split(b"\0")
            if is_ours:
                os.kill(int(name), signal.SIGKILL)
                count += 1
    return count


def discard(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)


VERBS = {
    "hello": hello,
    "start": start,
    "look": look,
    "end": end,
    "abandon": abandon,
    "remove": remove,
}


def main(arguments: list[str]) -> int:
    verb, request = arguments[0], json.loads(base64.urlsafe_b64decode(arguments[1]))
    os.umask(0o077)
    try:
        if verb == "fetch":
            fetch(request)
        else:
            answer(VERBS[verb](request))
    except (OSError, ValueError, LookupError) as error:
        answer({"error": f"{type(error).__name__}: {error}"})
    return 0


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.exit(main(sys.argv[1:]))
