"""How processes, ranks and an attempt have ended, who was the first to fail, and in which words."""

from __future__ import annotations

import os
import time

from .files import Records, end_of_log, listed, own_command, read_record, say, to_json, write_file
from .processes import STILL_THERE, ending, exit_code_of, has_marker, signal, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .order import Order

LOST, CANCELLED = 1, 130
END_FIELDS = ("exit_code", "signal", "ended")
# How long the records of another node may take to be seen here.
RECORD_SECONDS = 5.0
# When another node is asked about a rank without a record, how often if it cannot be, how long it
# waits there for the rank's end, and how long we wait for the answer.
ASK_AFTER_SECONDS, QUESTIONS, AWAIT_SECONDS, ANSWER_SECONDS = 1.0, 3, 20.0, 60.0
# Within which time it is not certain which of two processes ended first.
AT_ONCE_SECONDS = 0.25
# What Open MPI 5 says, and with which code its ranks leave, when one that they talk to is gone:
# they notice it before the end of that one is noticed here.
HUNG_UP, HUNG_UP_CODE = b"*** An error occurred in Socket closed", 14
# What Open MPI 4 says instead of what it has to say about an abort, every other time.
LOST_WORDS = b"orte/util/show_help.c at line "


def failed(record: Mapping[str, Any]) -> bool:
    """Return whether a process failed, and not because the runner has ended it."""
    is_well = record["exit_code"] == 0 and record["signal"] is None and not record.get("is_lost")
    return not record["by_us"] and not is_well


def is_own(record: Mapping[str, Any]) -> bool:
    """Return whether a rank ended by itself: its launcher, or another, may have ended it."""
    return not record.get("told") and not record.get("is_gone")


def in_words(who: str, record: Mapping[str, Any]) -> str:
    """Return a sentence on how a process ended."""
    code, number = record["exit_code"], record["signal"]
    if record.get("said"):
        return f"{who} {record['said']}"
    if record.get("is_lost"):
        return f"{who} is gone, and the node that it was on gave no account of it"
    if record.get("is_gone"):
        return f"{who} was killed together with the process that watches it, not by rankwise"
    if number is not None:
        by_whom = ", not by rankwise" if record.get("told") else ""
        return f"{who} was ended by signal {number}{signal_name(number)}{by_whom}"
    text = f"{who} exited with code {code}"
    if record.get("reason"):
        return f"{text}: {record['reason']}"
    if code is not None and code > 128 and (name := signal_name(code - 128)):
        return f"{text}: so do shells whose command was ended by signal {code - 128}{name}"
    return text


def spoken(name: str) -> str:
    """Return the name of a rank as people say it: `rank 2`; other names stay as they are."""
    return name.replace("-", " ", 1) if name.startswith("rank-") else name


def outcome(name: str, code: int, reason: str) -> dict[str, Any]:
    return {"outcome": name, "exit_code": code, "signal": None, "culprit": None, "reason": reason}


def write_end(folder: str, name: str, code: int, reason: str) -> None:
    """Write the end of an attempt of which no runner can say how it ended, or that never began."""
    now = time.time()
    end = {**outcome(name, code, reason), "started": now, "ended": now}
    write_file(f"{folder}/end.json", to_json(end))


def blame(record: Mapping[str, Any], *, is_wrapped: bool) -> dict[str, Any]:
    """Return the outcome, from the record of the process that failed first."""
    name, number = record["who"], record["signal"]
    who = name.replace("-", " ", 1) if is_wrapped else name
    if record.get("is_lost"):
        return {**outcome("lost", LOST, in_words(who, record)), "culprit": name}
    return {
        "outcome": "failed" if number is None else "crashed",
        "exit_code": record["exit_code"] if number is None else 128 + number,
        "signal": number,
        "culprit": name,
        "reason": in_words(who, record),
    }


def doubts(first: Mapping[str, Any], near: Sequence[Mapping[str, Any]]) -> str:
    """Return words for it if it is not certain who was first: ends are noticed, not measured."""
    way = (first["exit_code"], first["signal"])
    latest = first["ended"] + AT_ONCE_SECONDS
    others = [
        one for one in near if (one["exit_code"], one["signal"]) != way and one["ended"] <= latest
    ]
    if not others:
        return ""
    other = min(others, key=lambda one: float(one["ended"]))
    text = in_words(spoken(other["who"]), other)
    more = f", and {len(others) - 1} more failed" if len(others) > 1 else ""
    return f"; {text}{more} at almost the same time, and may have been first"


