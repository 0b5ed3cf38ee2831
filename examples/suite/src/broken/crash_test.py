# rankwise: ranks=2 timeout=60
"""Crashes on one rank, as a kernel with a wrong pointer does."""

import os
import signal

from mpi4py import MPI

print(f"rank {MPI.COMM_WORLD.rank} is alive", flush=True)
if MPI.COMM_WORLD.rank == 1:
    os.kill(os.getpid(), signal.SIGSEGV)
MPI.COMM_WORLD.Barrier()
