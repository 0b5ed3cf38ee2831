"""Files that are written at once or not at all; JSON; the claim of an attempt; locks.

Loaded by every process around a rank: nothing here imports what takes long to load.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

try:
    # The public module loads `re`, which takes 10 ms.
    import _json

    # What the scanner asks for: the defaults of `json.JSONDecoder`.
    class _Reading:
        strict = True
        object_hook = object_pairs_hook = None
        parse_float, parse_int, parse_constant = float, int, float

    quote: Callable[[str], str] = _json.encode_basestring_ascii
    scan: Callable[[str, int], tuple[Any, int]] = _json.make_scanner(_Reading)  # type: ignore[arg-type]  # any object with these will do
    _write: Callable[[Any, int], Iterable[str]] = _json.make_encoder(
        *(None, str, quote, None, ": ", ", ", False, False, True)
    )
except ImportError:
    import json

    quote, scan = json.dumps, json.JSONDecoder().raw_decode

    def _write(value: Any, _: int) -> str:
        return json.dumps(value, default=str)


# What may stand in a path, beside letters and digits, without a meaning to shells or in PATH.
PLAIN = "/._-+,@%="
CHUNK_BYTES = 65536


def try_to(action: Callable[..., object], *arguments: Any) -> bool:
    """Call a function; False: it has raised OSError, and that does no harm."""
    try:
        action(*arguments)
    except OSError:
        return False
    return True


def say(text: str) -> None:
    """Write a line for people into the runner's own log."""
    try_to(os.write, 2, f"rankwise runner: {text}\n".encode(errors="backslashreplace"))


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
    """Return plain data as JSON; what is no plain data is written as its `str`."""
    return "".join(_write(value, 0))


def read_text(path: str) -> str:
    """Read a file, whatever bytes are in it; raises OSError."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a file; raises OSError or ValueError."""
    with open(path, encoding="utf-8") as file:
        return parse(file.read())


def read_record(path: str, *needed: str) -> dict[str, Any] | None:
    """Read a record of another process; None: there is none, or it lacks what is needed."""
    try:
        record = read_json(path)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.keys() >= {*needed} else None


def listed(folder: str) -> list[str]:
    """Return the names in a folder, in order; none if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


class Beside:
    """A name beside a path, for a file or a folder that is moved there when the block has made it.

    So readers find all of it, or what was there before. If the block raises, it is removed. If two
    processes make the same folder, the second one's is removed too.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        folder, name = os.path.split(self._path)
        # A part of the name, for people; a whole one may be too long with what is added.
        ending = f"{os.getpid()}-{_thread.get_ident()}.new"
        self._beside = os.path.join(folder or ".", f".{name[:50]}.{ending}")

    def __enter__(self) -> str:
        return self._beside

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                return rename(self._beside, self._path)
        except OSError:
            is_late = os.path.isdir(self._beside) and os.path.isdir(self._path)
            discard(self._beside)
            if not is_late:
                raise
        return discard(self._beside)


def write_file(
    path: str | os.PathLike[str], data: str | bytes, mode: int = 0o666, *, is_synced: bool = False
) -> None:
    """Write a file beside its place and move it there: readers find all of it, or what was there.

    Makes its folder if need be. With `is_synced`, it is there even if the machine stops now. Its
    mode is never wider than `mode`, from the moment it is there.
    """
    with Beside(path) as beside:
        # Never through a link that is there: it could lead to any file of this user.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            descriptor = os.open(beside, flags, mode)
        except (FileNotFoundError, FileExistsError):
            # Another process of this number was killed here, or the folder is not there yet.
            discard(beside)
            os.makedirs(os.path.dirname(beside), exist_ok=True)
            descriptor = os.open(beside, flags, mode)
        with open(descriptor, "wb") as file:
            file.write(data if isinstance(data, bytes) else data.encode(errors="surrogateescape"))
            if is_synced:
                file.flush()
                os.fsync(descriptor)


def rename(source: str | os.PathLike[str], place: str | os.PathLike[str]) -> None:
    """Move a file, a link or a folder in one step; a file or an empty folder there is replaced."""
    os.replace(source, place)