def aborting_rank(log: str) -> tuple[int, int] | None:
    """Return the rank that has called MPI_Abort, and its code, as MPI says it in the output."""
    text = end_of_log(log)
    # MPICH and Intel MPI: application called MPI_Abort(MPI_COMM_WORLD, 3) - process 2
    code, _, rest = text.partition(b"application called MPI_Abort(")[2].partition(b") - process ")
    code = code.rpartition(b",")[2]
    if not rest:
        # Open MPI: MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD
        #           with errorcode 3.    or    Errorcode: 3
        rest = text.partition(b"\nMPI_ABORT was invoked on rank ")[2]
        code = rest.lower().partition(b"errorcode")[2].lstrip(b": ")
    number, code = ([*text.split(maxsplit=1), b""][0] for text in (rest, code))
    code = code.rstrip(b".")
    is_negative = code.startswith(b"-")
    if not number.isdigit() or not code[is_negative:].isdigit():
        return None
    return int(number), int(code)


class RankRecords:
    """What is in the records of the ranks that launchers have started."""

    def __init__(self, folder: str, processes: Sequence[str]) -> None:
        self._folder = folder
        # Names of the order's own processes, which have their records beside those of ranks.
        self.processes = processes
        self._ended: dict[str, dict[str, Any]] = {}
        # Whether the runner itself ends what still runs.
        self.is_ordered = False

    def look(self) -> None:
        """Read what is new."""
        for name in self.names():
            if name in self._ended:
                continue
            # If there is none, it is not written yet, or it has another form: users may write here.
            if record := read_record(f"{self._folder}/{name}/end.json", *END_FIELDS, "by_us"):
                by_us = self.is_ordered and bool(record.get("told"))
                self._ended[name] = {**record, "by_us": by_us, "who": name}

    def names(self) -> list[str]:
        found = [name for name in listed(self._folder) if name.startswith("rank-")]
        return [name for name in found if name not in self.processes]

    def missing(self) -> dict[str, dict[str, Any]]:
        """Return the starts of the ranks that have left no record of their end."""
        found = {}
        for name in self.names():
            if name not in self._ended and not os.path.exists(f"{self._folder}/{name}/end.json"):
                path = f"{self._folder}/{name}/start.json"
                if start := read_record(path, "started", "node", "watched_by"):
                    found[name] = start  # Others are not ours.
        return found

    def note_gone(self, name: str, started: float, *, is_lost: bool = False) -> None:
        """Note that a rank was killed, and the process that watches it too, without our order.

        With `is_lost`, that is not known: only that no record came.
        """
        end = ending(None, None if is_lost else int(signal.SIGKILL))
        about = {"started": started, "log_lost": 0, "by_us": False, "who": name}
        self._ended[name] = {**end, **about, "is_gone": True, "is_lost": is_lost}

    def failures(self, *, is_over: bool = False) -> list[dict[str, Any]]:
        """Return the ranks that failed and were not started again, nor will be."""
        found = [one for one in self.all_failures() if not self._was_restarted(one)]
        if not is_over:
            return [one for one in found if not one.get("may_restart")]
        if not any(one.get("may_restart") for one in found):
            return found
        # One that was to come back may have done so under another number, among fewer.
        latest = max(self._started(name) or 0.0 for name in self.names())
        return [one for one in found if not (one.get("may_restart") and latest >= one["ended"])]

    def all_failures(self) -> list[dict[str, Any]]:
        """Return also the failures of ranks that were started again."""
        return [record for record in self._ended.values() if failed(record)]

    def record(self, name: str) -> dict[str, Any] | None:
        return self._ended.get(name)

    def with_last_words(self, text: bytes) -> list[str]:
        """Name the processes and ranks whose logs end with that text in it."""
        names = [*self.processes, *self.names()]
        return [one for one in names if text in end_of_log(f"{self._folder}/{one}/output.log")]

    def aborted(self) -> list[dict[str, Any]]:
        """Return the rank that called MPI_Abort, which may be killed before it ends by itself.

        It may even end with 0: the system keeps eight bits of the code that it gives.
        """
        names = self.names()
        for who in (*self.processes, *names) if names else ():
            found = aborting_rank(f"{self._folder}/{who}/output.log")
            if found is None or f"rank-{found[0]}" not in names:
                continue
            number, code = found
            own = self.record(f"rank-{number}")
            record = {"who": f"rank-{number}", "exit_code": code & 0xFF or 1, "signal": None}
            said = {} if code & 0xFF else {"said": f"called MPI_Abort({code})"}
            is_seen = own is not None and not own.get("is_gone")
            ended = own["ended"] if own and is_seen else time.time()
            why = {"reason": "it called MPI_Abort", **said}
            return [{**record, **why, "ended": ended, "is_seen": is_seen}]
        return []

    def complete(self, records: Records, attempt: Mapping[str, Any]) -> None:
        """Write what ranks could not write: whose order it was, and that they were killed."""
        for name in self.names():
            path, known = f"{self._folder}/{name}/end.json", self._ended.get(name)
            if known is None:
                if os.path.exists(path):
                    continue  # Not ours.
                end = {**ending(None, int(signal.SIGKILL)), "started": self._started(name)}
                known = {**end, "by_us": True, "log_lost": 0}
            elif not known["by_us"] and (not known.get("is_gone") or os.path.exists(path)):
                continue  # Its own record says all.
            if attempt["culprit"] == name:
                known |= {"by_us": False, "reason": attempt["reason"]}
                if attempt["signal"] is None:
                    known |= {"exit_code": attempt["exit_code"], "signal": None}
            records.put(path, {key: value for key, value in known.items() if key != "who"})

    def _was_restarted(self, record: Mapping[str, Any]) -> bool:
        name, _, times = record["who"].partition(".")
        started = self._started(f"{name}.{int(times or 1) + 1}")
        since = record["started" if record.get("is_gone") else "ended"]
        return started is not None and started >= since

    def _started(self, name: str) -> float | None:
        start = read_record(f"{self._folder}/{name}/start.json", "started")
        return float(start["started"]) if start else None


