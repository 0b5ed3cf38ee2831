# rankwise: ranks=2 timeout=60
"""Is wrong on one rank."""

from mpi4py import MPI

mean = MPI.COMM_WORLD.allreduce(1.0) / MPI.COMM_WORLD.size
assert mean == 1.0 + MPI.COMM_WORLD.rank, f"rank {MPI.COMM_WORLD.rank} has {mean}"
