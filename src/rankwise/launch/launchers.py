"""The launchers that are known, and their options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from rankwise.launch.shell import Word, skip_prefixes

if TYPE_CHECKING:
    from rankwise.launch.mpiexec import Family

Dialect = Literal["openmpi", "hydra", "horovodrun", "srun", "torchrun", "torch.distributed.launch"]

Style = Literal["dashes", "argparse", "getopt"]
"""dashes: one or two before any name; argparse: names may be shortened; getopt: letters, joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherOptions:
    """The options of one launcher."""

    style: Style
    arguments: Mapping[str, int]
    """How many arguments each takes."""
    processes: Sequence[str] = ()
    """Those that say how many processes there are in all."""
    per_node: Sequence[str] = ()
    """Those that say how many there are on each node."""
    nodes: Sequence[str] = ()
    """Those that say how many nodes there are."""
    output: Sequence[str] = ()
    """Those that say what is to happen with the output of ranks."""

    def arguments_of(self, name: str) -> int | None:
        """Return how many arguments an option takes; None if there is no such option."""
        return self.arguments.get(name)

    def full_name(self, name: str) -> str:
        """Complete a name that is shortened, where that is allowed and clear."""
        if self.style == "dashes" or name in self.arguments or len(name) == 1:
            return name
        longer = [known for known in self.arguments if known.startswith(name)]
        return longer[0] if len(longer) == 1 else name


def _table(none: str, one: str, two: str = "") -> dict[str, int]:
    groups = ((none, 0), (one, 1), (two, 2))
    return {name: count for names, count in groups for name in names.split()}


