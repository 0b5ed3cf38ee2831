"""Slurm with the words of PBS: qsub, qstat, qdel and pbsnodes for the nodes of `cluster.py`.

    python3 scripts/pbs_words.py qstat -f       one command in a cluster that ends with it
    python3 scripts/pbs_words.py --install      no cluster, only what is needed for one

Debian has no PBS. It has wrappers that come with Slurm; their package cannot be installed beside
that of Grid Engine, so it is only unpacked.

Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cluster
from debian import add_option, install, refuse

PACKAGES = (*cluster.PACKAGES, "libslurm-perl", "libslurmdb-perl", "libswitch-perl")
WRAPPERS = "slurm-wlm-torque"
NAMES = ("qsub", "qstat", "qdel", "qsig", "pbsnodes", "generate_pbs_nodefile")
_HAS_MODULES = (
    "for my $one (qw(Slurm Slurmdb Switch)) { grep { -e qq($_/$one.pm) } @INC or exit 1 }"
)
# They do not quote the path of what is beside them, so it must have no blanks.
_PLACE = Path("/opt/rankwise-tests/pbs-words")


# The wrappers have none, and their qdel sends SIGKILL at once.
_QSIG = """\
#!/bin/sh
# qsig -s SIGNAL JOB
if squeue --noheader --states=RUNNING --jobs="$3" -o%i 2>/dev/null | grep -q .; then
    exec scancel --batch --signal="$2" "$3"
fi
echo "qsig: Request invalid for state of job $3" >&2
exit 170
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PbsWords:
    """A cluster, and how it is used with the words of PBS."""

    cluster: cluster.Cluster

    @property
    def variables(self) -> dict[str, str]:
        """Return what commands need to find the cluster and the wrappers."""
        path = f"{_PLACE / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**self.cluster.variables, "PATH": path}

    @property
    def table(self) -> str:
        """Return lines for [compute.NAME] that say what the wrappers leave to the site."""
        # As with ssh: nothing of the environment gets there.
        reach = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--nodelist={node}", "--mpi=none"]
        reach += ["env", "-i", f"PATH={os.defpath}", "sh", "-c"]
        words = ", ".join(f'"{word}"' for word in reach)
        # It leaves the file behind.
        made = f"TMPDIR={self.cluster.folder}/tmp {_PLACE}/bin/generate_pbs_nodefile"
        return f'init = ["export PBS_NODEFILE=$({made})"]\nreach = [{words}]'


@contextlib.contextmanager
def pbs_words() -> Iterator[PbsWords]:
    """Have a cluster for a while."""
    with cluster.cluster(plugins="required spank_pbs.so\n") as made:
        yield PbsWords(cluster=made)


def obstacle() -> str | None:
    """Say why there can be no such cluster here, or None."""
    if why := cluster.obstacle():
        return why
    if missing := [name for name in NAMES if not (_PLACE / "bin" / name).exists()]:
        return f"{', '.join(missing)} cannot be found: python3 {__file__} --install"
    # Not loaded: that asks for a cluster.
    if subprocess.run(["perl", "-e", _HAS_MODULES], check=False).returncode:
        return f"modules of Perl cannot be found: apt-get install {' '.join(PACKAGES[-3:])}"
    return None


def _unpack() -> str | None:
    """Unpack the wrappers, where they find Slurm's own commands beside them; or say why not."""
    with tempfile.TemporaryDirectory(prefix="rankwise-pbs-") as name:
        # Its own way of fetching must be able to write there.
        Path(name).chmod(0o777)
        commands = ["apt-get", "download", "-qq", WRAPPERS], ["sh", "-c", "dpkg -x ./*.deb there"]
        for command in commands:
            done = subprocess.run(command, cwd=name, capture_output=True, text=True, check=False)
            if done.returncode:
                return f"{' '.join(command)} failed: {done.stderr.strip()}"
        _PLACE.mkdir(parents=True, exist_ok=True)
        shutil.copytree(Path(name, "there", "usr", "bin"), _PLACE / "bin", dirs_exist_ok=True)
    (_PLACE / "bin" / "qsig").write_text(_QSIG)
    (_PLACE / "bin" / "qsig").chmod(0o755)
    for name in ("sbatch", "salloc", "srun"):
        link = _PLACE / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(shutil.which(name) or f"/usr/bin/{name}")
    return None


def _install() -> str | None:
    """Fetch what is missing, if we may; gives what still stands in the way."""
    why = install(PACKAGES, obstacle)
    if why is None or cluster.obstacle() or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return why
    return _unpack() or obstacle()


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_option(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    chosen = parser.parse_args(arguments)
    if why := _install():
        return refuse(f"no words of PBS here: {why}", chosen, environment)
    if chosen.install:
        return 0
    with pbs_words() as made:
        command = chosen.command or ["bash"]
        return subprocess.run(
            command, env={**environment, **made.variables}, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
