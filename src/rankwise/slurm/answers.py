"""What Slurm's commands print, read. Pure: nothing is called here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# The first is the number that other commands want; a name of ours has no delimiter in it.
QUEUE_FORMAT = "%i|%T|%r|%N|%j"
ACCOUNT_FORMAT = "JobID,State,ExitCode,NodeList,Reason,JobName"
_KEY = re.compile(r"(?:^|\s)([A-Za-z][\w:/.-]*)=")
_AWAY = (
    *("Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted"),
    *("Connection refused", "Transport endpoint is not connected", "controller in standby mode"),
    *("Communication connection failure", "Connection timed out", "Unable to contact slurmdbd"),
    *("Problem talking to the database", "Resource temporarily unavailable"),
)
_FULL = ("MaxSubmitJob", "MaxSubmitPU", "MaxSubmitPA", "job limit is at the maximum", "MaxJobCount")
_UNDECIDED = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "REQUEUED", "RESIZING"}
    | {"REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "SIGNALING", "STAGE_OUT", "STOPPED"}
    | {"RESV_DEL_HOLD"}
)
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """How a job stands, in Slurm's words."""

    state: str
    """`RUNNING`, `OUT_OF_MEMORY`: one word, in capitals."""
    reason: str = ""
    """Why it waits, or why it ended so; empty: Slurm does not say."""
    nodes: str = ""
    name: str = ""
    exit_code: str = ""
    """`3:0`, the exit code and the signal; empty: it was not asked."""
    restarts: int = 0
    """How often it was put back into the queue, as far as the command tells."""

    @property
    def is_over(self) -> bool:
        """Tell whether Slurm will do nothing more with it."""
        return self.state not in _UNDECIDED

    @property
    def is_waiting(self) -> bool:
        """Tell whether it has no nodes yet, or has none any more."""
        return self.state in _WAITING


def says_away(text: str) -> bool:
    """Tell whether it is only that nobody answers: the same call may succeed later."""
    return any(words in text for words in _AWAY)


def says_full(text: str) -> bool:
    """Tell whether a job was refused only because there are too many already."""
    return any(words in text for words in _FULL)


def read_submitted(text: str) -> str:
    """Read what `sbatch --parsable` prints: the number, and perhaps the cluster after it."""
    number = text.strip().splitlines()[-1].partition(";")[0].strip() if text.strip() else ""
    if not number.isdecimal():
        raise ValueError(f"sbatch gave no job number: {text.strip()!r}")
    return number


def read_queue(text: str) -> dict[str, JobState]:
    """Read what squeue prints in QUEUE_FORMAT."""
    found = {}
    for line in text.splitlines():
        number, state, reason, nodes, name = [*line.split("|", 4), "", "", "", ""][:5]
        if state:
            found[number.strip()] = JobState(
                state=state.strip(), reason=_said(reason), nodes=_said(nodes), name=name.strip()
            )
    return found


def read_details(text: str) -> dict[str, str]:
    """Read one line of `scontrol --oneliner show`; values may have spaces in them."""
    marks = list(_KEY.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    found: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):
        # A command at the end of the line may have words that look like keys.
        found.setdefault(mark[1], text[mark.end() : end].strip())
    return found


def read_shown(text: str) -> JobState | None:
    """Read what `scontrol show job` says of one job."""
    details = read_details(text)
    if "JobState" not in details:
        return None
    return JobState(
        state=details["JobState"].split()[0],
        reason=_said(details.get("Reason", "")),
        nodes=_said(details.get("NodeList", "")),
        name=details.get("JobName", ""),
        exit_code=details.get("ExitCode", ""),
        restarts=_number(details.get("Restarts", "")),
    )


def read_account(text: str) -> dict[str, JobState]:
    """Read what sacct prints in ACCOUNT_FORMAT, of jobs but not of their steps."""
    found = {}
    for line in text.splitlines():
        fields = [*line.split("|", 5), "", "", "", "", ""]
        number, state, code, nodes, reason, name = fields[:6]
        if state and "." not in number:
            # `CANCELLED by 1000`
            word, _, rest = state.partition(" ")
            found[number] = JobState(
                state=word,
                reason=_said(reason) or rest,
                nodes=_said(nodes),
                name=name,
                exit_code=code,
            )
    return found


def read_settings(text: str) -> dict[str, str]:
    """Read what `scontrol show config` prints."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, sign, value in pairs if sign}


def is_accounting_on(settings: Mapping[str, str]) -> bool:
    """Tell from the settings whether sacct can be asked."""
    kind = settings.get("AccountingStorageType", "")
    return bool(kind) and kind not in ("accounting_storage/none", "(null)")


def _said(text: str) -> str:
    """Give what Slurm says; it has several words for nothing."""
    text = text.strip()
    return "" if text in ("None", "(null)", "N/A", "None assigned", "(None)") else text


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


NODE_FORMAT = "%N|%P|%c|%m|%G|%t"
_GPUS = re.compile(r"gpu(?::[^:,()]+)?:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a partition."""

    name: str
    partition: str
    is_default: bool
    """Whether it is the partition of jobs that name none."""
    cores: int
    memory: int
    """In MiB."""
    gpus: int
    state: str


def read_nodes(text: str) -> list[Node]:
    """Read what `sinfo --Node` prints in NODE_FORMAT; a node has a line for each partition."""
    found = []
    for line in text.splitlines():
        name, partition, cores, memory, extras, state = [*line.split("|"), *[""] * 6][:6]
        if cores:
            found.append(
                Node(
                    name=name,
                    partition=partition.rstrip("*"),
                    is_default=partition.endswith("*"),
                    cores=_number(cores.rstrip("+")),
                    memory=_number(memory.rstrip("+")),
                    gpus=sum(map(int, _GPUS.findall(extras))),
                    state=state,
                )
            )
    return found
