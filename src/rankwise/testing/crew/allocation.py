"""The allocation that tests run in: found or asked for, waited for, looked at and given back."""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rankwise.errors import ComputeFailure
from rankwise.slurm import answers, commands
from rankwise.slurm.answers import JobState
from rankwise.slurm.commands import SlurmAway
from rankwise.testing.crew.slurm_options import SlurmWishes, value_of

LINE = "RANKWISE_LINE"
"""The variable by which a job learns where to call."""

# Between two looks at the queue; clusters do not like to be asked more often.
_LOOK_SECONDS = 1.0
_SLOW_LOOK_SECONDS = 5.0
_EAGER_SECONDS = 30.0


@dataclass(slots=True)
class Allocation:
    """A job of Slurm's, ours or the one that we are in."""

    job: str
    is_ours: bool
    state: JobState | None = None
    """What Slurm last said; None: it has not been asked."""
    _asked: float = 0.0
    _since: float = 0.0

    def look(self, *, at_once: bool = False) -> JobState | None:
        """Ask how it stands, but not too often; gives what is known.

        A Slurm that does not answer says nothing about the job.
        """
        now = time.monotonic()
        self._since = self._since or now
        pause = _LOOK_SECONDS if now - self._since < _EAGER_SECONDS else _SLOW_LOOK_SECONDS
        if not at_once and now - self._asked < pause:
            return self.state
        self._asked = now
        with contextlib.suppress(SlurmAway):
            self.state = commands.show(self.job) or self._remember()
        return self.state

    def _remember(self) -> JobState | None:
        """Ask about a job that the controller has forgotten."""
        return commands.account(self.job) or JobState(state="UNKNOWN", reason="Slurm forgot it")

    def describe_end(self) -> str:
        """Say how it ended; empty: it has not."""
        state = self.state
        if state is None or not state.is_over:
            return ""
        words = {
            "CANCELLED": "was cancelled",
            "TIMEOUT": "has reached its time limit",
            "NODE_FAIL": "has lost a node",
            "PREEMPTED": "had to make room for another job",
            "OUT_OF_MEMORY": "ran out of memory",
            "COMPLETED": "has ended",
            "FAILED": "has failed",
            "BOOT_FAIL": "has failed to start its nodes",
            "DEADLINE": "has reached its deadline",
        }
        reason = f", {state.reason}" if state.reason else ""
        how = words.get(state.state, "is over")
        return f"job {self.job} {how} (Slurm says {state.state}{reason})"

    def cancel(self) -> None:
        """Give it back if it is ours; idempotent."""
        if self.is_ours:
            commands.cancel(self.job)


def submit(wishes: SlurmWishes, program: Sequence[str], line: str, name: str) -> Allocation:
    """Ask for an allocation in which a program holds the place.

    `line` is what the program needs to call us: it goes through the environment. Raises
    ComputeFailure with Slurm's words.
    """
    options = [
        *_usual_options(wishes, name, "/dev/null"),
        # If a node is lost, the tests go on with the others; and tests don't start again unasked.
        *("--no-kill", "--no-requeue"),
        *_export(wishes, LINE),
    ]
    environment = {**commands.plain_environment(), LINE: line}
    script = make_script(wishes, program)
    return Allocation(commands.submit(script, options, environment=environment), is_ours=True)


def submit_run(wishes: SlurmWishes, program: Sequence[str], name: str, output: str) -> Allocation:
    """Ask for an allocation in which the whole run takes place.

    Raises ComputeFailure.
    """
    options = [*_usual_options(wishes, name, output), "--no-requeue"]
    options += _export(wishes)
    script = make_script(wishes, program)
    environment = commands.plain_environment()
    return Allocation(commands.submit(script, options, environment=environment), is_ours=True)


def _usual_options(wishes: SlurmWishes, name: str, output: str) -> list[str]:
    usual = [f"--job-name={name}", f"--output={output}", f"--ntasks={wishes.tasks}"]
    # The user's come last: the last one counts.
    return [*usual, *wishes.options]


def _export(wishes: SlurmWishes, *names: str) -> list[str]:
    """Give the options that say which variables the job has."""
    if wishes.exports:
        return ["--export=ALL"]
    if names:
        # As with NONE: those of a login, and ours.
        return [f"--export={','.join(names)}", "--get-user-env"]
    return ["--export=NONE"]


def make_script(wishes: SlurmWishes, program: Sequence[str]) -> str:
    """Write the job script: the user's own, or a new one; then the commands, then the program."""
    head = wishes.script.rstrip("\n") or "#!/bin/bash"
    if not head.startswith("#!"):
        head = f"#!/bin/bash\n{head}"
    return "\n".join((head, *wishes.commands, f"exec {shlex.join(program)}", ""))


def memory_per_core(job: str, wishes: SlurmWishes) -> int:
    """Give how many bytes the steps of a job have for each core; 0: that is not how they count."""
    given = value_of(("--mem-per-cpu",), wishes.srun_options)
    if not given and not value_of(("--mem",), wishes.srun_options):
        said = commands.call(["scontrol", "--oneliner", "show", "job", job])
        given = answers.read_details(said).get("MinMemoryCPU", "")
    return read_memory(given)


def read_memory(text: str) -> int:
    """Read `400M`, `4GB` or `4096` (megabytes); 0: it is none of these."""
    found = re.fullmatch(r"([\d.]+)([KMGT]?)B?", text.strip().upper())
    if found is None:
        return 0
    return int(float(found[1]) * (1 << 10) ** ("KMGT".index(found[2] or "M") + 1))


def expand_nodes(names: str) -> list[str]:
    """Give the nodes behind `n[1-3,7]`.

    Raises ComputeFailure.
    """
    return commands.call(["scontrol", "show", "hostnames", names]).split()


def tasks_on_nodes(nodes: Sequence[str], variables: Mapping[str, str]) -> list[int]:
    """Give how many tasks each node has, from `4(x2),1` in a job's variables; zeros: not said."""
    counts: list[int] = []
    for part in variables.get("SLURM_TASKS_PER_NODE", "").split(","):
        count, _, times = part.partition("(x")
        if count.isdecimal():
            counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts if len(counts) == len(nodes) else [0] * len(nodes)


def reachable_address(wishes: SlurmWishes) -> str:
    """Give the address of this machine by which the nodes can reach it.

    It is the one by which this machine reaches them: packets to Slurm's controller go out there.
    """
    if wishes.address:
        return wishes.address
    for host in _controller_addresses():
        try:
            with socket.socket(_family(host), socket.SOCK_DGRAM) as line:
                # Nothing is sent: the kernel only chooses the way.
                line.connect((host, 9))
                return str(line.getsockname()[0])
        except OSError:
            continue
    raise ComputeFailure(
        "which address of this machine Slurm's nodes can reach cannot be found out: say it with "
        "--slurm-address=ADDRESS"
    )


def _family(host: str) -> socket.AddressFamily:
    return socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0][0]


def _controller_addresses() -> list[str]:
    """Give the addresses of Slurm's controllers: `vm(127.0.0.1)`, or a name."""
    found = []
    for name, value in sorted(commands.settings().items()):
        if name.startswith("SlurmctldHost"):
            host, _, address = value.partition("(")
            found.append(address.rstrip(")") or host)
    return found
