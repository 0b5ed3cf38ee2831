"""The job of Slurm that tests run in: asked for, awaited, held, or left to itself."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rankwise.backends.base import Unreachable, words_of
from rankwise.backends.batch import system as batch
from rankwise.backends.batch.slurm import Slurm, read_details
from rankwise.backends.batch.submitting import script_text
from rankwise.backends.batch.system import BatchSystem, Cause, JobState
from rankwise.documents.site import find_site
from rankwise.documents.site_models import ComputeConfig
from rankwise.errors import ComputeFailure, RankwiseError
from rankwise.node.batch import counts_in
from rankwise.node.files import write_file
from rankwise.pytest_plugin import connections
from rankwise.pytest_plugin.workers.run_options import SlurmOptions, value_of

LINE = "RANKWISE_LINE"
"""The variable by which a job learns where to call."""

# Between two looks at the queue; clusters do not like to be asked more often.
_LOOK_SECONDS = 1.0
_SLOW_LOOK_SECONDS = 5.0
_EAGER_SECONDS = 30.0


@dataclass(slots=True)
class Allocation:
    """A job of a batch system, ours or the one that we are in."""

    system: BatchSystem
    job: str
    is_ours: bool
    state: JobState | None = None
    """What the system last said; None: it has not been asked."""
    file: Path | None = None
    """What the job needs to call us; it removes the file when it begins."""
    _asked: float = 0.0
    _since: float = 0.0

    def look(self, *, at_once: bool = False) -> JobState | None:
        """Ask how it stands, but not too often; gives what is known.

        A batch system that does not answer says nothing about the job.
        """
        now = time.monotonic()
        self._since = self._since or now
        # A job that has waited for long can wait some seconds more to be noticed.
        pause = _LOOK_SECONDS if now - self._since < _EAGER_SECONDS else _SLOW_LOOK_SECONDS
        if not at_once and now - self._asked < pause:
            return self.state
        self._asked = now
        with contextlib.suppress(Unreachable):
            found = self.system.states([self.job]).get(self.job) or self.system.past(self.job)
            self.state = found or replace(batch.FORGOTTEN, word="UNKNOWN")
        return self.state

    def describe_end(self) -> str:
        """Say how it ended; empty: it has not."""
        state = self.state
        if state is None or not state.is_over:
            return ""
        words = {
            Cause.CANCELLED: "was cancelled",
            Cause.TIME_LIMIT: "has reached its time limit",
            Cause.NODE_LOST: "has lost a node",
            Cause.PREEMPTED: "had to make room for another job",
            Cause.OUT_OF_MEMORY: "ran out of memory",
            Cause.COMPLETED: "has ended",
            Cause.FAILED: "has failed",
            Cause.NODE_NOT_BOOTED: "has failed to start its nodes",
        }
        reason = f", {state.reason}" if state.reason else ""
        how = words.get(state.cause or Cause.FORGOTTEN, "is over")
        return f"job {self.job} {how} ({self.system.title} says {state.word}{reason})"

    def cancel(self) -> None:
        """Cancel it if it is ours; idempotent."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)
        if self.is_ours:
            self.system.cancel(self.job, batch.Ending.NOW)


def submit(
    wishes: SlurmOptions, program: Sequence[str], name: str, *, line: str = "", output: str = ""
) -> Allocation:
    """Ask Slurm for an allocation in which a program runs, or raise ComputeFailure.

    With a `line`, it holds the place for us: that is what it needs to call us, and it gets it
    through the environment. Without one, the whole run takes place there.
    """
    system = Slurm()
    options = [f"--job-name={name}", f"--output={output or '/dev/null'}"]
    # The user's come later: the last one counts. But tests don't start again unasked.
    options += [f"--ntasks={wishes.tasks}", *wishes.options, "--no-requeue"]
    environment = system.plain_environment()
    if line:
        # If a node is lost, the tests go on with the others.
        options.append("--no-kill")
        environment[LINE] = line
    if wishes.exports:
        options.append("--export=ALL")
    else:
        # With a list, too, the job has the variables of a login.
        options += [f"--export={LINE}", "--get-user-env"] if line else ["--export=NONE"]
    job = system.submit_script(make_script(wishes, program), options, environment=environment)
    return Allocation(system, job, is_ours=True)


def submit_on(wishes: SlurmOptions, program: Sequence[str], name: str, line: str) -> Allocation:
    """Ask the batch system that the site file has under a name for one node; see `submit`."""
    choice = _choice(wishes.on)
    system = batch.open_system(choice)
    # It has the secret of the run, and some systems show the environment of a job to all users.
    file = Path(f".rankwise-{secrets.token_hex(8)}").absolute()
    job = batch.BatchJob(
        name=f"{name}-{secrets.token_hex(4)}",
        script=script_text(choice.batch, name, program) + "\n",
        options=system.options(batch.Needs(cores=wishes.tasks)),
        # The job only holds the place: what tests print comes by way of the controller.
        output=Path("/dev/null"),
        environment={**system.plain_environment(), LINE: str(file)},
    )
    try:
        write_file(file, line, 0o600)
        return Allocation(system, system.submit(job), is_ours=True, file=file)
    except (ComputeFailure, OSError) as failure:
        with contextlib.suppress(OSError):
            file.unlink()
        raise ComputeFailure(words_of(failure)) from failure


def _choice(name: str) -> ComputeConfig:
    choice = find_site(Path.cwd()).compute(name)
    if not choice.is_mapped or not choice.is_batch:
        raise ComputeFailure(f"--on={name}: rankwise.toml has no batch system of this name")
    return choice


