"""The server of ranks with real processes: it runs in a session of its own, behind a real fork_socket.

Nothing here uses MPI: that mpiexec has started a launcher is a variable in its environment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from rankwise.node.processes import leftovers
from rankwise.pytest_plugin import connections
from rankwise.pytest_plugin.connections import Channel, Header
from rankwise.pytest_plugin.workers import rank_proxy
from rankwise.pytest_plugin.workers.forkserver import (
    SECRET_VARIABLE,
    kill_group,
    rank_in,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched by pidfd")

SECRET = "the secret of this run"
# Nothing here takes long; without a limit a defect would be a hang.
LIMIT = 20.0

SERVER = """
import os, signal, socket, sys, time
from rankwise.pytest_plugin.workers.forkserver import ForkServer
from rankwise.pytest_plugin.connections import Channel

line, fork_socket, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
usual = dict(os.environb)
server = ForkServer(Channel(socket.socket(fileno=line)), "the secret of this run")
server.open_fork_socket(socket.socket(fileno=fork_socket), command)
fork_request = server.serve()
assert fork_request is not None
fork_request.take_place(usual)
exec(os.environ["ACT"])
os._exit(0)
"""


class Server:
    """A process that makes ranks, and the controller's end of the line to it."""

    def __init__(self, folder: Path, command: Sequence[str] = ()) -> None:
        self._listener, self._address = connections.listen_on_file(folder / "fork_socket")
        ours, theirs = socket.socketpair()
        self._launchers: list[subprocess.Popen[bytes]] = []
        with theirs:
            numbers = (theirs.fileno(), self._listener.fileno())
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER, *map(str, numbers), *command],
                pass_fds=numbers,
                stdin=subprocess.DEVNULL,
                # It kills groups of processes: ours must not be one of them.
                start_new_session=True,
                env={**os.environ, "USUAL": "as ever", "CHANGED": "before"},
            )
        self._listener.close()
        self.line = Channel(ours)
        self.line.set_timeout(LIMIT)

    def launch(
        self,
        act: str,
        *,
        world: int = 0,
        rank: int = 0,
        secret: str = SECRET,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a launcher as mpiexec does; the rank that comes of it will do `act`."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", rank_proxy.__file__, self._address.path, str(world)],
            env={
                "ACT": act,
                "PMI_RANK": str(rank),
                "USUAL": "as ever",
                SECRET_VARIABLE: secret,
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._launchers.append(process)
        return process

    def knock(self) -> socket.socket:
        return self._address.connect(LIMIT)

    def hear(self) -> Header:
        return self.line.receive()[0]

    def is_well(self) -> bool:
        """Find out whether it still makes ranks."""
        process = self.launch("os._exit(42)", world=99)
        if said(process)[0] != 42:
            return False
        while (header := self.hear()).get("world") != 99:
            pass
        return header == ended(42, world=99)

    def close(self) -> None:
        self.line.close()
        try:
            self.process.wait(LIMIT)
        finally:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, signal.SIGKILL)
            for process in self._launchers:
                process.kill()
                process.communicate()
            self.process.wait(LIMIT)