_OPEN_MPI = _table(
    none="""
    allow-run-as-root bind-to-core bind-to-socket bycore bynode byslot continuous d debug-devel
    debug debug-daemons debug-daemons-file disable-recovery display-allocation
    display-devel-allocation display-devel-map display-diffable-map display-map display-topo
    do-not-launch do-not-resolve enable-instant-on-support enable-recovery fwd-mpirun-port
    get-stack-traces hetero-nodes index-argv-by-rank leave-session-attached
    merge-stderr-to-stdout no-app-prefix no-ready-msg nolocal nooversubscribe noprefix novm
    output-proctable oversubscribe pernode preload-binary q quiet report-bindings
    report-child-jobs-separately report-state-on-timeout s set-cwd-to-session-dir set-sid
    show-progress stop-in-app stop-in-init stop-on-exec system-server tag-output timestamp-output
    tv use-hwthread-cpus use-regexp v verbose xml
    """,
    one="""
    add-host add-hostfile am app app-pmix-prefix bind-to c cf cartofile cpu-list cpu-set
    cpus-per-proc cpus-per-rank debugger default-hostfile display forward-signals gpu-support
    H hnp host hostfile initial-errhandler keepalive launch-agent machinefile map-by max-restarts
    max-vm-size memory-alloc-kinds N n np npernode npersocket ompi-server output output-filename
    path personality pmix-prefix ppr prefix preload-files pset rank-by rankfile report-events
    report-pid report-uri rf runtime-options singleton spawn-timeout stdin stream-buffering
    timeout tmpdir tune unset-env wd wdir with-ft x xml-file xterm
    """,
    two="""
    append-env gmca gomca gpmixmca gprtemca mca omca pmixmca prepend-env prtemca set-env
    """,
)
_HYDRA = _table(
    none="""
    aps check check-mpi disable-auto-cleanup disable-hostname-propagation disable-x
    enable-auto-cleanup enable-hostname-propagation enable-x envall envnone gdb genvall genvnone
    hybrid-hosts info l mps nolocal noprefix ordered-output prepend-rank prepend-timestamp
    print-all-exitcodes print-rank-map profile prot report-bindings rr silent-abort
    skip-launch-node trace v V verbose version
    """,
    one="""
    bind-to binding bootstrap bootstrap-exec bootstrap-exec-args configfile cpu-bind demux envexcl
    envlist errfile errfile-pattern f gdb-args genvexcl genvlist gpath gpus-per-proc grr gtool
    gtoolfile gwdir host hostfile hostlist hosts hosts-group iface launcher launcher-exec localhost
    machine machinefile machinelist machines map-by membind memory-alloc-kinds n nameserver np
    order-nodes outfile outfile-pattern output-from path perhost pmi-port ppn prepend-pattern
    rankmap rmk s topolib tune umask usize wdir
    """,
    two="env genv",
)
_HOROVODRUN = _table(
    none="""
    autotune cb check-build disable-cache gloo hierarchical-allgather hierarchical-allreduce jsrun
    log-hide-timestamp log-with-timestamp log-without-timestamp mpi mpi-threads-disable
    no-autotune no-hierarchical-allgather no-hierarchical-allreduce no-log-hide-timestamp
    no-mpi-threads-disable no-stall-check no-timeline-mark-cycles prefix-output-with-timestamp
    prefix-timestamp stall-check tcp timeline-mark-cycles v verbose version
    """,
    one="""
    autotune-bayes-opt-max-samples autotune-gaussian-process-noise autotune-log-file
    autotune-steps-per-sample autotune-warmup-samples binding-args cache-capacity config-file
    cycle-time-ms elastic-timeout fusion-threshold-mb gloo-timeout-seconds H host-discovery-script
    hostfile hosts i log-level max-np max-num-proc min-np min-num-proc mpi-args network-interface
    network-interfaces np num-nccl-streams num-proc output-filename p reset-limit slots-per-host
    ssh-identity-file ssh-port stall-check-shutdown-time-seconds stall-check-warning-time-seconds
    start-timeout thread-affinity timeline-filename
    """,
    two="blacklist-cooldown-range",
)
_TORCHRUN = _table(
    none="m module no-python run-path standalone virtual-local-rank h help",
    one="""
    duplicate-stderr-filters duplicate-stdout-filters event-log-handler local-addr
    local-ranks-filter log-dir logs-specs master-addr master-port max-restarts monitor-interval
    nnodes node-rank nproc-per-node numa-binding r rdzv-backend rdzv-conf rdzv-endpoint rdzv-id
    redirects role shutdown-timeout signals-to-handle start-method t tee
    """,
)
# Letters that may have an argument have it at once (`-K0`), names only after `=`: none follows.
_SRUN = _table(
    none="""
    contiguous disable-status E exact exclusive external-launcher h H help hold I immediate
    interactive K k kill-on-bad-exit l label multi-prog nice no-allocate no-kill O overcommit
    overlap oversubscribe preserve-env propagate pty Q quiet quit-on-interrupt reboot s
    send-libs spread-job stepmgr u unbuffered use-min-nodes v V verbose version wait-for-children
    whole X Z
    """,
    one="""
    A account accel-bind acctg-freq B b bb bbf bcast bcast-exclude begin C c chdir cluster
    cluster-constraint clusters comment compress container container-id constraint core-spec
    cores-per-socket cpu-bind cpu-freq cpus-per-gpu cpus-per-task d D deadline delay-boot
    dependency distribution e epilog error exclude export extra-node-info G gid gpu-bind gpu-freq
    gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags het-group hint i input J
    job-name jobid L licenses m M mail-type mail-user mcs-label mem mem-bind mem-per-cpu
    mem-per-gpu mincpus mpi msg-timeout N n network nodefile nodelist nodes ntasks ntasks-per-core
    ntasks-per-gpu ntasks-per-node ntasks-per-socket o open-mode output p partition power prefer
    priority prolog q qos r relative reservation resv-ports S signal slurmd-debug sockets-per-node
    switches T t task-epilog task-prolog tasks-per-node thread-spec threads threads-per-core time
    time-min tmp topology-distribution tree-width tres-bind tres-per-task uid w W wait wckey x
    """,
)

_MPI_OUTPUT = """
    output output-filename tag-output timestamp-output merge-stderr-to-stdout xml xml-file xterm
    errfile errfile-pattern outfile outfile-pattern l prepend-rank prepend-pattern
    prepend-timestamp ordered-output output-from
"""
_TORCH_OUTPUT = """
    duplicate-stderr-filters duplicate-stdout-filters local-ranks-filter log-dir logdir logs-specs
    r redirects t tee
"""
_HOROVODRUN_OUTPUT = "output-filename prefix-timestamp prefix-output-with-timestamp"

# People write the options of one MPI for another: where both have one, it is this launcher's own.
_MPI = LauncherOptions(
    style="dashes",
    arguments=_HYDRA | _OPEN_MPI,
    processes=("np", "n", "c"),
    per_node=("npernode", "N", "ppn", "perhost"),
    output=_MPI_OUTPUT.split(),
)
_TORCH = LauncherOptions(
    style="argparse",
    arguments=_TORCHRUN,
    per_node=("nproc-per-node",),
    nodes=("nnodes",),
    output=_TORCH_OUTPUT.split(),
)

