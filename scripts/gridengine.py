"""A real Grid Engine on this machine: a cell of its own, in a folder and on ports of its own.

    python3 scripts/gridengine.py qstat -f      one command in a cell that ends with it
    python3 scripts/gridengine.py --install     no cell, only what is needed for one

The only host is this machine. Everything that is started here ends with this process, whatever
happens to it. Needs root, and Debian's packages of Grid Engine.

Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from daemons import Daemons, free_ports, started
from debian import add_option, install, refuse

PACKAGES = ("gridengine-master", "gridengine-exec", "gridengine-client")
SLOTS = 8
GPUS = 2
CELL = "cell"
_PROGRAMS = Path("/usr/lib/gridengine")
_ROOT = Path("/var/lib/gridengine")
_RESOURCES = Path("/usr/share/gridengine/util/resources")
_BOOTSTRAP = """\
admin_user              none
default_domain          none
ignore_fqdn             true
spooling_method         classic
spooling_lib            libspoolc
spooling_params         {common};{spool}/qmaster
binary_path             /usr/lib/gridengine
qmaster_spool_dir       {spool}/qmaster
security_mode           none
listener_threads        2
worker_threads          2
scheduler_threads       1
"""
_CONFIGURATION = """\
conf_version           0
execd_spool_dir        {spool}/execd
mailer                 /bin/true
xterm                  /bin/true
load_sensor            none
prolog                 none
epilog                 none
shell_start_mode       posix_compliant
login_shells           bash,sh
min_uid                0
min_gid                0
user_lists             none
xuser_lists            none
projects               none
xprojects              none
enforce_project        false
enforce_user           auto
load_report_time       00:00:02
max_unheard            00:05:00
reschedule_unknown     00:00:00
loglevel               log_info
administrator_mail     none
set_token_cmd          none
pag_cmd                none
token_extend_time      none
shepherd_cmd           none
qmaster_params         none
execd_params           ENABLE_ADDGRP_KILL=true
reporting_params       accounting=true reporting=false flush_time=00:00:01 \
accounting_flush_time=00:00:00 joblog=false sharelog=00:00:00
finished_jobs          100
gid_range              {groups}
qlogin_command         builtin
qlogin_daemon          builtin
rlogin_command         builtin
rlogin_daemon          builtin
rsh_command            builtin
rsh_daemon             builtin
max_aj_instances       2000
max_aj_tasks           75000
max_u_jobs             0
max_jobs               0
auto_user_oticket      0
auto_user_fshare       0
auto_user_default_project none
auto_user_delete_time  86400
delegated_file_staging false
reprioritize           0
jsv_url                none
jsv_allowed_mod        ac,h,i,e,o,j,M,N,p,w
"""
_SCHEDULER = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
    "load_formula": "slots",
    "job_load_adjustments": "NONE",
}
_PARALLEL_ENVIRONMENT = """\
pe_name            smp
slots              999
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $pe_slots
control_slaves     TRUE
job_is_first_task  TRUE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""
_QUEUE = {
    "hostlist": "{host}",
    "slots": str(SLOTS),
    "pe_list": "smp",
    "load_thresholds": "NONE",
    "shell": "/bin/bash",
    # Jobs that are killed with their cell leave their folders.
    "tmpdir": "{folder}/tmp",
    "notify": "00:00:20",
    "min_cpu_interval": "00:00:01",
}


