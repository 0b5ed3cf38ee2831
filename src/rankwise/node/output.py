"""What processes write: without the values of secrets, in logs that never grow too large.

The output of a process is kept in up to three files that never hold more than so many bytes
together: output.log, which is written, output.log.1, which it was before it was full, and
output.log.first, the beginning, where settings and versions stand; it ends in a line that says how
much is missing. With RANKWISE_STREAMS=apart there are stdout.log and stderr.log as well, in the
same way. With RANKWISE_CASES=TEXT there is cases.log, which has each line with this text, after
the time when it came.
"""

from __future__ import annotations

import os
import stat
import time

from .files import CHUNK_BYTES, quote, rename, try_to, write_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The most that a pipe holds, unless root has made it larger.
PIPE_BYTES = 1 << 20
NOTICE_BYTES = 100


def spellings(value: str) -> set[bytes]:
    """Return how programs may write a value: as it is, as JSON, Python, URLs, shells and base64.

    A value of less than four characters is known as it is only: the others may be anything.
    """
    # What comes from a file has a last newline; people print the lines of a key one by one.
    lines = {line for line in value.splitlines() if len(line) >= 8}
    texts = {value, *lines}
    if len(bare := value.strip()) >= 4:
        texts |= {bare, *_escaped(bare), *_percent_encoded(bare)}
    if len(value) >= 4:
        texts |= {*_escaped(value), *_percent_encoded(value)}
    found = {text.encode(errors="surrogateescape") for text in texts}
    return (found | _in_base64(bare.encode(errors="surrogateescape"))) - {b""}


def _escaped(text: str) -> Iterator[str]:
    """Return a text as it stands between quotes in JSON, Python, shells and XML."""
    as_json = quote(text)[1:-1]
    yield from (as_json, as_json.replace("/", "\\/"))
    controls = {number: quote(chr(number))[1:-1] for number in range(32)}
    yield text.translate({**controls, 34: '\\"', 92: "\\\\"})
    data = text.encode(errors="surrogateescape")
    for characters in (
        [repr(one)[1:-1] for one in text],
        [ascii(one)[1:-1] for one in text],
        [repr(bytes([one]))[2:-1] for one in data],
    ):
        # Which quotes are escaped depends on what stands around the text.
        for escaped in ("", "'", '"', "'\""):
            yield "".join(f"\\{one}" if one in escaped else one for one in characters)
    yield from (text.replace("'", "'\"'\"'"), text.replace("'", "'\\''"))
    yield "".join(f"\\{one}" if one in '"\\$`' else one for one in text)
    yield "".join(one if one.isalnum() or one in "_-./:@%+=," else f"\\{one}" for one in text)
    entities = {38: "&amp;", 60: "&lt;", 62: "&gt;"}
    yield text.translate(entities)
    for apostrophe in ("'", "&#x27;", "&#39;", "&apos;"):
        for newline in ("\n", "&#10;"):
            yield text.translate({**entities, 34: "&quot;", 39: apostrophe, 10: newline})


def _percent_encoded(text: str) -> Iterator[str]:
    """Return a text as it stands in URLs and forms; programs escape more or less of it."""
    data = text.encode(errors="surrogateescape")
    ways = (("~", "%20"), ("~/", "%20"), ("~", "+"), ("*", "+"), ("~!'()*", "%20"))
    for kept, space in ways:
        for digits in ("%%%02X", "%%%02x"):
            yield "".join(
                space
                if one == 32
                else chr(one)
                if one < 128 and (chr(one).isalnum() or chr(one) in f"-._{kept}")
                else digits % one
                for one in data
            )


