# rankwise: ranks=2 timeout=2
"""Hangs: one rank waits for another that never comes."""

import time

from mpi4py import MPI

if MPI.COMM_WORLD.rank == 0:
    print("rank 0 waits", flush=True)
    MPI.COMM_WORLD.Barrier()
else:
    time.sleep(1000)
