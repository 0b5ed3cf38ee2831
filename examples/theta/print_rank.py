"""Say who we are; that is all that the sanity check wants to hear."""

import mpi4py
from mpi4py import MPI

comm = MPI.COMM_WORLD
print(f"rank {comm.rank} of {comm.size}, mpi4py {mpi4py.__version__}", flush=True)
total = comm.allreduce(1)
if total != comm.size:
    raise SystemExit(f"only {total} of {comm.size} ranks take part")