def _in_base64(data: bytes) -> set[bytes]:
    """Return the characters of base64 that depend on a value alone, wherever in a text it begins.

    Less than six of them look like any few letters, and are left out.
    """
    import binascii

    found, lines = set(), set()
    for before in range(3):
        whole = binascii.b2a_base64(bytes(before) + data, newline=False)
        own = whole[(before * 8 + 5) // 6 : (before + len(data)) * 8 // 6]
        found.add(own)
        if not before:
            found.add(whole)
            # Programs break long ones into lines.
            lines = {own[at : at + width] for width in (64, 76) for at in range(0, len(own), width)}
    for_urls = {one.replace(b"+", b"-").replace(b"/", b"_") for one in found}
    return {one for one in found | lines | for_urls if len(one) >= 6}


class Redactor:
    """Puts *** for secret values in a stream, however they are spelled and wherever it is cut.

    Only what may be the beginning of a value is held back.
    """

    def __init__(self, values: Sequence[str]) -> None:
        spelled = {one for value in values for one in spellings(value)}
        # The longest first: one may be the beginning of another.
        self._secrets = sorted(spelled, key=len, reverse=True)
        self._held = b""

    def twin(self) -> Redactor:
        """Return one for another stream with the same secrets."""
        other = Redactor(())
        other._secrets = self._secrets
        return other

    def clean(self, text: str) -> str:
        """Return a whole text without the values."""
        data = text.encode(errors="surrogatepass")
        done = self.feed(data, is_last=True)
        return text if done == data else done.decode(errors="replace")

    def feed(self, data: bytes, *, is_last: bool = False) -> bytes:
        if not self._secrets:
            return data
        data, done, start = self._held + data, [], 0
        end = len(data) if is_last else self._unfinished(data, 0)
        # Where each value is next: what is not there is not looked for again after each match.
        places = {secret: data.find(secret) for secret in self._secrets}
        while True:
            for secret in [one for one, place in places.items() if place < start]:
                places[secret] = data.find(secret, start) if places[secret] >= 0 else -1
                if places[secret] < 0:
                    del places[secret]
            if end < start:
                end = self._unfinished(data, start)
            found = min(((place, -len(one)) for one, place in places.items()), default=(end, 0))
            if found[0] >= end:
                break
            done += [data[start : found[0]], b"***"]
            start = found[0] - found[1]
        done.append(data[start:end])
        self._held = data[end:]
        return b"".join(done)

    def _unfinished(self, data: bytes, start: int) -> int:
        """Find the first place from which on the rest may be the beginning of a value."""
        first = len(data)
        for secret in self._secrets:
            place = data.find(secret[:1], max(start, len(data) - len(secret) + 1), first)
            while place >= 0 and not secret.startswith(data[place:]):
                place = data.find(secret[:1], place + 1, first)
            first = place if place >= 0 else first
        return first


def drop_secrets(path: str, values: Sequence[str]) -> None:
    """Remove the variables that hold the value of a secret from those that a task leaves."""
    if not values or not os.path.isfile(path):
        return
    with open(path, "rb") as file:
        entries = file.read().split(b"\0")
    redactor = Redactor(values)
    kept = [entry for entry in entries if redactor.feed(entry, is_last=True) == entry]
    if kept != entries:
        write_file(path, b"\0".join(kept).decode(errors="surrogateescape"))


class ProcessLog:
    """The output of one process, never more than so many bytes of it."""

    def __init__(self, folder: str, limit: int, name: str = "output.log") -> None:
        # How many bytes are in none of the files.
        self.lost = 0
        self._path = f"{folder}/{name}"
        limit = max(limit, 10 * NOTICE_BYTES)
        # A fifth for the beginning; the rest is for two files, of which one is written.
        self._head = limit // 5
        self._part = (limit - self._head - 3 * NOTICE_BYTES) // 2
        self._file = -1
        self._size = 0
        # How many bytes are left out between the beginning and what follows; and how many could
        # not be written since the last one that could.
        self._cut = self._gap = 0

    def write(self, data: bytes) -> None:
        """Append it; what does not fit on the disk is counted and left out."""
        while data:
            try:
                self._have_file()
                if self._size >= self._part:
                    self._rotate()
                    self._reopen()
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
        try_to(self._have_file)

    def close(self) -> None:
        self.check()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _append(self, data: bytes) -> int:
        written = os.write(self._file, data)
        self._size += written
        return written

    def _have_file(self) -> None:
        if self._file < 0 or self._is_gone():
            self._reopen()

    def _is_gone(self) -> bool:
        """Return whether the file was removed; what stood in it is lost then."""
        is_gone = os.fstat(self._file).st_nlink == 0
        self.lost += self._size if is_gone else 0
        return is_gone

    def _reopen(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file, self._size = -1, 0
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        self._file = open_log(self._path)

    def _rotate(self) -> None:
        """Put the full file aside; of the one that was there before, only the beginning stays."""
        older, first = f"{self._path}.1", f"{self._path}.first"
        try:
            dropped = os.path.getsize(older)
            if not self._cut:
                os.truncate(older, self._head)
                rename(older, first)
                dropped -= self._head
            self._cut += dropped
            self.lost += dropped
            os.truncate(first, self._head)
            with open(first, "ab") as file:
                file.write(f"\n[rankwise: {self._cut} bytes are left out here]\n".encode())
        except OSError:
            pass  # There is none yet, or it was removed.
        rename(self._path, older)


class CaseLog(ProcessLog):
    """The lines by which a program says which of its cases begins, each after the time."""

    def __init__(self, folder: str, limit: int, begin: str) -> None:
        super().__init__(folder, limit, "cases.log")
        self._begin = begin.encode(errors="surrogateescape")
        self._rest = b""

    def write(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        # A line that does not end is not kept whole: a case has a name, not a text.
        self._rest = rest[:CHUNK_BYTES]
        for line in lines:
            if self._begin in line:
                super().write(f"{time.time():f} ".encode() + line + b"\n")

    def close(self) -> None:
        self.write(b"\n")
        super().close()


def open_log(path: str) -> int:
    """Open a log to append to it; a named pipe that is there is put aside.

    A process may have left one: writing to it would wait for ever for a reader.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
    try:
        if stat.S_ISFIFO(os.stat(path).st_mode):
            rename(path, f"{path}.odd")
    except FileNotFoundError:
        pass
    return os.open(path, flags, 0o666)


class OutputStream:
    """What a process writes, on its way into its log, or into several."""

    def __init__(self, source: int, redactor: Redactor, logs: Sequence[ProcessLog]) -> None:
        self.source = source
        self._logs = logs
        self._redactor = redactor
        # What the process has started may hold the other end open, and write nothing.
        os.set_blocking(source, False)

    def pump(self) -> bool:
        """Take what is there, and return whether more may come at once."""
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
        """Take what the pipe can hold, and no more: a process may write without end."""
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
