"""A sum over all ranks, on several numbers of ranks."""

import rankwise


def share(items, rank, size):
    """Return the items that one of `size` ranks works on."""
    return items[rank::size]


# One rank, no MPI: an unmarked test is an ordinary test and runs once.
def test_shares_cover_everything_once():
    shares = [share(range(10), rank, 4) for rank in range(4)]
    assert sorted(item for items in shares for item in items) == list(range(10))


# Four ranks share the work; `comm` is theirs alone.
@rankwise.mark.parallel(4)
def test_distributed_sum(comm):
    part = sum(share(range(1000), comm.rank, comm.size))
    assert comm.allreduce(part) == 499_500


# Three tests: one rank, two ranks, four ranks.
@rankwise.mark.parallel([1, 2, 4])
def test_sum_is_the_same_on_any_number_of_ranks(comm):
    part = sum(share(range(1000), comm.rank, comm.size))
    assert comm.allreduce(part) == 499_500
