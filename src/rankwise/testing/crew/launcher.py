"""Started by mpiexec in each rank's place: `python -I -S launcher.py DOOR`.

It hands its environment and descriptors to the process behind the door, which has everything
loaded already and makes the rank from a copy of itself; or it is told what to start instead. It
lives for as long as the rank does and ends as the rank ends, for it is this process that mpiexec
watches. It imports next to nothing: `socket` and `json` would take longer than all the rest.
"""

import _socket
import os
import sys

_GONE = 111


def main() -> int:
    door, world = sys.argv[1:3]
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    # Each node of a batch system has a door of its own, even where all are one machine.
    line.connect(door.replace("%n", os.environ.get("SLURMD_NODENAME", "")))
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
    size = int.from_bytes(read(line, 4), "big", signed=True)
    if size > 0:
        command = [part.decode() for part in read(line, size).split(b"\0")]
        process = os.spawnv(os.P_NOWAIT, command[0], command)
        line.sendall(process.to_bytes(4, "big"))
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        line.sendall(status.to_bytes(4, "big", signed=True))
    else:
        status = int.from_bytes(read(line, 4), "big", signed=True)
    return end_like(status)


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