def make_script(wishes: SlurmOptions, program: Sequence[str]) -> str:
    """Write the job script: the user's own, or a new one; then the commands, then the program."""
    head = wishes.script.rstrip("\n") or "#!/bin/bash"
    # sbatch refuses a script without that line.
    if not head.startswith("#!"):
        head = f"#!/bin/bash\n{head}"
    return "\n".join((head, *wishes.commands, f"exec {shlex.join(program)}", ""))


def memory_per_core(job: str, wishes: SlurmOptions) -> int:
    """Return how many bytes the steps of a job have for each core; 0: they count otherwise."""
    given = value_of(("--mem-per-cpu",), wishes.srun_options)
    if not given and not value_of(("--mem",), wishes.srun_options):
        said = Slurm().call(["scontrol", "--oneliner", "show", "job", job])
        given = read_details(said).get("MinMemoryCPU", "")
    return read_memory(given)


def read_memory(text: str) -> int:
    """Read `400M`, `4GB` or `4096` (megabytes); 0: it is none of these."""
    found = re.fullmatch(r"([\d.]+)([KMGT]?)B?", text.strip().upper())
    if found is None:
        return 0
    return int(float(found[1]) * (1 << 10) ** ("KMGT".index(found[2] or "M") + 1))


def tasks_on_nodes(nodes: Sequence[str], variables: Mapping[str, str]) -> list[int]:
    """Return how many tasks each node has, from `4(x2),1` in a job's variables; zeros: not said."""
    counts = counts_in(variables.get("SLURM_TASKS_PER_NODE", ""))
    return counts if len(counts) == len(nodes) else [0] * len(nodes)


def reachable_address(wishes: SlurmOptions) -> str:
    """Return the address of this machine by which the nodes can reach it.

    It is the one by which this machine reaches them: packets to Slurm's controller go out there.
    """
    if wishes.address:
        return wishes.address
    try:
        if wishes.on:
            hosts = [node.name for node in batch.open_system(_choice(wishes.on)).nodes()]
        else:
            hosts = _controller_addresses()
    except RankwiseError as failure:
        raise pytest.UsageError(str(failure)) from None
    for host in hosts:
        try:
            family = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0][0]
            with socket.socket(family, socket.SOCK_DGRAM) as line:
                # Nothing is sent: the kernel only chooses the way.
                line.connect((host, 9))
                return str(line.getsockname()[0])
        except OSError:
            continue
    raise pytest.UsageError(
        "which address of this machine the nodes can reach cannot be found out: say it with "
        "--slurm-address=ADDRESS"
    )


def _controller_addresses() -> list[str]:
    """Return the addresses of Slurm's controllers: `vm(127.0.0.1)`, or a name."""
    found = []
    for name, value in sorted(Slurm().configuration().items()):
        if name.startswith("SlurmctldHost"):
            host, _, address = value.partition("(")
            found.append(address.rstrip(")") or host)
    return found


class DetachedRun:
    """Takes the place of everything that pytest would do."""

    def __init__(self, config: pytest.Config, wishes: SlurmOptions) -> None:
        self._wishes = wishes
        self._arguments = _attached([str(word) for word in config.invocation_params.args])

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self) -> int:
        """Hand the run in, and say where its report will be."""
        program = [sys.executable, "-m", "pytest", *self._arguments]
        name = f"pytest-{Path.cwd().name}"
        asked = value_of(("-o", "--output"), self._wishes.options)
        output = asked or "pytest-%j.out"
        try:
            handed_in = submit(self._wishes, program, name, output=output)
        except ComputeFailure as failure:
            raise pytest.UsageError(str(failure)) from None
        file = Path.cwd() / output.replace("%j", handed_in.job)
        print(f"rankwise: job {handed_in.job} runs the tests; its report will be in {file}")
        return int(pytest.ExitCode.OK)


def _attached(arguments: list[str]) -> list[str]:
    """Return the arguments of the run within the job: one like any other, in its allocation.

    The wish to detach may also come from a configuration file or a variable, which the job reads
    too: what is said later counts.
    """
    options = arguments.index("--") if "--" in arguments else len(arguments)
    return [*arguments[:options], "--no-detach", *arguments[options:]]


HOLDER = "holder"
NODE = "SLURMD_NODENAME"
"""The variable by which processes know the node that they are on."""
# How long the server of a node may take to end all that it has started.
_SERVER_SECONDS = 15.0


def main() -> int:
    """Hold the place until the controller hangs up."""
    # It has the secret of the run: programs that are started here must not see it.
    given = os.environ.pop(LINE)
    try:
        if (file := Path(given)).is_absolute():
            given = file.read_text()
            file.unlink()
        line = json.loads(given)
        channel = connections.Channel.open(
            connections.Address(**line["address"]), line["secret"], HOLDER
        )
        os.environ.setdefault(NODE, socket.gethostname())
        channel.send({"kind": "held"}, json.dumps(dict(os.environ)).encode())
        with _server(line):
            channel.receive()
    except (OSError, connections.WireError) as error:
        print(f"rankwise: the run that asked for this allocation is gone: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _server(line: Mapping[str, Any]) -> Iterator[None]:
    """Have the server of this node run meanwhile, where nothing else starts it.

    Without it the place is held for nothing: this process ends with it, and the job.
    """
    if "server" not in line:
        yield
        return
    server = subprocess.Popen(
        line["server"],
        env={**os.environ, connections.INVITATION: line["invitation"]},
        stdin=subprocess.DEVNULL,
    )
    # A thread: this process waits for the controller meanwhile.
    watcher = threading.Thread(target=lambda: os._exit(min(abs(server.wait()), 1)), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        # It has been told to end, or has lost the controller too.
        watcher.join(_SERVER_SECONDS)
        server.kill()


if __name__ == "__main__":
    sys.exit(main())
