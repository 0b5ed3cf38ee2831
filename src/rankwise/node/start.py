"""What is started by path, as `python -I -S …/node/__main__.py VERB …`, and the verbs.

run FOLDER                         all processes of FOLDER/order.json
starter                            runners, each by a copy of this process
rank COMMAND…                      one rank, called by its launcher
node FOLDER [OPTIONS] HOST LINE…   a line on another node, like ssh
remote FOLDER NAME COMMAND…        a process of the order, over there
await MARKER SECONDS PID…          until processes of an attempt are gone over there
    batch, pilot, keeper               in an allocation of a batch system: `batch.py`, `pilot.py`
    agent, hello                       on a host with a login: `agent.py`
    pod, call                          in pods: `pod.py`, `pod_worker.py`
"""

from __future__ import annotations

import errno
import os
import select

from .files import CHUNK_BYTES, parse, redirect, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any


def run_starter(*, is_kept: bool = False) -> int:
    """Start a runner for each line of the standard input, as a copy of this process.

    A copy is there in a tenth of the time that a new Python takes. A line is JSON: {"start":
    FOLDER, "secrets": {…}}, or {"end": FOLDER}. The answer to a start is `started PID`; where there
    can be no copy, PID is the error's number, with a minus. Runners go on when the input ends and
    this process with it; unless they are kept: then they are ended, and it is said of each that it
    has: `ended FOLDER`.
    """
    __import__(f"{__package__}.runner")  # once, for all copies
    from .processes import empty, signal, wake_up_by_signals

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
        for process in ended_copies():
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
        try:
            os.kill(process, signal.SIGTERM)
        except OSError:
            pass  # It has just ended.


def ended_copies() -> list[int]:
    """Let those go that have ended: how is in their records, and what they used is ours then."""
    found: list[int] = []
    while True:
        try:
            process, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if not process:
            return found
        found.append(process)


def start_runner(about: Mapping[str, Any]) -> int:
    """Be the runner of one attempt, with nothing in common with who has started it."""
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


def main(arguments: Sequence[str]) -> int:  # noqa: PLR0912 - one branch a verb
    """Do what a verb says; what it needs is loaded then."""
    match arguments:
        case ["rank", *command] if command:
            from .rank import run_rank

            return run_rank(command)
        case ["starter"]:
            return run_starter()
        case ["run", folder]:
            from .runner import run_order

            return run_order(os.path.abspath(folder))
        case ["node" | "there" as verb, folder, *rest]:
            from .rank import run_on_node

            return run_on_node(folder, rest, is_there=verb == "there")
        case ["remote", folder, name, *command] if command:
            from .rank import run_remote

            return run_remote(folder, name, command)
        case ["await", marker, seconds, *pids]:
            from .processes import await_end

            return await_end(marker, float(seconds), map(int, pids))
        case ["agent", _, _]:
            from .agent import main as answer

            return answer(arguments[1:])
        case ["hello"]:
            from .agent import say_hello

            return say_hello()
        case ["batch", place]:
            from .batch import main as begin

            return begin(place)
        case ["pilot", idle, folder]:
            from .pilot import main as carry_out

            return carry_out(idle, folder)
        case ["keeper"]:
            from .pilot import keep

            return keep()
        case ["pod", "head" | "other" as part]:
            from .pod import main as be_pod

            return be_pod(part)
        case ["call", _, _, _, *_]:
            from .pod_worker import run_there

            return run_there(arguments[1:])
    say(
        "usage: run FOLDER | starter | rank COMMAND… "
        "| node FOLDER [OPTIONS] HOST COMMAND… | remote FOLDER NAME COMMAND…"
    )
    return 2