def said(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Wait for a launcher; give its status and what it, or its rank, has printed."""
    output, errors = process.communicate(timeout=LIMIT)
    return process.returncode, (output + errors).decode()


def ended(status: int | None, *, world: int = 0, rank: int = 0, by_us: bool = False) -> Header:
    return {"kind": "ended", "world": world, "rank": rank, "status": status, "by_us": by_us}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + LIMIT
    while is_alive(pid):
        assert time.monotonic() < deadline, f"{pid} is still there"
        time.sleep(0.01)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.close()


# Copies


@pytest.mark.parametrize("status", [0, 3, 255])
def test_a_launcher_and_the_controller_learn_how_a_rank_ended(server: Server, status: int) -> None:
    process = server.launch(f"os._exit({status})", world=7, rank=2)
    assert said(process)[0] == status
    assert server.hear() == ended(status, world=7, rank=2)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_rank_that_a_signal_ends_ends_its_launcher_in_the_same_way(
    server: Server, number: signal.Signals
) -> None:
    act = f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), {int(number)})"
    process = server.launch(act)
    assert said(process)[0] == -number
    assert server.hear() == ended(-number)


def test_a_rank_has_the_descriptors_of_its_launcher(server: Server) -> None:
    process = server.launch(
        "print('spoken', flush=True); print('wrong', file=sys.stderr, flush=True)"
    )
    assert said(process) == (0, "spoken\nwrong\n")


def test_a_rank_has_what_mpiexec_has_put_into_the_environment_and_keeps_the_rest(
    server: Server,
) -> None:
    act = "print(*(os.environ.get(n) for n in sorted(('USUAL', 'CHANGED', 'NEW', 'PMI_RANK', 'RANKWISE_SECRET', 'PATH'))), sep='|')"
    process = server.launch(
        f"{act}; sys.stdout.flush()", rank=3, environment={"NEW": "é=1", "CHANGED": "after"}
    )
    status, text = said(process)
    assert (status, text.strip()) == (0, f"after|é=1|{os.environ['PATH']}|3|None|as ever")


def test_a_rank_has_the_line_to_mpiexec_under_its_own_number(server: Server) -> None:
    ours, theirs = os.pipe()
    act = "os.write(int(os.environ['PMI_FD']), b'cmd=init')"
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", rank_proxy.__file__, server._address.path, "0"],
            env={"ACT": act, "PMI_RANK": "0", "PMI_FD": str(theirs), SECRET_VARIABLE: SECRET},
            pass_fds=[theirs],
            stdin=subprocess.DEVNULL,
        )
        assert process.wait(LIMIT) == 0
        assert os.read(ours, 100) == b"cmd=init"
    finally:
        os.close(ours)
        os.close(theirs)


def test_ranks_are_copies_and_children_of_the_server_in_groups_of_their_own(
    server: Server,
) -> None:
    act = "print(os.getppid(), os.getpid() == os.getpgid(0), os.getpid(), flush=True)"
    processes = [server.launch(act, rank=rank) for rank in range(3)]
    answers = [said(process)[1].split() for process in processes]
    assert {(parent, leads) for parent, leads, _ in answers} == {(str(server.process.pid), "True")}
    assert len({pid for _, _, pid in answers}) == 3
    assert sorted(server.hear()["rank"] for _ in range(3)) == [0, 1, 2]


def test_a_world_is_killed_with_all_its_ranks_and_what_they_have_started(server: Server) -> None:
    act = """
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""
    doomed = [server.launch(act, world=1, rank=rank) for rank in range(2)]
    other = server.launch("print('there', flush=True); time.sleep(600)", world=2)
    children = []
    for process in (*doomed, other):
        assert process.stdout is not None
        children.append(process.stdout.readline().strip())
    server.line.send({"kind": "kill", "world": 1})
    told = sorted((server.hear() for _ in range(2)), key=lambda header: header["rank"])
    assert told == [ended(-9, world=1, rank=rank, by_us=True) for rank in range(2)]
    for process in doomed:
        assert process.wait(LIMIT) == -signal.SIGKILL
    for child in children[:2]:
        wait_until_gone(int(child))
    assert other.poll() is None
    server.line.send({"kind": "kill", "world": 2})
    assert server.hear() == ended(-9, world=2, by_us=True)


def test_a_signal_reaches_the_one_rank_that_it_is_for(server: Server) -> None:
    act = """
signal.signal(signal.SIGUSR1, lambda *_: os._exit(77))
print('there', flush=True)
time.sleep(600)
"""
    processes = [server.launch(act, rank=rank) for rank in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
    order = {"kind": "signal", "world": 0, "rank": 1, "signal": int(signal.SIGUSR1)}
    server.line.send(order)
    assert server.hear() == ended(77, rank=1)
    assert processes[0].poll() is None
    server.line.send({**order, "rank": 5})
    server.line.send({**order, "rank": 0})
    assert server.hear() == ended(77, rank=0)


def test_a_rank_whose_launcher_is_gone_is_ended(server: Server) -> None:
    process = server.launch("print(os.getpid(), flush=True); time.sleep(600)")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    assert server.hear() == ended(-9, by_us=True)
    wait_until_gone(pid)


def test_no_rank_outlives_the_line_to_the_controller(server: Server) -> None:
    process = server.launch("print(os.getpid(), flush=True); time.sleep(600)")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    server.line.close()
    assert server.process.wait(LIMIT) == 0
    wait_until_gone(pid)
    assert said(process)[0] != 0


def test_no_rank_outlives_the_server_however_that_ends(server: Server) -> None:
    process = server.launch("print(os.getpid(), flush=True); time.sleep(600)")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    server.process.kill()
    server.process.wait(LIMIT)
    wait_until_gone(pid)
    assert said(process)[0] == 111


def test_told_to_end_the_server_ends(server: Server) -> None:
    server.line.send({"kind": "end"})
    assert server.process.wait(LIMIT) == 0


# Ranks that launchers start


def test_with_a_command_the_launcher_starts_it_and_says_how_it_ended(tmp_path: Path) -> None:
    code = "import os; print(os.environ['NEW'], flush=True); os._exit(int(os.environ['CODE']))"
    server = Server(tmp_path, [sys.executable, "-c", code])
    try:
        for rank, status in enumerate((0, 5)):
            process = server.launch(
                "", world=4, rank=rank, environment={"NEW": "given", "CODE": str(status)}
            )
            assert said(process) == (status, "given\n")
            assert server.hear() == ended(status, world=4, rank=rank)
    finally:
        server.close()


def test_with_a_command_a_world_can_be_killed(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    server = Server(tmp_path, [sys.executable, "-c", code])
    try:
        process = server.launch("", world=4)
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        server.line.send({"kind": "kill", "world": 4})
        assert server.hear() == ended(-9, world=4, by_us=True)
        assert process.wait(LIMIT) == -signal.SIGKILL
        wait_until_gone(pid)
    finally:
        server.close()


def test_with_a_command_a_rank_whose_launcher_is_gone_is_ended(tmp_path: Path) -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    server = Server(tmp_path, [sys.executable, "-c", code])
    try:
        process = server.launch("")
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        assert server.hear() == ended(None, by_us=True)
        wait_until_gone(pid)
    finally:
        server.close()


# Strangers at the fork_socket, and launchers that die


def test_who_does_not_know_the_secret_gets_no_rank(server: Server) -> None:
    process = server.launch("print('in')", secret="a guess")
    assert said(process) == (111, "")
    assert server.hear()["kind"] == "stranger"
    assert server.is_well()


def test_who_closes_at_once_or_talks_nonsense_does_no_harm(server: Server) -> None:
    for data in (b"", b"\0\0", b"\0\0\0\7abc", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1x"):
        with server.knock() as connection:
            connection.sendall(data)
    assert server.is_well()


def hand_over(server: Server, environment: bytes) -> socket.socket:
    """Be a launcher up to where it waits for an answer."""
    line = server.knock()
    body = b"0\0" + environment
    with Path(os.devnull).open("r+b", buffering=0) as nothing:
        number = nothing.fileno()
        socket.send_fds(line, [len(body).to_bytes(4, "big")], [number] * 3)
        line.sendall(body)
    return line


def test_a_launcher_that_dies_before_its_answer_harms_no_other_rank(
    server: Server,
) -> None:
    environment = f"{SECRET_VARIABLE}={SECRET}\0PMI_RANK=0\0ACT=time.sleep(600)"
    os.kill(server.process.pid, signal.SIGSTOP)
    hand_over(server, environment.encode()).close()
    os.kill(server.process.pid, signal.SIGCONT)
    assert server.hear() == ended(-9, by_us=True)
    assert server.is_well()


def test_a_launcher_that_no_mpiexec_has_started_gets_no_rank(server: Server) -> None:
    environment = f"{SECRET_VARIABLE}={SECRET}\0ACT=time.sleep(600)"
    with hand_over(server, environment.encode()) as line:
        line.settimeout(LIMIT)
        assert line.recv(4) == b""
    assert server.is_well()


def test_a_rank_and_its_launcher_may_end_at_the_same_moment(server: Server) -> None:
    process = server.launch("print(os.getpid(), flush=True); time.sleep(600)")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    os.kill(server.process.pid, signal.SIGSTOP)
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    process.kill()
    process.wait(LIMIT)
    os.kill(server.process.pid, signal.SIGCONT)
    header = server.hear()
    assert (header["kind"], header["status"]) == ("ended", -9)
    assert server.is_well()


def test_a_launcher_that_dies_before_its_command_starts_harms_no_other_rank(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path, [sys.executable, "-c", "import os; os._exit(42)"])
    try:
        with hand_over(server, f"{SECRET_VARIABLE}={SECRET}\0PMI_RANK=0".encode()) as line:
            line.settimeout(LIMIT)
            size = int.from_bytes(line.recv(4), "big")
            assert len(line.recv(size, socket.MSG_WAITALL)) == size
        assert server.is_well()
    finally:
        server.close()


# What is known without a server


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({b"PMI_RANK": b"3"}, 3),
        ({b"PMIX_RANK": b"2", b"PMI_RANK": b"3"}, 2),
        ({b"OMPI_COMM_WORLD_RANK": b"1", b"PMIX_RANK": b"2", b"PMI_RANK": b"3"}, 1),
    ],
)
def test_the_rank_is_read_from_what_each_mpiexec_says(
    environment: Mapping[bytes, bytes], rank: int
) -> None:
    assert rank_in(environment) == rank


def test_without_mpiexec_there_is_no_rank() -> None:
    with pytest.raises(ValueError, match="no mpiexec"):
        rank_in({b"PATH": b"/bin"})


def test_the_processes_below_this_one_are_found_whatever_their_names_are() -> None:
    code = """
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(15, b"a) Z (b", 0, 0, 0)
pid = os.fork()
if not pid:
    time.sleep(600)
dead = os.fork()
if not dead:
    os._exit(0)
os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)
print(pid, dead, flush=True)
time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None
        child, dead = map(int, process.stdout.readline().split())
        found, _ = leftovers("of no attempt")
        assert {process.pid, child} <= set(found)
        assert dead not in found
    finally:
        kill_group(process.pid)
        process.communicate(timeout=LIMIT)
    wait_until_gone(child)
    assert {process.pid, child}.isdisjoint(leftovers("of no attempt")[0])


def test_killing_a_process_that_is_gone_is_no_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    process.wait(LIMIT)
    kill_group(process.pid)
