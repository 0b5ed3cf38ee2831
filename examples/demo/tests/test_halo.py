"""A halo exchange: every rank gets the cells of its neighbours that border on its own."""

import rankwise


def exchange_halo(comm, cells):
    """Put the neighbours' border cells around `cells`; the ranks form a ring."""
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    from_left = comm.sendrecv(cells[-1], dest=right, source=left)
    from_right = comm.sendrecv(cells[0], dest=left, source=right)
    return [from_left, *cells, from_right]


@rankwise.mark.parallel(3)
def test_halo_holds_the_cells_of_the_neighbours(comm):
    # Rank 0 has cells 0-3, rank 1 has 4-7, rank 2 has 8-11.
    first = 4 * comm.rank
    padded = exchange_halo(comm, list(range(first, first + 4)))
    assert padded[0] == (first - 1) % 12
    assert padded[-1] == (first + 4) % 12
