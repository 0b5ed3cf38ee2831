"""PBS: OpenPBS, PBS Pro and Torque by their commands, and the words of PBS that other systems have.

Jobs are read from the form that all of them print, `qstat -f`: in JSON, some releases of OpenPBS
leave jobs out, and write variables of users such that it cannot be read.
"""

from __future__ import annotations

import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

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
from rankwise.documents.site_models import PbsConfig
from rankwise.errors import ComputeFailure
from rankwise.node.dialect import Dialect

_DATA = tomllib.loads(Path(__file__).with_name("pbs.toml").read_text(encoding="utf-8"))
_VALUE = re.compile(r"\s+([\w.]+) = (.*)")
_JOB_ID = re.compile(r"\d+(\[\])?(\.[\w.-]+)?")
_SIZES = {"kb": 1 / 1024, "mb": 1, "gb": 1024, "tb": 1024 * 1024}
# How qstat leaves when it does not know some of the jobs: PBSE_UNKJOBID, in eight bits.
_SOME_UNKNOWN = '"$@" || test $? -eq 153'


def read_blocks(text: str) -> dict[str, dict[str, str]]:
    """Return the values of each job or node, in the output of `qstat -f` or `pbsnodes -a`."""
    found: dict[str, dict[str, str]] = {}
    values: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            values = found.setdefault(line.removeprefix("Job Id:").strip(), {})
            last = ""
        elif match := _VALUE.fullmatch(line):
            last = match[1]
            # The first counts: a variable of the user may have lines like ours.
            values.setdefault(last, match[2])
        elif last and line.startswith("\t"):
            values[last] += line[1:]  # A long line goes on, wherever it was cut.
    return found


def state_of(values: Mapping[str, str], kind: str = "") -> JobState:
    """Return how a job stands, by its values in `qstat -f` of OpenPBS, or of another PBS."""
    word = values.get("job_state", "")
    phase = Phase(_DATA["phases"].get(word, "ending"))
    code = values.get("Exit_status", values.get("exit_status", ""))
    hosts = re.sub(r"/[^+]*", "", values.get("exec_host", "")).split("+")
    return JobState(
        phase=phase,
        cause=_cause_of(values, code, kind) if phase is Phase.OVER else None,
        word=f"{word}, exit status {code}" if code else word,
        reason=values.get("comment", ""),
        nodes=",".join(dict.fromkeys(filter(None, hosts))),
        name=values.get("Job_Name", ""),
        exit_code=code,
    )


def _cause_of(values: Mapping[str, str], code: str, kind: str) -> Cause:
    known = _DATA["causes"].get(kind, _DATA["causes"]["openpbs"])
    if code in known:
        return Cause(known[code])
    if values.get("substate") == _DATA["deleted"]:
        return Cause.CANCELLED
    # Where there is no status, it is the runner who knows.
    return Cause.COMPLETED if code in ("0", "") else Cause.FAILED


def read_node(name: str, values: Mapping[str, str]) -> BatchNode | None:
    """Return a node in the output of `pbsnodes -a`; None: jobs cannot get it."""
    if re.search(r"down|offline|unknown|stale", values.get("state", "")):
        return None
    given = "resources_available."
    cores = values.get(f"{given}ncpus") or values.get("np", "0")
    size = re.match(r"(\d+)(\w\w)", values.get(f"{given}mem", ""))
    memory = int(int(size[1]) * _SIZES.get(size[2].lower(), 0)) if size else 0
    gpus = values.get(f"{given}ngpus") or values.get("gpus", "0")
    return BatchNode(name=name, cores=int(cores), memory=memory, gpus=int(gpus))


