"""Grid Engine (SGE, Son of Grid Engine and their kin): its commands, and what they answer."""

from __future__ import annotations

import contextlib
import math
import os
import pwd
import re
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from rankwise.backends.batch.system import (
    BatchJob,
    BatchNode,
    Cause,
    CommandSystem,
    Ending,
    JobState,
    Needs,
    Phase,
    exported,
    standalone,
    wall_time,
)
from rankwise.documents.site_models import GridEngineConfig
from rankwise.errors import ComputeFailure
from rankwise.node.dialect import Dialect

_DATA = tomllib.loads(Path(__file__).with_name("gridengine.toml").read_text(encoding="utf-8"))
_IN_ERROR = "it is in an error state: `qstat -j` says why, and `qmod -cj` lets it go on"
# What no name of a job may have.
_NO_NAME = re.compile(r"[\s/:@\\*?]+|^(?=\d)")
# qmaster writes the accounting in intervals of 15 s, where nothing else is configured.
_ACCOUNT_SECONDS = 25.0
_MIB = {"": 2**-20, "K": 2**-10, "M": 1, "G": 2**10, "T": 2**20}


def read_xml(text: str) -> ElementTree.Element:
    """Return what a command with -xml has printed; ComputeFailure: that is no XML."""
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ComputeFailure(f"Grid Engine's answer cannot be read: {error}") from error


def phase_of(letters: str) -> Phase:
    """Return what Grid Engine's letters mean: `qw`, `r`, `Eqw`, `dr`."""
    phases = _DATA["phases"].items()
    # Suspended: whatever comes of it, its script has begun.
    return Phase(next((phase for letter, phase in phases if letter in letters), "running"))


def read_queue(text: str) -> dict[str, JobState]:
    """Return the jobs in the output of `qstat -xml -g d`; members of arrays as `NUMBER.TASK`."""
    found = {}
    for each in read_xml(text).iter("job_list"):
        number, task = each.findtext("JB_job_number", ""), each.findtext("tasks", "")
        word = each.findtext("state", "")
        found[f"{number}.{task}" if task else number] = JobState(
            phase=phase_of(word),
            word=word,
            reason=_IN_ERROR if "E" in word else "",
            nodes=each.findtext("queue_name", "").partition("@")[2],
            name=each.findtext("JB_name", ""),
        )
    return found


def read_account(text: str) -> JobState | None:
    """Return how a job ended, in the output of `qacct -j`; None: it is not in there."""
    # The last of several: it was started anew.
    lines = [line.split(None, 1) for line in text.rpartition("=====\n")[2].splitlines()]
    said = {words[0]: words[1].strip() for words in lines if len(words) == 2}
    if "exit_status" not in said:
        return None
    number, _, why = said.get("failed", "0").partition(":")
    code, number = said["exit_status"].split()[0], number.strip()
    cause = Cause(_DATA["exits"].get(code, "failed"))
    cause = Cause(_DATA["failed"].get(number, cause if number == "0" else "failed"))
    if cause is Cause.TIME_LIMIT and _is_memory_limit(said):
        cause = Cause.OUT_OF_MEMORY
    return JobState(
        phase=Phase.OVER,
        cause=cause,
        word=f"failed {number}" if number != "0" else f"exit status {code}",
        reason=why.strip(),
        nodes=said.get("hostname", ""),
        name=said.get("jobname", ""),
        exit_code=code,
    )


def _is_memory_limit(said: Mapping[str, str]) -> bool:
    """Return which limit it was: Grid Engine has one number for those of time and of memory."""
    asked = said.get("category", "")
    limit = re.search(r"\bh_rt=(\d+)", asked)
    # Not every Grid Engine writes times in this form: then it may have been either.
    with contextlib.suppress(KeyError, ValueError):
        begun, ended = (time.mktime(time.strptime(said[f"{one}_time"])) for one in ("start", "end"))
        limit = limit if limit and ended - begun >= int(limit[1]) else None
    return "h_vmem=" in asked and limit is None


def read_nodes(text: str, queue: str = "", gpu: str = "") -> list[BatchNode]:
    """Return the hosts with slots of a queue, or of any, in the output of `qhost -xml -q -F`."""
    found = []
    for host in read_xml(text).iter("host"):
        said = {each.get("name"): each.text or "" for each in host.iter("hostvalue")}
        queues = [
            {value.get("name"): value.text or "" for value in each.iter("queuevalue")}
            for each in host.iter("queue")
            if queue in ("", each.get("name"))
        ]
        # Unknown, in error, or disabled: no job starts there.
        up = [each for each in queues if not set(each.get("state_string", "")) & set("uEd")]
        cores = max((int(each.get("slots", 0)) for each in up), default=0)
        counts = [each.text for each in host.iter("resourcevalue") if each.get("name") == gpu]
        if cores:
            memory = re.match(r"([\d.]+)([KMGT]?)", said.get("mem_total", ""))
            size = float(memory[1]) * _MIB[memory[2]] if memory else 0
            gpus = int(float(counts[0] or 0)) if counts else 0
            found.append(
                BatchNode(name=host.get("name", ""), cores=cores, memory=int(size), gpus=gpus)
            )
    return found