class Records:
    """Files with what happened; those that cannot be written now are tried again."""

    def __init__(self) -> None:
        self._unwritten: dict[str, str] = {}

    def put(self, path: str, data: Mapping[str, Any]) -> None:
        self._unwritten[path] = to_json(data) + "\n"
        self.retry()

    def retry(self) -> bool:
        """Write what is not written yet, and return whether nothing is left."""
        for path, text in list(self._unwritten.items()):
            try:
                write_file(path, text)
            except OSError as error:
                say(f"cannot write {path}: {error.strerror}; trying again")
            else:
                del self._unwritten[path]
        return not self._unwritten

    def insist(self, seconds: float) -> None:
        """Try for so long to write what is not written yet."""
        deadline = time.monotonic() + seconds
        while not self.retry():
            if time.monotonic() >= deadline:
                say(f"gave up after {seconds:g} s: {', '.join(self._unwritten)}")
                return
            # A full disk or a broken mount is not mended sooner.
            time.sleep(1)


def discard(path: str) -> None:
    """Remove a file, a link or a folder with all that is in it, if it is there and can be."""
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        try_to(os.unlink, path)


class Locked:
    """A lock on a file, held by one process at a time; waits for it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._file = -1

    def __enter__(self) -> None:
        self._file = os.open(self._path, os.O_CREAT | os.O_RDWR, 0o666)
        lock(self._file)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def lock(file: int, *, waits: bool = True, is_shared: bool = False) -> bool:
    """Lock an open file until it is closed; False: another process has it, and we do not wait.

    OSError: it is where there are no locks.
    """
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    try:
        fcntl.flock(file, kind if waits else kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(file: int) -> None:
    """Release the lock on an open file."""
    fcntl.flock(file, fcntl.LOCK_UN)


# The claim of an attempt decides who begins with it: a runner, or a client that gives it up.


def claim(folder: str) -> int | None:
    """Take the attempt, and return the open file that holds the lock; None: another process has.

    The file names the process, so that a signal can be sent to it; the number is worth something
    only while the file is locked.
    """
    own = f"{folder}/claim.{os.getpid()}"
    file = os.open(own, os.O_WRONLY | os.O_CREAT, 0o666)
    os.write(file, to_json({"pid": os.getpid(), "started": time.time()}).encode())
    # Locked before it gets its name: a claim that others can see is held.
    try:
        lock(file)
    except OSError as error:
        # Without locks, as on some network disks, others know by other means that we are at work.
        say(f"no lock on the claim: {error.strerror}")
    return file if _is_first(own, folder) else None


def give_up(folder: str | os.PathLike[str]) -> bool:
    """Take an attempt that no runner has begun with, so that none ever will; False: one has.

    Such a claim is empty, and no process holds it.
    """
    own = f"{folder}/.claim.{os.getpid()}-{_thread.get_ident()}"
    os.close(os.open(own, os.O_WRONLY | os.O_CREAT, 0o600))
    return _is_first(own, folder)


def _is_first(own: str, folder: str | os.PathLike[str]) -> bool:
    """Make a file the claim of an attempt, unless there is one; it has no other name then."""
    try:
        # A link, not a rename: of two processes, only one succeeds, also on a network disk.
        os.link(own, f"{folder}/claim")
    except FileExistsError:
        return False
    finally:
        os.unlink(own)
    return True


def is_held(folder: str | os.PathLike[str]) -> bool | None:
    """Return whether the runner that has taken an attempt is at work; None: it is not taken."""
    try:
        # To write, because some network disks lock only files that are open for that.
        file = os.open(f"{folder}/claim", os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        return not lock(file, waits=False)
    finally:
        os.close(file)


def end_of_log(path: str) -> bytes:
    """Read what was written last; empty if there is nothing."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            file.seek(max(0, os.path.getsize(path) - CHUNK_BYTES))
            return file.read()
    except OSError:
        return b""


def is_plain(path: str) -> bool:
    """Return whether a path means nothing but itself to shells and in PATH."""
    return all((one.isascii() and one.isalnum()) or one in PLAIN for one in path)


def redirect(folder: str, source: int) -> None:
    """Read from an open file from now on, and write to the log of the runner of an attempt."""
    log = os.open(f"{folder}/runner.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for number, file in ((0, source), (1, log), (2, log)):
        os.dup2(file, number)


def shell_quote(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"


def shared_memory(marker: str) -> str:
    """Name the folder for what the ranks of one attempt share."""
    return f"{'/dev/shm' if os.path.isdir('/dev/shm') else '/tmp'}/rankwise-{marker}"


def temporary(marker: str) -> str:
    """Name the folder for what launchers leave; short enough for sockets in it."""
    # Not TMPDIR: the path of a socket has at most 107 bytes.
    return f"/tmp/rankwise-{marker}"


def own_command() -> list[str]:
    """Return the words that start our own program, without the verb."""
    # Isolated and without `site`: it starts in half of the time, and nothing in the
    # user's environment changes what it does.
    return [sys.executable, "-I", "-S", f"{os.path.dirname(os.path.abspath(__file__))}/__main__.py"]
