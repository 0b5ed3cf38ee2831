"""Start a command on another node by something like ssh: a shell there reads its words.

    carry COUNT REACH… COMMAND…    here: the first COUNT words reach the node
    carried COMMAND…               there

The command is quoted, and our environment is the first line of its input. It may have values of
secrets: among the words, all users would see them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading

from .files import CHUNK_BYTES, own_command, parse, shell_quote, to_json
from .processes import OUR_FAULT


def carry(count: str, *words: str) -> int:
    """Have a command run on another node, with our input after our environment."""
    reach, command = words[: int(count)], words[int(count) :]
    line = " ".join(map(shell_quote, [*own_command(), "carried", *command]))
    given, end = os.pipe()
    there = subprocess.Popen([*reach, line], stdin=given)
    os.close(given)
    # It may end before our input does.
    threading.Thread(target=_pass_on, args=(end,), daemon=True).start()
    code = there.wait()
    return code if code >= 0 else 128 - code


def _pass_on(end: int) -> None:
    data = f"{to_json(dict(os.environ))}\n".encode()
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(end, data) :] or os.read(0, CHUNK_BYTES)
    os.close(end)


def carried(*command: str) -> int:
    """Become a command that another node has sent."""
    data = b""
    while not data.endswith(b"\n"):
        # No more than the line: what follows is for the command.
        if not (one := os.read(0, 1)):
            return OUR_FAULT
        data += one
    os.environ.update(parse(data.decode()))
    return os.execvp(command[0], command)