@dataclass(slots=True, kw_only=True)
class Cell(Daemons):
    """A qmaster, and an execd that makes this machine its host."""

    ports: list[int] = field(default_factory=lambda: free_ports(2))

    @property
    def host(self) -> str:
        return socket.gethostname()

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def variables(self) -> dict[str, str]:
        """Return what a command of Grid Engine needs to find this cell."""
        return {
            "SGE_ROOT": str(self.root),
            "SGE_CELL": CELL,
            "SGE_QMASTER_PORT": str(self.ports[0]),
            "SGE_EXECD_PORT": str(self.ports[1]),
        }

    def start(self) -> None:
        """Start both daemons and wait until jobs can run."""
        self._configure()
        # It stays in the foreground, with its messages on the screen.
        self.start_one("qmaster", [str(_PROGRAMS / "sge_qmaster")], {"SGE_ND": "true"})
        self.wait_for("qmaster", self._answers)
        self._set_up()
        self.start_one("execd", [str(_PROGRAMS / "sge_execd")], {"SGE_ND": "true"})
        self.wait_for("the host to report", self._is_ready)
        values = f"gpu={GPUS},slots={SLOTS}"
        self.run("qconf", "-mattr", "exechost", "complex_values", values, self.host)

    def stop(self) -> None:
        """End everything."""
        with contextlib.suppress(RuntimeError, subprocess.SubprocessError, OSError):
            self.run("qdel", "-f", "-u", "*", timeout=5)
        self.end_all()

    def _configure(self) -> None:
        common, spool = self.root / CELL / "common", self.folder / "spool"
        for place in (
            common,
            spool / "qmaster" / "job_scripts",
            spool / "execd",
            self.folder / "tmp",
        ):
            place.mkdir(parents=True)
        for name in ("bin", "lib", "util", "utilbin"):
            (self.root / name).symlink_to(_ROOT / name)
        (common / "act_qmaster").write_text(f"{self.host}\n")
        # The address of the loopback has a name of its own.
        (common / "host_aliases").write_text(f"{self.host} localhost\n")
        (common / "bootstrap").write_text(_BOOTSTRAP.format(common=common, spool=spool))
        # What jobs leave in /tmp is known by their numbers: those of the next cell are others.
        (spool / "qmaster" / "jobseqnum").write_text(f"{1 + secrets.randbelow(9_000_000)}\n")
        # Processes of a job are known by a group: no other cell of this machine has it.
        groups = f"{self.ports[0] * 16}-{self.ports[0] * 16 + 63}"
        settings = self.folder / "configuration"
        settings.write_text(_CONFIGURATION.format(spool=spool, groups=groups))
        self.run(
            str(_PROGRAMS / "spoolinit"),
            "classic",
            "libspoolc",
            f"{common};{spool}/qmaster",
            "init",
        )
        defaults = str(_PROGRAMS / "spooldefaults")
        self.run(defaults, "configuration", str(settings))
        self.run(defaults, "complexes", str(_RESOURCES / "centry"))
        self.run(defaults, "usersets", str(_RESOURCES / "usersets"))
        self.run(defaults, "managers", pwd.getpwuid(os.geteuid()).pw_name)

    def _set_up(self) -> None:
        """Make the queue, and what jobs may ask for."""
        self.run("qconf", "-ah", self.host)
        self.run("qconf", "-as", self.host)
        complexes = self.run("qconf", "-sc").rstrip()
        self._give("-Mc", f"{complexes}\ngpu gpu INT <= YES JOB 0 0\n")
        self._give("-Msconf", self._changed("-ssconf", _SCHEDULER))
        self._give("-Ap", _PARALLEL_ENVIRONMENT)
        self._give("-Aq", self._changed("-sq", {"qname": "all.q", **_QUEUE}))

    def _changed(self, option: str, wanted: Mapping[str, str]) -> str:
        """Return what qconf shows, or proposes, with other values."""
        lines = [line.split(None, 1) for line in self.run("qconf", option).splitlines()]
        values = {name: value for name, *rest in lines if (value := " ".join(rest))}
        values |= {
            name: value.format(host=self.host, folder=self.folder) for name, value in wanted.items()
        }
        return "".join(f"{name} {value}\n" for name, value in values.items())

    def _give(self, option: str, text: str) -> None:
        file = self.folder / f"qconf{option}"
        file.write_text(text)
        self.run("qconf", option, str(file))

    def _answers(self) -> bool:
        try:
            return bool(self.run("qconf", "-sh", timeout=10))
        except (RuntimeError, subprocess.TimeoutExpired):
            return False

    def _is_ready(self) -> bool:
        # A host that has not reported has a dash where its cores should be.
        lines = self.run("qhost", "-h", self.host).splitlines()
        return any(line.startswith(self.host) and line.split()[2] != "-" for line in lines)


@contextlib.contextmanager
def gridengine() -> Iterator[Cell]:
    """Have a cell for a while."""
    with started(lambda folder: Cell(folder=folder), "rw-sge-", "SGE_ROOT", "root") as made:
        yield made


def obstacle() -> str | None:
    """Say why there can be no Grid Engine here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a cell of Grid Engine needs Linux and root"
    missing = [
        name
        for name in ("sge_qmaster", "sge_execd", "sge_shepherd")
        if not (_PROGRAMS / name).exists()
    ]
    missing += [name for name in ("qsub", "qconf", "qacct") if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} cannot be found: apt-get install {' '.join(PACKAGES)}"
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError:
        return f"the name of this machine, {socket.gethostname()}, has no address: see /etc/hosts"
    return None


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_option(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    if why := install(PACKAGES, obstacle):
        return refuse(f"no Grid Engine here: {why}", chosen, environment)
    if chosen.install:
        return 0
    with gridengine() as made:
        command = chosen.command or ["bash"]
        return subprocess.run(
            command, env={**environment, **made.variables}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
