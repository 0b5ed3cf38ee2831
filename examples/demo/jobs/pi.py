"""Estimate pi with all ranks: each adds up its share of an integral."""

import platform
import sys

from mpi4py import MPI

STEPS = 1_000_000

comm = MPI.COMM_WORLD
if "--broken" in sys.argv and comm.rank == 2:
    raise RuntimeError("the third rank is broken on purpose")
width = 1.0 / STEPS
own = sum(4.0 / (1.0 + (width * (step + 0.5)) ** 2) for step in range(comm.rank, STEPS, comm.size))
pi = comm.allreduce(own * width)
hosts = comm.gather(platform.node())
if hosts:
    print(f"pi is about {pi:.9f}, say {comm.size} ranks on {', '.join(sorted(set(hosts)))}")
