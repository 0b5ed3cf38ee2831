"""What is started by path, as `python -I -S …/node/__main__.py VERB …`, and the verbs.

run FOLDER                         all processes of FOLDER/order.json
starter                            runners, each by a copy of this process
rank COMMAND…                      one rank, called by its launcher
node FOLDER [OPTIONS] HOST LINE…   a line on another node, like ssh
there FOLDER HOST LINE…            the same, called on that node
remote FOLDER NAME COMMAND…        a process of the order, on the node that it belongs to
inside FOLDER NAME COMMAND…        a process of the order, in its container
await MARKER SECONDS PID…          until processes of an attempt are gone on this node
carry COUNT REACH… COMMAND…        a command on another node, by something like ssh
batch, pilot, keeper               in an allocation of a batch system: `batch.py`
agent, hello                       on a host with a login: `agent.py`
pod, call                          in pods: `pod.py`, `pod_worker.py`
"""

from __future__ import annotations

import errno
import os
import select
import sys

from .files import CHUNK_BYTES, parse, redirect, say, try_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

# What does the work of a verb: module, function, and the least number of arguments. It is looked
# up by name because a rank must not load what only an agent or a pod needs.
VERBS = {
    "run": ("runner", "run_order", 1),
    "starter": ("start", "run_starter", 0),
    "rank": ("rank", "run_rank", 1),
    "node": ("rank", "run_on_node", 1),
    "there": ("rank", "run_there", 1),
    "remote": ("rank", "run_remote", 3),
    "inside": ("rank", "run_inside", 3),
    "await": ("processes", "await_end", 2),
    "carry": ("carry", "carry", 2),
    "carried": ("carry", "carried", 1),
    "batch": ("batch", "main", 1),
    "pilot": ("batch", "run_pilot", 2),
    "keeper": ("batch", "keep", 0),
    "agent": ("agent", "main", 2),
    "hello": ("agent", "say_hello", 0),
    "pod": ("pod", "main", 1),
    "call": ("pod_worker", "run_in_other_pod", 3),
}


def run_starter(*, is_kept: bool = False) -> int:
    """Start a runner for each line of the standard input, as a copy of this process.

    A copy is there in a tenth of the time that a new Python takes. A line is JSON: {"start":
    FOLDER, "secrets": {…}}, or {"end": FOLDER}. The answer to a start is `started PID`; where there
    can be no copy, PID is the error's number, with a minus. When the input ends, this process ends
    and the runners go on. With `is_kept`, they are ended then, or by SIGTERM; for each runner that
    has ended, the answer is `ended FOLDER`.
    """
    __import__(f"{__package__}.runner")  # once, for all copies
    from .processes import empty, reaped, signal, wake_up_by_signals

    poll, rest = select.poll(), b""
    awake = wake_up_by_signals()
    asked: list[int] = []
    if is_kept:
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    for source in (0, awake):
        poll.register(source, select.POLLIN)
    running: dict[int, str] = {}
    is_open = True
    while is_open or (is_kept and running):
        for source, _ in poll.poll():
            if source == awake:
                empty(awake)
                continue
            data = os.read(0, CHUNK_BYTES)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                obey(parse(line.decode()), running, is_kept=is_kept)
            if not data:
                poll.unregister(0)
                is_open = False
                end_copies(running if is_kept else ())
        if asked:
            asked.clear()
            is_open = False
            end_copies(running)
        # How a runner ended is in its records. What it used counts as ours once it is reaped.
        for process, *_ in reaped():
            folder = running.pop(process, None)
            if is_kept and folder is not None:
                os.write(1, f"ended {folder}\n".encode())
    return 0


def obey(about: Mapping[str, Any], running: dict[int, str], *, is_kept: bool) -> None:
    """Start a runner, or end one."""
    if "end" in about:
        end_copies([pid for pid, folder in running.items() if folder == about["end"]])
        return
    process = start_copy(about)
    if process > 0:
        running[process] = about["start"]
    elif is_kept:
        raise OSError(-process, os.strerror(-process))
    os.write(1, f"started {process}\n".encode())


def start_copy(about: Mapping[str, Any]) -> int:
    """Return the process number of a runner, which this process becomes in its copy."""
    from .processes import OUR_FAULT, signal

    # A signal for the copy must not be taken for ours before it has handlers of its own.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        process = os.fork()
        if process == 0:
            code = OUR_FAULT
            try:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGTERM, signal.SIGCHLD):
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
                code = start_runner(about)
            finally:
                os._exit(code)
    except OSError as error:
        return -(error.errno or errno.EAGAIN)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    return process


def end_copies(processes: Iterable[int]) -> None:
    """Have runners end what they have started."""
    from .processes import signal

    for process in processes:
        # Not its group: a process that it is just starting would count as killed by others.
        try_to(os.kill, process, signal.SIGTERM)


def start_runner(about: Mapping[str, Any]) -> int:
    """Be the runner of one attempt, in a session of its own, with its own input and log."""
    from .processes import OUR_FAULT
    from .runner import run_order

    folder, secrets = about["start"], about.get("secrets")
    try:
        os.setsid()
        redirect(folder, os.open(os.devnull, os.O_RDONLY))
        if secrets is None:
            from .batch import held_secrets

            secrets = held_secrets(folder)
    except (OSError, ValueError) as error:
        say(f"cannot begin in {folder}: {error}")
        return OUR_FAULT
    return run_order(folder, secrets)


def main(arguments: Sequence[str]) -> int:
    """Do what a verb says, and return the exit code."""
    verb, *rest = arguments or [""]
    module, function, least = VERBS.get(verb, ("", "", 0))
    if not module or len(rest) < least:
        say(
            "usage: run FOLDER | starter | rank COMMAND… "
            "| node FOLDER [OPTIONS] HOST COMMAND… | remote FOLDER NAME COMMAND…"
        )
        return 2
    name = f"{__package__}.{module}"
    __import__(name)
    code: int = getattr(sys.modules[name], function)(*rest)
    return code