class Pbs(CommandSystem):
    """PBS by its own commands."""

    Settings = PbsConfig
    messages = _DATA["messages"]
    title = "PBS"

    def __init__(self, settings: PbsConfig) -> None:
        super().__init__(settings)
        self.dialect = Dialect(**_DATA["dialect"], reach=settings.reach)

    @cached_property
    def _kind(self) -> str:
        """Return `openpbs`, `torque`, or empty: another system with words of PBS."""
        said = self.ask("sh", "-c", "qstat --version 2>&1") or ""
        kind = "openpbs" if "pbs_version" in said else "torque" if said else ""
        self.most_in_array = 1000 if kind == "openpbs" else 1
        return kind

    def options(self, needs: Needs) -> list[str]:
        """Return qsub's options that say where a job runs and on what; the site's come last."""
        settings = self._settings
        if self._kind != "torque":
            chunk = [f"select={needs.nodes}", f"ncpus={needs.cores}", f"mpiprocs={needs.cores}"]
            chunk += [f"mem={needs.memory}mb"] if needs.memory else []
            chunk += [f"ngpus={needs.gpus}"] if needs.gpus else []
            wanted = [":".join(chunk), "place=scatter" + (":excl" if needs.is_alone else "")]
        else:
            chunk = [f"nodes={needs.nodes}", f"ppn={needs.cores}"]
            wanted = [":".join(chunk + ([f"gpus={needs.gpus}"] if needs.gpus else []))]
            # Of all nodes together.
            wanted += [f"mem={needs.memory * needs.nodes}mb"] if needs.memory else []
        if time := settings.time or wall_time(needs.minutes):
            wanted.append(f"walltime={time}")
        options = ["-l", ",".join(wanted)]
        options += ["-q", settings.queue] if settings.queue else []
        options += ["-A", settings.account] if settings.account else []
        return [*options, *settings.options]

    def submit(self, job: BatchJob) -> str:
        """Submit a script and return the job's id: `12.server`, and `12[].server` of an array."""
        # Not started again by PBS, which does not tell a job that it was.
        options = ["-N", re.sub(r"[^\w.+-]", "_", job.name), "-j", "oe", "-r", "n", "-V"]
        options += ["-o", "/dev/null", *(["-S", "/bin/bash"] if self._kind else [])]
        options += ["-J", f"0-{job.count - 1}"] if job.count > 1 else []
        # There the path has no blanks, which not everything with words of PBS quotes.
        with tempfile.NamedTemporaryFile("w", prefix="rankwise-", dir="/tmp") as script:
            script.write(standalone(job, f"${self.dialect.array_index}"))
            script.flush()
            command = ["qsub", *options, *job.options, script.name]
            said = self.call(command, environment=exported(job)).strip()
        job_id = said.splitlines()[-1] if said else ""
        if not _JOB_ID.fullmatch(job_id):
            raise ComputeFailure(f"qsub gave no job id: {said!r}")
        return job_id

    def member(self, job_id: str, index: int) -> str:
        """Return the id of a member of an array, as PBS has it: `12[3].server`."""
        return job_id.replace("[]", f"[{index}]")

    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """Return how jobs stand; with the history of the server, also those that have ended."""
        # All members of an array by the array itself.
        asked = dict.fromkeys(re.sub(r"\[\d+\]", "[]", job_id) for job_id in ids)
        found = self._ask(*asked) if asked else {}
        return {one: found[key] for one in ids if (key := one.partition(".")[0]) in found}

    def _ask(self, *ids: str) -> dict[str, JobState]:
        """Return jobs by their ids without the name of the server; without ids, all of them."""
        flags = ["-x", "-t"] if self._kind == "openpbs" else []
        text = self.call(["sh", "-c", _SOME_UNKNOWN, "sh", "qstat", *flags, "-f", *ids])
        return {
            job_id.partition(".")[0]: state_of(values, self._kind)
            for job_id, values in read_blocks(text).items()
        }

    def find(self, name: str) -> str:
        """Return the id of the job or array of a name; empty: there is none."""
        found = (job_id for job_id, state in self._ask().items() if state.name == name)
        return re.sub(r"\[\d+\]", "[]", next(found, ""))

    def cancel(self, job_id: str, ending: Ending) -> None:
        """End a job; qdel itself leaves it a few seconds between SIGTERM and SIGKILL."""
        # It does not run, or not yet, if it cannot have a signal.
        if ending is not Ending.GENTLY or self.ask("qsig", "-s", "SIGTERM", job_id) is None:
            self.delete(job_id, ending, "qdel", job_id)

    def nodes(self) -> list[BatchNode]:
        """Return the nodes that are up."""
        found = read_blocks(self.call(["pbsnodes", "-a"])).items()
        nodes = (read_node(name, values) for name, values in found)
        return [node for node in nodes if node is not None]

    def check(self) -> Iterator[tuple[str, str]]:
        """Yield which PBS it is, and whether it remembers how jobs have ended."""
        self.nodes()  # ComputeFailure: there is no PBS here.
        yield f"commands: {self._kind or 'those of another system, with the words of PBS'}", ""
        if self._kind == "openpbs":
            said = self.call(["qmgr", "-c", "list server job_history_enable"])
            if "True" not in said:
                remedy = "nothing to do: the runner's own files keep how a job ended"
                yield "job_history_enable is off: PBS forgets a job when it ends", remedy