class GridEngine(CommandSystem):
    """Grid Engine by its own commands."""

    Settings = GridEngineConfig
    messages = _DATA["messages"]
    title = "Grid Engine"
    dialect = Dialect(**_DATA["dialect"])
    # Where nothing else is configured, max_aj_tasks is 75000.
    most_in_array = 1000

    def __init__(self, settings: GridEngineConfig) -> None:
        super().__init__(settings)
        self._last: dict[str, JobState] = {}
        """How jobs stood when they were last seen."""
        self._deleted: set[str] = set()
        self._gone: dict[str, float] = {}
        """Since when jobs are looked for in the accounting."""

    def options(self, needs: Needs) -> list[str]:
        """Return qsub's options that say where a job runs and on what; the site's come last."""
        settings, cores = self._settings, needs.cores
        if needs.nodes > 1 and not settings.pe_nodes:
            raise ComputeFailure(
                "a task on several nodes needs pe_nodes in its [compute] table: a parallel "
                "environment that gives so many slots on each host"
            )
        if needs.is_alone:
            cores = max(cores, *(node.cores for node in self.nodes()))
        pe = settings.pe_nodes.format(cores=cores) if needs.nodes > 1 else settings.pe
        time_limit = settings.time or wall_time(needs.minutes)
        asked = {"h_rt": time_limit, settings.gpu: str(needs.gpus or "")}
        if needs.memory and settings.memory:
            asked[settings.memory] = f"{math.ceil(needs.memory / cores)}M"
        resources = ",".join(f"{name}={value}" for name, value in asked.items() if value)
        options = ["-pe", pe, str(cores * needs.nodes), *(["-l", resources] if resources else [])]
        options += ["-q", settings.queue] if settings.queue else []
        return [*options, *settings.options]

    def submit(self, job: BatchJob) -> str:
        """Submit a script and return the job's number."""
        # Its words with SIGTERM are SIGUSR2, some seconds before SIGKILL. A job that is started
        # again is not told how often.
        options = ["-N", _NO_NAME.sub("_", job.name), "-S", "/bin/bash", "-notify", "-r", "n"]
        # Lines of the script that begin with `#$` are no options.
        options += ["-V", "-C", "", "-o", "/dev/null", "-j", "y"]
        options += ["-t", f"1-{job.count}"] if job.count > 1 else []
        script = standalone(job, "$((SGE_TASK_ID - 1))")
        command = ["qsub", "-terse", *options, *job.options]
        said = self.call(command, given=script, environment=exported(job)).strip()
        # `12.1-3:1` is an array.
        number = said.splitlines()[-1].partition(".")[0] if said else ""
        if not number.isdecimal():
            raise ComputeFailure(f"qsub gave no job number: {said!r}")
        return number

    def member(self, job_id: str, index: int) -> str:
        """Return the id of a member of an array, as Grid Engine has it: its tasks begin with 1."""
        return f"{job_id}.{index + 1}"

    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """Return how jobs stand; those that have ended are left out."""
        found = self._queue()
        self._last |= {job_id: found[job_id] for job_id in ids if job_id in found}
        return {job_id: found[job_id] for job_id in ids if job_id in found}

    def _queue(self) -> dict[str, JobState]:
        user = pwd.getpwuid(os.geteuid()).pw_name
        return read_queue(self.call(["qstat", "-xml", "-g", "d", "-u", user]))

    def past(self, job_id: str) -> JobState | None:
        """Return how a job ended, once the accounting has it; one that never began is not there."""
        since = self._gone.setdefault(job_id, time.monotonic())
        number, _, task = job_id.partition(".")
        if found := self._account(number, *(["-t", task] if task else [])):
            return found[1]
        last = self._last.get(job_id)
        is_late = time.monotonic() > since + _ACCOUNT_SECONDS
        if job_id in self._deleted or (is_late and last is not None and last.is_waiting):
            return JobState(phase=Phase.OVER, cause=Cause.CANCELLED, word="deleted")
        return None if is_late else JobState(phase=Phase.ENDING, word="ended")

    def _account(self, *which: str) -> tuple[str, JobState] | None:
        """Return the number of a job and how it ended; None: the accounting does not have it."""
        # Refused: it is not there, or its file cannot be read on this machine.
        text = self.ask("qacct", "-j", *which) or ""
        state, number = read_account(text), re.search(r"^jobnumber\s+(\d+)", text, re.MULTILINE)
        return (number[1], state) if state is not None and number is not None else None

    def find(self, name: str) -> str:
        """Return the number of the job or array of a name; empty: there is none."""
        found = (job_id for job_id, state in self._queue().items() if state.name == name)
        if job_id := next(found, ""):
            return job_id.partition(".")[0]
        ended = self._account(name)
        return ended[0] if ended is not None else ""

    def cancel(self, job_id: str, ending: Ending) -> None:
        """End a job: it gets SIGUSR2, and SIGKILL after the time that its queue has for that."""
        number, _, task = job_id.partition(".")
        self.delete(job_id, ending, "qdel", number, *(["-t", task] if task else []))
        if ending is not Ending.IF_WAITING:
            self._deleted.add(job_id)

    def nodes(self) -> list[BatchNode]:
        """Return the hosts with slots of the queue of the site file, or else of any queue."""
        gpu = self._settings.gpu
        return read_nodes(self.call(["qhost", "-xml", "-q", "-F", gpu]), self._settings.queue, gpu)

    def check(self) -> Iterator[tuple[str, str]]:
        """Yield the version, the parallel environment, and whether ends of jobs are kept."""
        version = self.call(["qconf", "-help"]).partition("\n")[0]
        known, pe = self.call(["qconf", "-spl"]).split(), self._settings.pe
        if pe not in known:
            raise ComputeFailure(
                f"there is no parallel environment {pe}; write pe = … with one whose "
                f"allocation_rule is $pe_slots: {', '.join(known)}"
            )
        yield f"qmaster answers: {version}; tasks on one node run in the environment {pe}", ""
        if "accounting=true" not in self.call(["qconf", "-sconf"]):
            remedy = "nothing to do: the runner's own files keep how a job ended"
            yield "accounting is off: Grid Engine forgets a job when it ends", remedy