def judge(
    ranks: RankRecords, failures: Sequence[dict[str, Any]], *, is_spoken_for: bool
) -> dict[str, Any]:
    """Return the outcome of an attempt, with the process that is to blame for a failure.

    `is_spoken_for`: one of its processes reports for the ranks; what they say does not count then.
    """
    aborted = [] if is_spoken_for and not failures else ranks.aborted()
    if failures or aborted:
        return _blame_first(ranks, failures, aborted)
    is_doubtful = not is_spoken_for and ranks.names()
    if is_doubtful and (names := ranks.with_last_words(LOST_WORDS)):
        reason = f"{names[0]} lost what Open MPI says when a rank has called MPI_Abort"
        return {**outcome("failed", 1, reason), "culprit": names[0]}
    return outcome("passed", 0, "")


def _blame_first(
    records: RankRecords, failures: Sequence[dict[str, Any]], aborted: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Name what failed first: launchers fail because of their ranks, whatever they say."""
    launchers = [one for one in failures if one["who"] in records.processes]
    ranks = [one for one in failures if one not in launchers] or records.all_failures()
    own = [one for one in ranks if is_own(one)]
    if records.with_last_words(HUNG_UP):
        own = [one for one in own if one["exit_code"] != HUNG_UP_CODE] or own
    near = own or [*aborted] or launchers or ranks
    first = min(near, key=lambda one: one["ended"])
    for one in aborted:
        # What MPI says about an abort tells causes from consequences; a clock may not.
        if one["is_seen"] and one["ended"] <= first["ended"] + AT_ONCE_SECONDS:
            first, near = one, [one]
    is_launcher = first["who"] in records.processes
    end = blame(first, is_wrapped=not is_launcher)
    if is_launcher and ranks:
        ended = min(ranks, key=lambda one: one["ended"])
        end["reason"] += f"; {in_words(spoken(ended['who']), ended)}"
    else:
        end["reason"] += doubts(first, near)
    return end


class MissingRanks:
    """Finds out what became of ranks that have left no record of their end."""

    def __init__(self, ranks: RankRecords, order: Order, has_failed: Callable[[], bool]) -> None:
        self._ranks = ranks
        self._nodes = order.nodes
        self._marker = order.marker
        self._is_contained = order.is_contained
        self._has_failed = has_failed
        # Nodes that say that something watches their ranks still, although the launcher left.
        self._busy: set[int] = set()
        # Nodes that did not say what became of their ranks.
        self._silent: set[int] = set()

    def wait(self) -> None:
        """Wait for the ends of ranks, if they alone may show a failure.

        A launcher may leave before the ranks that it has killed are dead: mpiexec of MPICH does so
        after an MPI_Abort, and its own exit code may then be 0. From another node, a record takes
        as long as the network and a busy machine take. So a node is asked whether its ranks are
        gone, and what it has written is here before its answer, or soon after.
        """
        if not self._all_are_recorded(ASK_AFTER_SECONDS):
            self._ask_nodes()
            self._all_are_recorded(RECORD_SECONDS)

    def note(self, *, is_over: bool) -> None:
        """Find the ranks that are dead without a record: nothing has ended them on our order.

        Of another node, it is not known here what is alive, unless it was asked at the end; of a
        container, that nothing is once it has ended.
        """
        self._ranks.look()
        for name, start in self._ranks.missing().items():
            number = start["node"]
            if self._nodes[number].reach or self._is_contained:
                # If something else has failed, that says enough: its record may still come.
                is_gone = is_over and number not in self._busy and not self._has_failed()
            else:
                is_gone = not has_marker(start["watched_by"], self._marker)
            # It writes its record as its last act, maybe since we have looked.
            self._ranks.look()
            if is_gone and self._ranks.record(name) is None:
                is_lost = number in self._silent
                self._ranks.note_gone(name, start["started"], is_lost=is_lost)

    def _all_are_recorded(self, seconds: float) -> bool:
        """Look for the records that matter, for that time; False: one is missing still."""
        deadline = time.monotonic() + seconds
        while True:
            self._ranks.look()
            if self._has_failed() or not (self._elsewhere() or self._is_one_alive_here()):
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)

    def _is_one_alive_here(self) -> bool:
        """Return whether a rank on this machine is alive, and so has no record yet."""
        return any(
            has_marker(start["watched_by"], self._marker)
            for start in self._ranks.missing().values()
            # In a container, processes have numbers of their own.
            if not (self._nodes[start["node"]].reach or self._is_contained)
        )

    def _elsewhere(self) -> dict[int, list[str]]:
        """Return what watches the ranks without a record, by the number of their node."""
        found: dict[int, list[str]] = {}
        for start in self._ranks.missing().values():
            number = start["node"]
            if self._nodes[number].reach and number not in self._busy:
                found.setdefault(number, []).append(str(start["watched_by"]))
        return found

    def _ask_nodes(self) -> None:
        """Ask other nodes to wait until what watches their ranks is gone.

        A question that fails says nothing about the ranks: it is asked again.
        """
        watchers = self._elsewhere()
        self._silent = set(watchers)
        deadline = time.monotonic() + ANSWER_SECONDS
        for _ in range(QUESTIONS):
            asked = {self._ask(number, watchers[number]): number for number in self._silent}
            asked.pop(0, None)
            while asked and time.monotonic() < deadline:
                for pid in list(asked):
                    done, status = os.waitpid(pid, os.WNOHANG)
                    if done:
                        self._note_answer(asked.pop(pid), exit_code_of(status))
                time.sleep(0.05)
            if not self._silent or time.monotonic() >= deadline:
                break
            time.sleep(1)
        for number in self._silent:  # The sweep that follows ends what still asks.
            say(f"{self._nodes[number].name} does not answer")

    def _ask(self, number: int, pids: Sequence[str]) -> int:
        """Start a question; 0: it cannot be started."""
        command = [*(self._nodes[number].reach or ()), *own_command(), "await"]
        words = [*command, self._marker, str(AWAIT_SECONDS), *pids]
        null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        environment = {**os.environ, "RANKWISE_ATTEMPT": self._marker}
        try:
            return os.posix_spawnp(words[0], words, environment, file_actions=[null], setsid=True)
        except OSError as error:
            say(f"cannot ask {self._nodes[number].name}: {error}")
            return 0

    def _note_answer(self, number: int, code: int) -> None:
        if code in (0, STILL_THERE):
            self._silent.discard(number)
        if code == STILL_THERE:
            self._busy.add(number)
