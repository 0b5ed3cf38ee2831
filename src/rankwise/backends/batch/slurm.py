"""Slurm: its commands, what they answer, and the options of a job."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from rankwise.backends.batch.system import (
    INDEX,
    BatchJob,
    BatchNode,
    Cause,
    CommandSystem,
    Ending,
    JobState,
    Needs,
    Phase,
)
from rankwise.documents.site_models import SlurmConfig
from rankwise.errors import ComputeFailure
from rankwise.node.dialect import Dialect

# The first is the number that other commands want; a name of ours has no delimiter in it.
QUEUE_FORMAT = "%i|%T|%r|%N|%j"
# One call for any number of jobs: controllers limit how often they are asked.
_QUEUE = ("squeue", "--noheader", "--array", "--states=all", "-o", QUEUE_FORMAT)
ACCOUNT_FORMAT = "JobID,State,ExitCode,NodeList,Reason,JobName"
_KEY = re.compile(r"(?:^|\s)([A-Za-z][\w:/.-]*)=")
_UNKNOWN_JOB, _NO_ACCOUNTING = "Invalid job id", "accounting storage is disabled"
_DATA = tomllib.loads(Path(__file__).with_name("slurm.toml").read_text(encoding="utf-8"))
_CAUSES = {word: Cause(cause) for word, cause in _DATA["causes"].items()}
# What slurmstepd writes into the output of a job: the only source where accounting is off.
_MEMORY_WORDS = re.compile(r"(?i)exceeded (job )?memory limit|oom[-_]kill|out[ _]of[ _]memory")
_CANCELLED_WORDS = re.compile(
    r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+?))? \*\*\*"
)


def state_of(word: str, **details: str) -> JobState:
    """Return the state behind one of Slurm's words, in capitals: `RUNNING`, `OUT_OF_MEMORY`."""
    cause = _CAUSES.get(word)
    phase = Phase(_DATA["phases"].get(word, "ending")) if cause is None else Phase.OVER
    return JobState(phase=phase, cause=cause, word=word, **details)


def read_submitted(text: str) -> str:
    """Return the job id of what `sbatch --parsable` prints, perhaps with the cluster after it."""
    number = text.strip().splitlines()[-1].partition(";")[0].strip() if text.strip() else ""
    if not number.isdecimal():
        raise ComputeFailure(f"sbatch gave no job number: {text.strip()!r}")
    return number


def read_queue(text: str) -> dict[str, JobState]:
    """Return the jobs in the output of squeue in QUEUE_FORMAT."""
    found = {}
    for line in text.splitlines():
        # Our names and Slurm's values have no `|`; a short line is filled up.
        number, word, reason, nodes, name = [*line.split("|", 4), "", "", "", ""][:5]
        if word:
            details = {"reason": _known(reason), "nodes": _known(nodes), "name": name.strip()}
            found[number.strip()] = state_of(word.strip(), **details)
    return found


