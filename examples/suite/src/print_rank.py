"""Says who it is."""

from mpi4py import MPI

comm = MPI.COMM_WORLD
print(f"rank {comm.rank} of {comm.size} on {MPI.Get_processor_name()}")
