"""Fit a line in eight dimensions on all ranks of an MPI job, each with data of its own.

    mpirun -np 4 python train.py

Every rank works out the gradient for its own data, the sum over all ranks is the step that all of
them take, and so all keep the same weights. Leaves with 1 if that did not happen, or if nothing
was learned.
"""

import os
import sys

# One thread a rank: there may be more ranks than cores. The libraries look when they are loaded.
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
from mpi4py import MPI
from numpy.typing import NDArray

FEATURES = 8
ROWS_PER_RANK = 64
STEPS = 60
RATE = 0.1

Numbers = NDArray[np.float64]

world = MPI.COMM_WORLD


def make_data() -> tuple[Numbers, Numbers]:
    """Make this rank's rows; the rule behind them is the same on every rank."""
    rule = np.random.default_rng(0).normal(size=FEATURES)
    chance = np.random.default_rng([1, world.rank])
    inputs = chance.normal(size=(ROWS_PER_RANK, FEATURES))
    return inputs, inputs @ rule + chance.normal(scale=0.1, size=ROWS_PER_RANK)


def over_ranks(values: Numbers, operation: MPI.Op) -> Numbers:
    """Combine the values of all ranks; every rank gets the result."""
    result = np.empty_like(values)
    world.Allreduce(values, result, operation)
    return result


def mean_over_ranks(values: Numbers) -> Numbers:
    return over_ranks(values, MPI.SUM) / world.size


def loss(weights: Numbers, inputs: Numbers, targets: Numbers) -> float:
    """Return the mean squared error over the data of all ranks."""
    mine = np.array([np.mean((inputs @ weights - targets) ** 2)])
    return float(mean_over_ranks(mine)[0])


def main() -> int:
    inputs, targets = make_data()
    weights = np.random.default_rng([2, world.rank]).normal(size=FEATURES)
    world.Bcast(weights)  # all begin with those of rank 0
    before = loss(weights, inputs, targets)
    for _ in range(STEPS):
        gradient = 2 * inputs.T @ (inputs @ weights - targets) / ROWS_PER_RANK
        weights -= RATE * mean_over_ranks(gradient)
    after = loss(weights, inputs, targets)

    apart = float(np.max(over_ranks(weights, MPI.MAX) - over_ranks(weights, MPI.MIN)))
    if world.rank == 0:
        print(f"ranks: {world.size}, loss before: {before:.4f}, after: {after:.4f}", flush=True)
        if apart > 1e-9:
            print(f"the weights of the ranks are {apart} apart", file=sys.stderr)
        if after > before / 10:
            print("nothing was learned", file=sys.stderr)
    return int(apart > 1e-9 or after > before / 10)


if __name__ == "__main__":
    sys.exit(main())
