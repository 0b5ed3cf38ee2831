"""The options of launchers: how they are written, and how many arguments each takes.

Names are without dashes, and with `-` for `_`. Those of mpirun come from `--help` and trials of
Open MPI 4.1 and 5.0, MPICH 5.0 and Intel MPI 2021.18, those of torch and Horovod from their parsers
(torch 2.13 was tried). Those of srun are untried: an option that is missing only means that a line
is not understood, but a wrong count would put the wrapper into a wrong place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Dialect = Literal["openmpi", "hydra", "horovodrun", "srun", "torchrun", "torch.distributed.launch"]

Style = Literal["dashes", "argparse", "getopt"]
"""dashes: one or two before any name; argparse: names may be shortened; getopt: letters, joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The options of one launcher."""

    style: Style
    arguments: Mapping[str, int]
    """How many arguments each takes."""
    more: Mapping[str, int] = field(default_factory=dict)
    """Those of a related launcher, which people write too."""
    processes: Sequence[str] = ()
    """Those that say how many processes there are in all."""
    per_node: Sequence[str] = ()
    """Those that say how many there are on each node."""
    nodes: Sequence[str] = ()
    """Those that say how many nodes there are."""
    output: Sequence[str] = ()
    """Those that say what is to happen with the output of ranks."""

    def arguments_of(self, name: str) -> int | None:
        """Tell how many arguments an option takes; None if there is no such option."""
        return self.arguments.get(name, self.more.get(name))

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
_LAUNCH = _TORCHRUN | {"use-env": 0, "logdir": 1}
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

TABLES: Mapping[Dialect, Table] = {
    "openmpi": Table(
        style="dashes",
        arguments=_OPEN_MPI,
        more=_HYDRA,
        processes=("np", "n", "c"),
        per_node=("npernode", "N", "ppn", "perhost"),
        output=_MPI_OUTPUT.split(),
    ),
    "hydra": Table(
        style="dashes",
        arguments=_HYDRA,
        more=_OPEN_MPI,
        processes=("np", "n", "c"),
        per_node=("ppn", "perhost", "npernode", "N"),
        output=_MPI_OUTPUT.split(),
    ),
    "horovodrun": Table(
        style="argparse",
        arguments=_HOROVODRUN,
        processes=("np", "num-proc"),
        per_node=("slots-per-host",),
        output=_HOROVODRUN_OUTPUT.split(),
    ),
    "srun": Table(
        style="getopt",
        arguments=_SRUN,
        processes=("n", "ntasks"),
        per_node=("ntasks-per-node", "tasks-per-node"),
        nodes=("N", "nodes"),
        output=("o", "output", "e", "error", "l", "label"),
    ),
    "torchrun": Table(
        style="argparse",
        arguments=_TORCHRUN,
        per_node=("nproc-per-node",),
        nodes=("nnodes",),
        output=_TORCH_OUTPUT.split(),
    ),
    "torch.distributed.launch": Table(
        style="argparse",
        arguments=_LAUNCH,
        per_node=("nproc-per-node",),
        nodes=("nnodes",),
        output=_TORCH_OUTPUT.split(),
    ),
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
