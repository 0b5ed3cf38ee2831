"""Watch one process that is not the runner's own child: a rank, or a process on another node.

A rank is started by its launcher, which calls our `rankwise-rank` with the command. A node is
virtual, a part of this machine, unless it has `reach`: the words that start something there, such
as those of srun. The node that the runner itself is on needs none.
"""

from __future__ import annotations

import ctypes
import os
import select
import time

from .files import (
    Records,
    is_plain,
    listed,
    own_command,
    read_text,
    say,
    shared_memory,
    temporary,
    try_to,
)
from .order import BAD_ORDER, Order, read_order
from .output import Redactor
from .processes import (
    ENDING_SIGNALS,
    FORWARDED_SIGNALS,
    INSIDE,
    LIBC,
    OUR_FAULT,
    PR_SET_CHILD_SUBREAPER,
    Child,
    be_prompt,
    empty,
    exit_code_of,
    prctl,
    restore_signals,
    send,
    signal,
    sweep,
    wake_up_by_signals,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence
    from typing import Any

    from .machine import UsageMeter
    from .order import NodeOrder, ProcessOrder

# How long records are tried to be written while that fails: a launcher waits for its ranks.
PATIENCE_SECONDS = 5.0
SSH_FAULT = 255
RANK_VARIABLES = (
    *("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "PALS_RANKID"),
    *("HOROVOD_RANK", "RANK", "SLURM_PROCID"),
)
# Where Open MPI keeps what the ranks of a node share, in files named after the host. Virtual nodes
# have one host name, where none can be taken.
SHARED_MEMORY_VARIABLES = (
    "OMPI_MCA_btl_vader_backing_directory",
    "OMPI_MCA_btl_sm_backing_directory",
    "OMPI_MCA_osc_sm_backing_directory",
    "OMPI_MCA_osc_rdma_backing_directory",
    "OMPI_MCA_shmem_mmap_backing_file_base_dir",
)
# Where the daemons of Open MPI 4 and 5 keep their files. Those that are killed leave them.
TEMPORARY_VARIABLES = ("OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base")
# Open MPI 5's collectives that work node by node tell the nodes apart by the names of their hosts.
NODE_BY_NODE = {"OMPI_MCA_coll_han_priority": "-1"}
# Options of ssh that have a value.
SSH_OPTIONS = frozenset(f"-{letter}" for letter in "bcDEeFIiJLlmOopQRSWwB")
CLONE_NEWNS, CLONE_NEWUTS = 0x00020000, 0x04000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000


def node_variables(order: Order, number: int) -> dict[str, str]:
    """Return the variables of a process that name its node."""
    name = order.nodes[number].name
    return {"RANKWISE_NODE": name, "RANKWISE_NODE_RANK": str(number), "HOSTNAME": name}


def settle(order: Order, number: int) -> bool:
    """Move this process to a virtual node, and return whether it has the node's host name now."""
    node = order.nodes[number]
    if node.cores and hasattr(os, "sched_setaffinity"):
        try_to(os.sched_setaffinity, 0, node.cores)  # The machine may have other cores.
    os.chdir(node.folder)
    if order.is_contained:
        return False  # All nodes are in one container, whose name must be none of theirs.
    if has_own_name(node) and (len(order.nodes) == 1 or node.reach is not None):
        return True
    return take_host_name(node.name, f"{order.folder}/etc-hosts")


def enter_node(order: Order, about: ProcessOrder, environment: MutableMapping[str, str]) -> None:
    """Begin a process of the order: in a session of its own, without input, on its node."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    has_name = settle(order, about.node)
    if about.folder:
        os.chdir(about.folder)
    if order.has_limits and not about.is_contained:
        from .limits import confine  # late: few orders have some

        confine(order, about.node, about.name)
    if has_name:
        # A launcher passes it on to its daemons, which need names that tell them apart.
        for name in TEMPORARY_VARIABLES:
            environment.setdefault(name, temporary(order.marker))


def has_own_name(node: NodeOrder) -> bool:
    """Return whether a node is called as this machine is, with or without a domain."""
    return os.uname().nodename.partition(".")[0] == node.name.partition(".")[0]


def take_host_name(name: str, hosts: str) -> bool:
    """Take a host name and an /etc/hosts for this process, and for what it starts.

    False: that is not permitted. Launchers then know the node by variables only.
    """
    if not hasattr(LIBC, "unshare") or LIBC.unshare(CLONE_NEWNS | CLONE_NEWUTS) != 0:
        return False
    # What is mounted outside later must be seen inside, but not the other way round.
    steps = ((b"none", b"/", MS_REC | MS_SLAVE), (os.fsencode(hosts), b"/etc/hosts", MS_BIND))
    for source, target, flags in steps:
        if LIBC.mount(source, target, None, ctypes.c_ulong(flags), None) != 0:
            return False
    encoded = name.encode()
    return bool(LIBC.sethostname(encoded, ctypes.c_size_t(len(encoded))) == 0)


def leave_batch_system(order: Order) -> None:
    """Remove the batch system's variables, which are about the step that has started us here.

    What the order itself sets for its processes stays, whatever it is called.
    """
    from .dialect import read_dialect  # Only a process that comes from another node needs it.

    try:
        dialect = read_dialect()
    except FileNotFoundError:
        return  # It was no batch system that has started us.
    told = [order.environment, *(one.environment for one in order.processes)]
    for name in [name for name in os.environ if dialect.is_own(name)]:
        if not any(name in one for one in told):
            del os.environ[name]


def run_there(folder: str, *arguments: str) -> int:
    """Run a line on the node that this process has been started on for it."""
    return run_on_node(folder, *arguments, is_there=True)


def run_on_node(folder: str, *arguments: str, is_there: bool = False) -> int:
    """Run a line on another node, called by a launcher in place of ssh."""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        del rest[: 2 if rest[0] in SSH_OPTIONS else 1]
    if not rest:
        say("rankwise-node: no host is given: rankwise-node [OPTIONS] HOST COMMAND")
        return SSH_FAULT
    host = rest.pop(0).rpartition("@")[2]
    try:
        order = read_order(folder)
    except BAD_ORDER as error:
        say(f"rankwise-node: cannot read {folder}/order.json: {error}")
        return SSH_FAULT
    names = [node.name for node in order.nodes]
    known = [*names, *(node.address for node in order.nodes)]
    if host not in known:
        say(f"rankwise-node: no node of this job is called {host!r}; there are {', '.join(names)}")
        return SSH_FAULT
    number = known.index(host) % len(names)
    reach = order.nodes[number].reach
    if is_there:
        leave_batch_system(order)
    elif reach and os.environ.get("RANKWISE_NODE") != names[number]:
        restore_signals()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # The launcher waits for this process, so the command takes its place.
        os.execvp(reach[0], [*reach, *own_command(), "there", folder, host, *rest])
    try:
        has_name = settle(order, number)
    except OSError as error:
        say(f"rankwise-node: cannot work on {host}: {error}")
        return SSH_FAULT
    os.environ.update(node_variables(order, number))
    if not has_name:
        keep_apart(order.marker, names[number])
    restore_signals()
    return os.execv("/bin/sh", ["/bin/sh", "-c", " ".join(map(quote_prefixes, rest))])


def quote_prefixes(word: str) -> str:
    """Quote the folders of programs in a word for a shell: Open MPI does not quote them."""
    path = os.environ.get("PATH", "").split(os.pathsep)
    folders = {os.path.dirname(one) for one in path if not is_plain(os.path.dirname(one))}
    if not folders:
        return word
    places = sorted(folders, key=len, reverse=True)
    done, quote, at = "", "", 0
    while at < len(word):
        place = next((one for one in places if not quote and word.startswith(one, at)), "")
        # A backslash goes together with what follows, unless it is between single quotes.
        part = place or word[at : at + 1 + (word[at] == "\\" and quote != "'")]
        if not place and part in ("'", '"') and quote in ("", part):
            quote = "" if quote else part
        done += "".join(one if is_plain(one) else f"\\{one}" for one in place) or part
        at += len(part)
    return done


def keep_apart(marker: str, node: str) -> None:
    """Keep Open MPI from taking daemons and ranks of nodes with one host name for the same."""
    memory, files = f"{shared_memory(marker)}/{node}", f"{temporary(marker)}/{node}"
    try:
        os.makedirs(memory, exist_ok=True)
    except OSError as error:
        say(f"rankwise-node: cannot make {memory}: {error.strerror}")
        return
    places = dict.fromkeys(SHARED_MEMORY_VARIABLES, memory)
    places.update(dict.fromkeys(TEMPORARY_VARIABLES, files))
    for name, value in {**places, **NODE_BY_NODE}.items():
        os.environ.setdefault(name, value)


def run_rank(*command: str) -> int:
    """Run a rank that a launcher starts, and be to the launcher what the rank would be."""
    folder = os.environ.get("RANKWISE_FOLDER", "")
    if not folder:
        say("RANKWISE_FOLDER is not set: this rank leaves no records")
        restore_signals()
        os.execvp(command[0], command)
    order = order_or_none(folder)
    number = rank_from(os.environ)
    node = find_node(order)
    if node is not None:
        os.environ.update(node_variables(order, node))
        move_to_own_folder(order, node)
        if order.nodes[node].reach is not None and not has_own_name(order.nodes[node]):
            keep_apart(order.marker, order.nodes[node].name)
    path = own_folder(f"{folder}/processes", number)
    about = {"name": os.path.basename(path), "role": "rank", "node": node or 0, "rank": number}
    return leave_like(WatchedRank(path, about, order, stand_apart()).run(command))


def order_or_none(folder: str) -> Order:
    """Read the order of an attempt; one without anything in it, if it cannot be read."""
    try:
        return read_order(folder)
    except BAD_ORDER:
        return Order(marker="", folder=folder, nodes=(), processes=())


def stand_apart() -> int:
    """Go on in a process that the launcher does not know.

    A launcher may kill what it has started without a warning: mpiexec of MPICH does so after an
    MPI_Abort. Only the process that stays behind here dies then, and what the rank wrote last, and
    how it ended, is still recorded. Returns a descriptor that ends with that process; -1: there
    can be no second process, and this is the one that the launcher knows.
    """
    # `held` is open in the process that stays behind: when that ends, `alive` does.
    alive, held = os.pipe()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED_SIGNALS)
    try:
        watcher = os.fork()
    except OSError:
        watcher = -1
    if watcher > 0:
        for number in FORWARDED_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, lambda number, _: send(watcher, number))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        code = exit_code_of(os.waitpid(watcher, 0)[1])
        os._exit(leave_like({"exit_code": code, "signal": -code if code < 0 else None}))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(held)
    if watcher < 0:
        os.close(alive)
        return -1
    # Launchers signal the group of what they have started.
    os.setpgid(0, 0)
    return alive


def rank_from(environment: Mapping[str, str]) -> int | None:
    """Return the number that the launcher has given to this rank."""
    for name in RANK_VARIABLES:
        if environment.get(name, "").isdecimal():
            return int(environment[name])
    return None


def own_folder(processes: str, number: int | None) -> str:
    """Make a folder for a rank that has none yet: it may be started more than once."""
    name = f"rank-{number}" if number is not None else f"rank-pid{os.getpid()}"
    path, times = f"{processes}/{name}", 1
    while os.path.exists(path):
        times += 1
        path = f"{processes}/{name}.{times}"
    try:
        os.makedirs(path)
    except FileExistsError:
        return own_folder(processes, number)  # Another rank of this number has just made it.
    except OSError as error:
        say(f"cannot make {path}: {error.strerror}")
    return path


def find_node(order: Order) -> int | None:
    """Find out on which virtual node this process is.

    Some launchers give every rank the variables of the node that they themselves are on. What
    started this process there, however, has its own.
    """
    names = [node.name for node in order.nodes]
    # Where Slurm itself starts ranks, it tells them the node's name; our own have no such variable.
    candidates = [os.uname().nodename, os.environ.get("SLURMD_NODENAME", "")]
    try:
        variables = read_text(f"/proc/{os.getppid()}/environ").split("\0")
    except OSError:
        variables = []  # The parent is gone, or another user's.
    candidates += [text[14:] for text in variables if text.startswith("RANKWISE_NODE=")]
    candidates.append(os.environ.get("RANKWISE_NODE", ""))
    return next((names.index(name) for name in candidates if name in names), None)


def move_to_own_folder(order: Order, number: int) -> None:
    """Go to the folder of this node that corresponds to the launcher's folder on its own node."""
    own = order.nodes[number].folder.rstrip("/")
    try:
        here = os.getcwd()
        others = [*(one.folder for one in order.nodes), *(one.folder for one in order.processes)]
        for other in (folder.rstrip("/") for folder in filter(None, others)):
            if f"{here}/".startswith(f"{other}/"):
                return os.chdir(own + here[len(other) :])
    except OSError:
        pass  # The program has made it, on the launcher's node only, or has removed it.
    return None


class WatchedRank(Child):
    """One rank: a process to which we pass on the signals of its launcher."""

    # What it gets when the process at the other end of the line is gone.
    last_signal = signal.SIGKILL

    def __init__(self, folder: str, about: Mapping[str, Any], order: Order, line: int) -> None:
        super().__init__(folder, about, order.log_bytes)
        self._order = order
        self._beat = order.heartbeat
        self._records = Records()
        self._signals: list[int] = []
        # A descriptor, or -1. When it ends, we are to end the process.
        self._line = line
        self._usage: UsageMeter | None = None

    def run(self, command: Sequence[str]) -> dict[str, Any]:
        """Run it to its end, and return the record of it."""
        awake = wake_up_by_signals()
        for number in FORWARDED_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._forward)
        names = os.environ.get("RANKWISE_SECRETS", "").split(",")
        redactor = Redactor([os.environ.get(name, "") for name in names])
        ready, record_is_written = os.pipe()

        def prepare() -> None:
            self.prepare()
            # Not before its start is on record: if it is killed, and we with it, that is known.
            os.close(record_is_written)
            os.read(ready, 1)

        self.start(command, os.environ, prepare, redactor if self.has_log() else None)
        be_prompt()
        for early in self._signals:
            send(self.pid, early)
        self._records.put(f"{self.folder}/start.json", self.start_record())
        os.close(record_is_written)
        os.close(ready)
        self._wait(awake)
        for stream in self.streams:
            stream.close()
        if self._usage:
            self._usage.close()
        assert self.end is not None
        # Whether it was on the runner's order is not known here: the runner adds it to the record.
        ending = (*ENDING_SIGNALS, signal.SIGKILL)
        self.end["told"] = next((one for one in self._signals if one in ending), None)
        self.end["may_restart"] = may_restart(os.environ)
        self._records.put(f"{self.folder}/end.json", self.end)
        self._records.insist(PATIENCE_SECONDS)
        return self.end

    def prepare(self) -> None:
        """Make its own group: a signal to the launcher's group is passed on once, not twice."""
        os.setpgid(0, 0)
        if self._order.has_limits:
            from .limits import confine

            confine(self._order, self._about["node"] or 0, str(self._about["name"]))

    def start_record(self) -> dict[str, Any]:
        return {**super().start_record(), "watched_by": os.getpid()}

    def has_log(self) -> bool:
        """Return whether its output is kept here; otherwise it goes to the launcher."""
        return os.environ.get("RANKWISE_RANK_OUTPUT") == "own"

    def _forward(self, number: int, _: object) -> None:
        # A later signal has not ended it, and its number may be another process's by then.
        if self.end is None:
            self._signals.append(number)
            send(self.pid, number)

    def _wait(self, awake: int) -> None:
        poll = select.poll()
        poll.register(awake, select.POLLIN)
        streams = {stream.source: stream for stream in self.streams}
        for source in streams:
            poll.register(source, select.POLLIN)
        if self._line >= 0:
            poll.register(self._line, select.POLLIN)
        beat = 0.0
        while self.end is None:
            if time.monotonic() >= beat:
                self._records.retry()
                if self._usage:
                    self._usage.write()
                beat = time.monotonic() + self._beat
            seconds = self._beat
            if self._usage:
                if time.monotonic() >= self._usage.due:
                    self._usage.look()
                seconds = max(0.0, min(seconds, self._usage.due - time.monotonic()))
            for source, _ in poll.poll(seconds * 1000 + 1):
                if source == awake:
                    empty(awake)
                elif source == self._line:
                    poll.unregister(source)
                    self._forward(self.last_signal, None)
                elif not streams[source].pump() and streams[source].source < 0:
                    poll.unregister(source)
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.note_end(status, usage)


class RemoteProcess(WatchedRank):
    """A process of the order on a node that the runner is not on."""

    last_signal = signal.SIGTERM

    def __init__(self, folder: str, about: ProcessOrder, order: Order) -> None:
        # Ended by its input (0), not by a signal: Slurm sends those to all our descendants as well.
        super().__init__(folder, about.data(), order, 0)
        self._process = about
        # Shorter than the runner's own patience, so that the record of its end is written here.
        self._patience = 0.8 * order.grace
        from .machine import usage_for  # late, because ranks of launchers do without it

        # What those ranks use is measured around their launcher.
        self._usage = usage_for(order, folder)

    def prepare(self) -> None:
        """Put it on its node, as a runner does."""
        enter_node(self._order, self._process, os.environ)

    def has_log(self) -> bool:
        return True

    def _forward(self, number: int, frame: object) -> None:
        if number == signal.SIGALRM:
            return send(self.pid, signal.SIGKILL)
        if number in ENDING_SIGNALS:
            signal.setitimer(signal.ITIMER_REAL, self._patience)
        return super()._forward(number, frame)


def run_remote(folder: str, name: str, *command: str) -> int:
    """Run a process of the order here, for a runner on another node."""
    try:
        order = read_order(folder)
        about = next(one for one in order.processes if one.name == name)
    except (*BAD_ORDER, StopIteration) as error:
        say(f"cannot use {folder}/order.json for {name}: {error!r}")
        return OUR_FAULT
    leave_batch_system(order)
    is_reaper = prctl(PR_SET_CHILD_SUBREAPER, 1)
    process = RemoteProcess(f"{folder}/processes/{name}", about, order)
    end = process.run(command)
    # Only what descends from us: others of this attempt may be on this machine.
    sweep("", is_reaper=is_reaper)
    return 128 + end["signal"] if end["signal"] else int(end["exit_code"] or 0)


class ContainedProcess(WatchedRank):
    """A process of the order in its container: what it writes goes out to the runner."""

    def has_log(self) -> bool:
        return False


def run_inside(folder: str, name: str, *command: str) -> int:
    """Run a process of the order in its container, and record how it ended for the runner."""
    is_reaper = prctl(PR_SET_CHILD_SUBREAPER, 1)
    processes = f"{folder}/processes"
    process = ContainedProcess(
        f"{processes}/{name}/{INSIDE}", {"name": name}, order_or_none(folder), -1
    )
    end = process.run(command)
    # All that is left ends with us, and what watches a rank has its record to write before.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_reaper and has_unrecorded(processes) and time.monotonic() < deadline:
        try:
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.02)
        except ChildProcessError:
            break
    return 128 + end["signal"] if end["signal"] else int(end["exit_code"] or 0)


def has_unrecorded(processes: str) -> bool:
    """Return whether a rank has left no record of its end."""
    ranks = [f"{processes}/{name}" for name in listed(processes) if name.startswith("rank-")]
    return any(not os.path.exists(f"{rank}/end.json") for rank in ranks)


def may_restart(environment: Mapping[str, str]) -> bool:
    """Return whether torchrun would start this rank anew if it failed."""
    most = environment.get("TORCHELASTIC_MAX_RESTARTS", "")
    done = environment.get("TORCHELASTIC_RESTART_COUNT", "")
    return most.isdecimal() and done.isdecimal() and int(done) < int(most)


def leave_like(record: Mapping[str, Any]) -> int:
    """End this process in the way that a record says."""
    number = record["signal"]
    if number is None:
        return int(record["exit_code"])
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # One core file is enough.
        signal.signal(number, signal.SIG_DFL)
    except (OSError, ValueError):
        pass  # SIGKILL has no handler that could be set.
    os.kill(os.getpid(), number)
    return 128 + int(number)
