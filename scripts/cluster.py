"""A real Slurm of four nodes on this machine, in a folder and on ports of its own.

    python3 scripts/cluster.py sinfo                     one command in a cluster that ends with it
    python3 scripts/cluster.py --accounting bash         with slurmdbd and MariaDB
    python3 scripts/cluster.py --install                 no cluster, only what is needed for one

Each node is a slurmd with an address of its own on the loopback. Everything that is started here
ends with this process, whatever happens to it. Needs root, and Debian's slurm-wlm and munge; with
accounting also slurmdbd and mariadb-server.

Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemons import Daemons, answers, free_ports, kill, path, started, with_variable
from debian import add_option, install, refuse

PACKAGES = ("slurm-wlm", "slurm-client", "munge", "slurmdbd", "mariadb-server", "libpmix-dev")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "munged", "slurmdbd", "mariadbd")
NODES = 4
CORES_PER_NODE = 4
_CONF = "slurm.conf"

_CONFIGURATION = """\
ClusterName=rankwise
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
TmpFS={folder}/tmp/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=400
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=3
KillOnBadExit=0
SlurmdTimeout=10
MessageTimeout=20
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
MinJobAge={job_age}
FirstJobId={first_job}
MaxArraySize=1001
SlurmdParameters=config_overrides
{accounting}
NodeName=DEFAULT CPUs={cores} RealMemory=4000 State=UNKNOWN
{nodes}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO PriorityTier=10
PartitionName=closed Nodes=ALL MaxTime=INFINITE State=DOWN
"""
_ACCOUNTING_CONFIGURATION = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
PidFile={folder}/run/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
"""


