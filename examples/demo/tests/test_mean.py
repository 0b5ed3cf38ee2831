"""One rank of four is wrong on purpose, to show what the report says then."""

import rankwise


@rankwise.mark.parallel(4)
def test_mean(comm):
    mean = comm.allreduce(comm.rank) / comm.size
    if comm.rank == 2:
        mean += 1  # the deliberate mistake
    print(f"the mean is {mean}")
    assert mean == 1.5