def read_details(text: str) -> dict[str, str]:
    """Return the values of a line of `scontrol --oneliner show`; they may have spaces."""
    marks = list(_KEY.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    found: dict[str, str] = {}
    # Where there is no key at all, there is still an end.
    for mark, end in zip(marks, ends, strict=False):
        # A command at the end of the line may have words that look like keys.
        found.setdefault(mark[1], text[mark.end() : end].strip())
    return found


def read_shown(text: str) -> JobState | None:
    """Return the job in the output of `scontrol show job`; None: there is none."""
    details = read_details(text)
    if "JobState" not in details:
        return None
    return state_of(
        details["JobState"].split()[0],
        reason=_known(details.get("Reason", "")),
        nodes=_known(details.get("NodeList", "")),
        name=details.get("JobName", ""),
        exit_code=details.get("ExitCode", ""),
    )


def read_account(text: str) -> dict[str, JobState]:
    """Return the jobs, without their steps, in the output of sacct in ACCOUNT_FORMAT."""
    found = {}
    for line in text.splitlines():
        fields = [*line.split("|", 5), "", "", "", "", ""]
        number, state, code, nodes, reason, name = fields[:6]
        # `12.batch` and `12.0` are steps.
        if state and "." not in number:
            # `CANCELLED by 1000`
            word, _, rest = state.partition(" ")
            details = {"reason": _known(reason) or rest, "nodes": _known(nodes)}
            found[number] = state_of(word, name=name, exit_code=code, **details)
    return found


def read_settings(text: str) -> dict[str, str]:
    """Return the settings in the output of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}


def read_mpi_types(text: str) -> list[str]:
    """Return the kinds of PMI in the output of `srun --mpi=list`, of old and new versions."""
    # The last line: `specific pmix plugin versions available: pmix_v4,pmix_v5`.
    return [*dict.fromkeys(re.findall(r"\b(?:pmi|cray)\w*\b(?<!_v)(?! plugin)", text))]


def is_accounting_on(settings: Mapping[str, str]) -> bool:
    """Return whether sacct can be asked, by the settings."""
    kind = settings.get("AccountingStorageType", "")
    return bool(kind) and kind not in ("accounting_storage/none", "(null)")


def _known(text: str) -> str:
    """Return a value; empty for any of the words by which Slurm writes that there is none."""
    text = text.strip()
    return "" if text in ("None", "(null)", "N/A", "None assigned", "(None)") else text


def _number(text: str) -> int:
    # `512000+`: nodes of this line have at least as much.
    text = text.rstrip("+")
    return int(text) if text.isdecimal() else 0


NODE_FORMAT = "%N|%P|%c|%m|%G"
_GPUS = re.compile(r"gpu(?::[^:,()]+)?:(\d+)")


def read_nodes(text: str) -> list[tuple[BatchNode, bool]]:
    """Return what `sinfo --Node` prints in NODE_FORMAT, a line for each node and partition.

    With each, whether that is the default partition: that of jobs that name none.
    """
    found = []
    for line in text.splitlines():
        name, partition, cores, memory, extras = [*line.split("|"), *[""] * 5][:5]
        if cores:
            gpus = sum(map(int, _GPUS.findall(extras)))
            size = {"cores": _number(cores), "memory": _number(memory), "gpus": gpus}
            found.append((BatchNode(name=name, **size), partition.endswith("*")))
    return found


DIALECT = Dialect(**_DATA["dialect"])


class Slurm(CommandSystem):
    """Slurm by its own commands."""

    Settings = SlurmConfig
    messages = _DATA["messages"]
    title = "Slurm"
    dialect = DIALECT
    # Where nothing else is configured, MaxArraySize is 1001, and each index must be below it.
    most_in_array = 1000

    def __init__(self, settings: SlurmConfig | None = None) -> None:
        super().__init__(settings if settings is not None else SlurmConfig())
        self.keeps_allocation = self._settings.mpi != "mpirun"

    def options(self, needs: Needs) -> list[str]:
        """Return sbatch's options that say where a job runs and on what; the site's come last."""
        settings = self._settings
        options = [
            f"--nodes={needs.nodes}",
            # One task on each node has all cores: its launcher starts the ranks.
            "--ntasks-per-node=1",
            f"--cpus-per-task={needs.cores}",
            # The output before a job was put back into the queue shows why it was.
            "--open-mode=append",
            # The default, but SBATCH_EXPORT in the environment could say otherwise.
            "--export=ALL",
        ]
        options += ["--exclusive"] if needs.is_alone else []
        options += [f"--mem={needs.memory}M"] if needs.memory else []
        options += [f"--gpus-per-node={needs.gpus}"] if needs.gpus else []
        wanted = {
            name: getattr(settings, name) for name in ("partition", "account", "qos", "constraint")
        }
        wanted["time"] = settings.time or (str(needs.minutes) if needs.minutes else "")
        options += [f"--{name}={value}" for name, value in wanted.items() if value]
        # The memory of whole nodes; the site's own options come before: tasks of any size share it.
        return [*options, *settings.options, *(["--mem=0"] if needs.is_pilot else [])]

    def submit(self, job: BatchJob) -> str:
        """Submit a script and return the job's number."""
        options = [f"--job-name={job.name}", *job.options]
        options += [f"--array=0-{job.count - 1}"] if job.count > 1 else []
        # Slurm's own pattern for the index of a member.
        options.append(f"--output={str(job.output).replace(INDEX, '%a')}")
        return self.submit_script(job.script, options, environment=job.environment)

    def submit_script(
        self, script: str, options: Sequence[str], *, environment: Mapping[str, str]
    ) -> str:
        """Submit a script with all of its options, and return the job's number."""
        command = ["sbatch", "--parsable", *options]
        return read_submitted(self.call(command, given=script, environment=environment))

    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """Return how jobs stand; with the number of an array, its members as `NUMBER_INDEX`."""
        listed = ",".join(dict.fromkeys(ids))
        if not listed:
            return {}
        try:
            return read_queue(self.call([*_QUEUE, f"--jobs={listed}"]))
        except ComputeFailure as failure:
            if _UNKNOWN_JOB in str(failure):
                return {}
            raise

    def past(self, job_id: str) -> JobState | None:
        """Return how a job ended: slurmctld knows more than the queue, and sacct for longer."""
        found = self.show(job_id)
        # Asked last: slurmdbd answers slowly, and jobs appear there some seconds late.
        if found is None and self._has_accounting:
            found = self.accounts(f"--jobs={job_id}").get(job_id)
        return found

    def find(self, name: str) -> str:
        """Return the number of the job or array of a name; empty: there is none."""
        found = read_queue(self.call([*_QUEUE, f"--name={name}"]))
        if not found and self._has_accounting:
            # sacct looks at jobs of today only, unless it is told otherwise.
            found = self.accounts(f"--name={name}", "--starttime=now-30days")
        return next(iter(found), "").partition("_")[0]

    def show(self, job_id: str) -> JobState | None:
        """Return one job in all detail; None: slurmctld has forgotten it."""
        try:
            return read_shown(self.call(["scontrol", "--oneliner", "show", "job", job_id]))
        except ComputeFailure as failure:
            if _UNKNOWN_JOB in str(failure):
                return None
            raise

    def accounts(self, *which: str) -> dict[str, JobState]:
        """Return jobs that the accounting knows; none if it is off."""
        command = ["sacct", "--noheader", "--parsable2", "--allocations"]
        try:
            return read_account(self.call([*command, f"--format={ACCOUNT_FORMAT}", *which]))
        except ComputeFailure as failure:
            if _NO_ACCOUNTING in str(failure):
                return {}
            raise

    @cached_property
    def _has_accounting(self) -> bool:
        return is_accounting_on(self.configuration())

    def cancel(self, job_id: str, ending: Ending) -> None:
        """End a job."""
        # Quiet: a job that is over already is no error.
        quiet = ("scancel", "--quiet")
        if ending is Ending.NOW:
            self.call([*quiet, job_id])
            return
        # Waiting jobs first: one that begins in between is found by the second call.
        self.call([*quiet, "--state=PENDING", job_id])
        # The script alone gets the signal: the runner ends its ranks in good order.
        if ending is Ending.GENTLY:
            self.call([*quiet, "--state=RUNNING", "--batch", "--signal=TERM", job_id])

    def nodes(self) -> list[BatchNode]:
        """Return the nodes of the partition of the site file, or else of the default one."""
        partition = self._settings.partition
        which = [f"--partition={partition}"] if partition else []
        found = read_nodes(self.call(["sinfo", "--noheader", "--Node", "-o", NODE_FORMAT, *which]))
        # Without a default partition, sbatch needs a name: then all nodes are as good a guess, each
        # once however many partitions it is in.
        default = [node for node, is_default in found if is_default and not partition]
        return default or list({node.name: node for node, _ in found}.values())

    def mpi_types(self) -> list[str]:
        """Return by which kinds of PMI srun starts ranks."""
        # Some versions list them on stderr.
        command = ["sh", "-c", "srun --mpi=list 2>&1; true"]
        return read_mpi_types(self.call(command, environment=self.plain_environment()))

    def configuration(self) -> dict[str, str]:
        """Return how this Slurm is configured."""
        return read_settings(self.call(["scontrol", "show", "config"]))

    def explain(self, state: JobState, lines: Sequence[str]) -> JobState:
        """Return a more exact state than `FAILED`, from what slurmstepd wrote into the output."""
        memory = next((line for line in lines if _MEMORY_WORDS.search(line)), "")
        if state.cause is Cause.OUT_OF_MEMORY:
            return replace(state, line=memory)
        # A more exact state than these needs no explanation.
        if state.word not in ("", "FAILED", "CANCELLED", "COMPLETED"):
            return state
        found = [match[1] for line in lines if (match := _CANCELLED_WORDS.search(line))]
        named = [_DATA["ended"][cause] for cause in found if cause in _DATA["ended"]]
        if memory:
            word = "OUT_OF_MEMORY"
        elif named:
            word = named[-1]
        elif found and not state.word:
            word = "CANCELLED"
        else:
            return state
        return replace(state, phase=Phase.OVER, cause=_CAUSES[word], word=word, line=memory)