@dataclass(slots=True, kw_only=True)
class Cluster(Daemons):
    """Daemons that make this machine four nodes."""

    has_accounting: bool = False
    prefix: str = "n"
    """Nodes are called n1 to n4, unless clusters side by side have to be told apart."""
    job_age: int = 3600
    """For how many seconds the controller remembers a job that has ended."""
    plugins: str = ""
    """Lines of plugstack.conf."""
    binds: bool = False
    """Whether srun --cpu-bind binds tasks. Its default cannot: it finds too few cores."""

    @property
    def nodes(self) -> list[str]:
        """Name the nodes."""
        return [f"{self.prefix}{number}" for number in range(1, NODES + 1)]

    @property
    def variables(self) -> dict[str, str]:
        """Return what a Slurm command needs to find this cluster."""
        return {"SLURM_CONF": str(self.folder / _CONF)}

    def start(self) -> None:
        """Start all daemons and wait until every node can be used."""
        of_nodes = (f"{kind}/{node}" for kind in ("spool", "tmp") for node in self.nodes)
        for name in ("state", "run", "log", "munge", *of_nodes):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "plugstack.conf").write_text(self.plugins)
        self._start_munge()
        port = self._start_accounting() if self.has_accounting else None
        self._configure(port)
        if port is not None:
            self.run("sacctmgr", "--immediate", "add", "cluster", "rankwise")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        self.wait_for("all nodes to be idle", self._are_all_idle)

    def start_controller(self) -> None:
        """Start slurmctld, on the state that it left if it ran before."""
        self.start_one("slurmctld", ["slurmctld", "-D"])

    def start_node(self, node: str) -> None:
        """Start the slurmd of one node."""
        self.start_one(node, ["slurmd", "-D", "-N", node])

    def kill(self, name: str) -> None:
        """End a daemon without a word: `slurmctld`, `slurmdbd` or a node with what runs on it."""
        self.end_one(name, signal.SIGKILL)
        if name in self.nodes:
            for pid in with_variable(b"SLURMD_NODENAME", name.encode(), self.mark()):
                kill(pid)

    def stop(self) -> None:
        """End everything."""
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            self.run("scancel", "--user=root", "--quiet", timeout=5)
        self.end_all()

    def wait_for_node(self, node: str, *states: str) -> None:
        """Wait until a node has one of these states."""
        self.wait_for(f"{node} to be {' or '.join(states)}", lambda: self.state_of(node) in states)

    def state_of(self, node: str) -> str:
        return self.run(
            "sinfo", "--noheader", "--partition=test", f"--nodes={node}", "-o%T"
        ).strip()

    def _start_munge(self) -> None:
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        command = ["munged", "--foreground", "--num-threads=4", f"--key-file={key}"]
        command += [f"--socket={self.folder}/munge.socket", "--force"]
        for kind in ("log", "pid", "seed"):
            command.append(f"--{kind}-file={self.folder}/munge/{kind}")
        self.start_one("munged", command)
        self.wait_for("munge", (self.folder / "munge.socket").exists)

    def _start_accounting(self) -> int:
        """Start the database and slurmdbd; gives the port of the latter."""
        data, user = self.folder / "mariadb", _user()
        line = self.folder / "mariadb.socket"
        install = ["mariadb-install-db", "--no-defaults", f"--datadir={data}", f"--user={user}"]
        how = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run([*install, *how], check=True, capture_output=True)
        database_port, port = free_ports(2)
        self.start_one(
            "mariadbd",
            [
                *("mariadbd", "--no-defaults", f"--datadir={data}", f"--user={user}"),
                *(f"--socket={line}", f"--port={database_port}", "--bind-address=127.0.0.1"),
                *("--innodb-buffer-pool-size=32M", "--innodb-flush-log-at-trx-commit=0"),
            ],
        )
        self.wait_for("MariaDB", line.exists)
        ask = ["mariadb", "--no-defaults", f"--socket={line}", "-uroot", "-e"]
        grant = "grant all on slurm_acct.* to 'slurm'@"
        for statement in (
            "create database slurm_acct",
            *(f"{grant}'{host}' identified by 'slurm'" for host in ("localhost", "127.0.0.1")),
        ):
            subprocess.run([*ask, statement], check=True, capture_output=True)
        text = _ACCOUNTING_CONFIGURATION.format(folder=self.folder, user=user, port=port)
        text += f"StoragePort={database_port}\n"
        file = self.folder / "slurmdbd.conf"
        file.write_text(text)
        file.chmod(0o600)
        # It looks for its configuration beside that of Slurm.
        (self.folder / _CONF).touch()
        self.start_one("slurmdbd", ["slurmdbd", "-D"])
        self.wait_for("slurmdbd", lambda: answers(port))
        return port

    def _configure(self, accounting_port: int | None) -> None:
        controller_port, node_port = free_ports(2)
        accounting = "AccountingStorageType=accounting_storage/none"
        if accounting_port is not None:
            accounting = (
                "AccountingStorageType=accounting_storage/slurmdbd\n"
                "AccountingStorageHost=127.0.0.1\n"
                f"AccountingStoragePass={self.folder}/munge.socket\n"
                f"AccountingStoragePort={accounting_port}"
            )
        host = socket.gethostname().partition(".")[0]
        # A single port each: the nodes have addresses of their own.
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.{number}"
            f" Port={node_port + number}"
            for number, node in enumerate(self.nodes, 1)
        )
        (self.folder / _CONF).write_text(
            _CONFIGURATION.format(
                host=host,
                user=_user(),
                folder=self.folder,
                controller_port=controller_port,
                node_port=node_port,
                job_age=self.job_age,
                # MPICH names its shared memory by the job, and what was killed leaves it behind:
                # a job of the same number in the next cluster would find it.
                first_job=1 + secrets.randbelow(60_000_000),
                accounting=accounting,
                cores=CORES_PER_NODE,
                task_plugin="task/affinity" if self.binds else "task/none",
                nodes=nodes,
            )
        )

    def _are_all_idle(self) -> bool:
        try:
            said = self.run("sinfo", "--noheader", "--partition=test", "-o%T %D", timeout=10)
        except (RuntimeError, subprocess.TimeoutExpired):
            return False
        return said.split() == ["idle", str(NODES)]


@contextlib.contextmanager
def cluster(
    *,
    has_accounting: bool = False,
    prefix: str = "n",
    job_age: int = 3600,
    plugins: str = "",
    binds: bool = False,
) -> Iterator[Cluster]:
    """Have a cluster for a while."""

    def make(folder: Path) -> Cluster:
        return Cluster(
            folder=folder,
            has_accounting=has_accounting,
            prefix=prefix,
            job_age=job_age,
            plugins=plugins,
            binds=binds,
        )

    with started(make, "rw-slurm-", "SLURM_CONF", _CONF) as made:
        yield made


def obstacle() -> str | None:
    """Say why there can be no cluster here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "several slurmd on one machine need Linux and root"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path()) is None]
    # Slurm's plugin loads PMIx by the name that comes with the headers.
    if not list(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")):
        missing.append("libpmix.so")
    if missing:
        return f"{', '.join(missing)} cannot be found: apt-get install {' '.join(PACKAGES)}"
    return None


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and MariaDB")
    add_option(parser)
    parser.add_argument("--binds", action="store_true", help="srun --cpu-bind binds tasks")
    parser.add_argument("--job-age", type=int, default=3600, metavar="SECONDS")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    if why := install(PACKAGES, obstacle):
        return refuse(f"no Slurm here: {why}", chosen, environment)
    if chosen.install:
        return 0
    with cluster(
        has_accounting=chosen.accounting, job_age=chosen.job_age, binds=chosen.binds
    ) as made:
        command = chosen.command or ["bash"]
        return subprocess.run(
            command, env={**environment, **made.variables}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
