"""Started by mpiexec in each rank's place: `python -I -S rank_proxy.py SOCKET WORLD`.

It hands its environment and descriptors to the process that listens on the socket, which has
everything loaded already and makes the rank from a copy of itself; or it is told what to start
instead. It lives for as long as the rank does and ends as the rank ends, for it is this process
that mpiexec watches. It imports next to nothing: `socket` and `json` would take longer than all
the rest.
"""

import _socket
import os
import sys

_GONE = 111
# As in `wire`, which would take too long to import: the most bytes in the address of a socket.
_LONGEST_PATH = 107
_SIGKILL = 9
_PR_SET_PDEATHSIG = 1
_SECRET = b"RANKWISE_SECRET"


def main() -> int:
    fork_socket, world = sys.argv[1:3]
    # Each node of a batch system has a socket of its own, even where all are one machine. It is in
    # a folder of the run's; what the folders above it are called is the user's affair.
    place, mark, own = fork_socket.rpartition("/rankwise-")
    line = connect(place + mark + own.replace("%n", os.environ.get("SLURMD_NODENAME", "")))
    # Hydra takes a PMI_FD that closes before this process ends for a crash: it stays open here.
    descriptors = [0, 1, 2]
    if pmi := os.environ.get("PMI_FD"):
        descriptors.append(int(pmi))
    body = b"\0".join(
        (world.encode(), *(name + b"=" + value for name, value in os.environb.items()))
    )
    rights = b"".join(number.to_bytes(4, sys.byteorder) for number in descriptors)
    line.sendmsg([len(body).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    line.sendall(body)
    # A command to start, or 0: the server has made the rank itself.
    size = int.from_bytes(read(line, 4), "big", signed=True)
    if size > 0:
        command = [part.decode() for part in read(line, size).split(b"\0")]
        launcher = os.getpid()
        process = os.fork()
        if not process:
            become_rank(command, launcher)
        line.sendall(process.to_bytes(4, "big"))
        await_end(line, process)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        line.sendall(status.to_bytes(4, "big", signed=True))
    else:
        status = int.from_bytes(read(line, 4), "big", signed=True)
    return end_like(status)


def connect(fork_socket: str) -> _socket.socket:
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    if len(os.fsencode(fork_socket)) <= _LONGEST_PATH:
        line.connect(fork_socket)
        return line
    folder, name = os.path.split(fork_socket)
    number = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    line.connect(f"/proc/self/fd/{number}/{name}")
    os.close(number)
    return line


def become_rank(command: list[str], launcher: int) -> None:
    """Start a rank in this process, which ends with the launcher."""
    import ctypes

    # A group of its own can be ended with all that a test has started.
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(_GONE)
    environment = {name: value for name, value in os.environb.items() if name != _SECRET}
    os.execve(command[0], command, environment)


def await_end(line: _socket.socket, process: int) -> None:
    """Wait for the rank to end; if the server that asked for it is gone, end it."""
    import contextlib
    import select

    watch = select.poll()
    rank = os.pidfd_open(process)
    watch.register(rank, select.POLLIN)
    watch.register(line, select.POLLIN)
    if rank not in [number for number, _ in watch.poll()]:
        for kill in (os.killpg, os.kill):
            # It may have no group yet, or may just have ended.
            with contextlib.suppress(OSError):
                kill(process, _SIGKILL)
        os._exit(_GONE)


def read(line: _socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = line.recv(size - len(data))
        if not piece:
            os._exit(_GONE)
        data += piece
    return data


def end_like(status: int) -> int:
    if status < 0:
        # mpiexec is to see that a signal ended the rank.
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    os._exit(main())