TABLES: Mapping[Dialect, LauncherOptions] = {
    "openmpi": _MPI,
    "hydra": replace(_MPI, arguments=_OPEN_MPI | _HYDRA),
    "horovodrun": LauncherOptions(
        style="argparse",
        arguments=_HOROVODRUN,
        processes=("np", "num-proc"),
        per_node=("slots-per-host",),
        output=_HOROVODRUN_OUTPUT.split(),
    ),
    "srun": LauncherOptions(
        style="getopt",
        arguments=_SRUN,
        processes=("n", "ntasks"),
        per_node=("ntasks-per-node", "tasks-per-node"),
        nodes=("N", "nodes"),
        output=("o", "output", "e", "error", "l", "label"),
    ),
    "torchrun": _TORCH,
    "torch.distributed.launch": replace(_TORCH, arguments=_TORCHRUN | {"use-env": 0, "logdir": 1}),
}

ELSEWHERE = frozenset({"app", "configfile", "multi-prog"})
"""Those that name a file in which the programs are."""

NAMES_VARIABLES = frozenset(
    {
        *("x", "genv", "genvlist", "genvexcl", "env", "envlist", "envexcl"),
        *("set-env", "unset-env", "append-env", "prepend-env"),
    }
)
"""Those whose first argument is the name of a variable, or several."""


_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_MODULE = re.compile(r"-[bBdEIOqsSuvxP]*m(.*)")
PYTHON_FLAGS = re.compile(r"-[bBdEIOqsSuvxP]+")

_NAMES: Mapping[str, Dialect] = {
    **dict.fromkeys(("orterun", "prterun", "mpirun.openmpi", "mpiexec.openmpi"), "openmpi"),
    **dict.fromkeys(("mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"), "hydra"),
    "horovodrun": "horovodrun",
    "srun": "srun",
    "torchrun": "torchrun",
}
_MODULES: Mapping[str, Dialect] = {
    "torch.distributed.launch": "torch.distributed.launch",
    "torch.distributed.run": "torchrun",
}
_SHELLS = frozenset({"sh", "bash", "dash", "zsh"})
_WITHIN = re.compile(
    r"(?:^|[\s;&|/])(?:torchrun|deepspeed|accelerate\s+launch)\s|-m\s*torch\.distributed"
)

TORCH: tuple[Dialect, ...] = ("torchrun", "torch.distributed.launch")


@dataclass(frozen=True, slots=True)
class FoundLauncher:
    """A launcher in a command."""

    dialect: Dialect
    name: str
    path: str
    arguments: int
    """The index of the word after it."""
    python: str = ""
    """The interpreter that runs it, as it is written, if one does."""


def find_launcher(words: Sequence[Word], family: Family) -> FoundLauncher | None:
    """Find the launcher that a command is; None if it is none."""
    found = (_launcher_at(words, place, family) for place in skip_prefixes(words))
    return next((launcher for launcher in found if launcher is not None), None)


def seems_torch(words: Sequence[Word]) -> bool:
    """Return whether a command starts ranks of torch, with a launcher that is known here or not."""
    return any(_seems_torch_at(words, place) for place in skip_prefixes(words))


def is_python(word: Word) -> bool:
    """Return whether a program is an interpreter of Python."""
    return _PYTHON.fullmatch(_base(word)) is not None


def _launcher_at(words: Sequence[Word], place: int, family: Family) -> FoundLauncher | None:
    name, path = _base(words[place]), words[place].text or ""
    if name in ("mpirun", "mpiexec"):
        dialect: Dialect = "hydra" if family in ("mpich", "intel") else "openmpi"
        return FoundLauncher(dialect, name, path, place + 1)
    if name in _NAMES:
        return FoundLauncher(_NAMES[name], name, path, place + 1)
    return _module_of_python(words, place) if is_python(words[place]) else None


def _module_of_python(words: Sequence[Word], place: int) -> FoundLauncher | None:
    at = place + 1
    while at < len(words):
        text = words[at].text or ""
        if found := _MODULE.fullmatch(text):
            at += not found[1]
            module = found[1] or (words[at].text if at < len(words) else None) or ""
            if module not in _MODULES:
                return None
            return FoundLauncher(_MODULES[module], module, module, at + 1, words[place].raw)
        if text in ("-W", "-X"):
            at += 2
        elif PYTHON_FLAGS.fullmatch(text) or text.startswith(("-W", "-X")):
            at += 1
        else:
            return None
    return None


def _seems_torch_at(words: Sequence[Word], place: int) -> bool:
    launcher = _launcher_at(words, place, "unknown")
    if launcher is not None:
        return launcher.dialect in TORCH
    name = _base(words[place])
    following = [word.text or word.raw for word in words[place + 1 :]]
    if name in _SHELLS:
        return any(_WITHIN.search(text) for text in following)
    return name == "deepspeed" or (name == "accelerate" and following[:1] == ["launch"])


def _base(word: Word) -> str:
    return PurePosixPath(word.text or "").name
