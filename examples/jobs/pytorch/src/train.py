"""Teach a small network to read noisy digits, on all processes of a torch job.

    python -m torch.distributed.run --nproc-per-node 4 train.py

Every process has the weights of rank 0 and digits of its own, and takes the mean of all gradients
in each step. DistributedDataParallel would do the same; written out, torch need not load its
compiler, which takes longer than the training. The job is known by MASTER_ADDR, MASTER_PORT, RANK
and WORLD_SIZE, as torchrun and rankwise set them; without them, the script is a job of one. Leaves
with 1 if the weights came apart, or if too few digits are read right.
"""

import os
import sys

# One thread a process: there may be more processes than cores. torch looks when it is loaded.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from torch import Tensor, distributed, nn

PICTURES = """
### .#. ### ### #.# ### ### ### ### ###
#.# .#. ..# ..# #.# #.. #.. ..# #.# #.#
#.# .#. ### ### ### ### ### ..# ### ###
#.# .#. #.. ..# ..# ..# #.# ..# #.# ..#
### .#. ### ### ..# ### ### ..# ### ###
"""
DIGITS = ["".join(rows) for rows in zip(*map(str.split, PICTURES.split("\n")[1:-1]), strict=True)]
DOTS = len(DIGITS[0])
DIGITS_PER_PROCESS = 200
STEPS = 60
RATE = 0.8
NEEDED = 0.8


def make_data(seed: int) -> tuple[Tensor, Tensor]:
    """Make noisy pictures of digits, and say which digits they are."""
    chance = torch.Generator().manual_seed(seed)
    clean = torch.tensor([[float(dot == "#") for dot in digit] for digit in DIGITS])
    answers = torch.randint(len(DIGITS), (DIGITS_PER_PROCESS,), generator=chance)
    noise = torch.randn(DIGITS_PER_PROCESS, DOTS, generator=chance)
    return clean[answers] + 0.2 * noise, answers


def mean_over_processes(value: Tensor) -> float:
    total = value.clone()
    distributed.all_reduce(total)
    return total.item() / distributed.get_world_size()


def accuracy(model: nn.Module, pictures: Tensor, answers: Tensor) -> float:
    """Return the share of the digits of all processes that is read right."""
    with torch.no_grad():
        right = (model(pictures).argmax(dim=1) == answers).float().mean()
    return mean_over_processes(right)


def distance(model: nn.Module) -> float:
    """Say how far apart the weights of the processes are."""
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    most, least = weights.clone(), weights.clone()
    distributed.all_reduce(most, distributed.ReduceOp.MAX)
    distributed.all_reduce(least, distributed.ReduceOp.MIN)
    return (most - least).max().item()


def learn(model: nn.Module, pictures: Tensor, answers: Tensor) -> None:
    """Take a step down the mean gradient of all processes."""
    model.zero_grad()
    nn.functional.cross_entropy(model(pictures), answers).backward()
    gradients = nn.utils.parameters_to_vector(one.grad for one in model.parameters())
    distributed.all_reduce(gradients)
    steps = RATE / distributed.get_world_size() * gradients
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    nn.utils.vector_to_parameters(weights - steps, model.parameters())


def train() -> bool:
    """Train on all processes, and say whether it went well."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(rank)  # different weights: those of rank 0 win
    network = nn.Sequential(nn.Linear(DOTS, 32), nn.ReLU(), nn.Linear(32, len(DIGITS)))
    for weights in network.parameters():
        distributed.broadcast(weights.data, src=0)
    pictures, answers = make_data(seed=rank)
    before = accuracy(network, pictures, answers)
    for _ in range(STEPS):
        learn(network, pictures, answers)
    after, apart = accuracy(network, pictures, answers), distance(network)

    if rank == 0:
        print(f"processes: {size}, read right before: {before:.0%}, after: {after:.0%}", flush=True)
        if apart > 0:
            print(f"the weights of the processes are {apart} apart", file=sys.stderr)
        if after < NEEDED:
            print(f"less than {NEEDED:.0%} are read right", file=sys.stderr)
    return apart == 0 and after >= NEEDED


def main() -> int:
    alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    if "RANK" not in os.environ:
        os.environ.update(alone)
    distributed.init_process_group("gloo")
    try:
        return int(not train())
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
