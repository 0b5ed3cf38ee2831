# rankwise: ranks=4 timeout=60
"""Adds up the ranks. Runs by itself as well: python dummy_distributed_test.py"""

from mpi4py import MPI

comm = MPI.COMM_WORLD
total = comm.allreduce(comm.rank)
assert total == comm.size * (comm.size - 1) // 2
if comm.rank == 0:
    print(f"{comm.size} ranks have met")
