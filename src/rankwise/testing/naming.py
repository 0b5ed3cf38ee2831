"""How ranks are named in what people read."""

from __future__ import annotations

from collections.abc import Iterable


def describe_ranks(ranks: Iterable[int], size: int) -> str:
    """Name ranks as people do: "rank 1 of 2", "ranks 0-2, 5 of 8", "all 4 ranks"."""
    numbers = sorted(ranks)
    if len(numbers) == size:
        return f"all {size} ranks" if size > 1 else "its rank"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank{'s' * (len(numbers) > 1)} {shown} of {size}"
